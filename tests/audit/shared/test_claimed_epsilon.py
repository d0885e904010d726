"""The ε of a report, where the exact accountant reaches, where "pld" does, and where only full batches do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leakcore import accounting
from leakcore.audit.shared.claimed_epsilon import proved_epsilon
from leakcore.numerics import AccuracyError


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
def test_the_exact_accountant_comes_first(adjacency: str) -> None:
    result = proved_epsilon(1.0, 0.1, 50, delta=1e-5, adjacency=adjacency)
    assert result.value == accounting.epsilon(1.0, 0.1, 50, delta=1e-5, adjacency=adjacency).value
    assert result.method == "exact"


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("schedule", [0.05, np.full(20, 0.05)])
def test_then_pld_where_it_is_installed(schedule: object, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dp_accounting")
    answer = accounting.epsilon

    def epsilon(*arguments: Any, method: str = "exact", **settings: Any) -> accounting.Epsilon:
        if method == "exact":
            raise AccuracyError("out of reach")
        return answer(*arguments, method=method, **settings)

    monkeypatch.setattr("leakcore.audit.shared.claimed_epsilon.accounting.epsilon", epsilon)
    result = proved_epsilon(schedule, 0.1, 20, delta=1e-5)
    monkeypatch.undo()
    assert result.method == "pld"
    assert result.value <= accounting.epsilon(schedule, 1.0, 20, delta=1e-5).value


def test_an_infinite_answer_of_pld_is_its_grids_own() -> None:
    result = proved_epsilon(0.05, 0.1, 20, delta=1e-5, adjacency="replace")
    assert result.value <= accounting.epsilon(0.05, 1.0, 20, delta=1e-5, adjacency="replace").value < np.inf


@pytest.mark.full
def test_very_little_noise_is_bounded_by_full_batches() -> None:
    result = proved_epsilon(0.001, 0.5, 10, delta=1e-5)
    assert result.method == "exact, bounded"
    assert result.kind == "upper"
    assert 0 < result.value <= accounting.epsilon(0.001, 1.0, 10, delta=1e-5).value


def test_then_full_batches() -> None:
    result = proved_epsilon(0.001, 0.5, 10, delta=1e-5, methods=())
    assert result.method == "full batches"
    assert result.kind == "upper"
    assert result.value == accounting.epsilon(0.001, 1.0, 10, delta=1e-5).value
    assert any("every row in every batch" in note for note in result.assumptions.notes)


def test_noise_whose_square_is_not_a_float_ends_nothing() -> None:
    result = proved_epsilon(np.array([1.0, 1e160]), 0.5, 2, delta=1e-5)
    assert 0.0 < result.value <= accounting.epsilon(1.0, 1.0, 1, delta=1e-5).value * (1 + 1e-9)
