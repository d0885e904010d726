"""The import arrows of CONTRIBUTING.md, and what may not be imported at all, hold for every file and at run time."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "leakcore"

# A room may import rooms of later rows, and itself. Rooms of one row do not import each other.
LAYERS = (
    {"__main__"},
    {"cli"},
    {"audit", "experiments"},
    {"leakage"},
    {"attacks", "bounds", "defenses"},
    {"dpsgd"},
    {"gradients"},
    {"accounting"},
    {"mechanisms"},
    {"datasets", "models", "jax"},
    {"numerics", "kernels"},
    {"_base", "_C"},
)
TORCH_FREE = {"bounds", "numerics", "mechanisms", "accounting", "reference", "__init__", "_base"}
ONLY_KERNELS = "_C"
REACHES: dict[tuple[str, str], str] = {}
"""{(importing module, imported name): why it needs what its package does not share}; at most 20."""


class Import(NamedTuple):
    """What one line imports: the module or the name in a module, by its full name."""

    module: str
    name: str
    line: int

    @property
    def room(self) -> str:
        """The part of leakcore that it comes from: `from leakcore import kernels` names it last."""
        parts = self.module.split(".")
        return parts[1] if len(parts) > 1 else self.name


def _room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _allowed(room: str) -> set[str]:
    if room == "reference":
        return {"reference"}
    for i, row in enumerate(LAYERS):
        if room in row:
            below = set().union(*LAYERS[i + 1 :])
            return (below | {room}) - ({ONLY_KERNELS} if room != "kernels" else set())
    raise AssertionError(f"leakcore/{room} is in no row: place it in tests/project/test_architecture.py")


@functools.cache
def _imports(path: Path) -> tuple[Import, ...]:
    """Every import of a file, at its top or inside a function; those under TYPE_CHECKING are arrows as well."""
    out = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            out += [Import(*a.name.rpartition(".")[::2], node.lineno) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write the full name"
            out += [Import(str(node.module), a.name, node.lineno) for a in node.names]
    return tuple(out)


def _files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _name(path: Path) -> str:
    return ".".join(("leakcore", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def _arrows(room: str, imports: Iterator[Import]) -> list[str]:
    allowed = _allowed(room)
    ours = (i for i in imports if i.module.split(".")[0] == "leakcore" or (i.module, i.name) == ("", "leakcore"))
    return [f"line {i.line}: {i.module}.{i.name}" for i in ours if i.room not in allowed]


@pytest.mark.parametrize("path", [p for p in _files() if _room(p) != "__init__"], ids=_name)
def test_arrows(path: Path) -> None:
    assert _arrows(_room(path), iter(_imports(path))) == []


def test_negative_control_of_arrows() -> None:
    bad = [
        ("bounds", Import("leakcore.attacks.labels", "last_layer", 1)),
        ("attacks", Import("leakcore", "bounds", 1)),
        ("bounds", Import("leakcore", "_C", 1)),
        ("audit", Import("leakcore", "__version__", 1)),
        ("gradients", Import("", "leakcore", 1)),
        ("_base", Import("leakcore", "kernels", 1)),
        ("leakage", Import("leakcore.audit", "run", 1)),
    ]
    assert all(_arrows(room, iter([line])) for room, line in bad)
    assert not _arrows("kernels", iter([Import("leakcore", "_C", 1)]))


@functools.cache
def _face(package: str) -> frozenset[str]:
    """What a package offers: the names in its stub, or in its `__init__.py` where it has none."""
    path = PACKAGE.joinpath(*package.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    stub = path.with_suffix(".pyi")
    path = stub if stub.exists() else path
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if path.stem != "__init__":
        return frozenset(n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) if n.name[0] != "_")
    blocks = [tree.body, *(n.body for n in tree.body if isinstance(n, ast.If))]
    return frozenset(
        a.asname or a.name for body in blocks for n in body if isinstance(n, ast.ImportFrom) for a in n.names
    )


def _reaches(module: str, room: str, imports: Iterator[Import]) -> list[tuple[str, str]]:
    """Imports from another package of what it does not offer. _base is every package's."""
    out = []
    for i in imports:
        parts = i.module.split(".")
        if parts[0] != "leakcore" or len(parts) == 1 or i.room in (room, "_base"):
            continue
        # Down to the module, every step must be on offer: leakcore.attacks offers labels, which offers last_layer.
        steps = [(".".join(parts[:k]), parts[k]) for k in range(2, len(parts))] + [(i.module, i.name)]
        if any(name not in _face(package) for package, name in steps):
            out.append((module, f"{i.module}.{i.name}"))
    return out


def test_offered_names() -> None:
    reaches = [
        reach for p in _files() if _room(p) not in ("__init__", "__main__")
        for reach in _reaches(_name(p), _room(p), iter(_imports(p)))
    ]  # fmt: skip
    assert set(reaches) == set(REACHES)
    assert len(REACHES) <= 20


def test_negative_control_of_reaches() -> None:
    private = Import("leakcore.numerics.loss", "PrivacyLoss", 1)
    assert _reaches("leakcore.bounds.x", "bounds", iter([private]))
    assert not _reaches("leakcore.bounds.x", "bounds", iter([Import("leakcore.numerics", "PrivacyLoss", 1)]))
    assert not _reaches("leakcore.audit.x", "audit", iter([Import("leakcore.attacks.labels", "last_layer", 1)]))


def _circles(arrows: dict[str, set[str]]) -> list[str]:
    """Files that import each other, directly or through others; empty where there are none."""
    try:
        tuple(graphlib.TopologicalSorter(arrows).static_order())
    except graphlib.CycleError as error:
        return [str(name) for name in error.args[1]]
    return []


