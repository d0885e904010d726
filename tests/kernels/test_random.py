"""The generator: published answers by three routes, the layout of streams, and the law of uniforms and normals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from leakcore import _C, kernels
from leakcore.kernels import Stream
from leakcore.reference import philox
from tests import tolerances
from tests.kernels import devices
from tests.kernels.layouts import checked, laid_out, layouts, seeds

KAT = Path(__file__).resolve().parents[1] / "golden" / "philox4x32_kat.txt"
KNOWN = [[int(w, 16) for w in line.split()] for line in KAT.read_text().splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("numbers", KNOWN, ids=["zeros", "ones", "pi"])
def test_known_answers(numbers):
    counter, key, expected = numbers[:4], numbers[4:6], numbers[6:]
    assert list(kernels.philox4x32(counter, key)) == expected
    assert philox.philox4x32(np.array(counter), np.array(key)).tolist() == expected


def test_known_answers_in_cpp():
    assert len(KNOWN) == 3
    assert _C.selftest() == ""
    kernels.selftest()


def test_selftest(monkeypatch):
    monkeypatch.setattr(_C, "selftest", lambda: "two and two make five")
    with pytest.raises(RuntimeError, match="the native core is broken: two and two make five"):
        kernels.selftest()


@checked
@given(st.lists(st.integers(0, 2**32 - 1), min_size=6, max_size=6))
def test_counters(words):
    expected = philox.philox4x32(np.array(words[:4]), np.array(words[4:]))
    assert list(kernels.philox4x32(words[:4], words[4:])) == expected.tolist()


def test_words_in_three_languages():
    mixture = ("MIXTURE", "MIXTURE_PICK", "MIXTURE_ONE", "MIXTURE_ONE_PICK")
    native = (*mixture, "CLIP_NOISE", "ALLOCATION", "ALLOCATION_PICK")
    assert _C.streams == {name.lower(): Stream[name] >> 24 for name in native}
    assert {name: getattr(philox, name) for name in native} == {name: Stream[name] >> 24 for name in native}
    assert all(Stream[name] % 2**24 == 0 for name in native)


@checked
@given(
    seeds,
    st.integers(0, 5),
    st.integers(0, 600),
    st.integers(0, 2**24 - 1),
    st.sampled_from([0, 1, 2**32 - 2, 2**40]),
    layouts,
)
def test_rows(seed, rows, cols, step, first_row, layout):
    arguments = {"seed": seed << 20, "purpose": Stream.CALLER, "step": step, "first_row": first_row}
    uniform = kernels.uniform((rows, cols), **arguments)
    np.testing.assert_array_equal(uniform, philox.uniform(rows, cols, **{**arguments, "purpose": Stream.CALLER >> 24}))
    expected = philox.standard_normal(rows, cols, **{**arguments, "purpose": Stream.CALLER >> 24})
    out = laid_out(np.zeros((rows, cols)), layout)
    assert kernels.standard_normal((rows, cols), out=out, **arguments) is out
    np.testing.assert_allclose(out, expected, rtol=0, atol=tolerances.NORMAL_ABS)
    np.testing.assert_array_equal(kernels.standard_normal((rows, cols), **arguments), out)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("rows", "cols"), [(0, 3), (3, 0), (1, 1), (2, 4), (3, 1030), (700, 7)])
def test_devices(rows, cols):
    arguments = {"seed": 9, "purpose": "caller", "step": 3, "first_row": 2**32 - 2}
    uniform = devices.kernels.uniform((rows, cols), **arguments)
    np.testing.assert_array_equal(uniform, kernels.uniform((rows, cols), **arguments))
    normal = devices.kernels.standard_normal((rows, cols), **arguments)
    here = kernels.standard_normal((rows, cols), **arguments)
    np.testing.assert_allclose(normal, here, rtol=0, atol=tolerances.NORMAL_ABS)
    assert normal.shape == here.shape
    single = devices.kernels.standard_normal((rows, cols), dtype="float32", **arguments)
    assert single.dtype == np.float32
    np.testing.assert_array_equal(single, normal.astype(np.float32))
    apart = devices.kernels.standard_normal((rows, cols), out=np.zeros((2 * rows, cols + 3))[::-2, 1:-2], **arguments)
    np.testing.assert_array_equal(apart, normal)


def test_independence_of_rows():
    whole = kernels.standard_normal((9, 1000), seed=7, purpose="caller", step=3)
    part = kernels.standard_normal((2, 333), seed=7, purpose="caller", step=3, first_row=4)
    np.testing.assert_array_equal(part, whole[4:6, :333])
    single = kernels.standard_normal((9, 1000), seed=7, purpose="caller", step=3, dtype="float32")
    np.testing.assert_array_equal(single, whole.astype(np.float32))


def test_keys_of_a_row():
    base = {"seed": 1, "purpose": "caller", "step": 0, "first_row": 0}
    drawn = [kernels.uniform((1, 64), **base)]
    changes = [("seed", 2), ("seed", 1 + 2**32), ("purpose", "batch"), ("step", 1), ("first_row", 1)]
    drawn += [kernels.uniform((1, 64), **{**base, name: value}) for name, value in [*changes, ("first_row", 2**32)]]
    assert len({row.tobytes() for row in drawn}) == len(drawn)


def smallest_p(z):
    """Five tests against the standard normal law: shape, mean, variance, skewness and neighbours' correlation."""
    n = z.size
    scores = [
        z.mean() * np.sqrt(n),
        (z.var() - 1) * np.sqrt(n / 2),
        (z**3).mean() * np.sqrt(n / 15),
        (z[:-1] * z[1:]).mean() * np.sqrt(n - 1),
    ]
    return min(stats.kstest(z, special.ndtr).pvalue, *(2 * special.ndtr(-abs(s)) for s in scores))


