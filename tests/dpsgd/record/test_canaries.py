"""Canaries in real Opacus runs: what reaches the optimizer, what is recorded, what is restored and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

opacus = pytest.importorskip("opacus")
from opacus.utils.batch_memory_manager import BatchMemoryManager  # noqa: E402

import leakcore  # noqa: E402
from leakcore import dpsgd  # noqa: E402
from leakcore.numerics import step_log_ratio  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def private(model: nn.Module | None = None, data: Any = None, batch_size: int = 20, **settings: Any) -> Any:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2)) if model is None else model
    data = TensorDataset(torch.randn(80, 5), torch.arange(80) % 2) if data is None else data
    loading = {name: settings.pop(name) for name in ("num_workers", "persistent_workers") if name in settings}
    return opacus.PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=batch_size, **loading),
        **{"noise_multiplier": 1.0, "max_grad_norm": 0.5, **settings},
    )  # fmt: skip


def train(model: nn.Module, optimizer: Any, loader: Any, epochs: int = 1) -> None:
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


class Embedded(nn.Module):
    """Tied weights, a frozen layer, and several groups of parameters can be made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.out = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.frozen(self.words(x).mean(1))))


@pytest.mark.parametrize("physical", [None, 7])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_canaries_are_clipped_summed_and_scored(physical: int | None, reduction: str) -> None:
    """At almost no noise the release less the other rows is exactly the canaries in the batch, each of length C."""
    model, optimizer, loader = private(noise_multiplier=1e-4, loss_reduction=reduction)
    released = []

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(x), y, reduction=reduction)

    with leakcore.record(optimizer, canaries=leakcore.Canaries(20, seed=3), sampling=loader) as recorder:
        score, others = recorder._score, []

        def watched(of: Any) -> None:
            parts = [p.grad for p in recorder._parameters]
            unit = 20 if reduction == "mean" else 1
            released.append((recorder._coordinates.read(parts) * unit / 0.5, recorder._present.copy()))
            others.append(recorder._others.copy() / 0.5)
            score(of)

        recorder._score = watched
        if physical is None:
            for x, y in loader:
                optimizer.zero_grad()
                loss(x, y).backward()
                optimizer.step()
        else:
            with BatchMemoryManager(data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer) as parts:
                for x, y in parts:
                    assert len(x) <= physical
                    optimizer.zero_grad()
                    loss(x, y).backward()
                    optimizer.step()
    trace = recorder.trace()
    assert trace.steps == len(released) == 4
    total = np.zeros(len(trace.scores))
    for (release, present), other in zip(released, others, strict=True):
        np.testing.assert_allclose(release - other, present, atol=2e-3)
        total += step_log_ratio(release - other, np.ones(len(release)), 1e-4, 0.25)
    np.testing.assert_allclose(trace.scores[recorder._order], total)
    assert trace.times_seen[~trace.coins].sum() == 0
    counted = np.sum([present for _, present in released], axis=0)
    assert (trace.times_seen[np.flatnonzero(trace.coins)] == counted[: trace.coins.sum()]).all()
    assert 0 < trace.times_seen.sum() < 4 * trace.coins.sum()
    assert trace.interference > 0


def test_the_sampler_draws_canaries_at_its_rate() -> None:
    model, optimizer, loader = private()
    with leakcore.record(optimizer, canaries=leakcore.Canaries(60, seed=1), sampling=loader) as recorder:
        train(model, optimizer, loader, epochs=6)
    trace = recorder.trace()
    # The number of draws is Bin(24 steps × canaries, 1/4); p-value 1e-4.
    draws = 24 * int(trace.coins.sum())
    assert 1e-4 < stats.binom.cdf(trace.times_seen.sum(), draws, 0.25) < 1 - 1e-4
    # 24 steps of some hundred standard normals: relative deviation 0.01.
    assert trace.noise_ratio == pytest.approx(1, abs=0.05)
    assert min(trace.common_noise, trace.repeated_noise) > 1e-3


