"""What a checkpoint tells scorers and modules by: their values and code, the same in every process."""

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
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leakcore import dpsgd
from leakcore.dpsgd.ensemble.fingerprint import fingerprint
from tests.dpsgd.ensemble import flat_arguments as flat

ENSEMBLE = dpsgd.Ensemble((4, 3), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.5, steps=2, seed=0)
ROWS = {
    "features": np.random.default_rng(0).random((9, 4)), "labels": np.arange(9) % 3, "candidate_features": np.eye(3, 4),
    "candidate_labels": [0, 1, 2], "runs": 3, "num_threads": 1,
}  # fmt: skip


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
            flat.run(ENSEMBLE, **ROWS, scorers={"mine": Scaled(also=value)}, checkpoint=tmp_path / name)
        assert not (tmp_path / name).exists()
    flat.run(ENSEMBLE, **ROWS, scorers={"mine": Scaled(also=value)})  # without a checkpoint nothing has to be told


def test_a_state_of_ones_own_says_what_counts(tmp_path: Path) -> None:
    class Locked:
        def __init__(self, value: int) -> None:
            self.value, self.lock = value, threading.Lock()

        def __getstate__(self) -> dict[str, Any]:
            return {"value": self.value}

    assert fingerprint(Locked(1), "x") == fingerprint(Locked(1), "x") != fingerprint(Locked(2), "x")


def test_it_is_the_same_in_every_process(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from tests.dpsgd.ensemble import test_fingerprint as t\n"
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
        result = flat.run(ENSEMBLE, **ROWS, scorers={"mine": Named()}, checkpoint=tmp_path)
        scores.append(result.scores["mine"])
        again = flat.run(ENSEMBLE, **ROWS, scorers={"mine": Named()}, checkpoint=tmp_path)
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
