"""Every public function, called with what users call functions with by mistake.

One valid call of each (`public_calls`, `public_arrays`) is bent in one argument or two. It then returns a well-typed
result that satisfies its invariants, or raises ValueError or TypeError (or a documented arithmetic error) that names
the argument: never a crash, a warning, another exception.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leakcore._base.results import Result
from leakcore.numerics import AccuracyError
from tests.public.arrays import CALLS, EXEMPT, resolve
from tests.public.calls import is_made_by_functions, public

NAN, INF = float("nan"), float("inf")
FLOATS = (
    NAN, INF, -INF, -1.0, -0.0, 0.0, 1e-30, 1e-9, 0.3, 1.0, 1.5, 1e3, 1e30, 3, True, None, "0.5", b"x", 1j,
    np.float32(0.3), np.float16(0.3), np.array(0.5), 10**400,
)  # fmt: skip
INTEGERS = (
    -1, 0, 1, 2, 3, 7, True, None, 1.0, 1.5, NAN, INF, "3", b"3", np.int8(3), np.uint64(2), np.array(3), [3],
)  # fmt: skip
HUGE = (2**31, 2**32 + 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), 10**400)
COSTLY = re.compile(
    r"steps|num_|iterations|restarts|epochs|runs|permutations|trees|hidden|components|rows|columns|samples|trials|count"
    r"|num_candidates|canaries|guesses|hits|correct|successes|dimensions|max_order|classes|batch_size|target|k$|patch"
    r"|probes|folds|count|bins"
)
"""Numbers that are sizes: a call with a huge one is a long one, as asked for."""
STRINGS = ("", "nonsense", None, 3, b"auto", "exact", "replace", "sum", "σ" * 1000)
OTHERS = (None, 3, "x", NAN)


def _arrays(a: np.ndarray) -> Iterator[Any]:
    real = a.astype(np.float64)
    yield a[::-1]
    yield a[..., ::-1]
    yield np.asfortranarray(a)
    yield np.repeat(a, 2, axis=-1)[..., ::2]
    yield np.broadcast_to(a[:1], a.shape)
    yield a[:0]
    yield a[..., :0]
    yield a[:1]
    yield a[None]
    yield a.reshape(-1)
    yield a[0]
    yield np.zeros((0, 0, 0))
    for bad in (NAN, INF, -INF, 1e30, 1e-30):
        spoilt = real.copy()
        spoilt.flat[-1] = bad
        yield spoilt
    for scale in (0.0, -1.0, 1e-30, 1e30):
        yield real * scale
    for kind in ("f4", "f2", ">f8", "g", "i8", "i1", "u1", "?", "c16", "O", "U8", "M8[s]"):
        with contextlib.suppress(TypeError, ValueError):
            yield real.astype(kind)
    still = real.copy()
    still.flags.writeable = False
    yield still
    yield real.tolist()
    yield [[1.0], [1.0, 2.0]]
    yield None
    yield "x"
    yield 3.0


def _tensors(t: Any) -> Iterator[Any]:
    import torch

    for array in _arrays(t.numpy()):
        if isinstance(array, np.ndarray) and array.dtype.kind in "fiub?" and array.dtype.isnative:
            if array.dtype != np.longdouble:
                yield torch.from_numpy(array.copy())
        else:
            yield array
    yield t.double().clone().requires_grad_()
    yield t.to(torch.bfloat16)
    yield t.to("meta")


FARTHEST = (5e-324, 1e-300, 1e9, 1e300)
FAR = ("accounting.", "bounds.", "kernels.", "numerics.", "defenses.")
"""Packages whose formulas are to hold to the ends of float64; elsewhere gradients and models end first."""


def bent(name_of_call: str, name: str, value: Any) -> list[Any]:
    """What to put in place of a valid value."""
    if hasattr(value, "requires_grad"):
        return list(_tensors(value))
    if isinstance(value, np.ndarray):
        return list(_arrays(value))
    if isinstance(value, bool):
        return [True, False, None, 2, "yes"]
    if isinstance(value, int):
        return [*INTEGERS, *(() if COSTLY.search(name) else HUGE)]
    if isinstance(value, float):
        return [*FLOATS, *(FARTHEST if name_of_call.startswith(FAR) else ())]
    if isinstance(value, str):
        return list(STRINGS)
    if isinstance(value, (tuple, list)):
        return [*OTHERS, (), (0,), (-1,), (1.5,), (NAN,), ("x",), (None,), (1, 1), tuple(value) * 2, list(value)[:1]]
    return list(OTHERS)


def well_typed(result: Any, depth: int = 0) -> None:
    """No NaN in a result's own number, ordered intervals, a kind that exists."""
    if isinstance(result, Result):
        value = np.asarray(result.value, dtype=float)
        assert not np.isnan(value).any(), f"value={result.value}"
        assert result.kind in ("upper", "lower", "estimate")
        assert result.confidence is None or 0 < result.confidence < 1
        if result.interval is not None:
            low, high = (np.asarray(v, dtype=float) for v in result.interval)
            assert (low <= high).all(), f"interval={result.interval}"
    if isinstance(result, dict) and depth < 2:
        for inner in result.values():
            well_typed(inner, depth + 1)


