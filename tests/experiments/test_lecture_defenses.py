"""The lecture's defences against four attacks: what single cells say, and the matrix at its smallest scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from leakcore import defenses, experiments
from leakcore.experiments import draw
from leakcore.experiments.lecture.matrix import ATTACKS, Sizes, Strength, attacked
from leakcore.experiments.lecture.rates import least_error, rate

SMALL = Sizes(neurons=20_000, small=60, rows=8, effort=(1, 20), steps=5)


def test_attacks_get_all_without_a_defence_and_less_under_strong_noise() -> None:
    noise = Strength("gradient noise", 40.0)
    for attack in ("tensor method", "label attack", "imprint"):
        assert attacked(attack, Strength(), SMALL, 1)[0] >= 0.75
        assert attacked(attack, noise, SMALL, 1)[0] <= 0.5


def test_strengths_are_relative_to_the_release() -> None:
    import torch

    g, rows = torch.full((4,), 3.0), torch.tensor([1.0, 2.0, 9.0])
    assert Strength("gradient noise", 0.5).defense(g, rows) == defenses.GaussianNoise(1.5)
    assert Strength("clipping", 3.0).defense(g, rows) == defenses.Clip(2.0)
    # Its noise on the mean of the rows is as long as half the gradient: σC/3 = 1.5.
    assert Strength("DP-SGD", 0.5).defense(g, rows) == defenses.DPSGD(2.0, 2.25)
    assert Strength().defense(g, rows) is None
    assert (Strength("local aggregation", 4.0).batches, Strength("dropout", 0.5).batches) == (4, 1)


def test_exponents_have_intervals_over_networks() -> None:
    x = np.array([1.0, 2.0, 4.0])
    errors = np.stack([0.1 * x, 0.3 * x**1.2, 0.2 * x**1.1], axis=1)
    steep = rate("σ", 1.0, x, errors)
    assert steep.measured == pytest.approx(1.1)
    assert steep.interval[0] < 1.0 < steep.measured < steep.interval[1]
    assert steep.holds
    assert not rate("σ", 0.5, x, errors).holds
    assert rate("σ", 0.5, x, errors[:, :1]).holds  # one network refutes nothing


def test_the_least_error_of_one_row_is_the_delta_method() -> None:
    """One input, known to be on the circle: the angle's variance is std²/Σ (r σ′ w·t)², after projecting σ(u) out."""
    rng = np.random.default_rng(0)
    w, x, r = rng.standard_normal((5000, 2)), np.array([[0.6, 0.8]]), np.array([-1.5])
    u = w @ x[0]
    value, slope = np.where(u > 0, u, np.expm1(np.minimum(u, 0))), np.where(u > 0, 1.0, np.exp(np.minimum(u, 0)))
    along = r[0] * slope * (w @ np.array([-0.8, 0.6]))
    along = along - value * (value @ along) / (value @ value)
    assert least_error(x, r, w, 0.3) == pytest.approx(0.3 / np.linalg.norm(along), rel=1e-9)


@pytest.mark.slow
def test_the_matrix_has_every_defence_and_attack(tmp_path: Path) -> None:
    result = experiments.run("lecture-defenses", scale="tiny", out=tmp_path)
    assert draw.clashes(result) == []
    (table,) = result.tables
    assert table.head == ("defence", *ATTACKS, "accuracy")
    assert len(table.rows) == len({row[0].split(",")[0] for row in table.rows}) == 7
    assert len(result.panels) == 6
    assert [c.cases for c in result.checks] == [1, 4]
