"""Rows read from an imprint, compared with the true batch, which the attack never sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from leakcore import datasets
from leakcore.attacks import imprint


def _network(seed=0, dtype=torch.float32):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(dtype)


def _digits():
    digits = datasets.digits()
    order = np.random.default_rng(0).permutation(len(digits.labels))
    return (
        torch.from_numpy(digits.features[order].reshape(-1, 1, 8, 8)).float(),
        torch.from_numpy(digits.labels[order]).long(),
    )


def _planted(bins=256, model=None):
    x, _ = _digits()
    return imprint.plant(model or _network(), x[1000:], bins=bins)


def _gradients(planted, x, y, per_row=False):
    loss = functional.cross_entropy(planted(x), y)
    parts = torch.autograd.grad(loss, planted.parameters())
    return dict(zip(dict(planted.named_parameters()), parts, strict=True))


def _alone(planted, x):
    """Which rows are the only ones of their bin, by the true measurement."""
    place = torch.searchsorted(planted.thresholds.double(), x.double().flatten(1).mean(1))
    return np.array([int((place == p).sum()) == 1 for p in place])


def _true_rows(recovery, x):
    """For each recovered row the largest error to the nearest true row, and which it is."""
    gaps = np.abs(recovery.rows[:, None] - x.double().numpy()[None]).max(axis=(2, 3, 4))
    return gaps.min(axis=1), gaps.argmin(axis=1)


@pytest.mark.parametrize("batch", [1, 2, 8, 32, 64])
def test_rows_alone_in_a_bin(batch):
    planted = _planted()
    x, y = (part[:batch] for part in _digits())
    recovery = imprint.read(planted, _gradients(planted, x, y), batch_size=batch)
    errors, place = _true_rows(recovery, x)
    assert (errors <= recovery.errors + 1e-6).all()
    assert (errors < 0.01).all()
    alone = _alone(planted, x)
    assert len(set(place)) == len(place)
    assert alone[place].all()
    # Rounding hides at most a tenth of those that are alone.
    assert len(place) >= 0.9 * alone.sum()
    assert recovery.value == len(place) / batch
    assert recovery.occupied >= len(place)


def test_float64():
    model = _network(dtype=torch.float64)
    planted = _planted(model=model)
    x, y = (part[:48] for part in _digits())
    recovery = imprint.read(planted, _gradients(planted, x.double(), y), batch_size=48, accuracy=1e-6)
    errors, place = _true_rows(recovery, x)
    assert set(place) == set(_alone(planted, x).nonzero()[0])
    assert (errors < 1e-6).all()


def test_mixed_rows_of_a_bin():
    """All of a linear model's rows have parallel gradients: only the gate tells them apart."""
    x, _ = _digits()
    order = x.flatten(1).mean(1).argsort()
    near = x[order[900:904]]
    for model in (_network(), nn.Sequential(nn.Flatten(), nn.Linear(64, 2))):
        planted = imprint.plant(model, x[1000:], bins=4)
        assert not _alone(planted, near).any()
        recovery = imprint.read(planted, _gradients(planted, near, torch.tensor([0, 1, 1, 0])), batch_size=4)
        assert recovery.value == 0
        assert recovery.mixed == recovery.occupied > 0


def test_clipping_by_row():
    planted = _planted()
    x, y = (part[:16] for part in _digits())
    rows = [_gradients(planted, x[i : i + 1], y[i : i + 1]) for i in range(16)]
    total = {name: torch.zeros_like(part) for name, part in rows[0].items()}
    for parts in rows:
        norm = torch.cat([part.flatten() for part in parts.values()]).norm()
        for name, part in parts.items():
            total[name] += part * min(1.0, 0.1 / float(norm))
    recovery = imprint.read(planted, total, batch_size=16)
    plain = imprint.read(planted, _gradients(planted, x, y), batch_size=16)
    assert recovery.bins.tolist() == plain.bins.tolist()
    assert (_true_rows(recovery, x)[0] < 0.01).all()


def test_noise():
    planted = _planted()
    x, y = (part[:8] for part in _digits())
    exact = _gradients(planted, x, y)
    generator = torch.Generator().manual_seed(0)
    shares = []
    for std in (1e-9, 1e-6, 1e-3):
        noisy = {n: p + std * torch.randn(p.shape, generator=generator) for n, p in exact.items()}
        recovery = imprint.read(planted, noisy, batch_size=8, noise_std=std)
        shares.append(recovery.value)
        assert (_true_rows(recovery, x)[0] <= recovery.errors).all() if len(recovery.rows) else True
    assert shares[0] > 0.7
    assert shares[-1] == 0


def test_equal_rows():
    planted = _planted()
    x, y = (part[[3, 3]] for part in _digits())
    recovery = imprint.read(planted, _gradients(planted, x, y), batch_size=2)
    assert len(recovery.rows) == 1
    assert _true_rows(recovery, x)[0][0] < 0.01


def test_zero_gradient():
    planted = _planted(bins=8)
    zero = {name: torch.zeros_like(p) for name, p in planted.named_parameters()}
    recovery = imprint.read(planted, zero, batch_size=3)
    assert recovery.value == recovery.occupied == 0
    assert recovery.rows.shape == (0, 1, 8, 8)


def test_refusals():
    x, y = _digits()
    planted = _planted(bins=8)
    released = _gradients(planted, x[:2], y[:2])
    for call, words in (
        (lambda: imprint.plant(_network(), x[:1], bins=4), "samples"),
        (lambda: imprint.plant(_network(), torch.ones(5, 4), bins=4), "different means"),
        (lambda: imprint.plant(_network(), x, bins=1), "bins"),
        (lambda: imprint.plant(_network(), x, bins=4, scale=0.0), "scale"),
        (lambda: imprint.read(planted, released, batch_size=0), "batch_size"),
        (lambda: imprint.read(planted, released, batch_size=2, accuracy=0.0), "accuracy"),
        (lambda: imprint.read(planted, released, batch_size=2, noise_std=-1.0), "noise_std"),
        (lambda: imprint.read(planted, {"first.bias": released["first.bias"]}, batch_size=2), "lacks first.weight"),
        (lambda: imprint.Imprint(_network(), (64,), [1.0, 0.5], (0.0, 1.0), 1.0), "rising"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(TypeError, match="planted"):
        imprint.read(_network(), released, batch_size=2)
    with pytest.raises(TypeError, match="model"):
        imprint.plant(nn.ReLU(), x, bins=4)