def test_loader_and_optimizer_are_restored_and_rows_have_their_own_gradients() -> None:
    model, optimizer, loader = private()
    data, hook = loader.dataset, optimizer.step_hook
    rows = []
    with leakcore.record(optimizer, canaries=20, sampling=loader) as recorder:
        assert len(loader.dataset) == 80
        assert loader.dataset.tensors is data.tensors
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            before = [p.grad_sample.clone() for p in optimizer.params]
            optimizer.step()
            assert all(torch.equal(p.grad_sample, b) for p, b in zip(optimizer.params, before, strict=True))
            rows.append(len(x))
    assert loader.dataset is data
    assert loader.batch_sampler.num_samples == 80
    assert optimizer.step_hook is hook
    assert "clip_and_accumulate" not in vars(optimizer)
    train(model, optimizer, loader)
    assert recorder.trace().steps == 4
    with pytest.raises(ValueError, match="a recorder serves one block"), recorder:
        pass


@pytest.mark.parametrize("candidates_first", [True, False])
def test_candidates_are_recorded_in_another_run(candidates_first: bool) -> None:
    model, optimizer, loader = private()
    members = torch.arange(80) < 40
    blocks = [
        lambda: leakcore.record(optimizer, candidates=loader.dataset.tensors, members=members),
        lambda: leakcore.record(optimizer, canaries=20, sampling=loader),
    ]
    first, second = blocks if candidates_first else blocks[::-1]
    with pytest.raises(ValueError, match="not be recorded with candidates in the same run"), first(), second():
        train(model, optimizer, loader)


def test_embeddings_frozen_layers_groups_and_collated_rows() -> None:
    torch.manual_seed(0)
    model = Embedded()
    data = [(torch.randint(12, (4,)), i % 2) for i in range(60)]
    groups = [{"params": model.words.parameters()}, {"params": model.out.parameters(), "lr": 0.05}]
    model, optimizer, loader = opacus.PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.Adam(groups, lr=0.1), noise_multiplier=1e-4, max_grad_norm=1.0,
        data_loader=DataLoader(data, batch_size=15),
    )  # fmt: skip
    with leakcore.record(optimizer, canaries=leakcore.Canaries(30, seed=2), sampling=loader) as recorder:
        train(model, optimizer, loader, epochs=2)
    trace = recorder.trace()
    assert trace.parameters == 12 * 6 + 6 * 2 + 2
    drawn = trace.times_seen > 0
    assert drawn[trace.coins].any()
    inside = trace.scores[: trace.canaries]
    assert inside[drawn].min() > 0 > inside[~drawn].max()


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_prepare_batches_ahead(persistent: bool) -> None:
    model, optimizer, loader = private(num_workers=1, persistent_workers=persistent, noise_multiplier=1e-4)
    with leakcore.record(optimizer, canaries=leakcore.Canaries(20, seed=2), sampling=loader) as recorder:
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if recorder.steps == 2:
                break
        train(model, optimizer, loader)
    trace = recorder.trace()
    drawn = trace.times_seen > 0
    assert trace.steps == 6
    assert trace.scores[: trace.canaries][drawn].min() > 0 > trace.scores[: trace.canaries][~drawn].max()


def test_a_file_holds_the_trace_and_is_not_replaced(tmp_path: Path) -> None:
    model, optimizer, loader = private()
    path = tmp_path / "canaries.npz"
    with leakcore.record(optimizer, canaries=20, sampling=loader, out=path) as recorder:
        train(model, optimizer, loader)
    trace = dpsgd.CanaryTrace.load(path)
    assert trace == recorder.trace()
    assert dpsgd.CanaryTrace.from_dict(trace.to_dict()) == trace
    assert "20, " in str(trace)
    assert "recording" in str(recorder)
    with pytest.raises(ValueError, match="`out` must not exist already"):
        leakcore.record(optimizer, canaries=leakcore.Canaries(), sampling=loader, out=path)
    with np.load(path) as arrays:
        stored = dict(arrays)
    for name, value, why in (
        ("scores", stored["scores"][:5], "do not fit together"),
        ("noise_multiplier", -stored["noise_multiplier"], "must be positive numbers"),
        ("coins", stored["times_seen"], "do not fit together"),
        ("scores", stored["scores"].astype(int), "`scores` must be floating numbers, without NaN"),
        ("times_seen", stored["times_seen"] * np.nan, "`times_seen` must be real numbers, without NaN"),
    ):
        np.savez(tmp_path / "bad.npz", **{**stored, name: value})
        with pytest.raises(ValueError, match=rf"bad\.npz: .*{why}: damaged"):
            dpsgd.CanaryTrace.load(tmp_path / "bad.npz")


