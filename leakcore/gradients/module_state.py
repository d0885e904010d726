"""The state of a module, and of what it uses, to be restored after an evaluation."""

from __future__ import annotations

import collections
import contextlib
import functools
import random
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from leakcore import kernels

_PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device, types.ModuleType)
_DATA = (torch.optim.Optimizer, torch.utils.data.Dataset, torch.utils.data.DataLoader)
_OTHERS = ("torch", "opacus", "leakcore", "numpy", "builtins", "logging", "threading")
"""Packages whose functions and plain objects hold no state of a model."""
_OBJECTS_DEEP = 2
_LARGEST = 1 << 28


class State:
    """What modules and functions hold now, to be restored later.

    It covers parameters, buffers and attributes; among them lists, dictionaries, sets, random generators and plain
    objects, two levels deep; the same in closures, in classes, and in the variables of a user's module that functions
    name; and `functools.lru_cache`, which is cleared if entries were added. Tensors and arrays above 256 MiB that are
    neither parameters nor registered buffers are skipped, because such large ones are data.
    """

    def __init__(self, holders: list[Any]) -> None:
        self._arrays: list[tuple[Any, Any]] = []
        self._memos: list[tuple[Any, int]] = []
        self._parameters: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._generators: list[tuple[Any, Any]] = []
        self._visited: dict[int, Any] = {}
        self.writes_parameters = False
        for holder in holders:
            self._visit(holder, 0)

    def restore(self, parameters: bool = True) -> None:
        """Restore everything. `parameters=False` leaves the parameters out, which saves reading all of them."""
        for live, copy in self._containers:
            _restore_container(live, copy)
        for generator, before in self._generators:
            _write_generator(generator, before)
        for memo, misses in self._memos:
            if memo.cache_info().misses != misses:
                memo.cache_clear()
        with torch.no_grad():
            for array, before in self._arrays:
                _restore_array(array, before)
            if parameters:
                changed = [_restore_array(p, before) for p, before in self._parameters]
                self.writes_parameters = self.writes_parameters or any(changed)

    @staticmethod
    def seed(step: int, row: int = 0) -> None:
        """Seed the global generators of torch, NumPy and Python as a function of these numbers.

        A user's model may draw from any of them.
        """
        steps = kernels.Stream.CANDIDATE_DRAWS.steps
        number = kernels.subseed(0, kernels.Stream.CANDIDATE_DRAWS, step=step % steps, row=row, bits=63)
        for generator in global_generators():
            generator.manual_seed(number)
        np.random.seed(number % 2**32)  # noqa: NPY002, models draw from it
        random.seed(number)

    def _visit(self, value: Any, objects: int) -> None:
        if isinstance(value, _PLAIN) or id(value) in self._visited:
            return
        self._visited[id(value)] = value
        if isinstance(value, (torch.Tensor, np.ndarray)):
            self._copy(value)
        elif (state := _read_generator(value)) is not None:
            self._generators.append((value, state))
        elif isinstance(value, nn.Module):
            for buffer in value._buffers.values():
                self._copy(buffer, registered=True)
            self._keep(value.__dict__, objects)
            for kind in type(value).__mro__:
                self._visit(kind, objects)
        elif isinstance(value, (dict, list, set, collections.deque)):
            self._keep(value, objects)
        elif isinstance(value, tuple):
            for v in value:
                self._visit(v, objects)
        elif _is_code(value):
            for v in _used_by(value):
                self._visit(v, objects)
        elif isinstance(value, functools._lru_cache_wrapper):
            self._memos.append((value, value.cache_info().misses))
        elif type(value).__module__.partition(".")[0] in _OTHERS or isinstance(value, _DATA):
            return
        elif objects < _OBJECTS_DEEP and hasattr(value, "__dict__"):
            self._keep(value.__dict__, objects + 1)

    def _copy(self, value: Any, registered: bool = False) -> None:
        self._visited[id(value)] = value
        if isinstance(value, nn.Parameter):
            self._parameters.append((value, value.detach().clone()))
        elif value is not None and (registered or value.nbytes <= _LARGEST):
            self._arrays.append((value, value.copy() if isinstance(value, np.ndarray) else value.detach().clone()))

    def _keep(self, live: Any, objects: int) -> None:
        copy = dict(dict.items(live)) if isinstance(live, dict) else list(live)
        self._containers.append((live, copy))
        for v in copy.values() if isinstance(copy, dict) else copy:
            self._visit(v, objects)


def _is_code(value: Any) -> bool:
    return isinstance(
        value, (type, types.FunctionType, types.MethodType, functools.partial, staticmethod, classmethod, property)
    )


def _used_by(code: Any) -> Iterator[Any]:
    """What a function, or a class of the user's own, can change. That is closures, defaults, and the module's variables
    that it names, if they are data."""
    if (getattr(code, "__module__", None) or "").partition(".")[0] in _OTHERS:  # None: code that `exec` ran
        return
    if isinstance(code, type):
        yield from (v for v in vars(code).values() if _is_code(v) or _is_data(v))
    elif isinstance(code, functools.partial):
        yield from (code.func, *code.args, *code.keywords.values())
    elif isinstance(code, (staticmethod, classmethod)):
        yield code.__func__
    elif isinstance(code, property):
        yield from (f for f in (code.fget, code.fset) if f is not None)
    elif isinstance(code, types.MethodType):
        yield from (code.__self__, code.__func__)
    else:
        for cell in code.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                yield cell.cell_contents
        yield from code.__defaults__ or ()
        named = [code.__globals__.get(name) for name in code.__code__.co_names]
        here = code.__module__
        yield from (v for v in named if _is_data(v) or (isinstance(v, types.FunctionType) and v.__module__ == here))


def _is_data(value: Any) -> bool:
    kinds = (dict, list, set, collections.deque, torch.Tensor, np.ndarray, functools._lru_cache_wrapper)
    return isinstance(value, kinds) or _read_generator(value) is not None


def _restore_container(live: Any, copy: Any) -> None:
    if isinstance(live, dict):
        same = len(live) == len(copy) and all(
            a is c and b is d for (a, b), (c, d) in zip(dict.items(live), copy.items(), strict=True)
        )
    elif isinstance(live, set):
        same = len(live) == len(copy) and all(v in live for v in copy)
    else:
        same = len(live) == len(copy) and all(a is b for a, b in zip(live, copy, strict=True))
    if not same:
        live.clear()
        (live.extend if isinstance(live, (list, collections.deque)) else live.update)(copy)


def _restore_array(tensor: Any, before: Any) -> bool:
    """Restore an array, and return whether it had changed. Tensors are written through `.data`, so that autograd does
    not count a change."""
    if isinstance(tensor, np.ndarray):
        if tensor.flags.writeable:
            tensor[...] = before
        return False
    if tensor.shape != before.shape:
        tensor.data = before.clone()
        return True
    with contextlib.suppress(NotImplementedError, RuntimeError):  # layouts that torch does not compare
        if torch.equal(tensor, before):
            return False
    tensor.data.copy_(before)
    return True


def _read_generator(value: Any) -> Any:
    """The state of a random generator; None for anything else."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    return value.getstate() if isinstance(value, random.Random) else None


def _write_generator(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def global_generators() -> list[torch.Generator]:
    """torch's default generators, one for each device in use."""
    devices = list(torch.cuda.default_generators) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return [torch.default_generator, *devices]
