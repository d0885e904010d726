"""A digest of an object: the same in every process for equal values, another for anything that computes otherwise.

A user's functions and classes are identified by their code, with the constants, closures and globals that it uses.
Functions and classes of packages whose version is recorded are identified by name. Everything else is identified by its
type and by the parts that the pickle protocol lists (`__reduce_ex__`, `__getstate__`); nothing is pickled. An object
without such a value, such as a lock, an open file or a generator, is refused by name.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import re
import sys
import types
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leakcore._base.digest import digest

_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, type(...), type(NotImplemented))
_RECORDED = {"leakcore", "numpy", "torch", "scipy", "sklearn", "opacus", "builtins"} | set(sys.stdlib_module_names)
"""Top-level packages whose versions the digest of a run holds, or that come with Python."""
_TORCH_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
_NO_CODE = {"__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__", "_abc_impl"}
_MODULE_ATTRIBUTES = set(vars(torch.nn.Module())) | {"_flat_weights", "_flat_weight_refs"}
"""Attributes of every torch module: parameters, buffers and parts, which have names, and hooks, which have numbers."""


class ObjectHasher:
    """Digests of objects; each part is read once."""

    def __init__(self) -> None:
        self._digests: dict[int, bytes] = {}
        self._above: dict[int, int] = {}
        self._alive: list[object] = []  # the id of a deleted object could go to another

    def digest(self, value: object, where: str) -> bytes:
        """The digest of one object."""
        if type(value) in _PLAIN:
            plain = bytes(value) if isinstance(value, (bytes, bytearray)) else repr(value)
            return _digest(type(value).__name__, plain)
        key = id(value)
        if key in self._digests:
            return self._digests[key]
        if key in self._above:  # a part that refers back to the whole
            return _digest("above", str(len(self._above) - self._above[key]))
        self._above[key] = len(self._above)
        try:
            result = self._value(value, where)
        except RecursionError:
            raise _refused(where, value, "is nested too deeply") from None
        finally:
            del self._above[key]
        self._digests[key] = result
        self._alive.append(value)
        return result

    def _value(self, value: Any, where: str) -> bytes:
        kind = _name(type(value))
        if isinstance(value, type):
            return self._class(value, where)
        if isinstance(value, enum.Enum):
            return _digest("member", self.digest(type(value), where), value.name)
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value, where)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, where)
        if isinstance(value, torch.nn.Module):
            return self._module(value, where)
        if isinstance(value, _TORCH_CONSTANTS):
            return _digest(kind, str(value))
        if isinstance(value, torch.Generator):
            return _digest(kind, str(value.device), self._tensor(value.get_state(), where))
        if type(value) in (tuple, list):
            return _digest(kind, *(self.digest(v, f"{where}[{i}]") for i, v in enumerate(value)))
        if type(value) in (set, frozenset):
            return _digest(kind, *sorted(self.digest(v, where) for v in value))
        if type(value) in (dict, types.MappingProxyType):
            return _digest(kind, *self._items(value, where))
        if isinstance(value, types.FunctionType):
            return self._function(value, where)
        if isinstance(value, types.CodeType):
            return self._code(value, where)
        if isinstance(value, types.ModuleType):
            return _digest("module", value.__name__, _content(value))
        if isinstance(value, property | staticmethod | classmethod | functools.cached_property):
            inside = [getattr(value, name, None) for name in ("fget", "fset", "fdel", "__func__", "func")]
            return _digest(kind, *(self.digest(v, where) for v in inside))
        if isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType | types.WrapperDescriptorType):
            return _digest(kind, value.__name__)
        return self._parts(value, where)

    def _items(self, value: Mapping[Any, Any], where: str) -> Iterable[bytes]:
        for key, inside in value.items():
            yield self.digest(key, where)
            yield self.digest(inside, f"{where}[{key!r}]" if isinstance(key, (str, int)) else where)

    def _parts(self, value: Any, where: str) -> bytes:
        """The digest of the parts into which the pickle protocol takes the object apart."""
        if isinstance(value, weakref.ReferenceType | types.FrameType | types.TracebackType):
            raise _refused(where, value, "has no value that distinguishes it from another")
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            parts = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception as why:
            raise _refused(where, value, f"has no value that distinguishes it from another ({why})") from None
        if isinstance(parts, str):
            return _digest("global", getattr(value, "__module__", None) or "", parts)
        build, arguments, state, listed, mapped = (*parts, None, None, None)[:5]
        out = [self.digest(build, where), *(self.digest(v, where) for v in arguments)]
        if isinstance(state, dict):
            for key, inside in sorted(state.items(), key=lambda item: str(item[0])):
                out += [self.digest(key, where), self.digest(inside, f"{where}.{key}")]
        else:
            out.append(self.digest(state, where))
        out += [self.digest(v, f"{where}[{i}]") for i, v in enumerate(listed or ())]
        out += self._items(dict(mapped or ()), where)
        return _digest("object", self.digest(type(value), where), *out)

    def _array(self, value: np.ndarray | np.generic, where: str) -> bytes:
        array, kind = np.asarray(value), _name(type(value))
        if array.dtype.hasobject:
            head = kind, str(array.dtype.descr if array.dtype.names else array.dtype.str), str(array.shape)
            return _digest(*head, *(self.digest(v, where) for v in array.ravel().tolist()))
        form = str(array.dtype.descr) if array.dtype.names else ""
        plain = np.frombuffer(array.tobytes(), np.uint8) if form else array
        own = getattr(value, "__dict__", {})  # of a subclass: a mask
        return _digest(kind, form, array.shape, plain, *self._items(own, where))

    def _tensor(self, value: torch.Tensor, where: str) -> bytes:
        try:
            return _digest("tensor", value)
        except (RuntimeError, TypeError, NotImplementedError) as why:
            raise _refused(where, value, f"cannot be read ({why})") from None

    def _module(self, value: torch.nn.Module, where: str) -> bytes:
        named = [*value.named_parameters(recurse=False), *value.named_buffers(recurse=False)]
        inside = [(name, part) for name, part in value.named_children()]
        values = [v for name, part in [*named, *inside] for v in (_digest(name), self.digest(part, f"{where}.{name}"))]
        return _digest("module", self.module_settings(value, where), *values)

    def module_settings(self, value: torch.nn.Module, where: str) -> bytes:
        """The digest of a module without its parameters, buffers and parts."""
        out = [self.digest(type(value), where), _digest(str(value.training))]
        for name, member in sorted(vars(value).items()):
            if name not in _MODULE_ATTRIBUTES:
                out += [_digest(name), self.digest(member, f"{where}.{name}")]
            elif name.endswith("_hooks") and member:
                out += [_digest(name), *(self.digest(hook, f"{where}.{name}") for hook in member.values())]
        return _digest("settings", *out)

    def _class(self, value: type, where: str) -> bytes:
        head = "class", _name(value)
        if (version := _version(value.__module__)) is not None:
            return _digest(*head, version)
        out = [self.digest(base, where) for base in value.__bases__]
        for name, member in sorted(vars(value).items()):
            if name not in _NO_CODE:
                out += [_digest(name), self.digest(member, f"{where}.{name}")]
        return _digest(*head, *out)

    def _function(self, value: types.FunctionType, where: str) -> bytes:
        code, out = value.__code__, []
        for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True):
            try:
                out.append(self.digest(cell.cell_contents, f"{where}.{name}"))
            except ValueError:  # not filled yet
                out.append(_digest("empty"))
        head = "function", str(value.__module__), value.__qualname__
        if (version := _version(value.__module__)) is not None:
            return _digest(*head, version, *out)
        out += [
            self._code(code, where),
            self.digest(value.__defaults__, where),
            self.digest(value.__kwdefaults__, where),
        ]
        out += self._items(value.__dict__, where)
        for name in sorted(_names(code) & value.__globals__.keys()):
            out += [_digest(name), self.digest(value.__globals__[name], f"{where}.{name}")]
        return _digest(*head, *out)

    def _code(self, code: types.CodeType, where: str) -> bytes:
        names = (*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)
        constants = (self.digest(constant, where) for constant in code.co_consts)
        shape = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
        jumps = getattr(code, "co_exceptiontable", b"")
        return _digest("code", code.co_code, jumps, str(names), str(shape), *constants)


def _digest(*parts: Any) -> bytes:
    return bytes.fromhex(digest(*parts))


def _names(code: types.CodeType) -> set[str]:
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _version(module: str | None) -> str | None:
    """What identifies the code of an installed module, together with its name; None if only the code itself does."""
    package = (module or "").partition(".")[0]
    if package == "__main__":
        return None
    if package in _RECORDED:
        return ""
    whole = sys.modules.get(package)
    folders = Path(getattr(whole, "__file__", None) or "").parts
    installed = "site-packages" in folders or "dist-packages" in folders
    return str(getattr(whole, "__version__", "")) if installed else None


def _content(module: types.ModuleType) -> str | bytes:
    """What distinguishes an imported module from another of its name: its version, or else its file."""
    if (version := _version(module.__name__)) is not None:
        return version
    try:
        return Path(module.__file__ or "").read_bytes()
    except (OSError, AttributeError):
        return ""


def _refused(where: str, value: object, why: str) -> TypeError:
    kind = re.sub(r"^builtins\.", "", _name(type(value)))
    return TypeError(
        f"{where}: a {kind} {why}, by which finished runs are recognised: leave it out of the state (__getstate__), or "
        "take no checkpoint"
    )
