"""The threads behind a call outlive it: in a forked child, with other callers, in their manners, and in errors."""

import concurrent.futures
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from leakcore import kernels
from tests.tolerances import HANG

ROWS = np.random.default_rng(0).standard_normal((4, 300_000), dtype=np.float32)


@pytest.fixture
def two_threads():
    with kernels.thread_limit(2):
        yield


FORK = """
import os
import numpy as np
from leakcore import kernels
kernels.set_num_threads(2)
grads = np.ones((4, 300_000), dtype=np.float32)
before = kernels.clip_and_noise(grads, 1.0, 1.0, seed=1).sum
child = os.fork()
if child == 0:
    same = np.array_equal(before, kernels.clip_and_noise(grads, 1.0, 1.0, seed=1).sum)
    os._exit(0 if same else 1)
assert os.waitpid(child, 0)[1] == 0
"""


def test_forked_child():
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=HANG)


def test_simultaneous_callers():
    """Several sizes: their partial sums lie in memory that one call leaves to the next."""
    rows = [ROWS, ROWS.reshape(300, 4000), ROWS[:, :90_000].reshape(80, 4500), ROWS.reshape(2400, 500)]

    def release(seed):
        with kernels.thread_limit(3):
            return kernels.clip_and_noise(rows[seed], 1.0, 1.0, seed=seed).sum

    expected = [release(seed) for seed in range(4)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for seed, result in enumerate(pool.map(release, [s % 4 for s in range(200)])):
            np.testing.assert_array_equal(result, expected[seed % 4])


def helpers() -> dict[str, dict[str, str]]:
    """What the kernel tells of each thread of this process but the first."""
    values = {}
    for task in pathlib.Path("/proc/self/task").iterdir():
        if int(task.name) != os.getpid():
            values[task.name] = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
    return values


MANNERS = f"""
import os, sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import numpy as np
from test_threads import helpers
from leakcore import kernels
kernels.set_num_threads(3)
grads = np.ones((4, 3_000_000), dtype=np.float32)
alone = set(helpers())
for seed in range(20):
    kernels.clip_and_noise(grads, 1.0, 1.0, seed=seed)
started = {{name: status for name, status in helpers().items() if name not in alone}}
assert len(started) == 2, started
for status in started.values():
    assert int(status["SigBlk"], 16) & 0x7ff == 0x7ff & ~(1 << 8), status  # all of the first eleven but SIGKILL
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_shared_threads_and_signals():
    subprocess.run([sys.executable, "-c", MANNERS], check=True, timeout=HANG)


DAEMON = """
import threading, time
from leakcore import kernels
def work():
    while True:
        kernels.standard_normal(1, 400_000, seed=0, purpose="init")
threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
"""


def test_daemon_thread_at_exit():
    for _ in range(3):
        subprocess.run([sys.executable, "-c", DAEMON], check=True, timeout=HANG)


def test_error_in_a_helper(two_threads):
    rows = ROWS.copy()
    rows[3, -1] = np.nan
    for _ in range(20):
        with pytest.raises(ValueError, match="row 3"):
            kernels.clip_and_noise(rows, 1.0, 1.0, seed=1)
