"""The header and the examples, as C and C++ compilers, setuptools and CMake see them."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import leakcore
from leakcore import kernels
from leakcore.reference import kernels as reference
from tests.kernels.build import c_structs

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
CMAKE = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
needs_sources = pytest.mark.skipif(not EXAMPLES.exists(), reason="needs the source tree")


def test_header_in_the_package():
    header = Path(leakcore.get_include()) / "leakcore" / "kernels.h"
    assert '#define LEAKCORE_KERNELS_CAPSULE "leakcore._C.kernels"' in header.read_text()


USE = """#include <Python.h>
#include <leakcore/kernels.h>
static const leakcore_kernels* table(void) { return leakcore_import_kernels(); }
int main(void) {
  leakcore_clip_and_noise_args call = {0};
  call.place.threads = 1;
  return table() == 0 ? 1 : table()->clip_and_noise(&call).code;
}
"""


@pytest.mark.parametrize(("compiler", "standard"), [("cc", "c99"), ("cc", "c11"), ("c++", "c++17")])
@pytest.mark.parametrize("python", [False, True])
def test_header_without_warnings(tmp_path: Path, compiler: str, standard: str, python: bool) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    import sysconfig

    plain = "#include <leakcore/kernels.h>\nint size = sizeof(leakcore_kernels);\n"
    text = USE.replace("{0}", "{}") if standard == "c++17" else USE
    source = tmp_path / f"use.{'cpp' if compiler == 'c++' else 'c'}"
    source.write_text(text if python else plain)
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-pedantic", "-Werror", f"-I{leakcore.get_include()}"]
    flags += ["-isystem", sysconfig.get_path("include")] if python else []
    subprocess.run([compiler, *flags, "-fsyntax-only", source.name], cwd=tmp_path, check=True)


SIZES_OF_VERSION_2 = {"place": 40, "rows": 48, "mixture": 64, "tail": 32, "allocation": 96, "status": 24, "clip_and_noise_args": 160, "clip_scores_args": 192, "solve_labels_args": 208, "mixture_log_ratio_args": 112, "mixture_tail_args": 136, "allocation_log_ratio_args": 144, "allocation_tail_args": 168, "random_args": 128}
"""Bytes on a 64-bit machine: a struct that changes its size needs another version of the table."""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_struct_layouts(tmp_path: Path) -> None:
    """Sizes, and every field's place, which ctypes computes from its own list."""
    structs = {
        "place": c_structs.Place, "rows": c_structs.Rows, "mixture": c_structs.Mixture, "tail": c_structs.Tail,
        "allocation": c_structs.Allocation, "status": c_structs.Status,
        **{f"{name}_args": struct for name, struct in c_structs.STRUCTS.items()}, "kernels": c_structs.Table,
    }  # fmt: skip
    lines = ["#include <leakcore/kernels.h>", "#include <stddef.h>"]
    for name, struct in structs.items():
        whole = f"leakcore_{name}"
        facts = [(f"sizeof({whole})", ctypes.sizeof(struct))]
        facts += [(f"offsetof({whole}, {field[0]})", getattr(struct, field[0]).offset) for field in struct._fields_]
        lines += [f"typedef char {whole}_{i}[{text} == {value} ? 1 : -1];" for i, (text, value) in enumerate(facts)]
    (tmp_path / "layout.c").write_text("\n".join(lines))
    command = ["cc", f"-I{leakcore.get_include()}", "-fsyntax-only", "layout.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert {name: ctypes.sizeof(structs[name]) for name in SIZES_OF_VERSION_2} == SIZES_OF_VERSION_2


def _loaded(name: str, folder: Path) -> ModuleType:
    (built,) = folder.glob(f"{name}*.so")
    spec = importlib.util.spec_from_file_location(name, built)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@needs_sources
@pytest.mark.skipif(CMAKE is None or shutil.which("cc") is None, reason="needs CMake and a C compiler")
def test_example_in_c(tmp_path: Path) -> None:
    """find_package finds the installed leakcore, and refuses another version of the table."""
    folder = EXAMPLES / "embed_cmake"
    python = f"-DPython_EXECUTABLE={sys.executable}"
    subprocess.run([CMAKE, "-S", folder, "-B", tmp_path, python], check=True, capture_output=True)
    subprocess.run([CMAKE, "--build", tmp_path], check=True, capture_output=True)
    module = _loaded("embed_cmake", tmp_path)
    grads = np.random.default_rng(0).standard_normal((20, 64)).astype(np.float32)[::2, ::-1]
    total = np.frombuffer(module.clipped_sum(grads, 3.0, 0.0, 1), dtype=np.float32)
    (wanted,), _ = reference.clip_and_noise([grads], 3.0)
    np.testing.assert_allclose(total, wanted, atol=1e-5)
    noisy = np.frombuffer(module.clipped_sum(grads, 3.0, 0.5, 1), dtype=np.float32)
    np.testing.assert_array_equal(noisy, kernels.clip_and_noise(grads, 3.0, 0.5, seed=1).sum)
    with pytest.raises(ValueError, match=r"`max_grad_norm` must be in \(0, inf\)"):
        module.clipped_sum(grads, 0.0, 0.0, 1)
    other = tmp_path / "other"
    other.mkdir()
    text = (folder / "CMakeLists.txt").read_text().replace("find_package(leakcore 2", "find_package(leakcore 1")
    (other / "CMakeLists.txt").write_text(text)
    shutil.copy(folder / "example.c", other)
    refused = subprocess.run([CMAKE, "-S", other, "-B", other / "b", python], capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "compatible with requested version" in refused.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
@needs_sources
def test_example_in_cpp(tmp_path: Path) -> None:
    pytest.importorskip("pybind11")
    for source in ("example.cpp", "setup.py"):
        shutil.copy(EXAMPLES / "embed_kernel" / source, tmp_path)
    subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=tmp_path, check=True)
    module = _loaded("embed_kernel", tmp_path)
    arguments = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 20, "seed": 4}
    tail = kernels.mixture_tail(100_000, 0.1, under="alternative", **arguments)
    assert module.share_above(0.1, 100_000, threads=2, **arguments) == int(tail.counts) / 100_000
    with pytest.raises(ValueError, match=r"`sample_rate` must be in \[0, 1\]"):
        module.share_above(0.1, 10, **{**arguments, "sample_rate": 2.0})
