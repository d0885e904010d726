"""leakcore from a wheel in empty environments, one pair for each Python: `python -m bench.installs --out JSON`.

For every Python that is found (`--pythons` names others) the wheel is built from the sdist, repaired to its manylinux
where auditwheel is installed, and installed in two empty environments: without torch, where the README's quickstart
runs, and with torch and reports, where a small audit runs, too. `--show JSON --page PAGE` writes the table between the
marks of a page.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import environment, kept_page

ROOT = Path(__file__).resolve().parent.parent
MARKS = ("<!-- installs -->", "<!-- /installs -->")
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.13t", "3.14", "3.14t")
SMALL_AUDIT = (
    "audit",
    "run",
    "--runs",
    "32",
    "--sweep",
    "",
    "--num-rows",
    "200",
    "--steps",
    "10",
    "--quiet",
    "--out",
    "report",
)


def interpreters() -> list[str]:
    """Pythons that leakcore may be installed in: on PATH, or below the folder where pyenv keeps its own."""
    below = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin"))
    path = os.pathsep.join([*map(str, below), os.environ.get("PATH", "")])
    pythons = [shutil.which(f"python{version}", path=path) for version in VERSIONS]
    return [python for python in pythons if python is not None]


def measured(pythons: list[str]) -> kept_page.Result:
    """What each Python's installation takes."""
    with tempfile.TemporaryDirectory(prefix="leakcore-installs-") as folder:
        work = Path(folder)
        wheels = _wheels_script()
        wheels.DIST = work / "dist"
        wheels.DIST.mkdir()
        source = wheels.sdist(work)
        rows = [_one(python, source, work, wheels) for python in pythons]
    return {"schema": "leakcore.installs/1", "machine": environment.facts(), "rows": rows}


def _wheels_script() -> Any:
    spec = importlib.util.spec_from_file_location("leakcore_wheels", ROOT / ".ci" / "wheels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _one(python: str, source: Path, work: Path, wheels: Any) -> dict[str, Any]:
    version = _output(python, "-c", "import platform; print(platform.python_version())")
    print(version, file=sys.stderr, flush=True)
    builder = _environment(python, work / f"{version}-build")
    start = time.monotonic()
    _output(
        builder, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels.DIST, source, LEAKCORE_CUDA="0"
    )
    seconds = time.monotonic() - start
    wheel = wheels.repaired(wheels.newest("*.whl"))
    row = {"python": version, "wheel": wheel.name, "wheel_mb": wheel.stat().st_size / 1e6, "build_seconds": seconds}
    for name, extra in (("plain", ""), ("torch", "[torch,report]")):
        try:
            row[name] = _installed(_environment(python, work / f"{version}-{name}"), f"{wheel}{extra}", name == "torch")
        except subprocess.CalledProcessError as error:
            row[name] = {"failed": (error.stderr.strip().splitlines() or ["without a word"])[-1]}
        shutil.rmtree(work / f"{version}-{name}", ignore_errors=True)
    shutil.rmtree(work / f"{version}-build", ignore_errors=True)
    return row


def _installed(python: str, what: str, torch: bool) -> dict[str, Any]:
    home = Path(python).parent.parent
    empty = _megabytes(home)
    start = time.monotonic()
    _output(python, "-m", "pip", "install", "--quiet", what)
    seconds = time.monotonic() - start
    out: dict[str, Any] = {"seconds": seconds, "mb": _megabytes(home) - empty}
    start = time.monotonic()
    out["said"] = _output(python, "-c", quickstart(), cwd=home)
    out["quickstart_seconds"] = time.monotonic() - start
    if torch:
        out["torch"] = _output(python, "-c", "import torch; print(torch.__version__)")
        start = time.monotonic()
        out["audit"] = _output(str(home / "bin" / "leakcore"), *SMALL_AUDIT, cwd=home).splitlines()[0]
        out["audit_seconds"] = time.monotonic() - start
    return out


def quickstart() -> str:
    """The README's first example."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"## Quickstart\n\n```python\n(.*?)```", readme, flags=re.DOTALL)
    assert example is not None
    return example[1]


def _environment(python: str, home: Path) -> str:
    _output(python, "-m", "venv", home)
    return str(home / "bin" / "python")


def _megabytes(folder: Path) -> float:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink()) / 1e6


def _output(*command: Any, cwd: Path | None = None, **variables: str) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env={**clean, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def text(result: kept_page.Result) -> str:
    """The table, and what it says."""
    lines = [
        "| Python | wheel | without torch | quickstart | with torch and reports | a small audit |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        cells = [row["python"], f"{row['wheel_mb']:.1f} MB, built in {row['build_seconds']:.0f} s"]
        cells += _cells(row["plain"], "quickstart_seconds") + _cells(row["torch"], "audit_seconds")
        lines.append(f"| {' | '.join(cells)} |")
    failed = [row["python"] for row in result["rows"] if "failed" in row["plain"] or "failed" in row["torch"]]
    tag = {re.sub(r".*-(.*)\.whl", r"\1", row["wheel"]) for row in result["rows"]}
    machine = result["machine"]
    said = (
        f"{'Failed: ' + ', '.join(failed) if failed else 'Every one works'}. "
        f"The wheels are {' and '.join(sorted(tag))}. Sizes are on disk, with everything that pip brought. "
        f"Times are of {machine['processors']} processors of {machine['cpu']} and a near mirror, with other work (load "
        f"{machine['load']:.0f} at the start)."
    )
    return "\n".join([*lines, "", said])


def _cells(one: dict[str, Any], what: str) -> list[str]:
    if "failed" in one:
        return [f"failed: {one['failed']}", "—"]
    with_torch = f", torch {one['torch']}" if "torch" in one else ""
    return [f"{one['mb']:.0f} MB in {one['seconds']:.0f} s{with_torch}", f"{one[what]:.1f} s"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.installs", description=__doc__)
    parser.add_argument("--pythons", nargs="+", metavar="EXE")
    kept_page.main(parser, lambda options: measured(options.pythons or interpreters()), text, MARKS)


if __name__ == "__main__":
    main()
