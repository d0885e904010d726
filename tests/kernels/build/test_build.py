"""What was built: what it links, what it says about itself, what its build refuses."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import leakcore
from leakcore import _C, kernels
from tests.kernels import devices

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs binutils")
def test_module_links():
    lines = subprocess.run(
        ["readelf", "-d", _C.__file__], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    needed = {line.split("[")[1].rstrip("]") for line in lines if "NEEDED" in line}
    assert needed
    if any(name.startswith("libasan.") for name in needed):
        pytest.skip("a sanitized build (make sanitize) links its runtimes, too")
    allowed = ("libstdc++.", "libm.", "libgcc_s.", "libc.", "libpthread.", "libdl.", "librt.", "ld-linux")
    assert all(name.startswith(allowed) for name in needed), needed


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs binutils")
def test_no_cuda_symbols():
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", _C.__file__], check=True, capture_output=True, text=True
    ).stdout
    assert "PyInit__C" in symbols
    assert "cuda" not in symbols.lower()


def test_names_of_the_module():
    """What only bench and tests need (the probe of a processor, the hooks of the emulation) is in builds of their own."""
    stub = ast.parse((ROOT / "leakcore" / "_C.pyi").read_text(encoding="utf-8"))
    declared = {node.target.id for node in stub.body if isinstance(node, ast.AnnAssign)}
    declared |= {node.name for node in stub.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    hooks = {"emulated", "emulation_capture", "emulation_check", "emulation_schedule"} if devices.EMULATED else set()
    assert {name for name in vars(_C) if not name.startswith("_")} == declared | hooks


def test_build_info():
    info = kernels.build_info()
    assert info["version"] == leakcore.__version__
    assert info["compiler"]
    assert info["simd"] in info["simd_available"]
    assert info["simd_available"][0] == "baseline"
    assert info["cuda"] is _C.with_cuda
    assert bool(info["cuda_archs"]) is info["cuda"]
    assert info["num_threads"] == kernels.num_threads()
    assert bool(info["devices"]) is not bool(info["device_message"])


@pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="needs the source tree")
@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"LEAKCORE_CUDA": "perhaps"}, "`LEAKCORE_CUDA` must be auto, 0, 1 or emulate, got 'perhaps'"),
        ({"LEAKCORE_CUDA": "1", "CUDA_HOME": "/nonexistent"}, "`LEAKCORE_CUDA` must be auto or 0 without bin/nvcc"),
        ({"LEAKCORE_CUDA": "0", "CXX": "/no/such/cc"}, "no C++ compiler: `/no/such/cc -dumpmachine` failed"),
    ],
)
def test_build_refusals(environment, message, tmp_path):
    pytest.importorskip("setuptools")
    pytest.importorskip("ninja")
    if "nvcc" in message and (list(Path("/usr/local").glob("cuda*")) or shutil.which("nvcc")):
        pytest.skip("this machine has CUDA where the build looks for it")
    command = [sys.executable, "setup.py", "build_ext", f"--build-temp={tmp_path}", f"--build-lib={tmp_path}"]
    run = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
    assert run.returncode != 0
    assert message in run.stderr
