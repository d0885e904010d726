"""Whatever takes `executor=` gives the same numbers with a process pool as without, and pieces lost are done once."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leakcore import audit, bounds, experiments, leakage, models
from leakcore._base.process_wide import one_thread
from leakcore._base.run_folder import PartialResults
from leakcore._base.workers import answers, in_order
from leakcore.audit.hyperparameters import layers, reconstruction

SMALL: dict[str, Any] = {
    "runs": 96, "sweep": (4.0,), "num_rows": 100, "steps": 10, "label_trials": 2, "label_steps": 1,
    "defense": "prune:0.5",
}  # fmt: skip


def _pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with _pool(2) as executor:
        yield executor


@pytest.fixture(scope="module", autouse=True)
def _brief() -> Iterator[None]:
    """Fewer fits by layer: what is compared is where they are made."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("_ROWS", 80), ("_PERMUTATIONS", 1), ("_SAMPLES", 2)):
            patch.setattr(layers, name, value)
        yield


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return _content(audit.run(audit.AuditConfig(**SMALL)))


def _content(report: audit.RunReport) -> dict[str, Any]:
    result = report.to_dict()
    del result["seconds"]
    return result


class Counting(Executor):
    """Passes jobs on and counts them."""

    def __init__(self, inner: Executor) -> None:
        self.inner, self.submitted = inner, 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        self.submitted += 1
        return self.inner.submit(function, *args, **more)


@pytest.mark.slow
def test_audit(pool: ProcessPoolExecutor, alone: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconstruction, "_PIECE", 32)
    counting = Counting(pool)
    visited: dict[str, list[tuple[int, int]]] = {}
    report = audit.run(
        audit.AuditConfig(**SMALL), executor=counting,
        progress=lambda task, done, total: visited.setdefault(task, []).append((done, total)),
    )  # fmt: skip
    assert _content(report) == alone
    # Three pieces at each of two levels, two levels of labels, and what the defence and the layers add.
    assert counting.submitted > 6 + 2 + 6
    assert visited["attack, 2 noise levels"] == [(32 * n, 192) for n in range(1, 7)]
    assert visited["labels"] == [(1, 2), (2, 2)]
    for reports in visited.values():
        done = [d for d, _ in reports]
        assert done == sorted(done)
        assert done[-1] == reports[-1][1]


