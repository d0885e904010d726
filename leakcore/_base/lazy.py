"""PEP 562: a package's public names are looked up in its private modules at first use, so importing it is cheap."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def attach(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of `package`, given {public name: module that defines it}.

    A module path that ends in the name itself, as {"laplace": ".laplace"}, hands up the module.
    """

    def __getattr__(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(names[name], package)
        found = module if names[name].rpartition(".")[2] == name else getattr(module, name)
        setattr(sys.modules[package], name, found)  # the next look-up does not come here
        return found

    def __dir__() -> list[str]:
        return sorted(names)

    return __getattr__, __dir__, list(names)
