"""The import arrows of CONTRIBUTING.md, and what may not be imported at all, hold for every file and at run time."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "leakcore"

# Left may import right. A package absent from the right of its own row may not be imported by it.
BASE = {
    "_results", "_validate", "_lazy", "_pieces", "_npz", "_progress", "_futures", "_one_thread", "_cores", "_columns",
    "_quiet", "_writing", "_folder_lock", "_installed", "_figure_style", "_memory",
    "_memory_limit",
    "_printable", "_file_limits", "_zip", "_gzip", "_json", "_toml", "_csv", "_tar",
}  # fmt: skip
LAYERS = [
    {"__main__"},
    {"cli"},
    {"audit", "experiments"},
    {"leakage"},
    {"attacks", "bounds", "defenses"},
    {"dpsgd"},
    {"accounting", "models", "datasets"},
    {"torch_ops", "_store"},
    {"numerics", "kernels"},
    {"_C"},
]
TORCH_FREE = {"bounds", "numerics", "accounting", "reference", "__init__", "_store"} | BASE


def _allowed(part: str) -> set[str]:
    if part == "reference":
        return {"reference"}
    if part in BASE:
        return BASE
    if part == "kernels":  # a traced call asks for the operators, lazily
        return {"kernels", "torch_ops", "_C"} | BASE
    for i, layer in enumerate(LAYERS):
        if part in layer:
            below = set().union(*LAYERS[i + 1 :]) - {"_C"}
            return below | BASE | {part} | ({"_C"} if part == "kernels" else set())
    raise AssertionError(f"leakcore/{part} is in no layer: place it in tests/test_architecture.py")


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module a file imports, at its top or inside a function; names under TYPE_CHECKING too (they are arrows as "
    "well)."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write the full name"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


def _files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _arrow_violations(part: str, imports: list[tuple[str, int]]) -> list[str]:
    allowed = _allowed(part)
    targets = ((name.split("."), line) for name, line in imports if name.startswith("leakcore."))
    # `from leakcore import kernels` and `from leakcore.kernels import x` both have the part second.
    return [
        f"line {line}: {'.'.join(name)}"
        for name, line in targets
        if name[1] not in allowed | {"__version__", "reference"}
    ]


@pytest.mark.parametrize("path", _files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_arrows(path: Path) -> None:
    part = _part(path)
    if part == "__init__":
        return
    assert _arrow_violations(part, list(_imports(path))) == []


def test_the_arrow_check_can_fail() -> None:
    assert _arrow_violations("bounds", [("leakcore.attacks.labels", 1)]) == ["line 1: leakcore.attacks.labels"]
    assert _arrow_violations("attacks", [("leakcore.bounds.reconstruction", 1)])
    assert _arrow_violations("bounds", [("leakcore._C", 3)])


def test_reference_is_no_hot_path() -> None:
    users = [
        str(p.relative_to(PACKAGE))
        for p in _files()
        if _part(p) != "reference" and any(n.startswith("leakcore.reference") for n, _ in _imports(p))
    ]
    assert users == []


def test_reference_imports_numpy_and_scipy_only() -> None:
    stdlib = set(sys.stdlib_module_names)
    for path in (PACKAGE / "reference").glob("*.py"):
        for name, line in _imports(path):
            root = name.split(".")[0]
            assert root in stdlib | {"numpy", "scipy"} or name.startswith("leakcore.reference"), (
                f"{path.name}:{line}: {name}"
            )


@pytest.mark.parametrize(
    "path", [p for p in _files() if _part(p) in TORCH_FREE], ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_torch_is_not_imported_where_it_may_be_absent(path: Path) -> None:
    assert [f"line {line}: {name}" for name, line in _imports(path) if name.split(".")[0] == "torch"] == []


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


PACKAGES = [p.parent for p in _files() if p.name == "__init__.py" and "_attach(" in p.read_text(encoding="utf-8")]


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda p: p.name)
def test_what_a_type_checker_sees_is_what_there_is(folder: Path) -> None:
    """Names looked up at first use stand under TYPE_CHECKING as well, and nothing else does."""
    tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
    blocks = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    seen = {a.asname for b in blocks for n in b.body if isinstance(n, ast.ImportFrom) for a in n.names}
    package = ".".join(("leakcore", *folder.relative_to(PACKAGE).parts))
    assert seen == set(importlib.import_module(package).__all__)
    # A module-level __getattr__ that a checker sees would let any name pass.
    hidden = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "not TYPE_CHECKING"]
    assert len(hidden) == 1


def test_import_leakcore_does_not_import_torch() -> None:
    done = _python("import leakcore, sys; assert 'torch' not in sys.modules and 'scipy' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_kernels_bounds_and_accounting_work_where_torch_is_not_importable() -> None:
    code = """
import sys
sys.modules["torch"] = None  # any `import torch` now raises ImportError
import numpy as np
import leakcore
from leakcore import accounting, bounds
ratios = leakcore.mixture_log_ratio(1000, noise_multiplier=1.0, sample_rate=0.1, steps=10, seed=1)
assert ratios.shape == (1000,)
clipped = leakcore.clip_and_noise(np.ones((4, 3)), 1.0, 0.5, seed=7)
assert clipped.sum.shape == (3,)
assert abs(bounds.reconstruction(1.0, 1.0, 1, kappa=0.1).value - 0.38914369) < 1e-8
assert 0 < bounds.reconstruction(1.0, 0.1, 10, kappa=0.1, method="certified", num_samples=20000).value < 1
assert accounting.epsilon(1.0, 0.1, 10, delta=1e-5).value > 0
assert bounds.epsilon_lower_bound(95, 5, 100).value > 0
"""
    done = _python(code)
    assert done.returncode == 0, done.stderr
