"""The candidates of a recorded run, and which of them a batch holds."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from scipy import stats

from leakcore._base import array_memory
from leakcore._base import validate as check
from leakcore.dpsgd.opacus.recorder.forward_passes import ForwardPass

_log = logging.getLogger(__name__)
_CHANCE = 1e-6
_CONTRADICTED = 3
"""How many candidates must come with other targets only, before any comes with its own, to count as wrong targets."""


class CandidateRows:
    """n rows, recognised in batches by their inputs, and by their targets if the loss shows these.

    A row with a candidate's inputs and another target is another row. `members` is (n,) bool or None; a row equal to a
    candidate that the caller called no member is another row as well.
    """

    def __init__(self, x: torch.Tensor, y: torch.Tensor, members: np.ndarray | None) -> None:
        self.x, self.y, self._members = x, y, members
        self._by_inputs: dict[bytes, list[int]] | None = None
        self._confirmed: set[int] = set()
        self._contradicted: dict[int, Any] = {}
        self._warned: set[str] = set()

    def of_batch(self, passes: Iterable[ForwardPass]) -> np.ndarray:
        """The indices of the candidates in the batch, ascending. ValueError if candidates cannot be distinguished."""
        inside: set[int] = set()
        for forward in passes:
            if forward.rows is not None:
                inside.update(self._of_pass(forward.rows, forward.targets))
        if self._members is not None:
            for i in [i for i in inside if not self._members[i]]:
                inside.discard(i)
                self._warn(
                    "members", f"candidate {i} is not among the members, but a batch has an equal row, which is "
                    "taken for another row. If the data has no such row, members and candidates differ in their order",
                )  # fmt: skip
        return np.array(sorted(inside), dtype=np.int64)

    def require_targets(self, steps: int, sample_rate: float | None) -> None:
        """ValueError if candidates came with other targets so often that the caller's targets must be wrong.

        A member's own row stays away from `steps` steps with probability (1 − q)^steps. A candidate that came with its
        own target, or that is called no member, says nothing. Where q or the members are unknown, 1/2 stands for that
        probability.
        """
        wrong = [i for i in self._contradicted if i not in self._confirmed and self._is_member(i)]
        if not wrong:
            return
        away = 0.5 if self._members is None or not sample_rate else (1 - sample_rate) ** steps
        asked = len(wrong) + sum(self._is_member(i) for i in self._confirmed)
        by_chance = float(stats.binom.sf(len(wrong) - 1, asked, away))
        if by_chance < _CHANCE or (not self._confirmed and len(wrong) >= _CONTRADICTED):
            raise ValueError(self._mismatch(wrong[0], self._contradicted[wrong[0]], f", and so for {len(wrong)} rows"))

    def _is_member(self, i: int) -> bool:
        return self._members is None or bool(self._members[i])

    def _of_pass(self, rows: torch.Tensor, targets: torch.Tensor | None) -> set[int]:
        groups = self._groups(rows)
        if targets is None or len(targets) != len(rows):
            self._require_inputs_differ()
            return {i for group in groups for i in group}
        places = [k for k, group in enumerate(groups) if group]
        if not places:
            return set()
        if self.y[:1].numel() != targets[:1].numel():
            raise ValueError(self._mismatch(groups[places[0]][0], targets[places[0]]))
        known, theirs = _row_bytes(self.y.to(targets.dtype)), _row_bytes(targets[places])
        inside = set()
        for k, target in zip(places, theirs, strict=True):
            same = [i for i in groups[k] if known[i] == target]
            inside.update(same)
            self._confirmed.update(same)
            for i in groups[k] if not same else ():
                self._contradicted.setdefault(i, targets[k].clone())
                if self._is_member(i) and i not in self._confirmed:
                    self._warn("targets", self._mismatch(i, targets[k], ", or this is another row with equal inputs"))
        return inside

    def _groups(self, rows: torch.Tensor) -> list[list[int]]:
        """The candidates with the inputs of each row."""
        if self._by_inputs is None:
            self._by_inputs = {}
            for i, row in enumerate(_row_bytes(self.x.to(rows.dtype))):
                self._by_inputs.setdefault(row, []).append(i)
            targets = _row_bytes(self.y)
            for group in self._by_inputs.values():
                for place, i in enumerate(group):
                    if twin := [j for j in group[:place] if targets[j] == targets[i]]:
                        raise ValueError(f"candidates: rows {twin[0]} and {i} have equal inputs, and equal targets")
        return [self._by_inputs.get(row, []) for row in _row_bytes(rows)]

    def _require_inputs_differ(self) -> None:
        assert self._by_inputs is not None
        if twins := next((group for group in self._by_inputs.values() if len(group) > 1), None):
            raise ValueError(
                f"candidates: rows {twins[0]} and {twins[1]} have equal inputs, and their targets, which differ, "
                "cannot be seen in the loop: that needs a loss of torch.nn that receives the model's outputs"
            )

    def _mismatch(self, i: int, target: torch.Tensor, more: str = "") -> str:
        return (
            f"candidates: the target of row {i} is {self.y[i].tolist()}, and the loop passes the loss "
            f"{target.tolist()} for it{more}: pass the targets in the form that the loss receives"
        )

    def _warn(self, what: str, message: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("record: %s", message)


def read_candidates(candidates: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets. TypeError or ValueError unless they are two arrays with the same number of rows."""
    if not isinstance(candidates, (tuple, list)) or len(candidates) != 2:
        raise TypeError(f"`candidates` must be a pair (inputs, targets), got {type(candidates).__name__}")
    x, y = (_as_tensor(array, f"candidates[{i}]") for i, array in enumerate(candidates))
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y) or len(x) == 0:
        raise ValueError(
            "`candidates` must be one or more rows, as many inputs as targets, got shapes "
            f"{tuple(x.shape)} and {tuple(y.shape)}"
        )
    return x, y


def read_members(members: Any, count: int) -> np.ndarray:
    """(count,) bool. ValueError for anything else."""
    flags = check.even_array(members=members.cpu() if isinstance(members, torch.Tensor) else members)
    if flags.shape != (count,) or flags.dtype != np.bool_:
        raise ValueError(f"`members` must be bool of shape ({count},), got {flags.dtype} of shape {flags.shape}")
    return flags


def _as_tensor(array: Any, name: str) -> torch.Tensor:
    if isinstance(array, torch.Tensor):
        whole: torch.Tensor = array_memory.plain_tensor(name, array).detach()
        return whole
    try:
        return torch.as_tensor(array_memory.host(name, array)).detach()
    except (TypeError, ValueError, RuntimeError) as why:
        raise TypeError(f"`{name}` must be a tensor or an array of numbers ({why})") from None


def _row_bytes(rows: torch.Tensor) -> list[bytes]:
    if rows.numel() == 0:
        return [b""] * len(rows)
    flat = rows.detach().cpu().resolve_neg().contiguous().reshape(len(rows), -1)
    return [row.tobytes() for row in flat.view(torch.uint8).numpy()]
