"""MINE: its bias on Gaussians of known mutual information, its null, classes, many columns, bad input."""

import math

import numpy as np
import pytest

from leakcore import leakage
from leakcore.leakage import screen


def _pair(rho, d=1, n=1500, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(n, d))
    return a, rho * a + math.sqrt(1 - rho**2) * rng.normal(size=(n, d))


@pytest.mark.parametrize("rho", [0.0, pytest.param(0.5, marks=pytest.mark.slow), 0.9])
def test_bias_on_one_dimensional_gaussians(rho):
    truth = -0.5 * math.log(1 - rho**2)
    measured = leakage.mutual_information(*_pair(rho), permutations=1 if rho == 0.9 else 0)
    assert measured.value == pytest.approx(truth, abs=0.08)
    assert measured.interval[0] - 0.08 < truth < measured.interval[1] + 0.08
    if rho == 0.9:
        assert abs(measured.null_mean) < 0.05
        assert measured.above_null > 0.7
    else:
        assert math.isnan(measured.null_mean)


def test_in_five_dimensions_it_finds_most_and_not_more():
    truth = -2.5 * math.log(1 - 0.8**2)
    measured = leakage.mutual_information(*_pair(0.8, d=5), permutations=0)
    assert 0.8 * truth < measured.value < 1.05 * truth
    assert measured.rows == 450


@pytest.mark.slow
def test_classes_and_many_columns():
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 400)
    x = rng.normal(size=(400, 6, 10)) + 3.0 * y[:, None, None]
    measured = leakage.mutual_information(x, y, seed=3)
    assert 0.5 * math.log(2) < measured.value < 1.1 * math.log(2)
    assert measured.null_mean < 0.1
    again = leakage.mutual_information(x, y, seed=3)
    assert again.value == measured.value
    assert (
        leakage.mutual_information(
            np.zeros((60, 3)), y[:60], network=leakage.MineNetwork(steps=5), permutations=0
        ).value
        < 0.1
    )


def test_bad_input_is_named():
    with pytest.raises(
        ValueError, match=r"`first` and `second` must have equally many rows, at least 50, got 49 and 49"
    ):
        leakage.mutual_information(np.zeros((49, 2)), np.zeros((49, 2)))
    with pytest.raises(ValueError, match=r"first.*must be finite"):
        leakage.mutual_information(np.full((60, 2), np.nan), np.zeros((60, 2)))
    with pytest.raises(ValueError, match="`steps` must be at least 1, got 0"):
        leakage.mutual_information(np.zeros((60, 2)), np.zeros((60, 2)), network=leakage.MineNetwork(steps=0))


def test_more_classes_than_components() -> None:
    """Forty classes that 8 columns tell apart: not merged into `components` directions."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 40, 1500)
    u = rng.normal(size=(40, 8))[labels] + 0.1 * rng.normal(size=(1500, 8))
    assert leakage.mutual_information(u, labels, permutations=0).value > 2.6
    coin = rng.integers(0, 2, 200)
    noisy = coin[:, None] + 0.1 * rng.normal(size=(200, 1))
    assert (
        leakage.mutual_information(noisy, coin, permutations=0, network=leakage.MineNetwork(components=1)).value > 0.5
    )


def test_torch_tensors_of_every_kind() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    labels = (x[:, 0] > 0).long()
    half = leakage.mutual_information(x.bfloat16(), labels, permutations=0, network=leakage.MineNetwork(steps=20))
    assert (
        half.value
        == leakage.mutual_information(
            x.bfloat16().float(), labels, permutations=0, network=leakage.MineNetwork(steps=20)
        ).value
    )
    with pytest.raises(ValueError, match=r"`first` must not require grad: pass first.detach\(\)"):
        leakage.mutual_information(x.requires_grad_(), labels)


def test_one_informative_column_of_many_is_screened_for() -> None:
    """A shift of four deviations in one of 500 columns is 0.633 nats; without the screen the answer was 0 [0, 0]."""
    y = np.arange(600) % 2
    x = np.random.default_rng(400).normal(size=(600, 500))
    x[:, 317] += 4 * (y - 0.5)
    measured = leakage.mutual_information(x, y, num_classes=2, permutations=1)
    low, high = measured.interval
    assert 0.3 < low < 0.633 < high == pytest.approx(math.log(2))
    assert measured.held_out_interval[0] < 0.633
    assert measured.null_mean < 0.05


@pytest.mark.parametrize("sign", [1, -1])
def test_a_column_that_tells_by_its_size_is_screened_for(sign: int) -> None:
    """The screen looks at distances from the median, too: the column's mean is the same in both classes."""
    y = np.arange(300) % 2
    x = np.random.default_rng(3).normal(size=(300, 200))
    x[:, 7] *= np.where(y == (sign > 0), 6.0, 0.2)
    at = screen.screen(x, np.eye(2)[y], np.arange(150), 3)
    assert 7 in at
    assert (np.diff(at) > 0).all()


def test_the_screen_looks_at_training_rows_alone() -> None:
    rng = np.random.default_rng(4)
    x, target = rng.normal(size=(200, 40)), rng.normal(size=(200, 1))
    x[100:, 5] = target[100:, 0]
    assert 5 not in screen.screen(x, target, np.arange(100), 2)
    assert 5 in screen.screen(x, target, np.arange(100, 200), 2)
    constant = screen.screen(np.ones((50, 4)), np.ones((50, 1)), np.arange(50), 2)
    assert constant.tolist() == [0, 1]


def test_nothing_bounds_the_mutual_information_of_numbers_from_above() -> None:
    u, v = _pair(0.0, n=100)
    measured = leakage.mutual_information(u, v, permutations=0, network=leakage.MineNetwork(steps=20))
    assert measured.interval[0] <= 0 < measured.interval[1] == math.inf
    assert measured.to_dict()["interval"][1] == "inf"
    same = leakage.mutual_information(
        np.zeros((60, 3)), np.arange(60) % 3, num_classes=3, network=leakage.MineNetwork(steps=5), permutations=0
    )
    assert same.interval == (same.interval[0], pytest.approx(math.log(3)))


def test_how_many_classes_there_are_is_asked_for() -> None:
    few = leakage.MineNetwork(hidden=4, steps=5)
    y = np.arange(60) % 3
    assert leakage.mutual_information(y, y, network=few, permutations=0).interval[1] == math.inf
    for stated, high in ((5, 5), ((None, 4), 4), ((3, 7), 3)):
        measured = leakage.mutual_information(y, y, num_classes=stated, network=few, permutations=0)
        assert measured.interval[1] == pytest.approx(math.log(high))
        assert measured.value <= measured.interval[1]
        assert any("stated" in note for note in measured.assumptions.notes)
    assert leakage.mutual_information(y > 1, y, network=few, permutations=0).interval[1] == pytest.approx(math.log(2))
    with pytest.raises(ValueError, match="`num_classes` must be at least the 3 classes of `second`, got 2"):
        leakage.mutual_information(np.zeros((60, 2)), y, num_classes=2, network=few)
    with pytest.raises(ValueError, match="`num_classes` is allowed only where a side consists of classes"):
        leakage.mutual_information(np.zeros((60, 2)), np.zeros((60, 2)), num_classes=2, network=few)
    with pytest.raises(ValueError, match="`num_classes` must be one number or a pair"):
        leakage.mutual_information(y, y, num_classes=(1, 2, 3), network=few)
