"""The table of methods: names stand for objects, each object knows its options, and a new one takes a line."""

from __future__ import annotations

import dataclasses
import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import pytest

from leakcore import bounds, mechanisms
from leakcore.bounds import methods
from leakcore.bounds.reconstruction.arguments import Kappa, ReconstructionBound, SampledGaussian

OPTIONS: dict[str, Any] = {"num_samples": 4000, "confidence": 0.98, "seed": 11}
KEYWORDS = ("num_samples", "confidence", "seed", "device", "executor")


def _options(name: str) -> dict[str, Any]:
    return {key: value for key, value in OPTIONS.items() if key in methods.TABLE[name].options()}


@pytest.mark.parametrize("name", methods.TABLE)
def test_a_name_with_keywords_is_its_object_with_options(name: str) -> None:
    setting = (1.0, 1.0 if name == "closed-form" else 0.2, 5)
    by_name = bounds.reconstruction(*setting, kappa=[0.3, 0.01], method=name, **OPTIONS)
    with_options = methods.TABLE[name](**_options(name))
    assert by_name.to_dict() == bounds.reconstruction(*setting, kappa=[0.3, 0.01], method=with_options).to_dict()


def test_the_keywords_of_reconstruction_default_to_what_the_objects_do() -> None:
    signature = inspect.signature(bounds.reconstruction).parameters
    for kind in methods.TABLE.values():
        for field in dataclasses.fields(kind):
            if field.name in KEYWORDS:
                assert signature[field.name].default == field.default, (kind.name, field.name)
    of = inspect.signature(bounds.reconstruction_of).parameters
    for name in set(KEYWORDS) - {"device"}:
        assert of[name].default == signature[name].default


@pytest.mark.parametrize("key", ["num_samples", "confidence", "seed"])
def test_a_keyword_next_to_an_object_is_not_swallowed(key: str) -> None:
    option, pair = {key: OPTIONS[key]}, mechanisms.FixedSize(1.0, 2, 10, 5)
    for call, first in ((bounds.reconstruction, (1.0, 0.2, 5)), (bounds.reconstruction_of, (pair,))):
        with pytest.raises(ValueError, match=rf"`{key}` must go into the method object, Certified\(\.\.\.\)"):
            call(*first, kappa=0.1, method=methods.Certified(), **option)


@pytest.mark.parametrize("name", methods.TABLE)
def test_an_executor_serves_or_is_refused(name: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        call: dict[str, Any] = {"kappa": [0.3, 0.01], "method": name, **OPTIONS}
        if "executor" in methods.TABLE[name].options():
            shared, alone = (bounds.reconstruction(1.0, 0.2, 5, **call, executor=e) for e in (pool, None))
            np.testing.assert_array_equal(shared.log_value, alone.log_value)
        else:
            with pytest.raises(
                ValueError, match=rf"`executor` .*method='{name}', got .*: only methods \('monte-carlo', "
            ):
                bounds.reconstruction(1.0, 0.2, 5, **call, executor=pool)


@pytest.mark.parametrize("name", methods.TABLE)
def test_every_keyword_is_checked_whichever_method_takes_it(name: str) -> None:
    for key, value in (("num_samples", 0), ("confidence", 1.0), ("seed", -1), ("device", "tpu")):
        with pytest.raises(ValueError, match=f"`{key}` must be .*, got {value!r}"):
            bounds.reconstruction(1.0, 0.2, 5, kappa=0.1, method=name, **{key: value})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: methods.MonteCarlo(under="both"), "`under` must be 'alternative' or 'null', got 'both'"),
        (lambda: methods.MonteCarlo(num_samples=0), r"`num_samples` must be in \[1, 1099511627776\], got 0"),
        (lambda: methods.Certified(num_samples=5), r"`num_samples` must be at least \d+ for .*confidence=.*, got 5"),
        (lambda: methods.Certified(width=-1.0), r"`width` must be above 0, got -1.0"),
        (lambda: methods.Importance(num_samples=5), r"`num_samples` must be at least \d+ for confidence=.*, got 5"),
        (lambda: methods.DKW(num_samples=1), r"`num_samples` must be in \[2, 67108864\], got 1"),
        (lambda: methods.Auto(seed=2**64), r"`seed` must be in \[0,.*, got 18446744073709551616"),
    ],
)
def test_options_are_checked_when_the_object_is_made(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_pair_from_outside_is_certified_and_nothing_else() -> None:
    pair = mechanisms.FixedSize(1.0, 2, 10, 5)
    for method in ("exact", methods.Importance()):
        with pytest.raises(ValueError, match=r"`method` must be 'certified' or a bounds\.methods\.Certified, got "):
            bounds.reconstruction_of(pair, kappa=0.1, method=method)  # type: ignore[arg-type]
    by_name = bounds.reconstruction_of(pair, kappa=0.1, **OPTIONS)
    with_options = methods.Certified(**_options("certified"))
    assert by_name.to_dict() == bounds.reconstruction_of(pair, kappa=0.1, method=with_options).to_dict()
    with pytest.raises(
        ValueError, match="`device` must be None, since a pair from outside draws its own samples, got 'cpu'"
    ):
        bounds.reconstruction_of(pair, kappa=0.1, method=methods.Certified(device="cpu"))


def test_what_stands_for_nothing_is_refused() -> None:
    with pytest.raises(TypeError, match="sample_log_ratio"):
        bounds.StatedPair(object())
    with pytest.raises(TypeError, match="`dominates` must be True, False or None, got 2"):
        bounds.StatedPair(mechanisms.FixedSize(1.0, 2, 10, 5), dominates=2)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class Trivial(methods.Method):
    """B_κ ≤ 1."""

    name: ClassVar[str] = "trivial"
    seed: int = 0

    def bound(self, mechanism: SampledGaussian, prior: Kappa) -> ReconstructionBound:
        one = methods.ClosedForm().bound(SampledGaussian.parse(0.0, 1.0, 1), prior)
        return dataclasses.replace(one, method=self.name, seed=self.seed)


def test_a_new_method_is_a_class_and_a_line_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(methods.TABLE, Trivial.name, Trivial)
    bound = bounds.reconstruction(1.0, 0.1, 3, kappa=[0.5, 0.1], method="trivial", seed=4)
    assert (bound.method, bound.seed) == ("trivial", 4)
    np.testing.assert_array_equal(bound.value, 1.0)
    with pytest.raises(ValueError, match=r"`method` must be 'auto', 'closed-form', 'exact',.*, got 'fourier'"):
        bounds.reconstruction(1.0, 0.1, 3, kappa=0.1, method="fourier")
