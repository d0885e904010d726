"""Grids of mechanisms: the same numbers as one by one, with their axes, and what is refused."""

import numpy as np
import pytest

from leakcore import accounting, bounds, mechanisms

CELLS = mechanisms.grid(mechanisms.Poisson, noise_multiplier=[1.0, 2.0], sample_rate=[0.01, 0.1, 1.0], steps=20)


def test_grid_cells():
    spent = accounting.epsilon(CELLS, delta=1e-5)
    assert spent.value.shape == (2, 3)
    assert spent.axes == {"noise_multiplier": (1.0, 2.0), "sample_rate": (0.01, 0.1, 1.0)}
    one = accounting.epsilon(2.0, 0.1, 20, delta=1e-5)
    assert spent.at(noise_multiplier=2.0, sample_rate=0.1) == one
    assert spent.value[1, 1] == one.value
    assert (spent.interval[0] <= spent.value).all()


@pytest.mark.full
def test_kappa_dimension():
    bound = bounds.reconstruction(CELLS, kappa=[0.1, 0.5])
    assert bound.value.shape == (2, 3, 2)
    assert bounds.membership(CELLS, fpr=0.1).value.shape == (2, 3)
    assert bounds.membership(CELLS, fpr=0.1).value == pytest.approx(bound.value[:, :, 0])


def test_schedule_on_an_axis():
    cells = mechanisms.grid(mechanisms.Poisson, noise_multiplier=[[1.0, 2.0], [2.0, 2.0]], sample_rate=0.1, steps=2)
    spent = accounting.epsilon(cells, delta=1e-5).value
    assert spent[1] == accounting.epsilon(2.0, 0.1, 2, delta=1e-5).value < spent[0]


def test_frame():
    pytest.importorskip("pandas")
    frame = accounting.epsilon(CELLS, delta=1e-5).to_frame()
    assert list(frame.columns[:4]) == ["noise_multiplier", "sample_rate", "quantity", "kind"]
    row = frame[(frame.noise_multiplier == 2.0) & (frame.sample_rate == 0.1)]
    assert row.value.item() == accounting.epsilon(2.0, 0.1, 20, delta=1e-5).value


def test_display():
    spent = accounting.delta(CELLS, epsilon=1.0)
    for text in (str(spent), repr(spent), spent._repr_html_()):
        assert "noise_multiplier" in text
    assert repr(CELLS) == "Grid(Poisson, noise_multiplier: 2, sample_rate: 3)"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: mechanisms.grid(mechanisms.Poisson, sigma=[1.0]), ValueError, "`sigma` must be a field of Poisson"),
        (lambda: mechanisms.grid(mechanisms.GDP, mu=[]), ValueError, "`mu` must hold at least one value"),
        (lambda: mechanisms.grid(mechanisms.GDP, mu=[1.0, -1.0]), ValueError, "mu"),
        (lambda: mechanisms.grid(dict, mu=[1.0]), TypeError, "`kind` must be a class of mechanism"),
        (lambda: accounting.epsilon(CELLS, delta=1e-5).at(noise_multiplier=1.0), ValueError, "`at` must be called"),
        (
            lambda: accounting.epsilon(CELLS, delta=1e-5).at(noise_multiplier=1.0, sample_rate=0.5),
            ValueError,
            "`sample_rate` must be one of",
        ),
    ],
)
def test_bad_grids(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.full
def test_poisson_claim():
    cells = mechanisms.grid(mechanisms.Shuffled, noise_multiplier=[0.7, 2.0], batches=[10, 100], epochs=1)
    spent = accounting.epsilon(cells, delta=1e-5)
    claims = np.array([[result.poisson_claim for result in row] for row in spent.results])
    assert (claims < spent.interval[0]).all()
