"""A hook of mkdocs: the page reference/names.md, every public name with its signature. `python docs/hooks/names.py`
prints the page."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

PAGE = "reference/names.md"
INTRODUCTION = """# Names at a glance

Every public name of leakcore, read from the package when this site was built. A name links to its description. An
*object* is a dataclass that you make and pass on, or that a function returns; a *result* or a *record* is what a
function returns. The second column counts parameters or fields. Functions have at most eight parameters. Six are
excepted, because their keywords are the field's own, or the command's options: `clip_and_noise`, `mixture_log_ratio`,
`mixture_tail`, `bounds.reconstruction`, `record` and `audit.from_scores`.
"""


class PublicName(NamedTuple):
    """One row.

    Attributes:
        name: as users write it after the package's.
        described: where the reference describes it, as mkdocstrings names the place; empty for constants.
        kind: function, class, object, result, record, error or constant.
        signature: parameters without annotations; empty for what users do not call.
        size: the number of its parameters or fields, in words where they are fields.
        summary: the first line of its docstring.
    """

    name: str
    described: str
    kind: str
    signature: str
    size: str
    summary: str


def packages(package: str = "leakcore") -> Iterator[str]:
    """The package and every module that it offers, with theirs."""
    module = importlib.import_module(package)
    yield package
    for name in sorted(offered(module)):
        if inspect.ismodule(getattr(module, name)):
            yield from packages(f"{package}.{name}")


def offered(module: types.ModuleType) -> list[str]:
    """The names in `__all__`; in a module without one, the public names that it defines itself."""
    own = [name for name, member in vars(module).items() if getattr(member, "__module__", "") == module.__name__]
    listed: list[str] = getattr(module, "__all__", own)
    return [name for name in listed if not name.startswith("_")]


def names(package: str) -> Iterator[PublicName]:
    """The public names of a package, in the order of its `__all__`; modules among them have tables of their own."""
    module = importlib.import_module(package)
    for name in offered(module):
        member = getattr(module, name)
        if not inspect.ismodule(member):
            kind = _kind(member)
            called = kind in ("function", "class", "object")
            signature = _signature(member) if callable(member) else None
            yield PublicName(
                name,
                "" if kind == "constant" else f"{_home(package, name)}.{name}",
                kind,
                str(signature) if called and signature is not None else "",
                _size(member, signature),
                (inspect.getdoc(member) or "").partition("\n")[0] if callable(member) else "",
            )


def _home(package: str, name: str) -> str:
    """The package that describes a name: what the top level offers is described where it is at home."""
    if package != "leakcore":
        return package
    member = getattr(importlib.import_module(package), name)
    homes = [p for p in packages() if getattr(importlib.import_module(p), name, None) is member and p != package]
    return homes[0]


def _kind(member: Any) -> str:
    from leakcore._base.results import Record, Result

    if inspect.isfunction(member):
        return "function"
    if not inspect.isclass(member):
        return "constant"
    if issubclass(member, BaseException):
        return "error"
    if issubclass(member, Record):
        return "result" if issubclass(member, Result) else "record"
    if not dataclasses.is_dataclass(member):
        return "class"
    return "object"


def _signature(member: Any) -> inspect.Signature | None:
    """Without annotations; None for a class of C's."""
    try:
        whole = inspect.signature(member)
    except ValueError:
        return None
    own = [p.replace(annotation=p.empty) for p in whole.parameters.values() if p.name not in ("self", "cls")]
    return whole.replace(parameters=own, return_annotation=whole.empty)


def _size(member: Any, signature: inspect.Signature | None) -> str:
    if signature is None:
        return ""
    count = len([p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)])
    if dataclasses.is_dataclass(member):
        return f"{count} field{'s' * (count != 1)}"
    return str(count)


def page() -> str:
    """The whole page, one table for each package."""
    parts = [INTRODUCTION]
    for package in packages():
        rows = ["| name | kind | what it is |", "|---|---|---|"]
        for row in names(package):
            called = f"`{row.name}{row.signature}`" if row.signature else ""
            cells = (
                f"[`{row.name}`][{row.described}]" if row.described else f"`{row.name}`",
                f"{row.kind}, {row.size}" if row.size else row.kind,
                "<br>".join(filter(None, (row.summary, called))),
            )
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        parts.append(f"## {package}\n\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def on_files(files: Any, *, config: Any) -> Any:
    from mkdocs.structure.files import File

    files.append(File.generated(config, PAGE, content=page()))
    return files


if __name__ == "__main__":
    sys.stdout.write(page())