def test_refusals() -> None:
    model, optimizer, loader = private()
    parameters = sum(p.numel() for p in model.parameters())
    with pytest.raises(
        ValueError, match=f"`canaries` must be at most {parameters}, because each canary needs a coordinate"
    ):
        leakcore.record(optimizer, canaries=leakcore.Canaries(), sampling=loader)
    with pytest.raises(TypeError, match="`sampling` must be the DataLoader that the loop iterates over, got list"):
        leakcore.record(optimizer, canaries=20, sampling=[])
    with pytest.raises(ValueError, match="`members` must be None with canaries, got list: record it in another run"):
        leakcore.record(optimizer, canaries=20, sampling=loader, members=[True])  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="`candidates` or `canaries` must be given, got None"):
        leakcore.record(optimizer)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="`canaries` must be at least 1, got 0"):
        leakcore.record(optimizer, canaries=0, sampling=loader)
    plain = DataLoader(loader.dataset, batch_size=10)
    with pytest.raises(ValueError, match=r"`sampling` must draw Poisson samples .*, got batches of BatchSampler"):
        leakcore.record(optimizer, canaries=20, sampling=plain)
    fused = dpsgd.FusedDPOptimizer.replace(optimizer)
    with pytest.raises(TypeError, match="got FusedDPOptimizer, which never has them: for the audit use make_private"):
        leakcore.record(fused, canaries=20, sampling=loader)
    with pytest.raises(TypeError, match="`optimizer` must be Opacus's DPOptimizer with flat clipping, got SGD"):
        leakcore.record(optimizer.original_optimizer, canaries=20, sampling=loader)
    per_layer = private(clipping="per_layer", max_grad_norm=[0.5] * 4)[1]
    with pytest.raises(TypeError, match="with flat clipping, got DPPerLayerOptimizer"):
        leakcore.record(per_layer, canaries=20, sampling=loader)
    ghost = private(grad_sample_mode="ghost", criterion=nn.CrossEntropyLoss())[1]
    with pytest.raises(TypeError, match="got DPOptimizerFastGradientClipping, which never has them"):
        leakcore.record(ghost, canaries=20, sampling=loader)
    silent, noiseless, loader = private(noise_multiplier=0.0)
    with (
        pytest.raises(ValueError, match="`optimizer` must have a positive noise_multiplier, got 0: no ε to audit"),
        leakcore.record(noiseless, canaries=20, sampling=loader),
    ):
        train(silent, noiseless, loader)


def test_a_loop_that_cuts_batches_is_refused_in_the_first_step(caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer, loader = private()
    with (
        pytest.raises(ValueError, match="the optimizer clips 1 rows, and `sampling` gave no such batch"),
        leakcore.record(optimizer, canaries=20, sampling=loader),
    ):
        train(model, optimizer, [(x[:1], y[:1]) for x, y in loader])
    assert loader.batch_sampler.num_samples == 80
    # Later the training goes on without the recording.
    with caplog.at_level(logging.ERROR), leakcore.record(optimizer, canaries=20, sampling=loader) as recorder:
        train(model, optimizer, loader)
        x, y = loader.dataset[0]
        train(model, optimizer, [(x[None], torch.tensor([y]))])
        train(model, optimizer, loader)
    assert "The training continues, and nothing more is recorded" in caplog.text
    with pytest.raises(ValueError, match="record: step 5: "):
        recorder.trace()
