"""Where the leak sits: in a model of the caller's, and in the audited one."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from leakcore import audit, leakage
from leakcore._base.run_folder import PartialResults
from leakcore.audit.hyperparameters import layers
from leakcore.audit.hyperparameters.layer_and_defense_parts import beyond, layers_finding, layers_table, limits
from leakcore.dpsgd import Trace
from tests.audit.samples import by_poisson


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


NOWHERE = PartialResults(None, "")
SMALL: dict[str, Any] = {"num_rows": 200, "steps": 20}


@pytest.fixture(scope="module")
def study() -> layers.LayerStudy:
    return layers.study(audit.AuditConfig(**SMALL), 2.0, NOWHERE, lambda *_: None)


def test_each_layer_stands_next_to_its_null(study: layers.LayerStudy) -> None:
    assert [study.name(i) for i in range(2)] == ["layer 1 (64→10)", "layer 2 (10→10)"]
    assert study.measures.parameters == (650, 110)
    assert not study.measures.sensitivity.probes
    for measured in (study.measures.latent[layers.ATTRIBUTE], study.released):
        assert measured.null.shape == (3, 2)
        assert measured.set_sizes[0] == measured.set_sizes[1] == 60
        assert (np.asarray(measured.value) < measured.largest).all()
    lines = layers_table(study).to_text(110).splitlines()
    assert max(map(len, lines)) <= 110
    assert sum("(≤ " in line for line in lines) == 2


@pytest.mark.full
def test_less_noise_leaves_more(study: layers.LayerStudy, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without noise the release is the clipped gradient; the noise of σ = 2 on a norm of at most C hides it.
    monkeypatch.setattr(layers, "_ROWS", 240)  # of 120 rows one that is surely wrong could undo the gain
    clear = layers.study(audit.AuditConfig(**SMALL), 1e-6, NOWHERE, lambda *_: None)
    assert np.max(clear.released.value) > 0.05 > np.max(study.released.value)
    assert "still shows" in layers_finding(clear)


def test_what_is_released_is_clipped_jointly() -> None:
    plain = {"a": np.array([[3.0, 0.0], [0.03, 0.0]]), "b": np.array([[4.0], [0.04]])}
    result = layers._released(plain, 0.1, 0.0, 0)
    np.testing.assert_allclose(result["a"], [[0.06, 0], [0.03, 0]])
    np.testing.assert_allclose(result["b"], [[0.08], [0.04]])
    noisy = layers._released({"a": np.zeros((400, 300))}, 0.1, 5.0, 0)
    assert noisy["a"].std() == pytest.approx(0.5, rel=0.02)
    far = layers._released({"a": np.zeros((1, 2))}, 1e9, 0.0, 0)  # without a warning
    assert not far["a"].any()


def test_the_finding_says_what_the_numbers_say(study: layers.LayerStudy) -> None:
    def told(plain: float, after: float) -> Any:
        def p(measured: Any, value: float) -> Any:
            limits = np.array([value, -1.0]), np.array([0.5, 1.0])
            return dataclasses.replace(measured, held_out_interval=limits, value=np.array([0.4, 0.0]))

        latent = {layers.ATTRIBUTE: p(study.measures.latent[layers.ATTRIBUTE], plain)}
        measures = dataclasses.replace(study.measures, latent=latent)
        return layers_finding(dataclasses.replace(study, measures=measures, released=p(study.released, after)))

    before, left = ("shows most, 0.400", "no layer shows any"), ("still shows 0.400", "none does")
    for plain, after in itertools.product((0, 1), repeat=2):
        measured = told((0.3, -0.1)[plain], (0.3, -0.1)[after])
        assert before[plain] in measured
        assert left[after] in measured
        verdict = "more noise hides more" if not after else ("does not read it" if not plain else "Nothing to conclude")
        assert verdict in measured.verdict
        lead, _, body = measured.partition(": ")
        assert lead == "Where the leak sits"
        assert "no guarantee" in body


@pytest.mark.slow
def test_it_is_in_the_report_interrupted_or_not(tmp_path: Path) -> None:
    config = audit.AuditConfig(**SMALL, runs=8, sweep=(), label_trials=2)
    report = audit.run(config)
    content = json.loads(report.to_json())
    assert content["layers"]["measures"]["layers"] == ["0", "2"]
    assert content["layers"]["released"]["kind"] == "estimate"
    for output in (report.to_html(), report.to_text()):
        assert "Where the leak sits" in output
        assert "layer 2 (10→10)" in output

    def interrupt(task: str, done: int, total: int) -> None:
        if task == "where it sits, after noise" and done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit.run(config, folder=tmp_path, progress=interrupt)
    tasks: set[str] = set()
    resumed = audit.run(config, folder=tmp_path, progress=lambda task, done, total: tasks.add(task))
    assert any(task.startswith("where it sits") for task in tasks)
    assert not any(task.startswith("labels") for task in tasks), "the label study was finished"
    again = json.loads(resumed.to_json())
    for one in (content, again):
        del one["seconds"]
    assert again == content


def test_a_finished_study_is_kept_to_the_bit(study: layers.LayerStudy, tmp_path: Path) -> None:
    config = audit.AuditConfig(**SMALL)
    for name in ("first", "again"):
        calls: list[str] = []
        pieces = PartialResults(tmp_path, "audit")
        stored = layers.study(config, 2.0, pieces, lambda task, *_, calls=calls: calls.append(task))
        assert bool(calls) == (name == "first")
        assert stored.content() == study.content()


_SCRIPT = """
import json
from leakcore import audit
from leakcore._base.run_folder import PartialResults
from leakcore.audit.hyperparameters import layers as _layers
_layers._ROWS, _layers._PERMUTATIONS = 120, 3
config = audit.AuditConfig(num_rows=200, steps=20)
print(json.dumps(_layers.study(config, 2.0, PartialResults(None, ""), lambda *_: None).content()))
"""


@pytest.mark.slow
def test_no_number_depends_on_the_number_of_threads(study: layers.LayerStudy) -> None:
    expected = json.loads(json.dumps(study.content()))
    env = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "3")}
    done = subprocess.run([sys.executable, "-c", _SCRIPT], env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == expected


@pytest.mark.full
def test_a_deeper_model() -> None:
    result = layers.study(audit.AuditConfig(**SMALL, hidden=(12, 8)), 2.0, NOWHERE, lambda *_: None)
    assert [result.name(i) for i in range(3)] == ["layer 1 (64→12)", "layer 2 (12→8)", "layer 3 (8→10)"]
    assert len(layers_table(result).rows) == 3
    assert layers_finding(result)