@pytest.mark.slow
def test_folder_of_dead_workers(alone: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL for a worker after the first piece: a pool breaks; what was finished is kept, the rest done once."""
    monkeypatch.setattr(reconstruction, "_PIECE", 16)
    executor = _pool(1)

    def kill(task: str, done: int, total: int) -> None:
        if done == 16:
            os.kill(next(iter(executor._processes)), signal.SIGKILL)

    with pytest.raises(BrokenProcessPool):
        audit.run(audit.AuditConfig(**SMALL), folder=tmp_path, executor=executor, progress=kill)
    executor.shutdown(wait=True)
    pieces = {p.stem for p in (tmp_path / "partial" / "audit").glob("game-*.json")}
    assert 1 <= len(pieces) < 12
    played: list[int] = []
    honest = reconstruction._play

    def noting(*args: Any, **more: Any) -> dict[str, Any]:
        played.append(args[2])
        return honest(*args, **more)

    monkeypatch.setattr(reconstruction, "_play", noting)
    report = audit.run(audit.AuditConfig(**SMALL), folder=tmp_path)
    assert _content(report) == alone
    assert len(played) == 12 - len(pieces)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "report.json"]


@pytest.mark.slow
def test_selftest(pool: ProcessPoolExecutor) -> None:
    calls: list[tuple[int, int]] = []
    result = audit.selftest(
        audits=10, seed=3, executor=pool, progress=lambda task, done, total: calls.append((done, total))
    )
    assert result.to_dict() == audit.selftest(audits=10, seed=3).to_dict()
    assert calls == [(n, len(result.promises)) for n in range(1, len(result.promises) + 1)]


def test_fano(pool: ProcessPoolExecutor) -> None:
    counting = Counting(pool)
    result, own = (
        bounds.fano_advantage(1.5, num_candidates=10, information=bounds.SampledInformation(
            num_samples=50_001, seed=5, executor=executor,
        ))
        for executor in (counting, None)
    )  # fmt: skip
    assert counting.submitted == 4
    assert (result.value, result.standard_error) == (own.value, own.standard_error)


@pytest.fixture(scope="module")
def gradients() -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 80)
    plain = {name: rng.normal(size=(80, width)) for name, width in (("a", 30), ("b", 120))}
    return {name: g + 0.7 * labels[:, None] * (np.arange(g.shape[1]) < 3) for name, g in plain.items()}, labels


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("family", ["logistic", "mlp", "random-forest"])
def test_v_information(
    family: str, pool: ProcessPoolExecutor, gradients: tuple[dict[str, np.ndarray], np.ndarray]
) -> None:
    how: dict[str, Any] = {
        "family": family, "permutations": 2, "validation": leakage.CrossValidation(folds=2), "seed": 1,
    }  # fmt: skip
    if family != "logistic":
        how["family"] = leakage.RandomForest(8) if family == "random-forest" else leakage.MLP(4, steps=15)
    calls: list[int] = []
    measured = leakage.v_information(*gradients, **how, executor=pool, progress=lambda done, _: calls.append(done))
    own = leakage.v_information(*gradients, **how)
    assert calls == [1, 2, 3, 4, 5, 6]
    for name in ("value", "raw", "null", "gains", "p_value"):
        np.testing.assert_array_equal(getattr(measured, name), getattr(own, name))


@pytest.mark.full
def test_mutual_information(pool: ProcessPoolExecutor) -> None:
    rng = np.random.default_rng(2)
    u = rng.normal(size=(120, 3))
    how: dict[str, Any] = {"network": leakage.MineNetwork(steps=20), "permutations": 3, "seed": 4}
    measured, own = (leakage.mutual_information(u, u[:, :1], **how, executor=e) for e in (pool, None))
    assert (measured.value, measured.trained) == (own.value, own.trained)
    np.testing.assert_array_equal(measured.null, own.null)


def test_leakage_by_layer(pool: ProcessPoolExecutor) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = models.mlp((6, 5, 4, 3), "tanh").double()
    rng = np.random.default_rng(1)
    x, y = rng.random((60, 6)), rng.integers(0, 3, 60)
    measures = leakage.LayerMeasures(
        attributes={"first": x[:, 0] > 0.5}, family="logistic", samples=2, permutations=1, iterations=5
    )
    counting = Counting(pool)
    measured, own = (leakage.by_layer(model, x, y, measures=measures, executor=e) for e in (counting, None))
    assert counting.submitted == 2 + 3 * 2  # pairs of layers, and layers by permutations
    assert measured.to_dict() == own.to_dict()


@pytest.mark.parametrize(
    "call",
    [
        lambda e: audit.run({"runs": 1}, executor=e),
        lambda e: audit.claim({"claim": {"epsilon": 1.0}}, executor=e),
        lambda e: audit.selftest(executor=e),
        lambda e: experiments.run("reconstruction-table2", executor=e),
        lambda e: bounds.SampledInformation(executor=e),
        lambda e: bounds.reconstruction(1.0, 0.1, 5, kappa=0.1, method="certified", executor=e),
        lambda e: bounds.methods.DKW(executor=e),
        lambda e: leakage.v_information(np.eye(40), np.arange(40) % 2, executor=e),
        lambda e: leakage.mutual_information(np.eye(60), np.eye(60), executor=e),
        lambda e: leakage.by_layer(models.mlp((3, 2)), np.ones((4, 3), np.float32), [0, 1, 0, 1], executor=e),
    ],
)
def test_bad_executors(call: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"`executor` must be a concurrent.futures.Executor or None, got 4"):
        call(4)


def _cube(n: int) -> int:
    if n < 0:
        raise ValueError(f"n={n}")
    return n**3


class Direct(Executor):
    """Does jobs where they are handed in, and knows how many were out at a time."""

    def __init__(self) -> None:
        self.out: list[Future[Any]] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.out.append(future)
        return future

    def finish(self, number: int, value: Any) -> None:
        self.out[number].set_result(value)


def test_limited_jobs() -> None:
    executor = Direct()
    asked: list[int] = []

    def jobs() -> Iterator[tuple[int, Callable[[], int]]]:
        for n in range(10):
            asked.append(n)
            yield n, lambda: 0

    result = answers(jobs(), executor, ahead=3)
    thread = threading.Timer(0.05, lambda: executor.finish(1, 11))
    thread.start()
    assert next(result) == (1, 11)
    thread.join()
    assert asked == [0, 1, 2]
    executor.finish(2, 12)
    assert next(result) == (2, 12)
    assert asked == [0, 1, 2, 3]
    result.close()
    assert [f.cancelled() for f in executor.out] == [True, False, False, True]


def test_order_of_answers() -> None:
    executor = Direct()
    result = in_order(_cube, [1, 2, 3], executor)

    def backwards() -> None:
        for number in (2, 1, 0):
            executor.finish(number, number)

    thread = threading.Timer(0.05, backwards)
    thread.start()
    assert list(result) == [0, 1, 2]
    thread.join()
    assert list(in_order(_cube, range(4), None)) == [0, 1, 8, 27]


def test_error_of_a_job(pool: ProcessPoolExecutor, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="n=-1"):
        dict(answers([(n, functools.partial(_cube, n)) for n in (1, -1, 2)], pool))
    pieces = PartialResults(tmp_path, "cubes", {"command": "cubes"})
    pieces.get_or_run("b", lambda: {"n": 8})
    jobs: dict[str, Callable[[], dict[str, Any]]] = {
        name: functools.partial(dict, n=n) for name, n in (("a", 1), ("b", -5), ("c", 27))
    }
    for executor in (pool, None):
        result = dict(pieces.each(jobs, executor))
        assert result == {"a": {"n": 1}, "b": {"n": 8}, "c": {"n": 27}}
    assert list(dict(pieces.each(jobs))) == ["a", "b", "c"]


def test_one_thread() -> None:
    from threadpoolctl import threadpool_info

    def threads() -> set[int]:
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    torch_before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        before = threads()
        first, second = one_thread(), one_thread()
        first.__enter__()
        second.__enter__()
        assert (threads(), torch.get_num_threads()) == ({1}, 1)
        first.__exit__(None, None, None)
        assert (threads(), torch.get_num_threads()) == ({1}, 1)
        second.__exit__(None, None, None)
        assert (threads(), torch.get_num_threads()) == (before, 2)
    finally:
        torch.set_num_threads(torch_before)


@pytest.mark.full
def test_one_thread_across_threads() -> None:
    from threadpoolctl import threadpool_info

    def threads() -> list[int]:
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    def block(delay: float) -> list[int]:
        with one_thread():
            time.sleep(delay)
            return threads()

    before = threads()
    with ThreadPoolExecutor(4) as workers:
        blocks = list(workers.map(block, [0.05, 0.01, 0.02, 0.03, 0.01, 0.01]))
    assert all(set(s) == {1} for s in blocks)
    assert threads() == before
    # A limit that a thread of its own once set and lifted does not keep others from setting theirs.
    with one_thread():
        assert set(threads()) == {1}
    assert threads() == before
