"""PEP 562: a package's public names are looked up in its modules at first use, so importing it is cheap."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from leakcore._base.version import missing


class _Package(types.ModuleType):
    """A package in which a name stays what it says, where a module has the same name.

    Python binds every imported module to its package: `attacks/labels/last_layer.py` would take the place of the
    function `last_layer`.
    """

    _names: Mapping[str, str]

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, types.ModuleType) and value.__name__ == f"{self.__name__}.{name}" and name in self._names:
            if self._names[name] == f".{name}" and not hasattr(value, name):
                super().__setattr__(name, value)
            return
        super().__setattr__(name, value)


def attach(
    package: str, names: Mapping[str, str], shared: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of `package`, given {public name: module that defines it}.

    A module path that ends in the name, as {"laplace": ".laplace"}, hands up the module unless the module defines the
    name. `shared`: names for leakcore's other packages, which `__all__` leaves out.
    """
    every = {**names, **(shared or {})}

    def __getattr__(name: str) -> Any:
        if name not in every:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(every[name], package)
        except ModuleNotFoundError as error:
            if (named := missing(error, f"{package}.{name}")) is None:
                raise
            raise named from error
        named_so = every[name].rpartition(".")[2] == name
        value = getattr(module, name, module) if named_so else getattr(module, name)
        setattr(sys.modules[package], name, value)  # the next look-up does not come here
        return value

    def __dir__() -> list[str]:
        return sorted(names)

    sys.modules[package].__dict__["_names"] = every
    sys.modules[package].__class__ = _Package
    return __getattr__, __dir__, list(names)


def import_offered(name: str) -> None:
    """Import the module in which a package of leakcore defines a public name, outer packages first."""
    level = [__name__.partition(".")[0]]
    while level:
        inner: list[str] = []
        for package in level:
            with contextlib.suppress(ImportError):
                names: Mapping[str, str] = vars(importlib.import_module(package)).get("_names", {})
                if name in names:
                    importlib.import_module(names[name], package)
                    return
                inner += [f"{package}.{n}" for n, path in names.items() if path == f".{n}"]
        level = inner
