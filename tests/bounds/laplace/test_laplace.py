"""The Laplace mechanism: its noise, the sensitivities it rests on, what several add up to, and an audit of it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from leakcore import bounds
from leakcore.bounds import laplace


def test_noise_law() -> None:
    """Kolmogorov–Smirnov at p = 1e-4 each, on 20 seeds; and the far tail, where a coarse uniform would show."""
    draws = [laplace.mechanism(np.zeros(50_000), scale=2.0, seed=seed) / 2.0 for seed in range(20)]
    assert min(stats.kstest(d, stats.laplace.cdf).pvalue for d in draws) > 1e-4 / 20
    one = np.concatenate(draws)
    for t in (1.0, 5.0, 10.0):
        hits, expected = int((np.abs(one) > t).sum()), laplace.tail(t, scale=1.0).value
        assert stats.binomtest(hits, one.size, expected).pvalue > 1e-3, t
    assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 5 / math.sqrt(one.size)


def test_noise_of_entries() -> None:
    flat = laplace.mechanism(np.zeros(12), scale=1.0, seed=3, step=2)
    assert np.array_equal(laplace.mechanism(np.zeros((3, 4)), scale=1.0, seed=3, step=2).ravel(), flat)
    assert np.array_equal(laplace.mechanism(np.zeros(5), scale=1.0, seed=3, step=2), flat[:5])
    for other in ({"seed": 4, "step": 2}, {"seed": 3, "step": 1}):
        assert not np.isin(laplace.mechanism(np.zeros(12), scale=1.0, **other), flat).any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_torch_noise(dtype: torch.dtype) -> None:
    x = torch.linspace(-1, 1, 24, dtype=dtype).reshape(4, 6)[:, ::2]
    noisy = laplace.mechanism(x, scale=0.5, seed=1)
    exact = laplace.mechanism(x.double().numpy(), scale=0.5, seed=1)
    assert noisy.dtype == dtype
    torch.testing.assert_close(noisy, torch.from_numpy(exact).to(dtype))


def test_kinds_of_input() -> None:
    assert isinstance(laplace.mechanism(3, scale=1.0, seed=0), float)
    assert laplace.mechanism(np.array([3, 4]), scale=1.0, seed=0).dtype == np.float64
    assert laplace.mechanism(np.zeros(2, np.float32), scale=1.0, seed=0).dtype == np.float32
    assert laplace.mechanism(np.zeros((0, 3)), scale=1.0, seed=0).shape == (0, 3)
    assert laplace.mechanism(np.array([3.0, 4.0]), scale=0.0, seed=0).tolist() == [3.0, 4.0]
    first, second = (laplace.mechanism(np.zeros(1000), scale=1.0, secure=True) for _ in range(2))
    assert not np.isin(first, second).any()
    assert stats.kstest(first, stats.laplace.cdf).pvalue > 1e-6


def test_epsilon_or_scale() -> None:
    query = laplace.histogram_sensitivity(5)
    assert laplace.histogram_sensitivity(5, adjacency="replace").value == 2 * query.value == 2.0
    first = laplace.mechanism(np.arange(5), sensitivity=query, epsilon=0.5, seed=1)
    assert np.array_equal(first, laplace.mechanism(np.arange(5), scale=2.0, seed=1))
    result = laplace.noise_scale(query, 0.5)
    assert (result.value, result.variance, result.kind, result.adjacency) == (2.0, 8.0, "upper", "add-remove")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": 1.0}, "`seed` must be given"),
        ({"scale": -1.0, "seed": 0}, r"`scale` must be at least 0, got -1.0"),
        ({"sensitivity": 1.0, "seed": 0}, "give `sensitivity` and `epsilon`, or `scale`"),
        ({"sensitivity": 1.0, "epsilon": 1.0, "scale": 1.0, "seed": 0}, "give `sensitivity` and `epsilon`, or `scale`"),
        ({"sensitivity": 1.0, "epsilon": 0.0, "seed": 0}, r"`epsilon` must be above 0, got 0.0"),
        ({"sensitivity": -2.0, "epsilon": 1.0, "seed": 0}, r"`sensitivity` must be at least 0, got -2.0"),
        ({"scale": 1.0, "seed": 1, "secure": True}, "secure=True"),
        ({"values": np.array([1.0, np.nan]), "scale": 1.0, "seed": 0}, r"`values\[1\]` must be finite, got nan"),
        ({"values": torch.tensor([np.inf]), "scale": 1.0, "seed": 0}, "`values` must be finite"),
        (
            {"values": torch.ones(2, requires_grad=True), "scale": 1.0, "seed": 0},
            r"`values` must not require grad: pass values.detach\(\)",
        ),
    ],
)
def test_bad_input(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        laplace.mechanism(**{"values": np.zeros(3), **arguments})


def test_bad_types() -> None:
    for values in (np.array([True]), np.array(["a"]), torch.tensor([1]), np.ma.masked_array([1.0])):
        with pytest.raises(TypeError, match="values"):
            laplace.mechanism(values, scale=1.0, seed=0)


def test_measured_sensitivity() -> None:
    measured = bounds.epsilon_lower_bound(90, 10, 100, adjacency="replace")
    with pytest.raises(ValueError, match="kind 'lower'"):
        laplace.noise_scale(measured, 1.0)


GRID = [np.array(x) for x in itertools.product((-1.0, 0.5, 2.0), (0.0, 3.0))]
"""Rows with all corners of the box [−1, 2] × [0, 3]."""


def _worst(query: Any, rows: list[Any], size: int, adjacency: str) -> float:
    """By enumeration of all datasets of `size` rows (and size + 1 under add-remove) and all their neighbours."""
    worst = 0.0
    for data in itertools.product(rows, repeat=size):
        for row in rows:
            other = (row, *data[1:]) if adjacency == "replace" else (*data, row)
            worst = max(worst, float(np.abs(query(data) - query(other)).sum()))
    return worst


@pytest.mark.parametrize("adjacency", ["replace", "add-remove"])
def test_sensitivities_by_enumeration(adjacency: str) -> None:
    low, high = np.array([-1.0, 0.0]), np.array([2.0, 3.0])
    cases = [
        (laplace.sum_sensitivity(low, high, adjacency=adjacency), lambda d: np.sum(d, axis=0), GRID),
        (laplace.mean_sensitivity(low, high, 3, adjacency=adjacency), lambda d: np.mean(d, axis=0), GRID),
        (
            laplace.sum_sensitivity(l1_norm=2.0, adjacency=adjacency),
            lambda d: np.sum(d, axis=0),
            [np.array(x) for x in ((2.0, 0.0), (-2.0, 0.0), (0.0, 2.0), (1.0, 1.0), (0.0, 0.0))],
        ),
        (
            laplace.count_sensitivity(2, adjacency=adjacency),
            lambda d: np.array([sum(x > 0 for x in d), sum(x > 1 for x in d)]),
            [0, 1, 2],
        ),
        (
            laplace.histogram_sensitivity(3, adjacency=adjacency),
            lambda d: np.bincount(np.array(d, int), minlength=4)[:3],
            [0, 1, 2, 3],
        ),
        (
            laplace.histogram_sensitivity(3, bins_per_row=2, adjacency=adjacency),
            lambda d: np.sum([[c >> k & 1 for k in range(3)] for c in d], axis=0),
            [c for c in range(8) if bin(c).count("1") <= 2],
        ),
    ]
    for claimed, query, rows in cases:
        assert _worst(query, rows, 3, adjacency) == pytest.approx(claimed.value, rel=1e-12), claimed.query
        assert (claimed.adjacency, claimed.kind) == (adjacency, "upper")


def test_bad_queries() -> None:
    for call, message in (
        (lambda: laplace.sum_sensitivity(1.0, 0.0), r"`lower` must be at most upper=0\.0, got 1\.0"),
        (lambda: laplace.sum_sensitivity(0.0), "upper=None"),
        (lambda: laplace.sum_sensitivity(0.0, 1.0, l1_norm=1.0), "l1_norm=1.0"),
        (lambda: laplace.sum_sensitivity(0.0, np.inf), "`upper` must be finite, got inf"),
        (lambda: laplace.mean_sensitivity(0.0, 1.0, 0, adjacency="replace"), "`num_rows` must be at least 1, got 0"),
        (
            lambda: laplace.mean_sensitivity([0.0, 1.0], [1.0, 2.0, 3.0], 5, adjacency="replace"),
            "`upper` must have the shape of `lower`",
        ),
        (lambda: laplace.histogram_sensitivity(3, bins_per_row=4), r"`bins_per_row` must be in \[1, 3\], got 4"),
        (
            lambda: laplace.count_sensitivity(adjacency="swap"),
            "`adjacency` must be 'add-remove' or 'replace', got 'swap'",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_error_bounds() -> None:
    """Both quantiles on 20,000 vectors, binomial p > 1e-3; and the closed forms against each other."""
    noise = laplace.mechanism(np.zeros((20_000, 7)), scale=1.5, seed=5)
    result = laplace.error_bound(scale=1.5, dimensions=7, confidence=0.9)
    for exceeded in (np.abs(noise).max(axis=1) > result.value, np.abs(noise).sum(axis=1) > result.l1):
        assert stats.binomtest(int(exceeded.sum()), len(noise), 0.1).pvalue > 1e-3
    assert laplace.tail(result.value, scale=1.5, dimensions=7).value == pytest.approx(0.1, rel=1e-12)
    assert result.mean_l1 == 7 * 1.5
    assert np.square(noise).sum(axis=1).mean() == pytest.approx(result.root_mean_square**2, rel=0.05)
    assert laplace.tail(700.0, scale=1.0, dimensions=10).value == pytest.approx(10 * math.exp(-700.0), rel=1e-12)
    assert laplace.tail(0.0, scale=1.0).value == 1.0
    assert laplace.tail(0.0, scale=0.0).value == 0.0


def _hockey_stick(shifts: tuple[float, ...], t: float) -> float:
    """H_t of independent unit Laplace variates against the same shifted, by quadrature: the oracle of `compose`."""
    if len(shifts) == 1:
        a = shifts[0]
        return integrate.quad(
            lambda x: max(0.0, 0.5 * math.exp(-abs(x)) - math.exp(t) * 0.5 * math.exp(-abs(x - a))),
            -60,
            60,
            points=[0.0, a, 0.5 * (a - t)],
            limit=400,
        )[0]
    a = shifts[0]
    return integrate.quad(
        lambda x: 0.5 * math.exp(-abs(x)) * _hockey_stick(shifts[1:], t - (abs(x - a) - abs(x))),
        -40,
        40,
        points=[0.0, a],
        limit=200,
    )[0]


@pytest.mark.parametrize("t", [0.0, 0.4, 0.9])
def test_split_distance(t: float) -> None:
    """The claim that lets `compose` use scalar pairs, and the formula of its docstring."""
    a, b = 0.4, 0.6
    whole, parts = _hockey_stick((a + b,), t), _hockey_stick((a, b), t)
    decay = math.exp((t - a - b) / 2)
    assert whole == pytest.approx(1 - decay, abs=1e-7)
    assert parts == pytest.approx(1 - (1 + a / 2) * decay + max(t - b + a, 0) / 4 * decay, abs=1e-7)
    assert parts <= whole + 1e-7


def test_composition() -> None:
    pytest.importorskip("dp_accounting")
    assert laplace.compose([0.5, 1.0, 0.25], count=2).value == 3.5
    two = laplace.compose([0.4, 0.6], delta=0.1)
    assert two.method == "pld"
    assert two.basic == 1.0
    # ε at δ from the closed form above; the discretisation rounds up by at most a few grid points.
    exact = next(e for e in np.linspace(0, 1, 20001) if _product_delta(0.4, 0.6, e) <= 0.1)
    assert exact - 1e-4 <= two.value <= exact + 1e-3
    many = laplace.compose(0.1, count=100, delta=1e-5)
    assert 0.25 * many.basic < many.value < 0.5 * many.basic
    assert laplace.compose(1.0, delta=1e-9, method="basic").value == 1.0
    assert laplace.compose(1.0, delta=1e-12).value <= 1.0
    # Below what the convolutions round, nothing is proved by them.
    assert laplace.compose(0.1, count=100, delta=1e-13, method="pld").value == math.inf
    assert laplace.compose(0.1, count=100, delta=1e-13).method == "rdp"
    assert laplace.compose(1.0, count=2, delta=1e-13).method == "basic"
    for arguments, message in (
        ({"epsilons": 0.0}, r"`epsilons` must be above 0 and finite, got 0.0"),
        ({"epsilons": []}, r"`epsilons` must .*, got \(0,\)"),
        ({"epsilons": 1.0, "method": "pld"}, r"`delta` must be in \(0, 1\) with method='pld', got 0\.0"),
        ({"epsilons": 1.0, "count": 0}, r"`count` must be in \[1, 9223372036854775807\], got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            laplace.compose(**arguments)


def _product_delta(a: float, b: float, t: float) -> float:
    decay = math.exp((t - a - b) / 2)
    return 1 - (1 + a / 2) * decay + max(t - b + a, 0) / 4 * decay


DRAWS = 1_000_000


def _audit(seed: int, scale: float) -> float:
    """ε proved from 10⁶ draws on each of the worst-case neighbours f = 0 and f = 1, by the event {release ≥ 1}."""
    hits = [
        int((laplace.mechanism(np.full(DRAWS, f), scale=scale, seed=seed, step=i) >= 1.0).sum())
        for i, f in enumerate((1.0, 0.0))
    ]
    return float(bounds.epsilon_lower_bound(hits[0], hits[1], DRAWS, adjacency="replace").value)


@pytest.mark.slow
def test_audit_of_the_mechanism() -> None:
    """ε = 1, 40 seeds: at most ε in 95% of them and never below 0.9ε; with b halved above 1.8ε, caught every time."""
    right = np.array([_audit(seed, 1.0) for seed in range(40)])
    assert (right <= 1.0).mean() >= 0.95
    assert right.min() >= 0.9
    assert min(_audit(seed, 0.5) for seed in range(40)) > 1.8


@pytest.mark.full
def test_audit_from_scores() -> None:
    for scale, low, high in ((1.0, 0.9, 1.0), (0.5, 1.8, 2.0)):
        inside, outside = (
            laplace.mechanism(np.full(50_000, f), scale=scale, seed=8, step=i) for i, f in enumerate((1.0, 0.0))
        )
        assert low < bounds.epsilon_lower_bound_from_scores(inside, outside, adjacency="replace").value <= high
