"""A griffe extension: where a module and a public name are called the same, the reference shows the public name.

`leakcore.attacks.labels` offers a function `last_layer`, which the module `last_layer` defines. Griffe reads files and
takes the name for the module; at run time it is the function. Likewise a kernel behind the door of
`leakcore.kernels.api` is shown as the kernel that it calls.

A section `Example:` becomes `Examples:`, the only spelling under which griffe shows the lines as code.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

import griffe


class PublicNames(griffe.Extension):
    """Puts a package's public names in the place of modules of the same name."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        modules = _modules(pkg)
        for module in modules:
            _spell_examples(module)
            for name, member in list(module.members.items()):
                if not member.is_alias and member.is_attribute and str(member.value).startswith("_door("):
                    module.members[name] = module.members[str(member.value.arguments[0])].final_target
        packages = [module for module in modules if module.is_init_module]
        for package in packages:
            for member in package.members.values():
                if member.is_alias:  # while the modules can still be reached
                    with contextlib.suppress(griffe.AliasResolutionError, griffe.CyclicAliasError):
                        member.resolve_target()
        hidden = [
            (package, name, pkg.modules_collection[path]) for package in packages for name, path in _hidden(package)
        ]
        for package, name, target in hidden:
            package.members[name] = griffe.Alias(name, target, parent=package)


def _spell_examples(item: griffe.Object) -> None:
    if item.docstring is not None:
        item.docstring.value = re.sub(r"^Example:$", "Examples:", item.docstring.value, flags=re.MULTILINE)
    for member in item.members.values():
        if not member.is_alias and not member.is_module:
            _spell_examples(member)


def _modules(module: griffe.Module) -> list[griffe.Module]:
    below = [m for m in module.members.values() if not m.is_alias and m.is_module]
    return [module, *(inner for m in below for inner in _modules(m))]


def _hidden(package: griffe.Module) -> list[tuple[str, str]]:
    """(name, full path) of what the package imports under the name of one of its modules."""
    modules = {name for name, m in package.members.items() if not m.is_alias and m.is_module}
    return [
        (name, path)
        for name, path in package.imports.items()
        if name in modules and path.startswith("leakcore.") and path != f"{package.path}.{name}"
    ]
