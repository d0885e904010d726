"""What the stages need, by name, what is missing here, and how to bring it to a machine without a network."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

from bench.gpu.state import ROOT

WHEELS, SITE = ROOT / "build" / "gpu-wheels", ROOT / "build" / "gpu-site"


class Need(NamedTuple):
    """A package: its name for pip and for import, the stages that need it, and the least version ("" for any)."""

    package: str
    module: str
    stages: tuple[str, ...]
    least: str = ""


PACKAGES = (
    Need("setuptools", "setuptools", ("build",), "77"),
    Need("pybind11", "pybind11", ("build",), "2.13"),
    Need("ninja", "ninja", ("build",)),
    Need("numpy", "numpy", ("build", "test", "bench"), "1.26"),
    Need("scipy", "scipy", ("test", "bench"), "1.11"),
    Need("threadpoolctl", "threadpoolctl", ("test", "bench"), "3"),
    Need("lazy_loader", "lazy_loader", ("test", "bench"), "0.4"),
    Need("pytest", "pytest", ("test",), "8"),
    Need("pytest-timeout", "pytest_timeout", ("test",), "2.3"),
    Need("hypothesis", "hypothesis", ("test",), "6.100"),
    Need("mpmath", "mpmath", ("test",)),
)
"""leakcore's other dependencies (pydantic, click, tqdm, …) are not imported by kernels and ensembles."""
DEPENDENCIES = ("packaging", "pluggy", "iniconfig", "pygments", "sortedcontainers", "attrs")
"""Theirs, which travel with them: pip finds them all in one folder."""


def missing(stages: list[str]) -> list[Need]:
    """Packages that these stages need and this Python has not, or only in an older version."""
    return [n for n in PACKAGES if set(n.stages) & set(stages) and not _have(n)]


def _have(need: Need) -> bool:
    if importlib.util.find_spec(need.module) is None:
        return False
    if not need.least:
        return True
    try:
        return _number(importlib.metadata.version(need.package)) >= _number(need.least)
    except importlib.metadata.PackageNotFoundError:
        return False


def _number(version: str) -> list[int]:
    parts = version.split(".")[:2]
    return [int("".join(c for c in part if c.isdigit()) or 0) for part in parts]


def tools(stages: list[str], emulate: bool, arch: bool) -> list[str]:
    """What is missing besides Python packages, each with what to do about it. arch: a build for a card elsewhere."""
    out = []
    if "build" in stages:
        if not Path(sysconfig.get_path("include"), "Python.h").exists():
            minor = f"{sys.version_info.major}.{sys.version_info.minor}"
            out.append(
                f"Python.h of Python {minor}: on another machine `apt-get download libpython{minor}-dev`, here "
                f"`dpkg -x libpython{minor}-dev*.deb build/gpu-headers` and "
                f"`export CPATH=$PWD/build/gpu-headers/usr/include/python{minor}`"
            )
            if any(Path(p, "Python.h").exists() for p in os.environ.get("CPATH", "").split(os.pathsep) if p):
                out.pop()
        compiler = os.environ.get("CXX", "c++").split()[0]
        if shutil.which(compiler) is None:
            out.append(f"a C++ compiler ({compiler}): g++ 11 or clang 14 or newer comes with every image that has nvcc")
        homes = [
            os.environ.get("CUDA_HOME", ""),
            os.environ.get("CUDA_PATH", ""),
            *map(str, Path("/usr/local").glob("cuda*")),
        ]
        if not emulate and shutil.which("nvcc") is None and not any(Path(h, "bin/nvcc").exists() for h in homes if h):
            out.append("nvcc: take an image with the CUDA toolkit (a tag with `devel`), or name it in CUDA_HOME")
    if not emulate and (set(stages) != {"build"} or not arch) and not _torch_sees_a_card():
        out.append("torch with CUDA and a card that it sees: take the Python of an image that has them (PYTHON=...)")
    return out


def _torch_sees_a_card() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def install(needs: list[Need]) -> list[Need]:
    """Takes what is missing from the wheels that were brought along; what is missing still."""
    if needs and WHEELS.is_dir():
        names = [n.package for n in needs]
        print(f"from build/gpu-wheels: {', '.join(names)}", flush=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(WHEELS)]
        subprocess.run([*command, "--upgrade", "--target", str(SITE), *names], check=False)
    use_installed()
    return [n for n in needs if not _have(n)]


def use_installed() -> None:
    """What `install` put into build/gpu-site is found, here and in processes that are started."""
    if SITE.is_dir() and str(SITE) not in sys.path:
        sys.path.insert(0, str(SITE))
        os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (str(SITE), os.environ.get("PYTHONPATH", "")) if p)
        importlib.invalidate_caches()


def download(python: str, packages: list[str] | None = None) -> int:
    """Wheels of the packages above, or of these alone, for a machine with this Python and x86-64 Linux, into
    build/gpu-wheels. What they depend on comes along."""
    WHEELS.mkdir(parents=True, exist_ok=True)
    platforms = [f"manylinux{p}_x86_64" for p in ("_2_28", "_2_27", "_2_17", "2014", "1")]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "-d",
        str(WHEELS),
    ]
    command += ["--python-version", python, "--implementation", "cp", *(f"--platform={p}" for p in platforms)]
    chosen = [n for n in PACKAGES if not packages or n.package in packages]
    if unknown := set(packages or ()) - {n.package for n in PACKAGES}:
        print(
            f"--packages: {', '.join(sorted(unknown))}: not needed; these are: {', '.join(n.package for n in PACKAGES)}"
        )
        return 2
    asked = [n.package + (f">={n.least}" if n.least else "") for n in chosen]
    asked += DEPENDENCIES if any(n.package in ("pytest", "hypothesis") for n in chosen) else ()
    done = subprocess.run([*command, *asked], check=False).returncode
    size = sum(f.stat().st_size for f in WHEELS.glob("*.whl")) / 2**20
    print(f"{len(list(WHEELS.glob('*.whl')))} wheels, {size:.0f} MiB, in build/gpu-wheels: carry that folder along")
    return done
