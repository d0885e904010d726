"""Batches of one size are told from Poisson samples, and Poisson samples are not taken for them."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import torch
from torch import nn

import leakcore
from leakcore.cli.audit import trace as _trace
from leakcore.dpsgd import Trace

pytest.importorskip("opacus")
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager

from tests.dpsgd.opacus_remarks import IGNORED
from tests.dpsgd.record.recorded_runs import candidates, data, loop, recorded

pytestmark = IGNORED


def _sized(rows: list[int], q: float | None = 0.2, expected: float | None = 8.0) -> Trace:
    return dataclasses.replace(
        _recorded_once(), batch_rows=np.array(rows), sample_rate=q, expected_batch_size=expected,
        noise_multiplier=np.ones(len(rows)), max_grad_norm=np.ones(len(rows)),
    )  # fmt: skip


@functools.cache
def _recorded_once() -> Trace:
    return recorded(nn.CrossEntropyLoss())


@pytest.mark.parametrize("epochs", [2, 4])
@pytest.mark.parametrize(("poisson", "rows"), [(True, 40), (False, 40), (False, 37)])
def test_shuffled_batches_are_told_from_poisson_samples(poisson: bool, rows: int, epochs: int) -> None:
    """With 37 rows each epoch's last batch is short. 10 steps are enough for 40 rows: 0.156^9 = 5e-8."""
    torch.manual_seed(0)
    x, y = (t[:rows] for t in data())
    plain = nn.Linear(5, 3)
    module, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
        module=plain, optimizer=torch.optim.SGD(plain.parameters(), lr=0.5), poisson_sampling=poisson,
        data_loader=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8, shuffle=True),
        noise_multiplier=1.5, max_grad_norm=0.4,
    )  # fmt: skip
    with (
        leakcore.record(optimizer, candidates=candidates()) as recorder,
        BatchMemoryManager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as parts,
    ):
        loop(module, optimizer, parts, nn.CrossEntropyLoss(), epochs)
    said = recorder.trace().not_poisson
    if poisson:
        assert said == ""
    elif rows == 40:
        assert said.startswith(f"all {5 * epochs} batches have 8 rows, as Poisson sampling at q = 0.2 would")
    else:
        assert said.startswith("16 of 20 batches have 8 rows") == (epochs == 4)


def test_nothing_is_said_of_batches_that_poisson_sampling_may_give() -> None:
    assert _sized([8] * 10).not_poisson
    assert not _sized([8] * 5).not_poisson
    assert not _sized([8] * 10, q=1.0).not_poisson
    assert not _sized([8] * 10, q=None).not_poisson
    assert not _sized([8] * 10, q=0.0).not_poisson
    assert not _sized([8] * 10, expected=None).not_poisson
    assert not _sized([0] * 10).not_poisson  # inputs other than tensors are not counted
    assert not _sized([1] * 1000, q=1 - 1e-9, expected=1.0).not_poisson
    assert not _sized([8] * 10, q=5e-324, expected=2.0**53 - 1).not_poisson
    assert _sized([8] * 9 + [5, 8, 8]).not_poisson.startswith("11 of 12 batches")


@pytest.mark.parametrize(("rows", "q", "steps"), [(40, 0.2, 12), (3, 0.3, 60), (10_000, 1e-3, 15)])
def test_the_probability_is_no_less_than_poisson_sampling_has(
    rows: int, q: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 20% in place of 1e-6, over 2,000 runs: no more than 20% are refused."""
    monkeypatch.setattr(_trace, "_CHANCE", 0.2)
    rng = np.random.default_rng(0)
    drawn = rng.binomial(rows, q, size=(2000, steps))
    said = [_sized(list(run), q, rows * q).not_poisson != "" for run in drawn]
    assert np.mean(said) < 0.2 + 3 * np.sqrt(0.16 / 2000)
