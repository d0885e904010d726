"""The candidates as the caller gives them: rows of one tree of tensors, stacked where their shapes agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, SequentialSampler

from leakcore._base import array_memory

Path = tuple[Any, ...]
"""The keys and places that lead to a leaf of a tree."""
_FORMS = "a pair (inputs, targets), a mapping of arrays, or a DataLoader that gives one row at a time"


def leaves_of(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every leaf of nested mappings, lists and tuples, with its path; a packed sequence is a leaf."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves_of(value, (*path, key))
    elif isinstance(tree, (list, tuple)) and not isinstance(tree, PackedSequence):
        for place, value in enumerate(tree):
            yield from leaves_of(value, (*path, place))
    else:
        yield path, tree


def mapped(function: Callable[[Path, Any], Any], tree: Any, path: Path = ()) -> Any:
    """The tree with other leaves, from their paths and values. Mappings and tuples stay of their type."""
    if isinstance(tree, Mapping):
        new = {key: mapped(function, value, (*path, key)) for key, value in tree.items()}
        return new if type(tree) is dict else type(tree)(new)  # type: ignore[call-arg]
    if isinstance(tree, (list, tuple)) and not isinstance(tree, PackedSequence):
        values = [mapped(function, value, (*path, place)) for place, value in enumerate(tree)]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    return function(path, tree)


@dataclasses.dataclass(frozen=True, eq=False)
class Stack:
    """Some of the rows, by number, whose leaves have equal shapes: leaf k of them is leaves[k], (len(numbers), ...)."""

    numbers: np.ndarray
    leaves: list[torch.Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class GivenRows:
    """n candidates.

    Attributes:
        tree: what one row is, with a number in place of each leaf: {"inputs": ..., "targets": ...} or {"inputs": ...}.
        paths: of the leaves in this tree.
        stacks: the rows.
        fills: what the loader's collate_fn adds to a shorter row, by leaf: (value, whether at the end), or None.
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
    leaves.append(_rows_of_list(value, name) if _is_ragged(value) else _as_tensor(value, name))
    return len(leaves) - 1


def _is_ragged(value: Any) -> bool:
    sizes = [len(v) for v in value if hasattr(v, "__len__")] if isinstance(value, list) else []
    return len(set(sizes)) > 1


def _rows_of_list(value: list[Any], name: str) -> list[torch.Tensor]:
    return [_as_tensor(v, f"{name}[{i}]")[None] for i, v in enumerate(value)]


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