def test_circles_of_files() -> None:
    """Imports inside functions and under TYPE_CHECKING count; faces do not, for they are read at first use."""
    modules = {_name(p) for p in _files() if p.name != "__init__.py"}
    arrows = {
        _name(p): {m for i in _imports(p) for m in (i.module, f"{i.module}.{i.name}") if m in modules} - {_name(p)}
        for p in _files()
        if p.name != "__init__.py"
    }
    assert _circles(arrows) == []


def test_negative_control_of_circles() -> None:
    assert _circles({"a": {"b"}, "b": {"c"}, "c": {"a"}})


def _folder_arrows() -> dict[tuple[str, str], set[str]]:
    """{(folder, folder that it imports): the files that do}; what a package offers in its face is read at first use."""
    chapters = {_name(p): str(p.parent.relative_to(PACKAGE)) for p in _files() if p.name != "__init__.py"}
    arrows: dict[tuple[str, str], set[str]] = {}
    for path in _files():
        here = chapters.get(_name(path))
        for i in _imports(path) if here is not None else ():
            there = chapters.get(f"{i.module}.{i.name}", chapters.get(i.module, here))
            if there != here:
                arrows.setdefault((here, there), set()).add(path.name)
    return arrows


def test_folder_pairs() -> None:
    arrows = _folder_arrows()
    mutual = {tuple(sorted(pair)) for pair in arrows if pair[::-1] in arrows}
    assert not mutual, {pair: (arrows[pair], arrows[pair[::-1]]) for pair in mutual}


def test_file_lengths() -> None:
    """One subject that a newcomer would look up, usually 150 to 600 lines: neither crumbs nor a shelf in one file."""
    lines = {p: p.read_text(encoding="utf-8").count("\n") for p in _files() if not p.name.startswith("__")}
    assert [str(p) for p, n in lines.items() if n > 900] == []
    assert len([p for p, n in lines.items() if n < 60]) <= 40, "merge what is too small for a chapter of its own"
    assert len(lines) <= 320
    assert len({p.parent for p in lines}) <= 45, "a folder is for at least four chapters that belong together"


def test_reference_users() -> None:
    assert [
        _name(p) for p in _files() if _room(p) != "reference" and any(i.room == "reference" for i in _imports(p))
    ] == []


def test_reference_imports() -> None:
    for path in (PACKAGE / "reference").glob("*.py"):
        for i in _imports(path):
            root = (i.module or i.name).split(".")[0]
            ours = i.module.startswith("leakcore.reference")
            assert root in {*sys.stdlib_module_names, "numpy", "scipy"} or ours, f"{path.name}:{i.line}: {root}"


@pytest.mark.parametrize("path", [p for p in _files() if _room(p) in TORCH_FREE], ids=_name)
def test_torch_imports(path: Path) -> None:
    assert [f"line {i.line}" for i in _imports(path) if (i.module or i.name).split(".")[0] == "torch"] == []


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


STUBS = sorted(PACKAGE.rglob("__init__.pyi"))


@pytest.mark.parametrize("stub", STUBS, ids=lambda p: p.parent.name)
def test_stub_names(stub: Path) -> None:
    """The stub is the only list of a package's names: a checker reads it, and `attach` looks them up by it."""
    package = ".".join(("leakcore", *stub.parent.relative_to(PACKAGE).parts))
    module = importlib.import_module(package)
    nodes = [n for n in ast.parse(stub.read_text(encoding="utf-8")).body if isinstance(n, ast.ImportFrom)]
    names = [a.name for n in nodes for a in n.names]
    assert all(a.name == a.asname for n in nodes for a in n.names), "a stub exports what it imports `as` itself"
    assert sorted(names) == sorted(set(names)) == sorted(module._names)
    assert set(module.__all__) <= set(names)
    for node in nodes:
        source = importlib.import_module(f"{package}.{node.module or ''}".rstrip("."))
        for alias in node.names:
            value = getattr(module, alias.name)
            inner = node.module is None or not hasattr(source, alias.name)
            assert value is (sys.modules[f"{source.__name__}.{alias.name}"] if inner else getattr(source, alias.name))


def test_stubs() -> None:
    lazy = {p for p in PACKAGE.rglob("__init__.py") if "_attach(" in p.read_text(encoding="utf-8")}
    assert {p.with_suffix(".py") for p in STUBS} <= lazy


def test_light_import() -> None:
    done = _python("import leakcore, sys; assert not {'torch', 'scipy', 'pydantic'} & set(sys.modules)")
    assert done.returncode == 0, done.stderr


def test_pydantic_import() -> None:
    code = """
import sys
from leakcore import audit
kind = audit.AuditConfig
assert "pydantic" not in sys.modules
kind()
assert "pydantic" in sys.modules
"""
    done = _python(code)
    assert done.returncode == 0, done.stderr


def test_imports_without_torch() -> None:
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
assert leakcore.kernels.clip_scores(np.eye(3), np.eye(3), 1.0).dots.shape == (3, 3)
assert int(leakcore.kernels.solve_labels(np.eye(3), np.ones(3)).rank) == 3
assert abs(bounds.reconstruction(1.0, 1.0, 1, kappa=0.1).value - 0.38914369) < 1e-8
assert 0 < bounds.reconstruction(1.0, 0.1, 10, kappa=0.1, method="certified", num_samples=20000).value < 1
assert accounting.epsilon(1.0, 0.1, 10, delta=1e-5).value > 0
assert bounds.epsilon_lower_bound(95, 5, 100, adjacency="replace").value > 0
"""
    done = _python(code)
    assert done.returncode == 0, done.stderr
