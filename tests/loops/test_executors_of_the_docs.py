"""Ray and MPI as docs/how-to/clusters.md uses them: each program runs as it stands there and has one process's bits."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from leakcore import bounds
from tests.tolerances import HANG

pytestmark = pytest.mark.loops
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "clusters.md"
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize("name", ["ray", "mpi"])
def test_a_cluster_has_the_bits_of_one_process(name: str, tmp_path: Path) -> None:
    needed = {"ray": "ray", "mpi": "mpi4py"}[name]
    if importlib.util.find_spec(needed) is None or (name == "mpi" and MPIEXEC is None):
        pytest.skip(f"needs {needed}: pip install 'leakcore[clusters]'")
    program = re.search(rf"<!-- {name} -->\n```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert program is not None
    job = tmp_path / "job.py"
    job.write_text(program[1].replace("ray.init()", "ray.init(num_cpus=2, include_dashboard=False)"), encoding="utf-8")
    of_three = [str(MPIEXEC), "-n", "3", sys.executable, "-m", "mpi4py.futures"]
    command = [*(of_three if name == "mpi" else [sys.executable]), str(job)]
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG, env=environment)
    assert done.returncode == 0, done.stderr
    alone = bounds.reconstruction(1.0, 0.1, 20, kappa=0.1, method="certified", num_samples=10**6)
    assert done.stdout.strip().splitlines()[-1] == str(alone.interval)
