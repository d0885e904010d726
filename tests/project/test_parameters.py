"""Nobody has to hold more than a dozen parameters in the head: what belongs together is an object."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2] / "leakcore"
MOST = 12


def _public() -> Iterator[tuple[str, Any]]:
    """Every public function, class and public method of a class, by the place where users find it."""
    for folder in (p.parent.relative_to(PACKAGE.parent) for p in PACKAGE.rglob("__init__.py")):
        package = ".".join(folder.parts)
        if any(part.startswith("_") for part in folder.parts) or package.startswith("leakcore.cli"):
            continue
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if inspect.isfunction(value) or (inspect.isclass(value) and not dataclasses.is_dataclass(value)):
                yield f"{package}.{name}", value
            if inspect.isclass(value):
                for method, own in vars(value).items():
                    call = own.__func__ if isinstance(own, classmethod | staticmethod) else own
                    if not method.startswith("_") and isinstance(call, types.FunctionType):
                        yield f"{package}.{name}.{method}", call


def _count(call: Any) -> int:
    try:
        parameters = inspect.signature(call).parameters.values()
    except ValueError:  # a class of C's
        return 0
    return sum(p.name not in ("self", "cls") and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def test_number_of_parameters() -> None:
    counted = {name: _count(call) for name, call in _public()}
    assert len(counted) > 200
    assert {name: count for name, count in counted.items() if count > MOST} == {}
