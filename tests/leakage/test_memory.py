"""Sensitivity keeps to the memory that it is given: measured as the rise of a fresh process's high-water mark."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = """
import sys
from pathlib import Path
import torch
from leakcore import leakage, models

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))

kind, budget, probes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(0)
model, x, y = getattr(models, kind)(10), torch.rand(1, 3, 32, 32), torch.tensor([3])
once = leakage.JacobianBudget(probes=2, memory=1)
leakage.sensitivity(model, x, y, budget=once, seed=0)  # what the libraries load at first use
Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
base = status("VmRSS")
leakage.sensitivity(model, x, y, budget=leakage.JacobianBudget(probes=probes, memory=budget), seed=0)
print(status("VmHWM") - base)
"""


def _rise(kind: str, budget: int, probes: int) -> int:
    # The chunk's size does not depend on what is made of its columns, so directions stand for them here.
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, kind, str(budget), str(probes)],
        capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return int(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the high-water mark cannot be reset")
@pytest.mark.parametrize(
    ("kind", "mebibytes"),
    [("lenet", 64), *(pytest.param("vgg9", m, marks=pytest.mark.slow) for m in (64, 256))],
)
def test_memory_stays_within_the_budget(kind: str, mebibytes: int) -> None:
    budget = mebibytes * 2**20
    assert _rise(kind, budget, 80) <= budget
    # And it is used: a budget that only one column could fill would make the work slow.
    assert _rise(kind, 4 * budget, 80) > budget / 4
