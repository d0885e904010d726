"""The candidates of a recorded run: as the caller gives them, as the loop calls the model, and in a batch."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler

from leakcore._base import array_memory, validate
from leakcore.dpsgd.record.forward_passes import ForwardPass
from leakcore.dpsgd.rows.distributed import behind_wrappers
from leakcore.dpsgd.rows.hooks import Path, leaves_of, mapped

_FORMS = "a pair (inputs, targets), a mapping of arrays, or a DataLoader that gives one row at a time"
_log = logging.getLogger(__name__)
Feed = tuple[tuple[Any, ...], dict[str, Any], Any]
"""Positional arguments and keywords of the model, and the targets of the criterion."""
_MASK = "attention_mask"
_CHANCE = 1e-6
_CONTRADICTED = 3
"""How many candidates must come with other targets only, before any comes with its own, to count as wrong targets."""


@dataclasses.dataclass(frozen=True, eq=False)
class Stack:
    """Some of the rows, by number, whose leaves have equal shapes: leaf k of them is leaves[k], (len(numbers), ...)."""

    numbers: np.ndarray
    leaves: list[torch.Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class GivenRows:
    """n candidates, in stacks of rows of equal shapes.

    `tree` is what one row is, with a number in place of each leaf: {"inputs": ..., "targets": ...} or {"inputs": ...};
    `paths` are the leaves' paths in it. `fills` is what the loader's collate_fn adds to a shorter row, by leaf: (value,
    whether at the end), or None.
    """

    tree: dict[str, Any]
    paths: list[Path]
    stacks: list[Stack]
    fills: list[tuple[float, bool] | None]

    def __len__(self) -> int:
        return sum(len(stack.numbers) for stack in self.stacks)

    @property
    def has_targets(self) -> bool:
        """Whether targets were given apart from the inputs."""
        return "targets" in self.tree

    def content(self) -> list[Any]:
        """All that the rows are, for a digest."""
        return [[str(path) for path in self.paths], [[stack.numbers, stack.leaves] for stack in self.stacks]]

    def groups(self, numbers: np.ndarray) -> Iterator[tuple[np.ndarray, list[torch.Tensor]]]:
        """The rows of these numbers, where their shapes agree together: (places in `numbers`, leaves)."""
        for stack in self.stacks:
            row_of = {int(number): row for row, number in enumerate(stack.numbers)}
            places = np.array([k for k, number in enumerate(numbers) if int(number) in row_of], dtype=np.int64)
            if len(places):
                rows = torch.tensor([row_of[int(numbers[k])] for k in places])
                yield places, [leaf[rows.to(leaf.device)] for leaf in stack.leaves]

    def of_leaf(self, leaf: int) -> list[torch.Tensor]:
        """This leaf of every row, in order."""
        rows: list[torch.Tensor] = [torch.empty(0)] * len(self)
        for stack in self.stacks:
            for number, row in zip(stack.numbers, stack.leaves[leaf], strict=True):
                rows[int(number)] = row
        return rows


def read_candidates(candidates: Any) -> GivenRows:
    """The rows. TypeError or ValueError unless they have one of the known forms, with one or more rows."""
    if isinstance(candidates, DataLoader):
        return _of_loader(candidates)
    if isinstance(candidates, Mapping):
        return _of_arrays({"inputs": candidates}, {"inputs": "candidates"})
    if not isinstance(candidates, (tuple, list)) or len(candidates) != 2:
        raise TypeError(f"`candidates` must be {_FORMS}, got {type(candidates).__name__}")
    tree = {"inputs": candidates[0], "targets": candidates[1]}
    return _of_arrays(tree, {"inputs": "candidates[0]", "targets": "candidates[1]"})


def _of_arrays(tree: dict[str, Any], names: dict[str, str]) -> GivenRows:
    paths: list[Path] = []
    leaves: list[list[torch.Tensor] | torch.Tensor] = []
    numbered = {part: _numbered(value, (part,), names[part], paths, leaves) for part, value in tree.items()}
    counts = [len(leaf) if isinstance(leaf, list) or leaf.ndim else 0 for leaf in leaves]
    if not leaves or len(set(counts)) > 1 or counts[0] == 0:
        what = [f"{len(v)} rows" if isinstance(v, list) else str(tuple(v.shape)) for v in leaves]
        raise ValueError(
            "`candidates` must be one or more rows, as many inputs as targets, got shapes " + " and ".join(what)
        )
    if all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        stacks = [Stack(np.arange(counts[0]), [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])]
        return GivenRows(numbered, paths, stacks, [None] * len(leaves))
    rows = [
        [leaf[i : i + 1] if isinstance(leaf, torch.Tensor) else leaf[i] for leaf in leaves] for i in range(counts[0])
    ]
    return GivenRows(numbered, paths, _stacked(rows), [None] * len(leaves))


def _numbered(value: Any, path: Path, name: str, paths: list[Path], leaves: list[Any]) -> Any:
    """The tree with numbers for its arrays, which go to `leaves`. A list is an array, a tuple of arrays is not."""
    if isinstance(value, Mapping):
        return {k: _numbered(v, (*path, k), f"{name}[{k!r}]", paths, leaves) for k, v in value.items()}
    if isinstance(value, tuple) and any(isinstance(v, (torch.Tensor, np.ndarray, Mapping, tuple)) for v in value):
        return tuple(_numbered(v, (*path, k), f"{name}[{k}]", paths, leaves) for k, v in enumerate(value))
    paths.append(path)
    if isinstance(value, list) and len({len(v) for v in value if hasattr(v, "__len__")}) > 1:  # of several lengths
        leaves.append([_as_tensor(v, f"{name}[{i}]")[None] for i, v in enumerate(value)])
    else:
        leaves.append(_as_tensor(value, name))
    return len(leaves) - 1


def _of_loader(loader: DataLoader[Any]) -> GivenRows:
    """The rows that a loader gives one by one, in the order of its data set."""
    if loader.batch_size != 1 or not isinstance(loader.sampler, SequentialSampler):
        raise ValueError(
            f"`candidates` must be a DataLoader with batch_size=1 and shuffle=False, so that row i is a candidate by "
            f"itself, got batch_size={loader.batch_size} and {type(loader.sampler).__name__}"
        )
    tree: dict[str, Any] = {}
    paths: list[Path] = []
    rows: list[list[torch.Tensor]] = []
    for i, batch in enumerate(loader):
        parts = _parts(batch, f"candidates[{i}]")
        named = list(leaves_of(parts))
        if not rows:
            paths = [path for path, _ in named]
            tree = mapped(lambda path, _, paths=paths: paths.index(path), parts)  # type: ignore[misc]
        if [path for path, _ in named] != paths:
            raise ValueError(f"`candidates[{i}]` must have the fields of row 0, {paths}, got {[p for p, _ in named]}")
        for path, leaf in named:
            if not isinstance(leaf, torch.Tensor) or leaf.ndim == 0 or len(leaf) != 1:
                what = f"shape {tuple(leaf.shape)}" if isinstance(leaf, torch.Tensor) else type(leaf).__name__
                raise TypeError(f"`candidates[{i}]{list(path[1:])}` must be a tensor of one row, got {what}")
        rows.append([array_memory.plain_tensor(f"candidates[{i}]", leaf).detach() for _, leaf in named])
    if not rows:
        raise ValueError("`candidates` must be one or more rows, got an empty DataLoader")
    return GivenRows(tree, paths, _stacked(rows), _fills(loader, rows))


def _parts(batch: Any, name: str) -> dict[str, Any]:
    if isinstance(batch, Mapping):
        return {"inputs": dict(batch)}
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return {"inputs": batch[0], "targets": batch[1]}
    raise TypeError(f"`{name}` must be a mapping or a pair (inputs, targets), got {type(batch).__name__}")


def _fills(loader: DataLoader[Any], rows: Sequence[Sequence[torch.Tensor]]) -> list[tuple[float, bool] | None]:
    """What the collate_fn fills up the shortest row with, next to the longest."""
    sizes = [sum(leaf.numel() for leaf in row) for row in rows]
    short, long = int(np.argmin(sizes)), int(np.argmax(sizes))
    dataset: Any = loader.dataset
    if sizes[short] == sizes[long] or not callable(loader.collate_fn):
        return [None] * len(rows[0])
    together = [leaf for _, leaf in leaves_of(_parts(loader.collate_fn([dataset[short], dataset[long]]), "candidates"))]
    return [
        _fill(alone[0], both[0]) if isinstance(both, torch.Tensor) else None
        for alone, both in zip(rows[short], together, strict=True)
    ]


def _fill(alone: torch.Tensor, padded: torch.Tensor) -> tuple[float, bool] | None:
    if alone.ndim == 0 or padded.ndim != alone.ndim or len(padded) <= len(alone):
        return None
    for rows, rest, at_end in (
        (padded[: len(alone)], padded[len(alone) :], True),
        (padded[len(padded) - len(alone) :], padded[: len(padded) - len(alone)], False),
    ):
        if torch.equal(rows, alone) and bool((rest == rest.flatten()[0]).all()):
            return float(rest.flatten()[0]), at_end
    return None


def _stacked(rows: Sequence[Sequence[torch.Tensor]]) -> list[Stack]:
    by_shape: dict[Any, list[int]] = {}
    for i, row in enumerate(rows):
        by_shape.setdefault(tuple((leaf.shape, leaf.dtype) for leaf in row), []).append(i)
    return [
        Stack(np.array(numbers), [torch.cat(column) for column in zip(*(rows[i] for i in numbers), strict=True)])
        for numbers in by_shape.values()
    ]


def _as_tensor(array: Any, name: str) -> torch.Tensor:
    if isinstance(array, torch.Tensor):
        whole: torch.Tensor = array_memory.plain_tensor(name, array).detach()
        return whole
    try:
        return torch.as_tensor(array_memory.host(name, array)).detach()
    except (TypeError, ValueError, RuntimeError) as why:
        raise TypeError(f"`{name}` must be a tensor or an array of numbers ({why})") from None


class CallForm:
    """Where in the loop's call of the model each leaf of a candidate goes; the others are targets.

    What the loop passes besides, and is not one value per row (a setting, a number of tokens), is passed as it is.
    ValueError if the call has rows that the candidates lack, or the candidates have inputs that it lacks.
    """

    def __init__(self, candidates: GivenRows, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.candidates = candidates
        self._call: dict[str, Any] = {"args": args, "kwargs": kwargs}
        self._names = _names(module, args)
        call = dict(leaves_of(self._call))
        heads: list[Path] = [("args", k) for k in range(len(args))] + [("kwargs", k) for k in kwargs]
        places = {leaf: self._place(path, heads) for leaf, path in enumerate(candidates.paths) if path[0] == "inputs"}
        self.slots = {leaf: place for leaf, place in places.items() if place in call}
        rest = {leaf: candidates.paths[leaf] for leaf in places if leaf not in self.slots}
        if candidates.has_targets and rest:
            raise ValueError(
                f"candidates: the loop does not pass the model {_said(next(iter(rest.values())))}: give the inputs in "
                f"the form in which the loop calls it, {_described(args, kwargs)}"
            )
        if not self.slots:
            raise ValueError(
                f"candidates: none of their inputs is passed to the model, which gets {_described(args, kwargs)}"
            )
        self._targets: Any = candidates.tree.get("targets")
        if not candidates.has_targets:
            keys = {path[1]: candidates.tree["inputs"][path[1]] for path in rest.values()}
            self._targets = next(iter(keys.values())) if len(keys) == 1 else keys or None
        self.target_leaves = [number for _, number in leaves_of(self._targets) if number is not None]
        leaves = self.inputs_of(args, kwargs)
        self._types = {place: leaf.dtype for place, leaf in zip(self.slots.values(), leaves, strict=True)}
        for place, leaf in call.items():
            is_other = place not in self._types and isinstance(leaf, torch.Tensor)
            if is_other and leaf.ndim and len(leaf) == len(leaves[0]):
                raise ValueError(
                    f"candidates: the loop passes the model {_said(place)}, a value for each row, which they lack: add "
                    "it to the candidates' inputs"
                )

    @property
    def numbers(self) -> list[str]:
        """The numbers that the loop passes the model besides the rows, by name."""
        others = [(p, v) for p, v in leaves_of(self._call) if p not in self._types and not isinstance(v, bool)]
        return [_said(p) for p, v in others if isinstance(v, (int, float)) or (torch.is_tensor(v) and v.ndim == 0)]

    def inputs_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """The leaves of another call, in the order of `slots`. ValueError if the model is called in another way."""
        call = dict(leaves_of({"args": args, "kwargs": kwargs}))
        leaves = [call.get(place) for place in self.slots.values()]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.ndim]
        if len(tensors) < len(leaves) or len({len(t) for t in tensors}) > 1:
            raise ValueError(
                "candidates: every input of the model that they hold must be a tensor with the rows first, in every "
                f"call of the loop; one call got {_described(args, kwargs)}"
            )
        return tensors

    def feed(self, leaves: list[torch.Tensor]) -> Feed:
        """What the model and the criterion get for rows with these leaves, in the order of the candidates' leaves."""
        leaf_at = {place: leaf for leaf, place in self.slots.items()}

        def at(place: Path, other: Any) -> Any:
            if place not in leaf_at:
                return other
            rows, wanted = leaves[leaf_at[place]], self._types[place]
            return rows.to(wanted) if rows.is_floating_point() and wanted.is_floating_point else rows

        call = mapped(at, self._call)
        return call["args"], call["kwargs"], mapped(lambda _, n: None if n is None else leaves[n], self._targets)

    def first(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call with its first row alone."""
        places = set(self.slots.values())
        call = mapped(lambda place, v: v[:1] if place in places else v, {"args": args, "kwargs": kwargs})
        return call["args"], call["kwargs"]

    def listed(self, what: str) -> str:
        """The shapes and types of the candidates' "inputs" or "targets"."""
        chosen = list(self.slots) if what == "inputs" else self.target_leaves
        largest = max(self.candidates.stacks, key=lambda stack: len(stack.numbers))
        said = []
        for path, leaf in ((self.candidates.paths[k], largest.leaves[k]) for k in chosen):
            name = "" if len(path) == 1 else f"{_said(path)} "
            said.append(f"{name}of shape {tuple(leaf.shape)} and type {leaf.dtype}")
        return ", ".join(said)

    def _place(self, path: Path, heads: list[Path]) -> Path:
        """The place of a candidate's leaf in the call; it may not exist there."""
        _, *keys = path
        if not keys:
            inside = [p for p, v in leaves_of(self._call) if p[:2] == heads[0] and torch.is_tensor(v)] if heads else []
            return inside[0] if len(inside) == 1 else heads[0] if heads else ("args", 0)
        head, inner = keys[0], keys[1:]
        if isinstance(head, int):
            return (*heads[head], *inner) if head < len(heads) else ("args", head)
        if ("kwargs", head) not in heads and head in self._names:
            return ("args", self._names.index(head), *inner)
        only = self._call[heads[0][0]][heads[0][1]] if len(heads) == 1 else None
        if isinstance(only, Mapping):  # one argument that is the whole batch
            return (*heads[0], *keys)
        return ("kwargs", head, *inner)


def _names(module: nn.Module, args: tuple[Any, ...]) -> list[str]:
    """The names of the positional arguments, as far as the model's signature has them."""
    try:
        parameters = inspect.signature(behind_wrappers(module).forward).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds][: len(args)]


