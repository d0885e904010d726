"""The matrix of states and arguments, made in another process, since what fails here may end it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.arrays import matrix  # noqa: E402

QUICK = {
    ("kernels.clip_and_noise", "grads"), ("kernels.clip_and_noise", "mask"), ("kernels.clip_scores", "observed"),
    ("kernels.philox4x32", "counter"), ("bounds.laplace.mechanism", "values"), ("bounds.label_epsilon", "jacobian"),
    ("numerics.clopper_pearson", "successes"), ("numerics.gaussian_pair_epsilon", "separation"),
    ("attacks.membership.Observations", "losses"), ("attacks.poisoning.Backdoor", "shape"),
    ("attacks.attributes.matched_batches", "attribute"), ("attacks.inversion.ssim", "first"),
    ("defenses.Clip.apply", "gradients"), ("datasets.Dataset", "features"), ("dpsgd.Ensemble.run", "features"),
    ("leakage.input_attributes", "inputs"),
}  # fmt: skip
"""One or two of each reader; the rest takes minutes."""


class Worker:
    """A process of `tests.arrays.worker`, started again where a call ends it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.arrays.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                cwd=Path(__file__).resolve().parents[2], env={**os.environ, "OMP_NUM_THREADS": "1"},
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
        return self._process

    def faults(self, name: str, argument: str) -> dict[str, str]:
        """State → what is wrong with it."""
        wrong: dict[str, str] = {}
        done: list[str] = []
        while True:
            process = self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps([name, argument, done]) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                kind, *rest = json.loads(line)
                if kind == "done":
                    assert done, "no state was tried"
                    return wrong
                if kind == "begin":
                    done.append(rest[0])
                elif rest[1] is not None:
                    wrong[rest[0]] = rest[1]
            assert done, f"the worker cannot begin, exit code {process.wait()}"
            wrong[done[-1]] = f"ends the process, exit code {process.wait()}"

    def stop(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.communicate()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    process = Worker()
    yield process
    process.stop()


def _cases() -> list[object]:
    every = [*matrix.pairs(), *matrix.NUMBERS]
    assert set(every) >= QUICK
    return [pytest.param(*p, marks=() if p in QUICK else pytest.mark.slow, id="-".join(p)) for p in every]


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(("name", "argument"), _cases())
def test_every_state_is_right_or_refused_by_name(worker: Worker, name: str, argument: str) -> None:
    assert worker.faults(name, argument) == {}
