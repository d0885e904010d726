"""Original V-information: inversion pair by pair, SSIM as its oracle says, the null of other inputs, LeNet."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from leakcore import datasets, leakage, models
from leakcore.attacks.inversion.result import ssim

DATA = Path(os.environ.get("LEAKCORE_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))


def _direct(a, b, size=11):
    """SSIM of one channel by loops."""
    steps = np.arange(size) - size // 2
    w = np.exp(-(steps**2) / 4.5)
    w = np.outer(w, w) / w.sum() ** 2
    out = []
    for i in range(a.shape[0] - size + 1):
        for j in range(a.shape[1] - size + 1):
            p, q = a[i : i + size, j : j + size], b[i : i + size, j : j + size]
            mp, mq = (w * p).sum(), (w * q).sum()
            vp, vq, c = (w * (p - mp) ** 2).sum(), (w * (q - mq) ** 2).sum(), (w * (p - mp) * (q - mq)).sum()
            out.append((2 * mp * mq + 1e-4) * (2 * c + 9e-4) / ((mp**2 + mq**2 + 1e-4) * (vp + vq + 9e-4)))
    return float(np.mean(out))


def test_ssim():
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 1, 1, 14, 13))
    result = ssim(torch.from_numpy(a), torch.from_numpy(b), 1.0)
    assert float(result) == pytest.approx(_direct(a[0, 0], b[0, 0]), rel=1e-9)
    assert float(ssim(torch.from_numpy(a), torch.from_numpy(a), 1.0)) == pytest.approx(1)
    small = rng.random((2, 1, 1, 6, 8))
    assert float(ssim(*map(torch.from_numpy, small), 1.0)) == pytest.approx(_direct(*small[:, 0, 0], size=5), rel=1e-9)
    x, y = rng.random((2, 3, 20))
    flat = ssim(torch.from_numpy(x), torch.from_numpy(y), 1.0)
    cov = ((x - x.mean(1, keepdims=True)) * (y - y.mean(1, keepdims=True))).mean(1)
    wanted = (2 * x.mean(1) * y.mean(1) + 1e-4) * (2 * cov + 9e-4)
    wanted /= (x.mean(1) ** 2 + y.mean(1) ** 2 + 1e-4) * (x.var(1) + y.var(1) + 9e-4)
    np.testing.assert_allclose(flat.numpy(), wanted, rtol=1e-9)


def test_first_and_last_layer():
    # dW = r·xᵀ: the first layer's gradient is the input up to scale, so inversion finds it; the last sees 3 numbers.
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(36, 12), nn.Sigmoid(), nn.Linear(12, 4), nn.Sigmoid(), nn.Linear(4, 2)
    )
    x, y = torch.rand(4, 1, 6, 6), torch.tensor([0, 1, 1, 0])
    calls = []
    measured = leakage.v_information_original(
        model, x, y, inversion=leakage.PairInversion(iterations=250), progress=lambda *a: calls.append(a)
    )
    assert measured.pairs == (("1", "3"), ("3", "5"))
    assert (measured.similarity[:, 0] > 0.9).all()
    assert measured.falls == 1.0
    assert measured.value[0] > 0.97 * 2 * math.pi**2 > measured.value[1]
    np.testing.assert_allclose(measured.each, 2 * math.pi**2 * (1 - (1 - measured.similarity) ** 2), rtol=1e-9)
    np.testing.assert_allclose(measured.raw, measured.each.mean(0))
    assert measured.null[0] < 0.5 * measured.raw[0]
    assert measured.above_null[0] > measured.above_null[1]
    assert measured.interval[0][0] <= measured.raw[0] <= measured.interval[1][0]
    assert measured.reconstructions.shape == (2, 4, 1, 6, 6)
    assert calls == [(1, 2), (2, 2)]


def test_noise_on_the_release():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Sigmoid(), nn.Linear(6, 2))
    x, y = torch.rand(3, 1, 4, 4), torch.tensor([0, 1, 1])
    noise = torch.Generator().manual_seed(0)

    def noisy(gradient, pair):
        assert pair == 0
        return gradient + 10 * torch.randn(gradient.shape, generator=noise)

    clear = leakage.v_information_original(model, x, y, inversion=leakage.PairInversion(iterations=100))
    hidden = leakage.v_information_original(
        model, x, y, inversion=leakage.PairInversion(released=noisy, iterations=100)
    )
    assert hidden.raw[0] < 0.5 * clear.raw[0]
    assert hidden.value[0] >= 0
    alone = leakage.v_information_original(
        model, x[:1], y[:1], inversion=leakage.PairInversion(pairs=["1"], iterations=2, high=2.0)
    )
    assert np.isnan(alone.null).all()
    assert math.isnan(alone.falls)


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 1]])
def test_one_output(labels):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    x, y = torch.rand(3, 6).double(), torch.tensor(labels)

    def logit(outputs, targets):
        return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], targets.to(outputs.dtype))

    measured = leakage.v_information_original(model, x, y, inversion=leakage.PairInversion(iterations=100))
    wanted = leakage.v_information_original(model, x, y, loss=logit, inversion=leakage.PairInversion(iterations=100))
    np.testing.assert_allclose(measured.each, wanted.each, rtol=1e-9)
    assert measured.raw[0] > 0.99 * 2 * math.pi**2


@pytest.mark.skipif(not (DATA / "cifar100").is_dir(), reason="no folder of data sets")
def test_lenet_by_layer():
    # The paper's finding, on at least 80% of images, without any prior on images.
    data = datasets.cifar100("train", part="subset", labels="coarse", path=DATA)
    x, y = torch.from_numpy(data.images()[::200].copy()), torch.from_numpy(data.labels[::200].copy())
    torch.manual_seed(0)
    measured = leakage.v_information_original(
        models.lenet(20),
        x,
        y,
        inversion=leakage.PairInversion(pairs=[("0", "3"), ("9", "11")], iterations=60, low=0.0, high=1.0),
    )
    assert measured.falls >= 0.8


def test_bad_input():
    model, x, y = nn.Linear(4, 2), torch.rand(2, 4), torch.tensor([0, 1])
    for keywords, message in (
        ({"pairs": [("a",)]}, "`pairs` must be 'Linear', got 'a'"),
        ({"pairs": []}, "must name at least one layer"),
        ({"iterations": 0}, "`iterations` must be at least 1, got 0"),
        ({"total_variation": 1.0}, "`total_variation` must be 0 for inputs that are not images"),
        ({"low": 1.0, "high": 0.0}, "`low` must be below `high`"),
        ({"released": lambda g, k: g[:1]}, "`released` must return a tensor"),
    ):
        with pytest.raises(ValueError, match=message):
            leakage.v_information_original(model, x, y, inversion=leakage.PairInversion(**keywords))
