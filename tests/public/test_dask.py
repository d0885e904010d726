"""Dask's executor on a local cluster of real processes: the same integers for any number of workers, one killed too."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakcore import audit, bounds, dpsgd
from leakcore.audit.hyperparameters import layers, reconstruction
from tests.tolerances import HANG

distributed = pytest.importorskip("distributed")
pytestmark = [
    pytest.mark.slow,
    # Sockets and event loops of the cluster, closed a moment after the test.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:distributed"),
]


@pytest.fixture(params=[1, 2, 4])
def workers(request: pytest.FixtureRequest) -> Iterator[Any]:
    with _cluster(request.param) as client:
        yield client.get_executor()


def _cluster(count: int) -> Any:
    cluster = distributed.LocalCluster(
        n_workers=count, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    )
    return distributed.Client(cluster, set_as_default=False)


def _certified(executor: Any, num_samples: int = 400_000) -> tuple[float, ...]:
    bound = bounds.reconstruction(
        1.1, 0.05, 40, kappa=[0.01, 0.1], method="certified", num_samples=num_samples, seed=3, executor=executor
    )
    assert bound.interval is not None
    return (*np.ravel(bound.interval), *np.ravel(bound.value))


def _runs(executor: Any) -> np.ndarray:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, 5)).astype(np.float32), rng.integers(0, 3, 60)
    ensemble = dpsgd.Ensemble(
        (5, 4, 3), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.5, steps=20, sample_rate=0.3, seed=1
    )
    return np.asarray(ensemble.run(x, y, runs=300, execution=dpsgd.Execution(executor=executor)).parameters)


def test_workers(workers: Any) -> None:
    assert _certified(workers) == _certified(None)
    np.testing.assert_array_equal(_runs(workers), _runs(None))


def _audited(executor: Any, **more: Any) -> dict[str, Any]:
    config = audit.AuditConfig(runs=320, sweep=(4.0,), num_rows=200, steps=20, label_trials=5)
    result = audit.run(config, executor=executor, **more).to_dict()
    del result["seconds"]
    return result


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconstruction, "_PIECE", 32)
    monkeypatch.setattr(layers, "_PERMUTATIONS", 1)


def test_audit_and_selftest_workers(workers: Any, brief: None) -> None:
    assert _audited(workers) == _audited(None)
    assert audit.selftest(audits=20, executor=workers).to_dict() == audit.selftest(audits=20).to_dict()


def test_audit_with_a_lost_worker(tmp_path: Path, brief: None) -> None:
    """SIGKILL for one of two after the second piece; a cluster does again what it had, and the report is the same."""
    with _cluster(2) as client:
        pids = list(client.run(os.getpid).values())
        calls: list[int] = []

        def kill(task: str, done: int, total: int) -> None:
            if task.startswith("attack"):
                calls.append(done)
                if len(calls) == 2:
                    os.kill(pids[0], signal.SIGKILL)

        assert _audited(client.get_executor(), folder=tmp_path, progress=kill) == _audited(None)
    assert calls == [32 * n for n in range(1, 21)]


class Slow:
    """A fair pair whose draws take a moment, and write down which samples were drawn."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def sample_log_ratio(self, num_samples: int, under: str, seed: int, first_sample: int) -> np.ndarray:
        # One short append per line is atomic.
        with open(f"{self.folder}/drawn", "a", encoding="utf-8") as file:
            file.write(f"{first_sample}\n")
        time.sleep(0.02)
        rng = np.random.default_rng([seed, first_sample])
        return rng.normal(0.125, 0.5, num_samples)


def test_killed_worker(tmp_path: Path) -> None:
    """Every draw is made once; only the shards that the worker took with it are drawn twice."""
    pair, options = Slow(str(tmp_path)), {"kappa": 0.1, "num_samples": 20_000_000, "seed": 3}
    with _cluster(2) as client:
        pids = list(client.run(os.getpid).values())
        killed: list[int] = []

        def kill() -> None:
            deadline = time.monotonic() + HANG
            while time.monotonic() < deadline and not killed:
                lines = (tmp_path / "drawn").read_text().count("\n") if (tmp_path / "drawn").exists() else 0
                if lines > 60:
                    os.kill(pids[0], signal.SIGKILL)
                    killed.append(pids[0])
                time.sleep(0.01)

        thread = threading.Thread(target=kill)
        thread.start()
        bound = bounds.reconstruction_of(pair, executor=client.get_executor(), **options)
        thread.join()
    counts = Counter(int(line) for line in (tmp_path / "drawn").read_text().split())
    assert killed
    again = [first for first, times in counts.items() if times > 1]
    assert again
    assert max(counts.values()) == 2
    assert len(again) < len(counts)
    (tmp_path / "alone").mkdir()
    alone = bounds.reconstruction_of(Slow(str(tmp_path / "alone")), **options)
    assert bound.interval == alone.interval
    drawn_alone = (tmp_path / "alone" / "drawn").read_text().split()
    assert sorted(counts) == sorted(int(line) for line in drawn_alone)


def test_process_pools() -> None:
    for workers in (1, 2):
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            assert _certified(pool) == _certified(None)
            np.testing.assert_array_equal(_runs(pool), _runs(None))


def test_worker_killed_midway() -> None:
    """One of two processes gets SIGKILL while shards are being counted; its work is done again, once."""
    expected = _certified(None, 20_000_000)
    with _cluster(2) as client:
        pids = list(client.run(os.getpid).values())
        killed: list[int] = []

        def kill() -> None:
            deadline = time.monotonic() + HANG
            while time.monotonic() < deadline and not any(client.processing().values()):
                time.sleep(0.01)
            time.sleep(0.2)
            if any(client.processing().values()):
                os.kill(pids[0], signal.SIGKILL)
                killed.append(pids[0])

        thread = threading.Thread(target=kill)
        thread.start()
        result = _certified(client.get_executor(), 20_000_000)
        thread.join()
    assert killed, "the work was over before the worker could be killed: make it larger"
    assert result == expected
