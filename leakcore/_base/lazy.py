"""What `lazy_loader` lacks: a package's public names stand in the stub next to it, and are looked up at first use."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import lazy_loader

from leakcore._base.version import missing

_SHARED = '"""For leakcore\'s other packages: no promise to users."""'
"""The line of a stub below which the names of leakcore's own packages stand, which `__all__` leaves out."""


class _Package(types.ModuleType):
    """A package in which a name stays what its stub says, where a module or a folder has the same name. Python binds
    every imported module to its package: `attacks/labels/last_layer.py` would take the place of the function
    `last_layer`."""

    _names: frozenset[str]
    _modules: frozenset[str]

    def __setattr__(self, name: str, value: Any) -> None:
        module = isinstance(value, types.ModuleType) and value.__name__ == f"{self.__name__}.{name}"
        if not module or name not in self._names or name in self._modules:
            super().__setattr__(name, value)


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of the package in `file`, from `__init__.pyi` next to it. `from . import
    laplace as laplace` hands up a module, `from .counts import epsilon_opt as epsilon_opt` a name."""
    # Not `attach_stub`: it parses the stub, but does not say what stands below a line or where a name comes from.
    with open(f"{os.path.splitext(file)[0]}.pyi", encoding="utf-8") as stub:
        public, _, shared = stub.read().partition(_SHARED)
    apart = _sources(shared)
    where = {**_sources(public), **apart}
    modules = {name for name, source in where.items() if source == "."}
    find, _, every = lazy_loader.attach(
        package, modules, {source[1:]: [n for n in where if where[n] == source] for source in {*where.values()} - {"."}}
    )
    names = [name for name in every if name not in apart]

    def __getattr__(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = find(name)
        except ModuleNotFoundError as error:
            if (named := missing(error, f"{package}.{name}")) is None:
                raise
            raise named from error
        except AttributeError:  # a module of an inner folder, which Python's own `from` would import
            value = importlib.import_module(f"{where[name]}.{name}", package)
        module.__dict__[name] = value  # the next look-up does not come here
        return value

    def __dir__() -> list[str]:
        return names.copy()

    module = sys.modules[package]
    module.__dict__["_names"] = frozenset(every)
    module.__dict__["_modules"] = frozenset(modules)
    module.__class__ = _Package
    return __getattr__, __dir__, names


def _sources(stub: str) -> dict[str, str]:
    """{name: module} of lines such as `from .module import name as name`."""
    return {line.split()[3]: line.split()[1] for line in stub.splitlines() if line.startswith("from ")}


def import_offered(name: str) -> None:
    """Import the module in which a package of leakcore defines a public name, outer packages first."""
    level = [__name__.partition(".")[0]]
    while level:
        inner: list[str] = []
        for package in level:
            with contextlib.suppress(ImportError):
                module = importlib.import_module(package)
                if name in vars(module).get("_names", vars(module)):
                    getattr(module, name)
                    return
                inner += [f"{package}.{n}" for n in sorted(vars(module).get("_modules", ()))]
        level = inner
