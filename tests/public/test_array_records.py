"""Results that are arrays of the caller's library: shown in a line, and equal by value."""

from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from leakcore import attacks, dpsgd, kernels
from leakcore._base.array_record import ArrayRecord, equal
from leakcore.attacks import membership
from leakcore.audit.scores.given_scores import LAYOUTS, ScoreFile

torch = pytest.importorskip("torch")
GRADS = np.random.default_rng(0).normal(size=(4, 10)).astype(np.float32)
ENSEMBLE = dpsgd.Ensemble((3, 2), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.1, steps=2, seed=0)
FEATURES, LABELS = GRADS[:, :3].copy(), np.array([0, 1, 0, 1])


def tail() -> Any:
    return kernels.mixture_tail(100, [0.0, 1.0], noise_multiplier=1.0, sample_rate=0.5, steps=2)


MAKE: dict[str, Callable[[], Any]] = {
    "Clipped(sum=float32 (10,), norms=float32 (4,))": lambda: kernels.clip_and_noise(GRADS, 1.0),
    "Clipped(sum=[float32 (2, 5), float32 (10,)], norms=float32 (4,))": lambda: kernels.clip_and_noise(
        [torch.from_numpy(GRADS).reshape(4, 2, 5), torch.from_numpy(GRADS)], 1.0
    ),
    "Scores(dots=float32 (4,), clipped_norms=float32 (4,))": lambda: kernels.clip_scores(GRADS, GRADS[0], 1.0),
    "LabelSolution(residual=float64 (2,), leverage=float64 (2,), identifiable=bool (2,), error=float64 (2,), "
    "rank=int64 ())": lambda: kernels.solve_labels(np.eye(2, 3), np.ones(3)),
    "MixtureTail(counts=int64 (2,), sums=float64 (2, 2), num_samples=100, thresholds=float64 (2,), "
    "samples=((0, 100)), experiment=…)": tail,
    "PriorAware(index=int64 (), undecided=bool (), scores=float64 (3,), method=sum, top=2)": lambda: (
        attacks.prior_aware(np.arange(6.0).reshape(2, 3), max_grad_norm=1.0)
    ),
    "EnsembleRun(layers=(3, 2), activation=elu, max_grad_norm=1, first_run=0, parameters=float32 (2, 8), scores={})": (
        lambda: ENSEMBLE.run(FEATURES, LABELS, runs=2)
    ),
    "MembershipTrials(losses=float64 (2, 4), included=bool (2, 4), first_run=0)": lambda: membership.MembershipTrials(
        losses=np.zeros((2, 4)), included=np.eye(2, 4, dtype=bool), first_run=0
    ),
    "Observations(losses=float64 (2, 4), copies_right=float64 (2, 4))": lambda: membership.Observations(
        losses=np.zeros((2, 4)), copies_right=-np.ones((2, 4)) + 1
    ),
    "References(losses=float64 (2, 4), included=bool (2, 4))": lambda: membership.References(
        losses=np.zeros((2, 4)), included=np.eye(2, 4, dtype=bool)
    ),
    "Releases(dots=float64 (1, 2, 3), max_grad_norm=1, sample_rate=1)": lambda: membership.Releases(
        dots=np.zeros((1, 2, 3)), max_grad_norm=1.0
    ),
    "CanaryTrials(scores=float64 (2, 4), included=bool (2, 4), first_run=0)": lambda: membership.CanaryTrials(
        scores=np.zeros((2, 4)), included=np.eye(2, 4, dtype=bool), first_run=0
    ),
    "GradientReconstruction(points=float32 (1, 3), labels=int64 (1,), losses=float64 (1,), restart=int64 (1,), "
    "first_run=2)": lambda: attacks.GradientReconstruction(
        points=np.zeros((1, 3), np.float32),
        labels=np.zeros(1, np.int64),
        losses=np.zeros(1),
        restart=np.zeros(1, np.int64),
        first_run=2,
    ),
    "ScoreFile(members=float64 (3,), non_members=float64 (2,), layout=ScoreColumns, name=a.csv, higher=members)": (
        lambda: ScoreFile(np.arange(3.0), np.arange(2.0), LAYOUTS[0], "a.csv", "members")
    ),
    "Guesses(guess=int8 (1, 2))": lambda: membership.Guesses(np.array([[1, -1]], np.int8)),
}


