"""Finished runs are read again with the same bits, and only for the same computation."""

from __future__ import annotations

import collections
import dataclasses
import enum
import fractions
import functools
import logging
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leakcore import dpsgd
from leakcore.dpsgd.ensemble.object_hasher import ObjectHasher
from tests.dpsgd.ensemble import flat_arguments as flat
from tests.tolerances import HANG

FIELDS = ("parameters", "probe_logits", "probe_losses")
_JOB = """
import sys
import numpy as np
from leakcore import dpsgd

rng = np.random.default_rng(0)
JOB = dict(
    features=rng.random((120, 20)), labels=rng.integers(0, 3, 120), extra_features=rng.random((1, 20)),
    extra_labels=[2], probe_features=rng.random((4, 20)), probe_labels=[0, 1, 2, 0], runs=600, first_run=5,
)
ENSEMBLE = dpsgd.Ensemble(
    dpsgd.Network((20, 8, 3), "relu"), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.5, steps=120,
    sample_rate=dpsgd.ShuffledBatches(30), seed=1
)
if __name__ == "__main__":
    ENSEMBLE.run(
        JOB["features"], JOB["labels"], runs=range(5, 605),
        per_run=dpsgd.PerRun(dpsgd.Rows(JOB["extra_features"], JOB["extra_labels"])),
        probes=dpsgd.Rows(JOB["probe_features"], JOB["probe_labels"]),
        execution=dpsgd.Execution(checkpoint=sys.argv[1], num_threads=1),
    )
"""
_SPACE: dict = {}
exec(_JOB, _SPACE)
ENSEMBLE, JOB = _SPACE["ENSEMBLE"], _SPACE["JOB"]


def _small(checkpoint=None, **change) -> dpsgd.EnsembleRun:
    return flat.run(ENSEMBLE, **JOB | {"runs": 200} | change, checkpoint=checkpoint)


@pytest.fixture(scope="module")
def whole() -> dpsgd.EnsembleRun:
    return _small()


def _files(folder):
    return sorted(folder.glob("*/runs-*.npz"))


