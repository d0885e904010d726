from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from leakcore import datasets


def test_digits() -> None:
    data = datasets.digits()
    assert data.features.shape == (1797, 64)
    assert len(data) == 1797
    assert data.features.min() == 0
    assert data.features.max() == 1
    assert np.bincount(data.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (data.features * 16 == np.round(data.features * 16)).all()


def test_breast_cancer() -> None:
    data = datasets.breast_cancer()
    assert data.features.shape == (569, 30)
    np.testing.assert_allclose(data.features.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(data.features.std(axis=0), 1, atol=1e-12)
    assert np.bincount(data.labels).tolist() == [212, 357]


def test_a_split_is_a_seeded_partition() -> None:
    data = datasets.digits()
    first, rest = data.split(1000, seed=3)
    again, _ = data.split(1000, seed=3)
    other, _ = data.split(1000, seed=4)
    assert (len(first), len(rest)) == (1000, 797)
    assert (first.features == again.features).all()
    assert (first.features != other.features).any()
    # float64 rows are exact, so a lexicographic sort shows whether each row of the whole is in one part, once.
    both = np.concatenate([first.features, rest.features])
    assert (both[np.lexsort(both.T)] == data.features[np.lexsort(data.features.T)]).all()
    assert (np.bincount(first.labels) + np.bincount(rest.labels) == np.bincount(data.labels)).all()
    with pytest.raises(ValueError, match=r"`first` must be in \[0, 1797\], got 1798"):
        data.split(1798, seed=0)


def test_arrays_cannot_be_written() -> None:
    data = datasets.digits()
    with pytest.raises(ValueError, match="read-only"):
        data.features[0, 0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"features": np.zeros(3)}, ValueError, r"`features` and `labels` must be \(rows, dimensions\) .* got \(3,\)"),
        ({"features": np.full((3, 2), np.nan)}, ValueError, "`features` must be finite"),
        ({"labels": np.zeros(3)}, TypeError, "`labels` must be integers, got float64"),
        ({"labels": np.array([0, 1, 2])}, ValueError, r"`labels` must lie in \[0, 1\], got \[0, 2\]"),
        ({"labels": np.array([0, 1, 2**63], np.uint64)}, ValueError, "must fit int64"),
        ({"shape": (-1, -2)}, ValueError, r"`shape\[0\]` must be at least 1, got -1"),
        ({"labels": np.array([0, 1])}, ValueError, r"and `labels` must be .* and \(2,\)"),
    ],
)
def test_errors(change, error, message) -> None:
    good = {
        "features": np.zeros((3, 2)), "labels": np.array([0, 1, 1]), "num_classes": 2, "name": "n", "scaling": "none",
        "source": "s", "licence": "l",
    }  # fmt: skip
    datasets.Dataset(**good)
    with pytest.raises(error, match=message):
        datasets.Dataset(**good | change)


def test_reviews_keep_their_lengths_through_a_split() -> None:
    good = {
        "features": np.arange(12.0).reshape(6, 2),
        "labels": np.arange(6) % 2,
        "lengths": 10 * np.arange(6),
        "num_classes": 2, "name": "t", "scaling": "", "source": "", "licence": "",
    }  # fmt: skip
    parts = datasets.Reviews(**good).split(2, seed=1)
    for part in parts:
        np.testing.assert_array_equal(part.lengths, 5 * part.features[:, 0])
    with pytest.raises(ValueError, match=r"`lengths` must have the shape of labels, \(6,\), got \(5,\)"):
        datasets.Reviews(**(good | {"lengths": np.arange(5)}))
