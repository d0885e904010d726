"""The conda recipe asks for what pyproject.toml asks for, and rattler-build renders it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / ".ci" / "conda" / "recipe.yaml"
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _recipe() -> dict[str, Any]:
    recipe: dict[str, Any] = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    return recipe


def _as_conda(requirement: str) -> str:
    """`numpy>=1.26; …` as `numpy >=1.26`."""
    parts = re.match(r"([\w-]+)(.*?)(;|$)", requirement)
    assert parts is not None
    return f"{CONDA_NAMES.get(parts[1], parts[1])} {parts[2].strip()}".strip()


def test_run_requirements() -> None:
    project, recipe = _project()["project"], _recipe()
    run = [r if isinstance(r, str) else r["then"] for r in recipe["requirements"]["run"]]
    assert sorted(run) == sorted(
        [f"python {project['requires-python']}", *(_as_conda(r) for r in project["dependencies"])]
    )
    extras = project["optional-dependencies"]
    constrained = sorted(_as_conda(r) for r in [*extras["torch"], *extras["report"]])
    assert sorted(recipe["requirements"]["run_constraints"]) == constrained


def test_build_requirements() -> None:
    project, recipe = _project(), _recipe()
    host = recipe["requirements"]["host"]
    assert {_as_conda(r) for r in project["build-system"]["requires"]} <= set(host)
    assert recipe["context"]["version"] == project["project"]["version"]
    assert recipe["about"]["license"] == project["project"]["license"]
    assert recipe["build"]["python"]["entry_points"] == [f"leakcore = {project['project']['scripts']['leakcore']}"]


def test_rattler_build() -> None:
    rattler_build = pytest.importorskip("rattler_build", reason="pip install py-rattler-build renders the recipe")
    recipe = rattler_build.Stage0Recipe.from_file(str(RECIPE))
    for python, least in (("3.10.*", True), ("3.12.*", False)):
        (variant,) = recipe.render(
            rattler_build.VariantConfig({"python": [python], "c_stdlib": ["sysroot"], "c_stdlib_version": ["2.34"]})
        )
        run = str(variant.recipe.to_dict()["requirements"]["run"])
        assert ("tomli" in run) == least