def _subclasses(kind: type) -> Iterator[type]:
    for own in kind.__subclasses__():
        yield own
        yield from _subclasses(own)


def test_classes() -> None:
    for make in MAKE.values():
        make()  # which loads its class
    every = {c.__name__ for c in _subclasses(ArrayRecord) if c.__module__.startswith("leakcore.")}
    assert every == {text.partition("(")[0] for text in MAKE}


@pytest.mark.parametrize("text", MAKE)
def test_display(text: str) -> None:
    record = MAKE[text]()
    begin, _, end = text.partition("…")
    assert repr(record).startswith(begin)
    assert repr(record).endswith(end)
    assert str(record).splitlines()[0] == type(record).__name__
    assert record._repr_html_().startswith(f"<table><caption>{type(record).__name__}</caption>")


@pytest.mark.parametrize("text", MAKE)
def test_equality(text: str) -> None:
    record, again = MAKE[text](), MAKE[text]()
    assert record == again == copy.deepcopy(record)
    assert hash(record) == hash(again)
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if isinstance(value, np.ndarray):
            other = value.copy()
            other.reshape(-1)[-1] = not other.reshape(-1)[-1] if other.dtype == bool else other.reshape(-1)[-1] + 1
            assert dataclasses.replace(record, **{field.name: other}) != record, field.name
            if not isinstance(record, membership.Observations):  # which are float64 and bool whatever they are made of
                assert dataclasses.replace(record, **{field.name: value.astype(np.float16)}) != record, field.name


def test_other_libraries_and_classes() -> None:
    arrays, tensors = kernels.clip_and_noise(GRADS, 1.0), kernels.clip_and_noise(torch.from_numpy(GRADS), 1.0)
    assert arrays != tensors
    assert tensors == kernels.clip_and_noise(torch.from_numpy(GRADS), 1.0)
    assert arrays != kernels.Scores(arrays.sum, arrays.norms)
    assert arrays != 1


def test_nan_equality() -> None:
    assert kernels.Scores(np.array([np.nan]), None) == kernels.Scores(np.array([np.nan]), None)
    assert kernels.Scores(torch.tensor([np.nan]), None) == kernels.Scores(torch.tensor([np.nan]), None)


def test_device() -> None:
    there = kernels.Clipped(torch.empty(3, device="meta"), torch.ones(2))
    assert repr(there) == "Clipped(sum=float32 (3,) on meta, norms=float32 (2,))"


class Foreign:
    """An array of a library that leakcore does not know."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)
        self.dtype, self.shape = self.values.dtype, self.values.shape

    def __eq__(self, other: Any) -> Any:
        return self.values == other.values

    def __ne__(self, other: Any) -> Any:
        return self.values != other.values


def test_comparison_across_libraries() -> None:
    one = Foreign([1.0, np.nan])
    assert equal(one, Foreign([1.0, np.nan]))
    assert not equal(one, Foreign([2.0, np.nan]))
    assert not equal(one, Foreign(np.array([1.0, np.nan], np.float32)))
    assert not equal(one, Foreign([1.0, np.nan, 1.0]))
    assert not equal(one, [1.0, np.nan])
    assert not equal(2.0, one)


def test_imports_of_kernels() -> None:
    code = (
        "import sys, numpy, leakcore; leakcore.clip_and_noise(numpy.ones((2, 3), 'f4'), 1.0);"
        "print([m for m in sys.modules if m.startswith(('leakcore._base.results', 'leakcore._base.codec', 'html'))])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
