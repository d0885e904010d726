"""What `leakage.by_layer` found in a model of the caller's, as a part of the report on a recorded run."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from leakcore import audit, leakage
from leakcore.audit.hyperparameters.layers import beyond, limits
from leakcore.audit.shared.page import Finding
from leakcore.dpsgd import Trace
from tests.audit.trace.traces import by_poisson


@pytest.fixture(scope="module")
def measures() -> leakage.LeakageByLayer:
    rng = np.random.default_rng(0)
    has = rng.integers(0, 2, 120)
    x = torch.from_numpy(rng.random((120, 1, 6, 6)) + 2.0 * has[:, None, None, None]).float()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ELU(), nn.Flatten(), nn.Linear(32, 6), nn.Tanh(), nn.Linear(6, 2))
    attributes = {"bright": has, "coin": rng.integers(0, 2, 120)}
    return leakage.by_layer(
        model,
        x,
        torch.zeros(120, dtype=torch.int64),
        measures=leakage.LayerMeasures(attributes=attributes, samples=3, permutations=3, iterations=5),
    )


def _trace() -> Trace:
    rng, n = np.random.default_rng(0), 12
    scores = rng.normal(size=n)
    pairs = rng.normal(size=(n, n))
    return Trace(
        noise_multiplier=np.full(5, 2.0), max_grad_norm=np.ones(5), batch_rows=np.full(5, 4), sample_rate=0.3,
        expected_batch_size=4.0, members=np.arange(n) < 6, members_given=True, times_seen=(np.arange(n) < 6) * 2,
        clipped_share=np.ones(n), membership_sum=scores, membership_likelihood=scores, pair_sum=pairs,
        pair_likelihood=pairs, sampling=by_poisson(0.3),
    )  # fmt: skip


def test_the_report_on_a_recorded_run_says_where_it_sits(measures: leakage.LeakageByLayer) -> None:
    report = audit.from_trace(_trace()).with_parts(audit.where_it_sits(measures))
    content = json.loads(report.to_json())
    assert content["layers"]["measures"]["layers"] == ["0", "3", "5"]
    assert any(text.startswith("Where the leak sits: ") for text in content["findings"])
    html, text = report.to_html(), report.to_text(110)
    assert "Where the leak sits, layer by layer" in html
    assert html.count("<svg") == 2
    assert "latent:" in text
    assert report.passed == audit.from_trace(_trace()).passed
    with pytest.raises(ValueError, match="`key` must differ from the report's parts and fields, got 'layers'"):
        report.with_parts(audit.where_it_sits(measures))


def test_the_finding_says_what_the_numbers_say(measures: leakage.LeakageByLayer) -> None:
    (finding,) = audit.where_it_sits(measures).findings
    assert isinstance(finding, Finding)
    assert "about bright layer" in finding
    assert "about coin no layer shows more" in finding
    assert finding.verdict.endswith("never asks for: bright.")
    assert "score" in finding
    bare = dataclasses.replace(measures, latent={}, original=None)
    (short,) = audit.where_it_sits(bare).findings
    assert isinstance(short, Finding)
    assert short.verdict == "No attribute was looked for."
    assert "score" not in short
    (hidden,) = audit.where_it_sits(dataclasses.replace(measures, latent={"coin": measures.latent["coin"]})).findings
    assert isinstance(hidden, Finding)
    assert "reads none of the attributes" in hidden.verdict


def test_only_whole_intervals_above_every_permutation_count(measures: leakage.LeakageByLayer) -> None:
    def of(low: list[float], null: Any) -> leakage.VInformation:
        limits = np.array(low), np.array(low) + 0.2
        table = np.array(null, dtype=float).reshape(-1, 3)
        mean = table.mean(axis=0) if len(table) else np.full(3, math.nan)
        value = np.array(low) + 0.1
        changed = {"held_out_interval": limits, "null": table, "null_mean": mean, "value": value}
        return dataclasses.replace(measures.latent["bright"], **changed)

    assert beyond(of([0.1, 0.3, 0.2], [[0.0, 0.0, 0.25]])) == [1, 0]
    assert beyond(of([-0.01, 0.0, 0.0], [[-0.1, -0.1, -0.1]])) == []
    unknown = of([0.1, -0.1, -0.1], [])
    assert beyond(unknown) == [0]
    assert "≤ —" in limits(unknown, 0)


def test_anything_else_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`measures` must be what leakage.by_layer returns, got dict"):
        audit.where_it_sits({})  # type: ignore[arg-type]