def check(name: str, change: dict[str, Any]) -> None:
    call = CALLS[name]
    arguments = call.arguments() | change
    try:
        result = resolve(name)(**arguments)
        if hasattr(result, "__enter__") and name == "kernels.thread_limit":
            with result:
                pass
    except (AccuracyError, FloatingPointError):
        return
    except (ValueError, TypeError) as error:
        words = {*arguments, *call.also, *(f.rstrip("s") for f in arguments if len(f) > 4)}
        if not any(re.search(rf"\b{re.escape(w)}", str(error)) for w in words):
            raise AssertionError(f"names no argument: {error}") from error
        return
    well_typed(result)
    if call.holds is not None:
        assert call.holds(result), f"invariant broken: {getattr(result, 'value', result)}"


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    from leakcore import kernels

    yield
    kernels.set_num_threads(None)


def _free(name: str) -> list[str]:
    return [a for a in CALLS[name].arguments() if a not in CALLS[name].fixed]


def test_every_function() -> None:
    names = {name for name, member in public() if not is_made_by_functions(member)}
    missing = names - CALLS.keys() - EXEMPT.keys()
    assert not missing, (
        "give each a call in tests/public/calls.py, arrays.py or attack_calls.py; a class that only functions return "
        f"goes into RESULTS in arrays.py: {sorted(missing)}"
    )
    gone = (CALLS.keys() | EXEMPT.keys()) - names - {"dpsgd.Ensemble.run"}
    assert not {n for n in gone if not _made(n)}, f"no longer public: {sorted(gone)}"


def _made(name: str) -> bool:
    try:
        return is_made_by_functions(resolve(name)) or name in EXEMPT
    except AttributeError:
        return False


@pytest.mark.parametrize("name", CALLS)
def test_valid_examples(name: str) -> None:
    call = CALLS[name]
    result = resolve(name)(**call.arguments())
    well_typed(result)
    assert call.holds is None or call.holds(result)


def _two(name: str) -> Callable[[], None]:
    arguments = CALLS[name].arguments()
    one = st.sampled_from(_free(name)).flatmap(
        lambda a: st.tuples(st.just(a), st.sampled_from(range(len(bent(name, a, arguments[a])))))
    )

    def bend(changes: list[tuple[str, int]]) -> None:
        check(name, {a: bent(name, a, arguments[a])[i] for a, i in changes})

    return given(st.lists(one, min_size=1, max_size=2, unique_by=lambda c: c[0]))(bend)


@pytest.mark.full(keep=22)
@pytest.mark.parametrize("name", [n for n in CALLS if n != "defenses.Compose"])
def test_bent_arguments(name: str) -> None:
    few = settings(
        max_examples=3, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    few(_two(name))()


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", [n for n in CALLS if n != "defenses.Compose"])
def test_every_bent_argument(name: str) -> None:
    arguments = CALLS[name].arguments()
    for argument in _free(name):
        for i, value in enumerate(bent(name, argument, arguments[argument])):
            try:
                check(name, {argument: value})
            except BaseException as error:
                error.add_note(f"{name}({argument}={value!r}) [{i}]")
                raise


def test_exempt_dataclasses() -> None:
    for name in EXEMPT:
        if EXEMPT[name].startswith("what a function returns"):
            assert dataclasses.is_dataclass(resolve(name)) or isinstance(resolve(name), type), name
