"""A worker of another version, source or arithmetic is refused by name, whatever the work."""

from __future__ import annotations

import ast
import multiprocessing
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leakcore
from leakcore import audit, bounds, dpsgd, kernels, leakage, mechanisms
from leakcore._base.version import difference, process_identity
from leakcore._base.workers import in_order

PACKAGE = Path(leakcore.__file__).resolve().parent
OTHER_TIER = next((t for t in kernels.build_info()["simd_available"] if t != kernels.build_info()["simd"]), "")


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessPoolExecutor]:
    """A worker whose leakcore says another version."""
    folder = tmp_path_factory.mktemp("other")
    shutil.copytree(PACKAGE, folder / "leakcore", ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "leakcore" / "_base" / "version.py"
    file.write_text(file.read_text().replace(leakcore.__version__, "0.0.1"))
    yield from _worker_of(folder)


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessPoolExecutor]:
    """A worker whose leakcore has this version and one more line."""
    folder = tmp_path_factory.mktemp("edited")
    shutil.copytree(PACKAGE, folder / "leakcore", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "leakcore" / "numerics" / "search.py").open("a") as file:
        file.write("\n# another state of the source\n")
    yield from _worker_of(folder)


def _worker_of(folder: Path) -> Iterator[ProcessPoolExecutor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(folder), *sys.path])
        with _pool() as executor:
            assert executor.submit(_where).result() == str(folder / "leakcore")  # it starts, and takes the path over
            patch.undo()
            yield executor


def _where() -> str:
    import leakcore

    return str(Path(leakcore.__file__).parent)


def _ensemble(executor: Executor) -> Any:
    rows, labels = np.random.default_rng(0).normal(size=(20, 3)).astype("f4"), np.arange(20) % 2
    ensemble = dpsgd.Ensemble(
        (3, 2), seed=0, noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.1, steps=2, sample_rate=0.5
    )
    return ensemble.run(rows, labels, runs=40, execution=dpsgd.Execution(executor=executor, num_threads=1))


def _v_information(executor: Executor) -> Any:
    rng = np.random.default_rng(0)
    return leakage.v_information(rng.normal(size=(40, 3)), np.arange(40) % 2, family="logistic", executor=executor)


def _reconstruction(method: str, executor: Executor) -> Any:
    return bounds.reconstruction(
        1.0, 0.1, 5, kappa=0.1, method=method, num_samples=9_000, confidence=0.9, executor=executor
    )


WORK: dict[str, Callable[[Executor], Any]] = {
    "ensemble": _ensemble,
    "certified": lambda e: _reconstruction("certified", e),
    "monte carlo": lambda e: _reconstruction("monte-carlo", e),
    "pair": lambda e: bounds.reconstruction(
        mechanisms.RandomAllocation(1.0, 4, 1), kappa=0.1, method="certified", num_samples=9_000, executor=e
    ),
    "information": lambda e: bounds.fano_advantage(
        1.5, num_candidates=10, information=bounds.SampledInformation(num_samples=50_001, executor=e)
    ),
    "claim": lambda e: audit.claim(
        {
            "data": {"name": "digits", "num_rows": 60},
            "mechanism": {"noise_multiplier": 2.0, "steps": 2},
            "audit": {"trials": 40, "k": [1]},
        },
        executor=e,
    ),
    "v-information": _v_information,
}  # fmt: skip


@pytest.mark.parametrize("name", WORK)
def test_another_version(name: str, other: ProcessPoolExecutor) -> None:
    with pytest.raises(
        RuntimeError, match=r'another leakcore: versions.leakcore is "0.0.1" there, "' + leakcore.__version__
    ):
        WORK[name](other)


def test_another_source(edited: ProcessPoolExecutor) -> None:
    with pytest.raises(RuntimeError, match="another leakcore: source is "):
        _ensemble(edited)


@pytest.mark.full
@pytest.mark.skipif(not OTHER_TIER, reason="this machine has one instruction tier")
def test_another_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels.build_info()  # the tier of this process is chosen
    monkeypatch.setenv("LEAKCORE_ISA", OTHER_TIER)
    with _pool() as executor:
        executor.submit(_where).result()  # the worker has taken the variable over
        monkeypatch.undo()
        with pytest.raises(RuntimeError, match=f'arithmetic.simd is "{OTHER_TIER}" there'):
            _ensemble(executor)


_FORKED = """
import multiprocessing, os, sys
from concurrent.futures import ProcessPoolExecutor
import leakcore
from leakcore._base.workers import in_order

def other():
    os.environ["LEAKCORE_ISA"] = sys.argv[1]

pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"), initializer=other)
pool.submit(abs, 1).result()  # forked before this process has chosen its own tier
try:
    print(list(in_order(abs, [-1], pool)))
except RuntimeError as refused:
    print(refused)
"""


@pytest.mark.skipif(not OTHER_TIER, reason="this machine has one instruction tier")
def test_forked_tier() -> None:
    """It is this very program, and yet computes otherwise."""
    done = subprocess.run([sys.executable, "-c", _FORKED, OTHER_TIER], capture_output=True, text=True, check=True)
    assert f'arithmetic.simd is "{OTHER_TIER}" there' in done.stdout


def test_same_workers() -> None:
    with _pool() as processes, ThreadPoolExecutor(1) as threads:
        for executor in (processes, threads):
            assert list(in_order(abs, [-1, -2, -3], executor)) == [1, 2, 3]


def test_identity() -> None:
    identity = process_identity()
    assert set(identity) == {"versions", "source", "arithmetic"}
    assert difference(identity, identity) == ""
    identity["versions"].clear()  # a caller's copy
    assert process_identity()["versions"]["leakcore"]


@pytest.mark.full
def test_work_with_the_identity() -> None:
    """`executor.submit` and `executor.map` are called in one place; threads of this process need no identity."""
    calls = {
        (path.relative_to(PACKAGE).as_posix(), node.func.value.id if isinstance(node.func.value, ast.Name) else "?")
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "submit"
    }
    assert calls == {("_base/workers.py", "executor"), ("dpsgd/ensemble/workers.py", "pool")}
    mapped = [path.as_posix() for path in PACKAGE.rglob("*.py") if "executor.map(" in path.read_text(encoding="utf-8")]
    assert mapped == []