@pytest.mark.full
def test_normal_law():
    """A million draws at a fixed seed; p = 1e-3 over the five tests (Bonferroni): a correct one passes with 99.9%."""
    z = kernels.standard_normal((1000, 1000), seed=20261121, purpose="data_order").ravel()
    assert smallest_p(z) > 1e-3 / 5
    assert smallest_p(1.005 * z) < 1e-3 / 5, "a standard deviation half a percent off goes unnoticed"
    assert smallest_p(z + 0.006) < 1e-3 / 5, "a shift of 0.006 goes unnoticed"


def test_truncation():
    largest = np.sqrt(66 * np.log(2))
    assert largest == pytest.approx(6.7637, abs=5e-5)
    assert 2 * special.ndtr(-largest) < 1.4e-11
    assert np.abs(kernels.standard_normal((1000, 1000), seed=0, purpose="data_order")).max() <= largest


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"purpose": "cooking"}, ValueError, r"`purpose` must be a leakcore.kernels.Stream or.*, got 'cooking'"),
        ({"purpose": 3}, TypeError, r"`purpose` must be a leakcore.kernels.Stream or its name in lower case, got 3"),
        ({"step": 2**24}, ValueError, r"`step` must be in \[0, 16777215\], got 16777216"),
        ({"step": -1}, ValueError, r"`step` must be in \[0, 16777215\], got -1"),
        ({"seed": -1}, ValueError, r"`seed` must be in \[0, 18446744073709551615\], got -1"),
        ({"seed": 0.5}, TypeError, r"`seed` must be an integer, got 0.5"),
        ({"first_row": -1}, ValueError, r"`first_row` must be in \[0, 9223372036854775807\], got -1"),
        ({"shape": (-1, 3)}, ValueError, r"`shape\[0\]` must be at least 0, got -1"),
        ({"shape": (2, 2**34 + 1)}, ValueError, r"`shape\[1\]` must be in \[0, 17179869184\], got 17179869185"),
        ({"shape": (2.0, 3)}, TypeError, r"`shape\[0\]` must be an integer, got 2.0"),
        ({"shape": (2, 3, 4)}, ValueError, r"`shape` must be two integers, \(rows, columns\), got \(2, 3, 4\)"),
        ({"shape": 6}, TypeError, "`shape` must be a sequence of integers, got 6"),
        ({"dtype": "int32"}, TypeError, "`dtype` must be 'float32' or 'float64', got 'int32'"),
        ({"out": np.zeros((2, 2))}, ValueError, r"`out` must have shape \(2, 3\), got \(2, 2\)"),
        (
            {"out": np.zeros((2, 3), dtype=np.int64)},
            TypeError,
            r"`out` must be of type float16, bfloat16,.*, got int64",
        ),
        (
            {"out": np.zeros((2, 3), dtype=np.float16)},
            TypeError,
            "`out` must be of type float32 or float64, got float16",
        ),
        ({"out": np.broadcast_to(0.0, (2, 3))}, ValueError, "`out` must be writeable, but is read-only"),
        ({"like": "numpy"}, TypeError, "`like` must be a NumPy array, a torch tensor or a DLPack array, got str"),
        ({"dtype": "int32", "out": np.zeros((2, 3))}, TypeError, "`dtype` must be 'float32' or 'float64', got 'int32'"),
        ({"out": np.lib.stride_tricks.as_strided(np.zeros(9), (2, 3), (8, 8))}, ValueError, "lie across each other"),
    ],
)
def test_errors(change, error, message):
    with pytest.raises(error, match=message):
        kernels.standard_normal(**{"shape": (2, 3), "seed": 1, "purpose": "caller", **change})


def test_uniforms():
    """Rounded to float32 the largest would be 1."""
    with pytest.raises(TypeError, match="`out` must be of type float64, got float32"):
        kernels.uniform((2, 3), seed=1, purpose="data_order", out=np.zeros((2, 3), np.float32))
    out = np.zeros((7, 4))[::-2, ::2]
    kernels.uniform((4, 2), seed=1, purpose="data_order", out=out)
    np.testing.assert_array_equal(out, kernels.uniform((4, 2), seed=1, purpose="data_order"))
    assert ((out > 0) & (out < 1)).all()


def test_philox_errors():
    with pytest.raises(ValueError, match="`counter` and `key` must have 4 and 2 words, got 3 and 2"):
        kernels.philox4x32((0, 0, 0), (0, 0))
    with pytest.raises(ValueError, match=r"`counter\[2\]` must be in \[0, 4294967295\], got 4294967296"):
        kernels.philox4x32((0, 0, 2**32, 0), (0, 0))


def test_interruptible_calls(monkeypatch):
    arguments = {"seed": 3, "purpose": "label_releases", "step": 5, "first_row": 2**32 - 2}
    whole = kernels.standard_normal((7, 11), **arguments)
    monkeypatch.setattr("leakcore.kernels.random._DRAWS_PER_CALL", 25)  # two rows
    np.testing.assert_array_equal(kernels.standard_normal((7, 11), **arguments), whole)
    out = np.zeros((11, 7)).T
    kernels.standard_normal((7, 11), out=out, **arguments)
    np.testing.assert_array_equal(out, whole)