def _said(place: Path) -> str:
    keys = place[1:]
    inside = "".join(f"[{key!r}]" for key in keys[1:])
    return f"`{keys[0]}{inside}`" if keys and isinstance(keys[0], str) else f"argument {keys[0] if keys else 0}{inside}"


def _described(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    tensors = [(place, leaf) for place, leaf in leaves_of({"args": args, "kwargs": kwargs}) if torch.is_tensor(leaf)]
    return ", ".join(f"{_said(place)} of shape {tuple(leaf.shape)}" for place, leaf in tensors) or "no tensor"


class RowKeys:
    """Bytes that are equal for equal rows.

    Positions that the input named `attention_mask` (`names` are the last keys of the leaves) masks do not count.
    Without one, what the candidates' collate_fn adds to shorter rows, `fills`, does not count.
    """

    def __init__(self, names: Sequence[object], fills: Sequence[tuple[float, bool] | None]) -> None:
        self._mask = next((k for k, name in enumerate(names) if name == _MASK), None)
        self._fills = fills

    def of(self, leaves: Sequence[torch.Tensor]) -> list[bytes]:
        """One key for each row of these leaves, (B, ...) each."""
        if self._mask is None and not any(self._fills):
            columns = [row_bytes(leaf) for leaf in leaves]
        elif self._mask is None:
            columns = [
                row_bytes(leaf) if fill is None else [one_row(_without(row, *fill)) for row in leaf]
                for leaf, fill in zip(leaves, self._fills, strict=True)
            ]
        else:
            mask = leaves[self._mask]
            columns = [
                row_bytes(leaf)
                if leaf.shape[:2] != mask.shape
                else [one_row(row[chosen]) for row, chosen in zip(leaf, mask != 0, strict=True)]
                for leaf in leaves
            ]
        if len(columns) == 1:
            return columns[0]
        return [b"".join(len(part).to_bytes(8, "little") + part for part in row) for row in zip(*columns, strict=True)]


def _without(row: torch.Tensor, value: float, at_end: bool) -> torch.Tensor:
    other = (row != value).flatten(1).any(1) if row.ndim > 1 else row != value
    places = other.nonzero()
    if not len(places):
        return row[:0]
    return row[: int(places[-1]) + 1] if at_end else row[int(places[0]) :]


def one_row(row: torch.Tensor) -> bytes:
    return row_bytes(row[None])[0]


def row_bytes(rows: torch.Tensor) -> list[bytes]:
    """The bytes of each row."""
    if rows.numel() == 0:
        return [b""] * len(rows)
    flat = rows.detach().cpu().resolve_neg().contiguous().reshape(len(rows), -1)
    return [row.tobytes() for row in flat.view(torch.uint8).numpy()]


class CandidateRows:
    """n rows, recognised in batches by their inputs, and by their targets if the loss shows these.

    A row with a candidate's inputs and another target is another row, as is a row equal to a candidate that the
    caller's `members`, (n,) bool or None, call no member. `confirmed` candidates came with their own targets,
    `contradicted` ones with other targets, and these.
    """

    def __init__(self, candidates: GivenRows, members: np.ndarray | None) -> None:
        self.candidates, self.members = candidates, members
        self._keys: RowKeys | None = None
        self._targets: torch.Tensor | None = None
        self._by_inputs: dict[bytes, list[int]] = {}
        self.confirmed: set[int] = set()
        self.contradicted: dict[int, Any] = {}
        self._warned: set[str] = set()

    def of_batch(self, passes: Iterable[ForwardPass], form: CallForm) -> np.ndarray:
        """The indices of the candidates in the batch, ascending. ValueError if candidates cannot be distinguished."""
        inside = {i for forward in passes for i, _ in self.places(forward, form)}
        if self.members is not None:
            for i in [i for i in inside if not self.members[i]]:
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
        away = 0.5 if self.members is None or not sample_rate else (1 - sample_rate) ** steps
        asked = len(wrong) + sum(self._is_member(i) for i in self.confirmed)
        by_chance = float(stats.binom.sf(len(wrong) - 1, asked, away))
        if by_chance < _CHANCE or (not self.confirmed and len(wrong) >= _CONTRADICTED):
            raise ValueError(self._mismatch(wrong[0], self.contradicted[wrong[0]], f", and so for {len(wrong)} rows"))

    def _is_member(self, i: int) -> bool:
        return self.members is None or bool(self.members[i])

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
