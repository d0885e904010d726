"""A factor of all gradients changes nothing: those of a trained network are 1e-10, and trees read float32."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from leakcore import leakage
from leakcore._base.columns import Columns
from leakcore.attacks import attributes

FAMILIES: dict[str, Any] = {
    "logistic": "logistic",
    "magnitudes": "magnitudes",
    "random-forest": leakage.RandomForest(15),
    "mlp": leakage.MLP(8, steps=40),
}


def _case(n: int = 100) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = np.abs(rng.normal(size=(n, 6)))  # a family of magnitudes sees no sign
    return x, (x[:, 0] + 0.2 * rng.normal(size=n) > 0.67).astype(np.int64)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("exponent", [-1000, -40, 900])
def test_v_information(family: str, exponent: int) -> None:
    x, labels = _case()
    values = [
        leakage.v_information(
            np.ldexp(x, e), labels, family=FAMILIES[family], permutations=0, validation=leakage.CrossValidation(folds=2)
        ).value
        for e in (0, exponent)
    ]
    assert values[0] > 0.1
    np.testing.assert_array_equal(*values)


@pytest.mark.parametrize("exponent", [-120, -40, 100])
def test_attributes(exponent: int) -> None:
    x, has = _case()
    sets = attributes.GradientSets(
        gradients={"0": x.astype(np.float32)},
        attribute=has,
        batch=np.arange(100),
        snapshot=np.zeros(100, np.int64),
        targets=has,
    )
    scaled = dataclasses.replace(sets, gradients={"0": np.ldexp(sets.gradients["0"], exponent)})
    plain, other = (attributes.infer(s, s, trees=10) for s in (sets, scaled))
    assert plain.value > 0.9
    np.testing.assert_array_equal(plain.named, other.named)
    assert plain.auc == other.auc


@pytest.mark.parametrize("exponent", [-1000, -50, 900])
@pytest.mark.parametrize("columns", [3, 30])
def test_mutual_information(exponent: int, columns: int) -> None:
    x, labels = _case(200)
    wide = x @ np.random.default_rng(1).normal(size=(6, columns))
    values = [
        leakage.mutual_information(
            np.ldexp(wide, e), labels, permutations=0, network=leakage.MineNetwork(steps=60)
        ).value
        for e in (0, exponent)
    ]
    assert values[0] > 0.05
    assert values[0] == values[1]


def test_columns_keep_their_order_and_say_nothing_of_constants() -> None:
    rows = np.array([[1e300, 5.0, 1.0, 0.0], [-1e300, 5.0, 1.0 + 1e-9, 0.0], [1e299, 5.0, 1.0 + 2e-9, 0.0]])
    ready = Columns(rows)
    result = ready(rows)
    assert result.dtype == np.float32
    assert (np.abs(result) <= 1.0).all()
    assert (np.argsort(result[:, 0]) == [1, 2, 0]).all()
    assert (np.diff(result[:, 2]) > 0.5).all()
    assert (result[:, [1, 3]] == 0.0).all()
    assert np.isfinite(ready(np.full((1, 4), 1.7e308))).all()
