"""The candidates of a recorded run, and which of them a batch holds."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from scipy import stats

from leakcore._base import validate
from leakcore.dpsgd.opacus.recorder.candidates.call_form import CallForm
from leakcore.dpsgd.opacus.recorder.candidates.given_rows import GivenRows
from leakcore.dpsgd.opacus.recorder.candidates.row_keys import RowKeys, one_row, row_bytes
from leakcore.dpsgd.opacus.recorder.forward_passes import ForwardPass

_log = logging.getLogger(__name__)
_CHANCE = 1e-6
_CONTRADICTED = 3
"""How many candidates must come with other targets only, before any comes with its own, to count as wrong targets."""


class CandidateRows:
    """n rows, recognised in batches by their inputs, and by their targets if the loss shows these.

    A row with a candidate's inputs and another target is another row. `members` is (n,) bool or None; a row equal to a
    candidate that the caller called no member is another row as well.

    Attributes:
        confirmed: candidates that came with their own targets.
        contradicted: candidates that came with other targets, and these.
    """

    def __init__(self, candidates: GivenRows, members: np.ndarray | None) -> None:
        self.candidates, self._members = candidates, members
        self._keys: RowKeys | None = None
        self._targets: torch.Tensor | None = None
        self._by_inputs: dict[bytes, list[int]] = {}
        self.confirmed: set[int] = set()
        self.contradicted: dict[int, Any] = {}
        self._warned: set[str] = set()

    def of_batch(self, passes: Iterable[ForwardPass], form: CallForm) -> np.ndarray:
        """The indices of the candidates in the batch, ascending. ValueError if candidates cannot be distinguished."""
        inside: set[int] = set()
        for forward in passes:
            inside.update(i for i, _ in self.places(forward, form))
        if self._members is not None:
            for i in [i for i in inside if not self._members[i]]:
                inside.discard(i)
                self._warn(
                    "members",
                    f"candidate {i} is not among the members, but a batch has an equal row, which is "
                    "taken for another row. If the data has no such row, members and candidates differ in their order",
                )
        return np.array(sorted(inside), dtype=np.int64)

    def places(self, forward: ForwardPass, form: CallForm) -> list[tuple[int, int]]:
        """(candidate, its row in the batch) of a forward pass. ValueError if candidates cannot be distinguished."""
        leaves = form.inputs_of(forward.args, forward.kwargs)
        return self._of_pass(self._groups(leaves, form), forward.targets)

    def learn(self, confirmed: set[int], contradicted: dict[int, Any]) -> None:
        """Add what another process saw of the same candidates."""
        self.confirmed |= confirmed
        self.contradicted = {**contradicted, **self.contradicted}

    def require_targets(self, steps: int, sample_rate: float | None) -> None:
        """ValueError if candidates came with other targets so often that the caller's targets must be wrong.

        A member's own row stays away from `steps` steps with probability (1 − q)^steps. A candidate that came with its
        own target, or that is called no member, says nothing. Where q or the members are unknown, 1/2 stands for that
        probability.
        """
        wrong = [i for i in self.contradicted if i not in self.confirmed and self._is_member(i)]
        if not wrong:
            return
        away = 0.5 if self._members is None or not sample_rate else (1 - sample_rate) ** steps
        asked = len(wrong) + sum(self._is_member(i) for i in self.confirmed)
        by_chance = float(stats.binom.sf(len(wrong) - 1, asked, away))
        if by_chance < _CHANCE or (not self.confirmed and len(wrong) >= _CONTRADICTED):
            raise ValueError(self._mismatch(wrong[0], self.contradicted[wrong[0]], f", and so for {len(wrong)} rows"))

    def _is_member(self, i: int) -> bool:
        return self._members is None or bool(self._members[i])

    def _of_pass(self, groups: list[list[int]], targets: torch.Tensor | None) -> list[tuple[int, int]]:
        known = self._targets
        if known is None or targets is None or len(targets) != len(groups):
            self._require_inputs_differ()
            return [(i, k) for k, group in enumerate(groups) for i in group]
        places = [k for k, group in enumerate(groups) if group]
        if not places:
            return []
        if known[:1].numel() != targets[:1].numel():
            raise ValueError(self._mismatch(groups[places[0]][0], targets[places[0]]))
        ours, theirs = row_bytes(known.to(targets.dtype)), row_bytes(targets[places])
        inside = []
        for k, target in zip(places, theirs, strict=True):
            same = [i for i in groups[k] if ours[i] == target]
            inside += [(i, k) for i in same]
            self.confirmed.update(same)
            for i in groups[k] if not same else ():
                self.contradicted.setdefault(i, targets[k].cpu().clone())
                if self._is_member(i) and i not in self.confirmed:
                    self._warn("targets", self._mismatch(i, targets[k], ", or this is another row with equal inputs"))
        return inside

    def _groups(self, leaves: list[torch.Tensor], form: CallForm) -> list[list[int]]:
        """The candidates with the inputs of each row."""
        if self._keys is None:
            self._read(leaves, form)
            assert self._keys is not None
        return [self._by_inputs.get(key, []) for key in self._keys.of(leaves)]

    def _read(self, like: list[torch.Tensor], form: CallForm) -> None:
        """Sort the candidates by their inputs, in the types of the loop's."""
        candidates = self.candidates
        self._keys = RowKeys(
            [candidates.paths[leaf][-1] for leaf in form.slots], [candidates.fills[leaf] for leaf in form.slots]
        )
        keys: dict[int, bytes] = {}
        for stack in candidates.stacks:
            rows = [stack.leaves[leaf].to(theirs.dtype) for leaf, theirs in zip(form.slots, like, strict=True)]
            keys.update(zip(stack.numbers.tolist(), self._keys.of(rows), strict=True))
        for i in range(len(candidates)):
            self._by_inputs.setdefault(keys[i], []).append(i)
        targets = [[one_row(row) for row in rows] for rows in (candidates.of_leaf(leaf) for leaf in form.target_leaves)]
        if len(form.target_leaves) == 1 and len(candidates.stacks) == 1:
            self._targets = candidates.stacks[0].leaves[form.target_leaves[0]]
        for group in self._by_inputs.values():
            for place, i in enumerate(group):
                if twin := [j for j in group[:place] if all(t[j] == t[i] for t in targets)]:
                    raise ValueError(f"candidates: rows {twin[0]} and {i} have equal inputs, and equal targets")

    def _require_inputs_differ(self) -> None:
        if twins := next((group for group in self._by_inputs.values() if len(group) > 1), None):
            raise ValueError(
                f"candidates: rows {twins[0]} and {twins[1]} have equal inputs, and their targets, which differ, "
                "cannot be seen in the loop: that needs a loss of torch.nn that receives the model's outputs"
            )

    def _mismatch(self, i: int, target: torch.Tensor, more: str = "") -> str:
        assert self._targets is not None
        return (
            f"candidates: the target of row {i} is {self._targets[i].tolist()}, and the loop passes the loss "
            f"{target.tolist()} for it{more}: pass the targets in the form that the loss receives"
        )

    def _warn(self, what: str, message: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("record: %s", message)


def read_members(members: Any, count: int) -> np.ndarray:
    """(count,) bool. ValueError for anything else."""
    flags = validate.even_array(members=members.cpu() if isinstance(members, torch.Tensor) else members)
    if flags.shape != (count,) or flags.dtype != np.bool_:
        raise ValueError(f"`members` must be bool of shape ({count},), got {flags.dtype} of shape {flags.shape}")
    return flags
