"""A run is bound to what decides its last bits: begun under one arithmetic, it is not finished under another."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from leakcore import bounds, kernels
from leakcore._base.run_folder import PartialResults, identity
from leakcore._base.version import process_identity
from leakcore.cli import main

HERE = kernels.build_info()["simd"]
OTHER = next((tier for tier in kernels.build_info()["simd_available"] if tier != HERE), HERE)
TWO = pytest.mark.skipif(OTHER == HERE, reason="this machine has one instruction tier")


def _run(code: str, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip


def test_identity() -> None:
    result = kernels.arithmetic()
    assert result["simd"] == kernels.build_info()["simd"]
    assert result["blas"]
    assert result["libraries"]["scipy"]
    assert json.loads(json.dumps(result)) == result
    assert identity("x", {}, 0)["arithmetic"] == result
    result["variables"]["LEAKCORE"] = "changed by a caller"
    assert "LEAKCORE" not in kernels.arithmetic()["variables"]


_ASK = "import json; from leakcore import kernels; print(json.dumps(kernels.arithmetic()))"


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("LEAKCORE_ISA", "baseline", lambda now: now["simd"]),
        ("ATEN_CPU_CAPABILITY", "default", lambda now: now["variables"]),
        ("MKL_CBWR", "COMPATIBLE", lambda now: now["variables"]),
        ("NPY_DISABLE_CPU_FEATURES", "X86_V3 AVX2", lambda now: now["numpy"]),
        ("OPENBLAS_CORETYPE", "Nehalem", lambda now: now["blas"]),
    ],
)
def test_environment(name: str, value: str, said: Any) -> None:
    if said(kernels.arithmetic()) == value or kernels.arithmetic()["machine"] != "x86_64":
        pytest.skip("this process computes so already, or knows nothing of it")
    done = _run(_ASK, **{name: value})
    if done.returncode or said(json.loads(done.stdout)) == said(kernels.arithmetic()):
        assert name == "NPY_DISABLE_CPU_FEATURES", done.stderr  # its names differ between versions of NumPy
        pytest.skip("this NumPy does not know these names")
    assert {k: v for k, v in json.loads(done.stdout).items() if k not in ("simd", "variables", "numpy", "blas")} == {
        k: v for k, v in kernels.arithmetic().items() if k not in ("simd", "variables", "numpy", "blas")
    }


def test_threads() -> None:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "LEAKCORE_NUM_THREADS")
    assert json.loads(_run(_ASK, **dict.fromkeys(names, "2")).stdout) == kernels.arithmetic()


_FOLDER = """
import sys
from pathlib import Path
from leakcore._base.run_folder import identity
from leakcore._base.run_folder import PartialResults
me = identity("mine", {}, 0)
PartialResults(Path(sys.argv[1]), "run", me).get_or_run(sys.argv[2], lambda: {"v": 1})
"""


@pytest.mark.full
@TWO
def test_folder_of_another_tier(tmp_path: Path) -> None:
    assert _run(_FOLDER, tmp_path, "a", LEAKCORE_ISA=OTHER).returncode == 0
    before = sorted(p.read_bytes() for p in tmp_path.rglob("*.json"))
    with pytest.raises(ValueError, match=rf'arithmetic\.simd is "{OTHER}" there, "{HERE}" here'):
        PartialResults(tmp_path, "run", identity("mine", {}, 0))
    assert sorted(p.read_bytes() for p in tmp_path.rglob("*.json")) == before
    assert _run(_FOLDER, tmp_path, "b", LEAKCORE_ISA=OTHER).returncode == 0


def test_folder_without_identity(tmp_path: Path) -> None:
    old = {name: value for name, value in identity("mine", {}, 0).items() if name != "arithmetic"}
    PartialResults(tmp_path, "run", old).get_or_run("a", lambda: {"v": 1})
    with pytest.raises(ValueError, match=r"another kind \(arithmetic is null there, "):
        PartialResults(tmp_path, "run", identity("mine", {}, 0))


def test_folder_of_another_source(tmp_path: Path) -> None:
    """What is asked of a worker is asked of a folder: one version has several states while it is worked on."""
    other = {**identity("mine", {}, 0), "source": "0" * 64}
    PartialResults(tmp_path, "run", other).get_or_run("a", lambda: {"v": 1})
    with pytest.raises(ValueError, match=r'another kind \(source is "0000'):
        PartialResults(tmp_path, "run", identity("mine", {}, 0))
    assert set(identity("mine", {}, 0)) == {"command", "config", "seed", *process_identity()}


_COMMAND = ("attack", "prior-aware", "--runs", "600", "--steps", "3", "--num-rows", "30", "--quiet", "--out")
_CUT = """
import sys
from leakcore._base import run_folder
from leakcore.cli import main
write, done = run_folder.write_atomically, []
def stop(path, text, **options):
    write(path, text, **options)
    done.append(path)
    if len(done) == 2:
        raise KeyboardInterrupt
run_folder.write_atomically = stop
main(sys.argv[1:])
"""


@pytest.mark.full
@TWO
def test_exit_code(tmp_path: Path) -> None:
    """Begun under another tier, and cut after its first piece."""
    assert _run(_CUT, *_COMMAND, tmp_path, LEAKCORE_ISA=OTHER).returncode == 130
    done = CliRunner().invoke(main, [*_COMMAND, str(tmp_path)])
    assert done.exit_code == 2
    assert f'arithmetic.simd is "{OTHER}" there, "{HERE}" here' in done.stderr
    assert not (tmp_path / "prior-aware.json").exists()


_CHECKPOINT = """
import sys
import numpy as np
from leakcore import dpsgd
ensemble = dpsgd.Ensemble((4, 2), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.5, steps=3, seed=0)
rows = np.random.default_rng(0).random((9, 4)), np.arange(9) % 2
found = ensemble.run(*rows, runs=40, execution=dpsgd.Execution(checkpoint=sys.argv[1])).parameters
"""


@pytest.mark.full
@TWO
def test_checkpoint_of_another_tier(tmp_path: Path) -> None:
    assert _run(_CHECKPOINT, tmp_path, LEAKCORE_ISA=OTHER).returncode == 0
    (first,) = tmp_path.iterdir()
    names: dict[str, Any] = {}
    exec(_CHECKPOINT.replace("sys.argv[1]", repr(str(tmp_path))), names)
    assert (names["found"] == names["ensemble"].run(*names["rows"], runs=40).parameters).all()
    assert len(list(tmp_path.iterdir())) == 2
    assert first.exists()


def test_certificate_of_another_tier() -> None:
    first = bounds.methods.Certified(3000, 0.99, seed=3, width=0.9)
    state = bounds.reconstruction(1.0, 0.5, 3, kappa=0.1, method=first).state
    assert state is not None
    again = bounds.methods.Certified(4000, 0.99, seed=3, resume=state)
    assert bounds.reconstruction(1.0, 0.5, 3, kappa=0.1, method=again).num_samples == 4000
    moved = {**state, "computed_with": {**state["computed_with"], "simd": "another"}}
    with pytest.raises(ValueError, match=r'`resume` was begun elsewhere \(simd is "another" there, ".*" here\)'):
        bounds.reconstruction(1.0, 0.5, 3, kappa=0.1, method=dataclasses.replace(again, resume=moved))
    with pytest.raises(ValueError, match="`resume` must be the `state` of an earlier result, but this one"):
        dataclasses.replace(again, resume={k: v for k, v in state.items() if k != "computed_with"})
