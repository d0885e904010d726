"""Ridge regression with noise on its coefficients: the closed form is that of the solved problem, and our own audit of
the released coefficients agrees with it."""

import numpy as np
import pytest

from leakcore import bounds

RNG = np.random.default_rng(3)
X = RNG.normal(size=(60, 5)) * np.array([1.0, 0.7, 0.4, 0.2, 0.05]) / 4
Y = np.sign(X @ np.array([1.0, -1.0, 0.5, 0.2, 2.0]))


def _solve(x: np.ndarray, y: np.ndarray, weight: float) -> np.ndarray:
    return np.linalg.solve(x.T @ x + weight * np.eye(x.shape[1]), x.T @ y)


@pytest.mark.parametrize("targets", [None, Y, -Y])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_ridge_separation(targets: np.ndarray | None, scale: float) -> None:
    x, y = scale * X, np.zeros(60) if targets is None else targets
    bound = bounds.ridge_output_perturbation(x, targets, regularisation=0.3, epsilon=1.0, delta=1e-5)
    before = _solve(x, y, 0.3)
    after = _solve(np.vstack([x, bound.poison]), np.append(y, bound.poison_target), 0.3)
    assert abs((after - before) @ bound.poison) == pytest.approx(bound.separation, rel=1e-9)
    # All of it lies along the poison.
    assert np.linalg.norm(after - before) == pytest.approx(bound.separation, rel=1e-6)
    assert bound.separation >= 1 / (0.3 + bound.direction_value**2 + 1) * (1 - 1e-12)


def test_erratum_10_printed_constant() -> None:
    """E10: with σ_d = 3 the printed c is 0.5/(λ + 4), half the distance of the means is 0.5/(λ + 10)."""
    x = 3 * np.eye(4)
    bound = bounds.ridge_output_perturbation(x, regularisation=1e-3, epsilon=1.0, delta=1e-5)
    moved = _solve(np.vstack([x, bound.poison]), np.append(np.zeros(4), 1.0), 1e-3) @ bound.poison
    assert moved / 2 == pytest.approx(0.5 / (1e-3 + 10), rel=1e-9)
    assert moved < 0.5 / (1e-3 + 4)
    assert bound.printed > bound.best
    small = bounds.ridge_output_perturbation(0.1 * np.eye(4), regularisation=0.5, epsilon=1.0, delta=1e-5)
    assert small.printed < 2 * (2 * small.success - 1) * 1.01


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0])
def test_order_of_the_numbers(epsilon: float) -> None:
    bound = bounds.ridge_output_perturbation(X, Y, regularisation=0.5, epsilon=epsilon, delta=1e-5)
    assert 0 < bound.value <= bound.best <= bound.promised
    if epsilon <= 1:
        assert bound.promised <= bound.claimed
    assert (bound.kind, bound.confidence, bound.adjacency) == ("lower", None, "replace")
    assert bound.to_dict()["claimed"] == epsilon


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_audit_of_released_coefficients(epsilon: float) -> None:
    """2,000,000 releases on each data set: not above the truth (99.9%, fixed seed), and within 15% of it."""
    weight, delta, trials = 10.0, 1e-5, 2_000_000
    bound = bounds.ridge_output_perturbation(X, Y, regularisation=weight, epsilon=epsilon, delta=delta)
    before = _solve(X, Y, weight)
    after = _solve(np.vstack([X, bound.poison]), np.append(Y, bound.poison_target), weight)
    rng = np.random.default_rng(11)
    # Only what lies along the poison tells the data sets apart.
    out, into = (
        bound.poison_target * (w @ bound.poison + bound.noise * rng.normal(size=trials)) for w in (before, after)
    )
    middle = bound.poison_target * 0.5 * (before + after) @ bound.poison
    hits = int((into >= middle).sum()), int((out >= middle).sum())
    fixed = bounds.epsilon_lower_bound(*hits, trials, confidence=0.999, delta=delta, adjacency="replace")
    assert 0.85 * bound.value <= fixed.value <= bound.value
    gaussian = bounds.epsilon_lower_bound(
        *hits, trials, confidence=0.999, delta=delta, hypothesis=bounds.Hypothesis(family="gdp"), adjacency="replace"
    )
    assert gaussian.mu is not None
    assert 0.85 * bound.separation / bound.noise <= gaussian.mu <= bound.separation / bound.noise
    assert gaussian.value <= bound.best


def test_unpromised_outputs() -> None:
    loud = bounds.ridge_output_perturbation(X, 10 * Y, regularisation=0.5, epsilon=1.0, delta=1e-5)
    assert loud.lipschitz > 1
    assert "nothing is promised" in loud.assumptions.notes[-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": np.zeros(3)}, r"`features` must have shape \(rows, dimensions\), at least 1 each, got \(3,\)"),
        ({"features": [[np.inf]]}, "features"),
        ({"targets": [1.0]}, r"`targets` must have shape \(60,\), one for each row of features, got \(1,\)"),
        ({"regularisation": 0.0}, r"`regularisation` must be above 0, got 0.0"),
        ({"epsilon": -1.0}, r"`epsilon` must be above 0, got -1.0"),
        ({"delta": 0.0}, r"`delta` must be in \(0, 1\), got 0.0"),
    ],
)
def test_bad_input(change: dict[str, object], message: str) -> None:
    arguments = {"features": X, "regularisation": 1.0, "epsilon": 1.0, "delta": 1e-5, **change}
    with pytest.raises(ValueError, match=message):
        bounds.ridge_output_perturbation(**arguments)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("large", [1e6, 1e8])
def test_small_singular_value(seed: int, large: float) -> None:
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.standard_normal(shape))[0] for shape in ((50, 5), (5, 5)))
    x = (left * np.array([large, large, large, large, 3.0])) @ right.T
    bound = bounds.ridge_output_perturbation(x, regularisation=1.0, epsilon=100.0, delta=1e-5)
    truth = 1 / (1 + 9 + 1)
    assert truth * (1 - 1e-5) <= bound.separation <= truth
    assert bound.direction_value == pytest.approx(3, rel=1e-5)


def test_pull_lost_in_rounding() -> None:
    x = np.diag([1e14, 1e14, 1e-3])
    assert bounds.ridge_output_perturbation(x, regularisation=1e-6, epsilon=1.0, delta=1e-5).kind == "lower"
    with pytest.raises(ValueError, match="which way the targets pull along the smallest is lost in rounding"):
        bounds.ridge_output_perturbation(x, np.ones(3), regularisation=1e-6, epsilon=1.0, delta=1e-5)


def test_fewer_rows_than_dimensions() -> None:
    bound = bounds.ridge_output_perturbation(X[:3], Y[:3], regularisation=0.5, epsilon=1.0, delta=1e-5)
    assert bound.direction_value < 1e-12
    assert np.abs(X[:3] @ bound.poison).max() < 1e-12
    assert bound.separation == pytest.approx(1 / 1.5)