@pytest.mark.full
def test_kill_9_then_resume_gives_the_same_bits(tmp_path) -> None:
    script, folder = tmp_path / "job.py", tmp_path / "kept"
    script.write_text(_JOB)
    child = subprocess.Popen([sys.executable, str(script), str(folder)], env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + HANG
    while len(_files(folder)) < 2 and time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL, "the child was done before it could be killed"
    before = {path: path.read_bytes() for path in _files(folder)}
    assert 2 <= len(before) < 20

    calls: list[tuple[int, int]] = []
    resumed = flat.run(ENSEMBLE, **JOB, checkpoint=folder, progress=lambda *at: calls.append(at))
    assert calls[0][0] == sum(int(p.stem.split("-")[2]) - int(p.stem.split("-")[1]) for p in before)
    assert calls[-1] == (600, 600)
    assert all(path.read_bytes() == content for path, content in before.items()), "a finished piece was written again"
    alone = flat.run(ENSEMBLE, **JOB)
    for field in FIELDS:
        assert (getattr(resumed, field) == getattr(alone, field)).all()


def test_an_interruption_keeps_what_is_finished(tmp_path, whole) -> None:
    def stop(done: int, total: int) -> None:
        if done >= 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        flat.run(ENSEMBLE, **JOB | {"runs": 200}, checkpoint=tmp_path, progress=stop)
    before = _files(tmp_path)
    assert before
    resumed = _small(tmp_path)
    for field in FIELDS:
        assert (getattr(resumed, field) == getattr(whole, field)).all()
    assert set(before) < set(_files(tmp_path))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_executors_keep_their_runs_too(tmp_path, whole, kind) -> None:
    _small(tmp_path, runs=64)
    pool = ThreadPoolExecutor(2) if kind == "threads" else ProcessPoolExecutor(2, mp_context=get_context("spawn"))
    with pool as executor:
        out = _small(tmp_path, executor=executor)
    again = _small(tmp_path, num_threads=1)
    for field in FIELDS:
        assert (getattr(out, field) == getattr(whole, field)).all()
        assert (getattr(again, field) == getattr(whole, field)).all()


def test_ranges_may_grow_and_overlap(tmp_path, whole) -> None:
    _small(tmp_path, runs=30, first_run=105)
    _small(tmp_path, runs=80, first_run=90)
    files = _files(tmp_path)
    out = _small(tmp_path)
    assert set(files) <= set(_files(tmp_path))
    for field in FIELDS:
        assert (getattr(out, field) == getattr(whole, field)).all()
    calls: list[int] = []
    _small(tmp_path, progress=lambda done, total: calls.append(done))
    assert calls == [200], "a finished range was trained again"


def test_another_job_reads_nothing(tmp_path) -> None:
    _small(tmp_path, runs=8)
    other = dict(ENSEMBLE.settings())
    layers, activation = other.pop("layers"), other.pop("activation")
    for changed in ({"seed": 2}, {"noise_multiplier": 1.5}, {"initialisation": "fixed"}):
        ensemble = flat.ensemble(layers, activation, **other | changed)
        stored = flat.run(ensemble, **JOB | {"runs": 8}, checkpoint=tmp_path)
        assert (stored.parameters == flat.run(ensemble, **JOB | {"runs": 8}).parameters).all()
    for name in ("features", "extra_features", "probe_features"):
        moved = {name: JOB[name] + 0.01}
        stored = _small(tmp_path, runs=8, **moved)
        assert (stored.probe_logits == _small(runs=8, **moved).probe_logits).all()
    assert len(_files(tmp_path)) == 7
    assert _small(tmp_path, runs=8, keep_parameters=False).parameters.shape == (8, 0)
    assert _small(tmp_path, runs=8).parameters.shape[1] > 0


def test_rows_of_each_run_are_part_of_the_identity(tmp_path) -> None:
    rng = np.random.default_rng(3)
    extra = {"extra_features": rng.random((40, 1, 20)), "extra_labels": np.ones((40, 1), int), "runs": 40}
    first = _small(tmp_path, **extra)
    again = _small(tmp_path, **extra)
    assert (first.parameters == again.parameters).all()
    swapped = _small(tmp_path, **extra | {"extra_features": extra["extra_features"][::-1]})
    assert (swapped.parameters != first.parameters).any(axis=1).all()


def test_scorers_and_scores_come_back(tmp_path) -> None:
    from leakcore.attacks.reconstruction.prior_aware import Sum

    settings = {"candidate_features": np.eye(3, 20), "candidate_labels": [0, 1, 2], "scorers": {"sum": Sum(1.0)}}
    one, two = (_small(tmp_path, runs=40, **settings) for _ in range(2))
    assert len(_files(tmp_path)) == 2
    for field in ("dots", "clipped_norms", "clipped"):
        assert (getattr(one, field) == getattr(two, field)).all()
    assert (one.scores["sum"] == two.scores["sum"]).all()


def test_a_strange_file_is_named(tmp_path) -> None:
    _small(tmp_path, runs=1)
    (_files(tmp_path)[0].parent / "runs-a.npz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"`checkpoint` must hold files of a checkpoint alone, got .*runs-a\.npz"):
        _small(tmp_path, runs=1)


@pytest.mark.full
def test_two_threads_may_share_a_checkpoint(tmp_path, whole) -> None:
    """Files are whole or absent, and every writer writes the same."""
    with ThreadPoolExecutor(4) as pool:
        result = list(pool.map(lambda _: _small(tmp_path, num_threads=1), range(4)))
    for one in [*result, _small(tmp_path)]:
        for field in FIELDS:
            assert (getattr(one, field) == getattr(whole, field)).all()
    assert not list(tmp_path.rglob(".*"))


SMALL = dpsgd.Ensemble((4, 3), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.5, steps=2, seed=0)
ROWS = {
    "features": np.random.default_rng(0).random((9, 4)), "labels": np.arange(9) % 3, "candidate_features": np.eye(3, 4),
    "candidate_labels": [0, 1, 2], "runs": 3, "num_threads": 1,
}  # fmt: skip


def fingerprint(value: object, name: str) -> str:
    return ObjectHasher().digest(value, name).hex()


class _Running:
    def __init__(self, shape: tuple[int, ...], scale: Any) -> None:
        self._total, self._scale = np.zeros(shape), scale

    def add(self, dots: np.ndarray, norms: np.ndarray) -> None:
        self._total += np.asarray(self._scale, dtype=float) * dots

    def scores(self) -> np.ndarray:
        return self._total


@dataclasses.dataclass
class Scaled:
    scale: Any = 1.0
    also: Any = None

    def start(self, shape: tuple[int, ...]) -> _Running:
        return _Running(shape, self.scale)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Held:
    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _closure(value: Any) -> Any:
    return lambda: value


def _made(text: str) -> Any:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(text, space)
    return space["made"]


def _cycle(end: Any) -> list[Any]:
    out = [1, end]
    out.append(out)
    return out


PAIRS: dict[str, tuple[Any, Any]] = {
    "float": (1.0, 1),
    "zero": (0.0, -0.0),
    "bool": (True, 1),
    "text": ("1", b"1"),
    "nan": (float("nan"), float("inf")),
    "array": (np.arange(3.0), np.array([0.0, 1.0, 3.0])),
    "dtype": (np.arange(3, dtype=np.int32), np.arange(3, dtype=np.int64)),
    "shape": (np.zeros((2, 3)), np.zeros((3, 2))),
    "masked": (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[1, 0])),
    "objects": (np.array([1, "a"], object), np.array([1, "b"], object)),
    "scalar": (np.float32(1), np.float64(1)),
    "tensor": (torch.arange(3.0), torch.arange(3.0) + 1),
    "bfloat16": (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.float16)),
    "torch dtype": (torch.float32, torch.float64),
    "generator": (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
    "numpy generator": (np.random.default_rng(1), np.random.default_rng(2)),
    "random": (random.Random(1), random.Random(2)),
    "list": ([1, [2, 3]], [[1, 2], 3]),
    "tuple": ((1, 2), [1, 2]),
    "set": ({"a", "b"}, {"a", "c"}),
    "dict": ({"a": 1}, {"a": 2}),
    "key": ({"a": 1}, {"b": 1}),
    "deque": (collections.deque([1]), collections.deque([2])),
    "fraction": (fractions.Fraction(1, 3), fractions.Fraction(2, 3)),
    "path": (Path("a"), Path("b")),
    "pattern": (re.compile("a"), re.compile("a", re.IGNORECASE)),
    "member": (Colour.RED, Colour.BLUE),
    "class": (Scaled, Held),
    "object": (Held(a=1), Held(a=2)),
    "inner object": (Held(a=Held(b=np.ones(2))), Held(a=Held(b=np.zeros(2)))),
    "slots": (Slotted(1), Slotted(2)),
    "partial": (functools.partial(max, 1), functools.partial(max, 2)),
    "method": (Held(a=1).__eq__, Held(a=2).__eq__),
    "builtin": (max, min),
    "ufunc": (np.add, np.multiply),
    "closure": (_closure(1), _closure(2)),
    "lambda": (lambda x: x + 1, lambda x: x + 2),
    "default": (_made("made = lambda x=1: x"), _made("made = lambda x=2: x")),
    "global": (_made("k = 1\nmade = lambda: k"), _made("k = 2\nmade = lambda: k")),
    "called": (
        _made("def f(): return 1\ndef made(): return f()"), _made("def f(): return 2\ndef made(): return f()"),
    ),
    "method's code": (
        _made("class A:\n def start(self): return 1\nmade = A()"),
        _made("class A:\n def start(self): return 2\nmade = A()"),
    ),
    "base's code": (
        _made("class A:\n def f(self): return 1\nclass B(A): pass\nmade = B()"),
        _made("class A:\n def f(self): return 2\nclass B(A): pass\nmade = B()"),
    ),
    "class attribute": (_made("class A: k = 1\nmade = A()"), _made("class A: k = 2\nmade = A()")),
    "property": (
        _made("class A:\n @property\n def f(self): return 1\nmade = A()"),
        _made("class A:\n @property\n def f(self): return 2\nmade = A()"),
    ),
    "module": (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)),
    "activation": (torch.nn.LeakyReLU(0.1), torch.nn.LeakyReLU(0.2)),
    "logger": (logging.getLogger("a"), logging.getLogger("b")),
    "cycle": (_cycle(1), _cycle(2)),
    "type of a dict": ({"a": 1}, collections.OrderedDict(a=1)),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_what_computes_otherwise_is_told_apart(name: str) -> None:
    import copy

    one, other = PAIRS[name]
    assert fingerprint(one, "x") != fingerprint(other, "x")
    assert fingerprint(one, "x") == fingerprint(one, "x")
    assert fingerprint(copy.deepcopy(one), "x") == fingerprint(one, "x")
    assert fingerprint(Held(inside=one), "x") != fingerprint(Held(inside=other), "x")


REFUSED: dict[str, Any] = {
    "lock": threading.Lock(), "file": sys.__stdout__, "iterator": (i for i in "ab"), "thread": threading.Thread(),
    "local": threading.local(), "memory": memoryview(b"ab"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_value_is_refused_by_name(name: str, tmp_path: Path) -> None:
    for value, where in ((REFUSED[name], r"\.also"), ([1, {"k": REFUSED[name]}], r"\.also\[1\]\['k'\]")):
        with pytest.raises(TypeError, match=rf"^scorers\['mine'\]{where}.*: a .* by which finished runs are recog"):
            flat.run(SMALL, **ROWS, scorers={"mine": Scaled(also=value)}, checkpoint=tmp_path / name)
        assert not (tmp_path / name).exists()
    flat.run(SMALL, **ROWS, scorers={"mine": Scaled(also=value)})  # without a checkpoint nothing has to be told


def test_a_state_of_ones_own_says_what_counts(tmp_path: Path) -> None:
    class Locked:
        def __init__(self, value: int) -> None:
            self.value, self.lock = value, threading.Lock()

        def __getstate__(self) -> dict[str, Any]:
            return {"value": self.value}

    assert fingerprint(Locked(1), "x") == fingerprint(Locked(1), "x") != fingerprint(Locked(2), "x")


@pytest.mark.full
def test_it_is_the_same_in_every_process(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.dpsgd.ensemble import test_checkpoint as t\n"
        "skip = {'module', 'lambda', 'logger'}\n"
        "print(*(t.fingerprint(v, 'x') for n, p in sorted(t.PAIRS.items()) if n not in skip for v in p))\n"
    )
    root = str(Path(__file__).resolve().parents[3])
    answers = [
        subprocess.run(
            [sys.executable, "-c", code, root], capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert answers[0] == answers[1]


def test_a_module_that_a_scorer_uses_is_told_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    monkeypatch.syspath_prepend(tmp_path)
    answers = []
    for number in (1, 22):
        (tmp_path / "helper_of_a_scorer.py").write_text(f"def factor(): return {number}\n")
        sys.modules.pop("helper_of_a_scorer", None)
        importlib.invalidate_caches()
        scorer = _made(
            "import helper_of_a_scorer\nclass A:\n def f(self): return helper_of_a_scorer.factor()\nmade = A()"
        )
        answers.append(fingerprint(scorer, "x"))
    assert answers[0] != answers[1]


def _folders(where: Path) -> int:
    return len(list(where.iterdir()))


def test_scorers_that_pickle_alike_do_not_share_runs(tmp_path: Path) -> None:
    """Both pickle as the name of a class of this module; what they compute differs."""
    scores = []
    for factor in (1.0, 2.0):

        class Named(Scaled):
            factor: float

            def start(self, shape: tuple[int, ...]) -> _Running:
                return _Running(shape, self.factor)

        Named.factor = factor
        Named.__qualname__, Named.__module__ = "Named", __name__
        globals()["Named"] = Named
        result = flat.run(SMALL, **ROWS, scorers={"mine": Named()}, checkpoint=tmp_path)
        scores.append(result.scores["mine"])
        again = flat.run(SMALL, **ROWS, scorers={"mine": Named()}, checkpoint=tmp_path)
        assert (again.scores["mine"] == scores[-1]).all()
    del globals()["Named"]
    np.testing.assert_allclose(scores[1], 2 * scores[0])
    assert _folders(tmp_path) == 2


class Net(torch.nn.Module):
    def __init__(self, settings: Any, private: Any = 1.0) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)
        self.settings, self._private = settings, private

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.settings.scale if isinstance(self.settings, Held) else float(np.sum(self.settings))
        return self.inner(x) * scale * self._private


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((Held(scale=1.0),), (Held(scale=2.0),)),
        ((np.ones(2),), (np.ones(3),)),
        ((1.0, 1.0), (1.0, 2.0)),
    ],
    ids=["object", "array", "private"],
)  # fmt: skip
def test_modules_are_told_apart_by_all_that_they_hold(tmp_path: Path, one: Any, other: Any) -> None:
    rows = {name: ROWS[name] for name in ("features", "labels", "runs", "num_threads")}
    weights = Net(1.0).inner.state_dict()
    for arguments in (one, other):
        module = Net(*arguments)
        module.inner.load_state_dict(weights)
        ensemble = dpsgd.Ensemble(
            dpsgd.ModuleNetwork(module, (4,)),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            learning_rate=0.5,
            steps=2,
            seed=0,
        )
        stored = flat.run(ensemble, **rows, checkpoint=tmp_path)
        assert (stored.parameters == flat.run(ensemble, **rows).parameters).all()
    assert _folders(tmp_path) == 2


def test_a_hook_is_part_of_a_module(tmp_path: Path) -> None:
    plain, hooked = Net(1.0), Net(1.0)
    hooked.load_state_dict(plain.state_dict())
    hooked.register_forward_hook(lambda module, inputs, out: 2 * out)
    assert fingerprint(plain, "x") != fingerprint(hooked, "x")
    for other in (torch.nn.LSTM(2, 2, num_layers=2), torch.nn.MultiheadAttention(4, 2)):
        assert fingerprint(other, "x") == fingerprint(other, "x")
