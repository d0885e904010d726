"""PEP 562: a package's public names are looked up in its modules at first use, so importing it is cheap."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any


class _Package(types.ModuleType):
    """A package in which a public name stays what it says, where a module has the same name.

    Python binds every imported module to its package: `attacks/labels/last_layer.py` would take the place of the
    function `last_layer`.
    """

    _public: Mapping[str, str]

    def __setattr__(self, name: str, value: Any) -> None:
        own = isinstance(value, types.ModuleType) and value.__name__ == f"{self.__name__}.{name}"
        if own and name in self._public and not _is_module(self._public[name], value, name):
            return
        super().__setattr__(name, value)


def _is_module(path: str, module: types.ModuleType, name: str) -> bool:
    """Whether the public name at `path` is the module of that name itself."""
    return path == f".{name}" and not hasattr(module, name)


def attach(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of `package`, given {public name: module that defines it}.

    A module path that ends in the name, as {"laplace": ".laplace"}, hands up the module unless the module defines the
    name.
    """

    def __getattr__(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(names[name], package)
        value = getattr(module, name, module) if names[name] == f".{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)  # the next look-up does not come here
        return value

    def __dir__() -> list[str]:
        return sorted(names)

    sys.modules[package].__dict__["_public"] = names
    sys.modules[package].__class__ = _Package
    return __getattr__, __dir__, list(names)
