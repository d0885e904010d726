"""Which candidates a batch holds, where rows are equal in part."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import leakcore

pytest.importorskip("opacus")

from tests.dpsgd.opacus_remarks import IGNORED
from tests.dpsgd.record.recorded_runs import private

pytestmark = IGNORED
X = torch.randn(12, 5, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2])


def _record(
    candidates: Any, batches: list[tuple[list[int], list[int]]], *, named: bool = False, mode: str = "hooks",
    x: torch.Tensor = X, **arguments: Any,
) -> Any:  # fmt: skip
    """A step for each (rows, targets). named: the loop calls a function, so that its targets are not seen."""
    if mode == "ghost":
        module, optimizer, loss, _ = private(grad_sample_mode="ghost", criterion=nn.CrossEntropyLoss())
    else:
        module, optimizer, _ = private()
        loss = functional.cross_entropy if named else nn.CrossEntropyLoss()
    criterion = functional.cross_entropy if named else None
    with leakcore.record(optimizer, candidates=candidates, criterion=criterion, **arguments) as recorder:
        for rows, targets in batches:
            optimizer.zero_grad()
            loss(module(x[rows]), torch.tensor(targets)).backward()
            optimizer.step()
    return recorder.trace()


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_row_with_a_candidates_inputs_and_another_target_is_another_row(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In the candidate's batch, in another, and before its first: not counted as seen, nor as the candidate."""
    batches = [([0, 1, 2, 0], [0, 1, 2, 1]), ([3, 3, 4], [1, 0, 1]), ([5, 6], [0, 0])]
    trace = _record((X[:6], Y[:6]), batches, mode=mode)
    np.testing.assert_array_equal(trace.times_seen, [1, 1, 1, 1, 1, 0])
    np.testing.assert_array_equal(trace.members, [True] * 5 + [False])
    (said,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "the target of row 3 is 0, and the loop passes the loss 1 for it, or this is another row" in said
    plain = _record((X[:6], Y[:6]), [([0, 1, 2, 7], [0, 1, 2, 1]), ([8, 3, 4], [1, 0, 1]), ([9, 6], [0, 0])], mode=mode)
    np.testing.assert_array_equal(plain.times_seen, trace.times_seen)


def test_candidates_with_equal_inputs_and_other_targets_are_told_apart() -> None:
    x = X[:6].clone()
    x[3] = x[1]
    trace = _record((x, Y[:6]), [([0, 1], [0, 1]), ([1, 2], [0, 2]), ([1, 1], [1, 0]), ([1, 4], [2, 1])])
    np.testing.assert_array_equal(trace.times_seen, [1, 2, 1, 2, 1, 0])


def test_candidates_with_equal_inputs_are_refused_where_targets_are_not_seen() -> None:
    x = X[:6].clone()
    x[3] = x[1]
    with pytest.raises(ValueError, match=r"rows 1 and 3 have equal inputs, .* targets.* cannot be seen in the loop"):
        _record((x, Y[:6]), [([0, 4], [0, 1])], named=True)


@pytest.mark.parametrize("named", [False, True])
def test_candidates_with_equal_inputs_and_targets_are_refused(named: bool) -> None:
    x, y = X[:6].clone(), Y[:6].clone()
    x[3], y[3] = x[1], y[1]
    with pytest.raises(ValueError, match="rows 1 and 3 have equal inputs, and equal targets"):
        _record((x, y), [([0, 4], [0, 1])], named=named)


def test_a_candidate_twice_in_a_batch_is_seen_once() -> None:
    trace = _record((X[:3], Y[:3]), [([0, 0, 1, 5], [0, 0, 1, 2]), ([0], [0])])
    np.testing.assert_array_equal(trace.times_seen, [2, 1, 0])
    np.testing.assert_array_equal(trace.batch_rows, [4, 1])


def test_a_row_equal_to_a_candidate_that_is_not_a_member_is_another_row(caplog: pytest.LogCaptureFixture) -> None:
    """By the caller's word; where that is wrong the warning says it."""
    members = np.array([True, True, False])
    trace = _record((X[:3], Y[:3]), [([0, 2, 5], [0, 2, 2]), ([1, 2], [1, 2])], members=members)
    np.testing.assert_array_equal(trace.times_seen, [1, 1, 0])
    np.testing.assert_array_equal(trace.members, members)
    (said,) = [r.getMessage() for r in caplog.records]
    assert "candidate 2 is not among the members, but a batch has an equal row" in said


@pytest.mark.parametrize("wrong", [[(t + 1) % 3 for t in Y.tolist()], [t if t == 0 else 3 - t for t in Y.tolist()]])
def test_targets_that_are_all_wrong_are_refused(wrong: list[int]) -> None:
    """In the first step where none is right (here: each a class too far); else once chance is excluded (two classes
    that are swapped)."""
    many = [([*range(k, 12, 2)], [wrong[i] for i in range(k, 12, 2)]) for k in (0, 1) * 20]
    with pytest.raises(ValueError, match=r"target of row \d+ is \d, and the loop passes the loss \d for it, and so"):
        _record((X, Y), many, members=np.ones(12, dtype=bool), sampling=0.5)


def test_in_the_first_step_targets_of_another_form_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the target of row 0 is \[0.0, 0.0, 0.0\], and the loop passes the loss 0"):
        _record((X[:6], torch.zeros(6, 3)), [([0, 1], [0, 1])])


def test_rows_are_known_by_what_went_in_though_the_model_writes_into_them() -> None:
    module, optimizer, _ = private()
    x = X.clone()
    module._module.register_forward_pre_hook(lambda _, inputs: (inputs[0].mul_(2),))
    with leakcore.record(optimizer, candidates=(X[:3], Y[:3])) as recorder:
        nn.CrossEntropyLoss()(module(x[:2]), Y[:2]).backward()
        optimizer.step()
    np.testing.assert_array_equal(recorder.trace().times_seen, [1, 1, 0])
