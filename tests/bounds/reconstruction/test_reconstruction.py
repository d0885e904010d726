"""The blow-up bound."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from leakcore import accounting, bounds, mechanisms

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "rero_reference.json").read_text(encoding="utf-8"))["rows"]
PLAIN = [r for r in GOLDEN if "value" in r]
LOGARITHMIC = [r for r in GOLDEN if "log_value" in r]


def _arguments(row: dict[str, Any]) -> tuple[float, float, int]:
    return row["sigma"], row["q"], row["T"]


def test_reference_rows_are_complete() -> None:
    assert (len(PLAIN), len(LOGARITHMIC)) == (180, 5)


@pytest.mark.parametrize("method", ["auto", "exact"])
@pytest.mark.parametrize("row", PLAIN, ids=lambda r: f"{r['T']}-{r['q']}-{r['sigma']}-{r['kappa']}")
def test_reference_rows(row: dict[str, Any], method: str) -> None:
    bound = bounds.reconstruction(*_arguments(row), kappa=row["kappa"], method=method)
    # Within the reference's own error; where that is below 1e-10 relative, that close.
    allowed = max(1.05 * row["abs_error_estimate"], 1e-10 * row["value"])
    assert abs(bound.value - row["value"]) <= min(allowed, 1e-8)
    low, high = bound.interval
    assert row["kappa"] <= low <= bound.value <= high <= 1.0
    assert high - low <= 1e-8 * bound.value
    assert bound.kind == "upper"
    assert bound.confidence is None


@pytest.mark.parametrize("row", LOGARITHMIC, ids=lambda r: f"{r['T']}-{r['q']}-{r['sigma']}")
def test_reference_rows_in_log_space(row: dict[str, Any]) -> None:
    bound = bounds.reconstruction(*_arguments(row), log_kappa=row["log_kappa"], method="exact")
    assert bound.log_value == pytest.approx(row["log_value"], rel=1e-10)
    low, high = bound.log_interval
    assert low <= bound.log_value <= high


@pytest.mark.full
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_reference_within_pld(every: bool) -> None:
    pytest.importorskip("dp_accounting")
    settings_ = sorted({_arguments(r) for r in PLAIN})
    # dp-accounting takes seconds per setting: one step, and a spread of the others.
    chosen = settings_ if every else [*[s for s in settings_ if s[2] > 1][::6], (0.5, 0.1, 1), (2.0, 1.0, 1)]
    for setting in chosen:
        rows = [r for r in PLAIN if _arguments(r) == setting and r["kappa"] >= 1e-6]
        bound = bounds.reconstruction(*setting, kappa=[r["kappa"] for r in rows], method="pld")
        values = np.array([r["value"] for r in rows])
        low, high = bound.interval
        assert (low <= values + 1e-12).all(), setting
        assert (values <= high * (1.0 + 1e-12)).all(), setting
        assert (bound.value >= values * (1.0 - 1e-12)).all(), setting


def test_table_2_of_the_paper() -> None:
    # Exact advantages of the "Ours" rows, n = 10 and n = 100, to six digits.
    sigmas = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    expected = {
        10: [0.737511, 0.321271, 0.188128, 0.130266, 0.098900, 0.079455],
        100: [0.365738, 0.083194, 0.038878, 0.024140, 0.017203, 0.013263],
    }
    for n, row in expected.items():
        bound = [bounds.reconstruction(s, 1.0, 1, kappa=1.0 / n).advantage for s in sigmas]
        np.testing.assert_allclose(bound, row, atol=6e-7)


CALIBRATED = [
    (100, 0.01, 0.5905018365, 0.186773, 0.035279),
    (100, 0.02, 0.6876962848, 0.223860, 0.044039),
    (100, 0.1, 1.385994732, 0.319044, 0.069008),
    (100, 0.5, 5.511152653, 0.355340, 0.079053),
    (100, 0.99, 10.70541515, 0.360632, 0.080529),
    (100, 0.01, 0.2806531318, 0.552543, 0.375224),
    (100, 0.99, 2.03079757, 0.999834, 0.994543),
    (1000, 0.02, 2.512014082, 0.154302, 0.019647),
    (1000, 0.02, 0.675776633, 0.605705, 0.245067),
    (100, 1.0, 37.30635919, 0.155411, 0.019781),
    (100, 1.0, 4.998886302, 0.763897, 0.372249),
    (100, 1.0, 0.9466991403, 1.0, 1.0),
]


@pytest.mark.parametrize(("steps", "rate", "sigma", "tenth", "hundredth"), CALIBRATED)
def test_calibrated_settings(steps: int, rate: float, sigma: float, tenth: float, hundredth: float) -> None:
    bound = bounds.reconstruction(sigma, rate, steps, kappa=[0.1, 0.01])
    np.testing.assert_allclose(bound.value, [tenth, hundredth], atol=6e-7)


def test_closed_forms() -> None:
    phi, inverse = special.ndtr, special.ndtri
    k = np.array([1e-6, 0.01, 0.5, 0.99])
    schedule = np.array([1.0, 2.0, 0.5, 4.0])
    full = bounds.reconstruction(schedule, 1.0, 4, kappa=k)
    np.testing.assert_allclose(full.value, phi(inverse(k) + math.sqrt((1 / schedule**2).sum())), rtol=1e-12)
    one = bounds.reconstruction(0.7, 0.2, 1, kappa=k)
    np.testing.assert_allclose(one.value, 0.8 * k + 0.2 * phi(inverse(k) + 1 / 0.7), rtol=1e-12)
    # Only one of three steps is subsampled and noisy; the others say nothing.
    alone = bounds.reconstruction([0.7, math.inf, 1.0], [0.2, 0.5, 0.0], 3, kappa=k)
    np.testing.assert_allclose(alone.value, one.value, rtol=1e-15)
    bare = bounds.reconstruction(0.0, 0.1, 5, kappa=k)
    np.testing.assert_allclose(bare.value, 1.0 - 0.9**5 * (1.0 - k), rtol=1e-13)
    assert full.method == one.method == alone.method == bare.method == "closed-form"


def test_exact_against_closed_form() -> None:
    for arguments in [(0.7, 0.2, 1), (3.0, 1.0, 50), (0.0, 0.1, 5)]:
        both = [
            bounds.reconstruction(*arguments, kappa=[0.9, 0.1, 1e-5], method=m).value for m in ("exact", "closed-form")
        ]
        np.testing.assert_allclose(both[0], both[1], rtol=1e-9)


def test_noiseless_steps() -> None:
    rest = bounds.reconstruction(1.0, 0.1, 10, kappa=0.05).value
    bound = bounds.reconstruction([0.0] + [1.0] * 10, [0.3] + [0.1] * 10, 11, kappa=0.05).value
    assert bound == pytest.approx(1.0 - 0.7 * (1.0 - rest), rel=1e-12)


def test_schedules() -> None:
    # Order does not matter, a constant schedule is the scalar, and more noise in one step leaks less.
    rng = np.random.default_rng(5)
    sigma, rate = rng.uniform(0.8, 3.0, 12), rng.uniform(0.05, 0.9, 12)
    forward = bounds.reconstruction(sigma, rate, 12, kappa=0.1)
    back = bounds.reconstruction(sigma[::-1], rate[::-1], 12, kappa=0.1)
    assert forward.value == pytest.approx(back.value, rel=1e-12)
    constant = bounds.reconstruction(np.full(12, 1.5), 0.3, 12, kappa=0.1)
    assert constant.value == pytest.approx(bounds.reconstruction(1.5, 0.3, 12, kappa=0.1).value, rel=1e-13)
    quieter = sigma.copy()
    quieter[3] *= 2.0
    assert bounds.reconstruction(quieter, rate, 12, kappa=0.1).value < forward.value
    low, high = bounds.reconstruction(
        sigma, rate, 12, kappa=0.1, method="certified", num_samples=40_000, seed=3
    ).interval
    assert low <= forward.value <= high


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((1.0, 0.5, 0), 0.1),
        ((1.0, 0.0, 10), 0.1),
        ((math.inf, 0.5, 10), 0.1),
        ((0.0, 1.0, 1), 1.0),
        ((1e-3, 1.0, 1), 1.0),
    ],
)
@pytest.mark.parametrize("method", ["auto", "exact", "closed-form", "certified", "monte-carlo"])
def test_limits(arguments: tuple[float, float, int], expected: float, method: str) -> None:
    bound = bounds.reconstruction(*arguments, kappa=0.1, method=method, num_samples=20_000)
    tolerance = 1e-12 if bound.kind == "upper" and method != "certified" else 1e-3
    assert bound.value == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize(("sigma", "rate", "steps"), [(1.0, 0.1, 0), (1.0, 0.0, 5), (math.inf, 0.1, 3)])
def test_pld_where_nothing_leaks(sigma: float, rate: float, steps: int) -> None:
    pytest.importorskip("dp_accounting")
    bound = bounds.reconstruction(sigma, rate, steps, kappa=[0.1, 1e-9, 1.0], method="pld")
    np.testing.assert_allclose(bound.value, [0.1, 1e-9, 1.0], rtol=1e-14)


@pytest.mark.parametrize("sigma", [1e-200, 1e-3, 0.05, 0.08, 0.1, 0.13])
def test_little_noise(sigma: float) -> None:
    kappa = np.array([0.9, 0.1, 1e-3])
    bound = bounds.reconstruction(sigma, 0.01, 100, kappa=kappa, method="exact")
    bare = bounds.reconstruction(0.0, 0.01, 100, kappa=kappa).value
    # B ≥ B₀(1 − 2η/κ) with η = TΦ(−1/(2σ)): telling sampled records by x > 1/2.
    least = bare * (1.0 - 2.0 * 100 * special.ndtr(-0.5 / sigma) / kappa)
    assert (bound.value <= bare * (1.0 + 1e-12)).all()
    assert (bound.value >= least - 1e-12).all()
    low, high = bound.interval
    assert (low <= bound.value).all()
    assert (bound.value <= high).all()


def test_one_quiet_step() -> None:
    mixed = bounds.reconstruction([0.01] + [1.0] * 10, [0.3] + [0.1] * 10, 11, kappa=0.05).value
    revealed = bounds.reconstruction([0.0] + [1.0] * 10, [0.3] + [0.1] * 10, 11, kappa=0.05).value
    assert mixed == pytest.approx(revealed, rel=1e-11)


def test_large_noise() -> None:
    for sigma in (1e3, 1e6, 1e9):
        bound = bounds.reconstruction(sigma, 0.1, 100, kappa=0.1)
        assert 0.0 <= bound.value - 0.1 < 1.0 / sigma


def test_tiny_kappa() -> None:
    bound = bounds.reconstruction(1.0, 0.02, 1000, log_kappa=-3072.0 * math.log(4.0))
    assert bound.value == 0.0
    assert -3072.0 * math.log(4.0) < bound.log_value < -1000.0
    assert bound.interval[0] == 0.0
    assert bound.interval[1] > 0.0


@pytest.mark.full
@settings(derandomize=True, deadline=None, max_examples=12)
@given(sigma=st.floats(0.5, 20.0), rate=st.floats(0.005, 0.999), steps=st.integers(2, 2000))
def test_monotonicity(sigma: float, rate: float, steps: int) -> None:
    kappa = np.array([1e-8, 1e-3, 0.05, 0.3, 0.7, 0.99, 0.9999])
    base = bounds.reconstruction(sigma, rate, steps, kappa=kappa)
    value = base.value
    assert (value >= kappa).all()
    assert (value <= 1.0).all()
    assert (np.diff(value) >= 0.0).all()
    # B is concave in κ with B(1) = 1.
    slopes = np.diff(np.append(value, 1.0)) / np.diff(np.append(kappa, 1.0))
    assert (np.diff(slopes) <= 1e-7).all()
    more = bounds.reconstruction(sigma, rate, steps + 1, kappa=kappa).value
    assert (more >= value * (1.0 - 1e-9)).all()
    louder = bounds.reconstruction(1.1 * sigma, rate, steps, kappa=kappa).value
    assert (louder <= value * (1.0 + 1e-9)).all()


def test_shapes_and_fields() -> None:
    grid = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 1.0]])
    bound = bounds.reconstruction(1.0, 0.1, 10, kappa=grid)
    for part in (bound.value, bound.log_value, bound.kappa, bound.log_kappa, bound.advantage, *bound.interval):
        assert isinstance(part, np.ndarray)
        assert part.shape == grid.shape
    same = bounds.reconstruction(1.0, 0.1, 10, log_kappa=np.log(grid))
    np.testing.assert_allclose(same.value, bound.value, rtol=1e-12)
    np.testing.assert_allclose(bound.advantage[:2], (bound.value[:2] - grid[:2]) / (1.0 - grid[:2]), rtol=1e-12)
    single = bounds.reconstruction(1.0, 0.1, 10, kappa=0.2)
    assert isinstance(single.value, float)
    assert isinstance(single.interval[0], float)
    assert single.adjacency == "add-remove"
    assert "exact" in single.to_json()
    assert bounds.reconstruction(1.0, 0.1, 10, kappa=[]).value.shape == (0,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kappa": None}, "exactly one"),
        ({"log_kappa": -1.0}, "exactly one"),
        ({"kappa": 0.0}, r"`kappa` must be in \(0, 1\], got 0.0"),
        ({"kappa": 1.5}, r"`kappa` must be in \(0, 1\], got 1.5"),
        ({"kappa": math.nan}, r"`kappa` must be in \(0, 1\], got nan"),
        ({"kappa": None, "log_kappa": 0.5}, r"`log_kappa` must be finite and at most 0, got 0.5"),
        ({"kappa": None, "log_kappa": -math.inf}, "`log_kappa` must be finite and at most 0, got -inf"),
        ({"noise_multiplier": -1.0}, r"`noise_multiplier` must be at least 0, got -1.0"),
        ({"noise_multiplier": [1.0, -1.0]}, r"`noise_multiplier\[1\]` must be at least 0, got -1.0"),
        (
            {"noise_multiplier": [1.0, 1.0, 1.0]},
            r"`noise_multiplier` must be a number or an array of length steps=2, got shape \(3,\)",
        ),
        ({"sample_rate": 1.5}, r"`sample_rate` must be in \[0, 1\], got 1.5"),
        ({"sample_rate": [0.1]}, r"`sample_rate` must be .*, got shape \(1,\)"),
        ({"method": "fourier"}, r"`method` must be 'auto', 'closed-form', 'exact', 'pld',.*, got 'fourier'"),
        ({"method": "closed-form"}, r"`method='closed-form'` needs sample_rate=1 in.*, got 2 subsampled steps"),
        ({"num_samples": 1, "method": "certified"}, "`num_samples` must be at least .*, got 1"),
        ({"confidence": 1.0}, r"`confidence` must be in \(0, 1 - 1e-12\], got 1.0"),
        (
            {"executor": ThreadPoolExecutor(1)},
            r"`executor` must be None with method='auto', .*only methods \(.*'certified'.*\)",
        ),
        ({"noise_multiplier": 0.0, "method": "pld"}, "`noise_multiplier` must be positive with method='pld', got 0"),
    ],
)
def test_bad_input(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"noise_multiplier": 1.0, "sample_rate": 0.5, "steps": 2, "kappa": 0.1} | changes
    with pytest.raises(ValueError, match=message):
        bounds.reconstruction(**arguments)


def test_missing_dp_accounting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ImportError, match=r"pip install leakcore\[accounting\]"):
        bounds.reconstruction(1.0, 0.5, 2, kappa=0.1, method="pld")


def test_import_cost() -> None:
    code = (
        "import sys; from leakcore import bounds; bounds.reconstruction(1.0, 1.0, 1, kappa=0.1); "
        "bounds.reconstruction(1.0, 0.1, 10, kappa=0.1);"
        "heavy = {'torch', 'scipy.stats', 'scipy.optimize', 'scipy.integrate', 'dp_accounting'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _pair(sigma: Any, rate: float, steps: int) -> mechanisms.FixedSize:
    return mechanisms.FixedSize(sigma, round(1000 * rate), 1000, steps)


GRID = np.linspace(-30.0, 30.0, 400_001)


def _blow_up(mu: np.ndarray, nu: np.ndarray, kappa: float) -> float:
    """B_κ of two densities on GRID, by sorting their ratio."""
    order = np.argsort(-(np.log(mu + 1e-300) - np.log(nu + 1e-300)), kind="stable")
    step = GRID[1] - GRID[0]
    spent, won = np.cumsum(nu[order]) * step, np.cumsum(mu[order]) * step
    return float(np.interp(kappa, np.concatenate([[0.0], spent]), np.concatenate([[0.0], won])))


def _normal(centre: float, sigma: float) -> np.ndarray:
    return np.asarray(stats.norm.pdf(GRID, centre, sigma))


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(("sigma", "rate"), [(1.0, 0.1), (2.0, 0.5), (0.7, 0.02), (1.5, 1.0)])
@pytest.mark.parametrize("under", ["null", "alternative"])
def test_fixed_size_profile_of_one_step(sigma: float, rate: float, under: str) -> None:
    count = 400_000
    loss = _pair(sigma, rate, 1).sample_log_ratio(count, under, 5, 0)
    q, p = stats.norm(0.0, sigma), stats.norm(2.0, sigma)

    def hockey(alpha: float) -> float:
        def above(x: float) -> float:
            mixed = (1 - rate) * q.pdf(x) + rate * p.pdf(x)
            return max(mixed - alpha * q.pdf(x), 0.0)

        def below(x: float) -> float:
            mixed = (1 - rate) * p.pdf(x) + rate * q.pdf(x)
            return max(p.pdf(x) - alpha * mixed, 0.0)

        return float(integrate.quad(above if alpha >= 1 else below, -12.0, 16.0, limit=400, points=[0.0, 1.0, 2.0])[0])

    for alpha in (0.3, 0.9, 1.0, 1.3, 3.0):
        # H_α = E_μ(1 − αe^{−L})_+ = E_ν(e^L − α)_+.
        drawn = (
            np.maximum(1 - alpha * np.exp(-loss), 0) if under == "alternative" else np.maximum(np.exp(loss) - alpha, 0)
        )
        error = float(drawn.std()) / math.sqrt(count) + 1e-9
        # 40 comparisons at 4.5 standard errors: p = 3e-4 in all.
        assert abs(float(drawn.mean()) - hockey(alpha)) < 4.5 * error


@pytest.mark.parametrize("kappa", [0.01, 0.1, 0.5, 0.9])
def test_fixed_size_dominates_extreme_data(kappa: float) -> None:
    # Four records, batches of one, all others at −C or all at +C: the two worst data sets for a record's swap.
    sigma, rate = 1.0, 0.25
    low, high = _normal(-1.0, sigma), _normal(1.0, sigma)
    cases = {
        "others opposite": ((1 - rate) * low + rate * high, low),
        "others alike": (high, (1 - rate) * high + rate * low),
        "others silent": (0.75 * _normal(0.0, sigma) + 0.25 * high, 0.75 * _normal(0.0, sigma) + 0.25 * low),
    }
    bound = bounds.reconstruction_of(_pair(sigma, rate, 1), kappa=kappa, num_samples=400_000)
    exact = {name: _blow_up(mu, nu, kappa) for name, (mu, nu) in cases.items()}
    assert bound.value >= max(exact.values())
    # Neither of the two extremes dominates alone, and the pair is hardly above the larger one.
    assert bound.interval[0] <= max(exact.values()) + 0.02


def test_fixed_size_full_batches() -> None:
    bound = bounds.reconstruction_of(_pair(8.0, 1.0, 4), kappa=[0.01, 0.1], num_samples=200_000)
    truth = bounds.reconstruction(4.0, 1.0, 4, kappa=[0.01, 0.1]).value
    low, high = bound.interval
    assert (low <= truth).all()
    assert (truth <= high).all()


def test_fixed_size_kind_and_adjacency() -> None:
    pair = _pair([1.0, 2.0], 0.1, 2)
    bound = bounds.reconstruction_of(pair, kappa=0.1, num_samples=20_000)
    assert (bound.kind, bound.adjacency) == ("upper", "replace")
    unproved = bounds.StatedPair(pair, dominates=False)
    assert bounds.reconstruction_of(unproved, kappa=0.1, num_samples=20_000).kind == "estimate"
    with pytest.raises(ValueError, match=r"`adjacency` must be None or 'replace'.*, got 'add-remove'"):
        bounds.StatedPair(pair, adjacency="add-remove")


def test_fixed_size_samples_by_number() -> None:
    pair = _pair(1.0, 0.3, 5)
    whole = pair.sample_log_ratio(1000, "alternative", 3, 0)
    np.testing.assert_array_equal(whole[400:], pair.sample_log_ratio(600, "alternative", 3, 400))
    assert (whole != pair.sample_log_ratio(1000, "alternative", 4, 0)).any()
    assert (_pair(1.0, 0.3, 0).sample_log_ratio(7, "null", 0, 0) == 0.0).all()


def test_membership() -> None:
    fpr = np.array([0.001, 0.1, 0.5])
    bound = bounds.membership(1.0, 0.1, 50, fpr=fpr)
    curve = bounds.reconstruction(1.0, 0.1, 50, kappa=fpr)
    np.testing.assert_array_equal(bound.value, curve.value)
    np.testing.assert_allclose(bound.advantage, curve.value - fpr)
    # max over α of B_α − α is the total variation distance δ(0), found here on a grid of the curve.
    grid = np.linspace(0.01, 0.99, 981)
    largest = (bounds.reconstruction(1.0, 0.1, 50, kappa=grid).value - grid).max()
    assert bound.max_advantage == pytest.approx(largest, abs=1e-6)
    assert bound.max_advantage == pytest.approx(accounting.delta(1.0, 0.1, 50, epsilon=0.0).value, rel=1e-9)
    full = bounds.membership(2.0, 1.0, 4, fpr=0.1)
    assert full.max_advantage == pytest.approx(2.0 * special.ndtr(0.5) - 1.0, rel=1e-12)
    with pytest.raises(ValueError, match=r"`fpr` must be in \(0, 1\], got 0.0"):
        bounds.membership(1.0, 0.1, 50, fpr=0.0)
    # Where the profile cannot be computed: full batches, which leak more.
    assert 0.9 < bounds.membership(1.0, 0.5, 10_000, fpr=0.01).max_advantage <= 1.0
