"""How the loop calls the model, so that a candidate can be passed in the same way."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from leakcore.dpsgd.opacus.recorder.candidates.given_rows import GivenRows, Path, leaves_of, mapped
from leakcore.dpsgd.opacus.recorder.wrapped_module import behind_wrappers

Feed = tuple[tuple[Any, ...], dict[str, Any], Any]
"""Positional arguments and keywords of the model, and the targets of the criterion."""


class CallForm:
    """Where in the loop's call of the model each leaf of a candidate goes; the others are targets.

    What the loop passes besides, and is not one value per row (a setting, a number of tokens), is passed as it is.

    Args:
        candidates: to be passed.
        module: the model.
        args: positional arguments of one call in the loop.
        kwargs: its keywords.

    Raises:
        ValueError: if the call has rows that the candidates lack, or the candidates have inputs that it lacks.
    """

    def __init__(self, candidates: GivenRows, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.candidates = candidates
        self._call: dict[str, Any] = {"args": args, "kwargs": kwargs}
        self._names = _names(module, args)
        call = dict(leaves_of(self._call))
        heads = self._heads()
        places = {leaf: self._place(path, heads) for leaf, path in enumerate(candidates.paths) if path[0] == "inputs"}
        self.slots = {leaf: place for leaf, place in places.items() if place in call}
        rest = {leaf: candidates.paths[leaf] for leaf in places if leaf not in self.slots}
        if candidates.has_targets and rest:
            raise ValueError(
                f"candidates: the loop does not pass the model {_said(next(iter(rest.values())))}: give the inputs in "
                f"the form in which the loop calls it, {self._described()}"
            )
        if not self.slots:
            raise ValueError(f"candidates: none of their inputs is passed to the model, which gets {self._described()}")
        self._targets: Any = candidates.tree.get("targets")
        if not candidates.has_targets:
            keys = {path[1]: candidates.tree["inputs"][path[1]] for path in rest.values()}
            self._targets = next(iter(keys.values())) if len(keys) == 1 else keys or None
        self.target_leaves = [number for _, number in leaves_of(self._targets) if number is not None]
        leaves = self.inputs_of(args, kwargs)
        self._types = {place: leaf.dtype for place, leaf in zip(self.slots.values(), leaves, strict=True)}
        for place, leaf in call.items():
            if (
                place not in self._types
                and isinstance(leaf, torch.Tensor)
                and leaf.ndim
                and len(leaf) == len(leaves[0])
            ):
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
        each = [(self.candidates.paths[k], largest.leaves[k]) for k in chosen]
        names = ["" if len(path) == 1 else f"{_said(path)} " for path, _ in each]
        return ", ".join(
            f"{name}of shape {tuple(leaf.shape)} and type {leaf.dtype}"
            for name, (_, leaf) in zip(names, each, strict=True)
        )

    def _heads(self) -> list[Path]:
        """The places of the call's arguments, in order."""
        return [("args", k) for k in range(len(self._call["args"]))] + [("kwargs", k) for k in self._call["kwargs"]]

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
        if len(heads) == 1 and isinstance(self._at(heads[0]), Mapping):  # one argument that is the whole batch
            return (*heads[0], *keys)
        return ("kwargs", head, *inner)

    def _at(self, place: Path) -> Any:
        part, key = place
        return self._call[part][key]

    def _described(self) -> str:
        return _described(self._call["args"], self._call["kwargs"])


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
