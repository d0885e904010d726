"""clip_scores against its reference over shapes, layouts and types; edge cases and errors; products in float32."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakcore.reference import kernels as reference
from tests import tolerances
from tests.kernels.devices import kernels
from tests.kernels.layouts import checked, dtypes, laid_out, layouts, normals, seeds

pytestmark = pytest.mark.usefixtures("device")


def check(result, grads, observed, clip):
    dots, norms = reference.clip_scores(grads, observed, clip)
    columns = grads.shape[1]
    (clipped,) = reference.clip([grads], clip)
    terms = np.abs(observed.astype(np.float64)) @ np.abs(clipped).T
    dtype = result.dots.dtype
    assert result.dots.shape == dots.shape
    assert (np.abs(result.dots - dots) <= tolerances.score(columns, terms, dots, dtype)).all()
    np.testing.assert_allclose(result.clipped_norms, norms, rtol=2 * tolerances.norm(columns, dtype), atol=1e-300)


@checked
@given(
    seeds,
    st.integers(0, 9),
    st.integers(0, 40),
    st.integers(0, 6),
    dtypes,
    dtypes,
    layouts,
    layouts,
    st.floats(0.1, 20),
)
def test_scores(seed, n, columns, m, dtype, other_dtype, layout, other_layout, clip):
    grads = normals(seed, n, columns, dtype=dtype)
    grads[n // 2 : n // 2 + 1] = 0
    observed = normals(seed + 1, m, columns, dtype=other_dtype)
    result = kernels.clip_scores(laid_out(grads, layout), laid_out(observed, other_layout), clip)
    assert result.dots.dtype == np.result_type(dtype, other_dtype)
    check(result, grads, observed, clip)


@pytest.mark.parametrize(("n", "columns", "m"), [(3, 5000, 70), (130, 1025, 33), (1, 1024, 32), (65, 1023, 1)])
def test_sizes_around_tiles(n, columns, m):
    grads, observed = normals(1, n, columns, dtype="float32"), normals(2, m, columns, dtype="float32")
    check(kernels.clip_scores(grads, observed, 10.0), grads, observed, 10.0)


def test_one_observation():
    grads, observed = normals(1, 5, 8), normals(2, 8)
    single, several = kernels.clip_scores(grads, observed, 1.0), kernels.clip_scores(grads, observed[None], 1.0)
    assert single.dots.shape == (5,)
    np.testing.assert_array_equal(single.dots, several.dots[0])
    np.testing.assert_array_equal(single.clipped_norms, several.clipped_norms)


def test_clipped_norms():
    assert (kernels.clip_scores(normals(1, 50, 30), normals(2, 30), 0.3).clipped_norms == 0.3).all()


@pytest.mark.parametrize("product", ["float64", "float32"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_rows(bad, product):
    grads, observed = normals(1, 5, 8, dtype=product), normals(2, 3, 8, dtype=product)
    grads[2, 3] = bad
    with pytest.raises(ValueError, match=r"clip_scores: `grads` must be finite, but row 2 has norm (nan|inf)"):
        kernels.clip_scores(grads, observed, 1.0, product_dtype=product)
    loose = kernels.clip_scores(grads, observed, 1.0, check_finite=False, product_dtype=product)
    assert np.isnan(loose.dots[:, 2]).all()
    assert np.isfinite(loose.dots[:, [0, 1, 3, 4]]).all()
    grads[2, 3], observed[1, 0] = 0, bad
    with pytest.raises(
        ValueError, match=r"clip_scores: `observed` must be finite, .* but row 1 gives a score that is not finite"
    ):
        kernels.clip_scores(grads, observed, 1.0, product_dtype=product)
    with pytest.raises(
        ValueError, match=r"clip_scores: `observed` must be finite, .* but it gives a score that is not finite"
    ):
        kernels.clip_scores(grads, observed[1], 1.0, product_dtype=product)


GRADS = np.ones((3, 4))


@pytest.mark.parametrize(
    ("grads", "observed", "clip", "error", "message"),
    [
        (GRADS, GRADS, 0.0, ValueError, r"`max_grad_norm` must be above 0, got 0.0"),
        (GRADS, np.ones((2, 5)), 1.0, ValueError, r"`observed` must have .*, for grads is \(3, 4\), got \(2, 5\)"),
        (GRADS, np.ones((2, 2, 4)), 1.0, ValueError, r"`observed` must have shape \(4,\) or \(M, 4\), .* \(2, 2, 4\)"),
        (GRADS[0], GRADS, 1.0, ValueError, r"`grads` must have shape \(B, ...\), rows.*, got \(4,\)"),
        (GRADS.astype(int), GRADS, 1.0, TypeError, r"`grads` must be of type float16, bfloat16,.*, got int64"),
        (GRADS, [1, 2, 3, 4], 1.0, TypeError, r"`observed` must be a NumPy array, a torch tensor.*, got list"),
    ],
)
def test_errors(grads, observed, clip, error, message):
    with pytest.raises(error, match=message):
        kernels.clip_scores(grads, observed, clip)
    with pytest.raises(TypeError, match="`check_finite` must be True, False or None, got 'no'"):
        kernels.clip_scores(GRADS, GRADS, 1.0, check_finite="no")


NARROW = st.sampled_from(("float16", "float32"))


def check_float_products(grads, observed, clip, layout="contiguous"):
    """Both routes from one layout; the float32 one within its documented distance of the float64 reference."""
    double = kernels.clip_scores(laid_out(grads, layout), observed, clip)
    single = kernels.clip_scores(laid_out(grads, layout), observed, clip, product_dtype="float32")
    dots, _ = reference.clip_scores(grads, observed, clip)
    (clipped,) = reference.clip([grads], clip)
    terms = np.abs(observed.astype(np.float64)) @ np.abs(clipped).T
    assert single.dots.dtype == double.dots.dtype == np.float32
    assert (np.abs(single.dots - dots) <= tolerances.float_score(grads.shape[1], terms, dots)).all()
    np.testing.assert_array_equal(single.clipped_norms, double.clipped_norms)
    return single


@checked
@given(seeds, st.integers(0, 9), st.integers(0, 40), st.integers(0, 6), NARROW, NARROW, layouts, st.floats(0.1, 20))
def test_scores_of_float_products(seed, n, columns, m, dtype, other_dtype, layout, clip):
    grads = normals(seed, n, columns, dtype=dtype)
    grads[n // 2 : n // 2 + 1] = 0
    check_float_products(grads, normals(seed + 1, m, columns, dtype=other_dtype), clip, layout)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("n", "columns", "m"), [(3, 9001, 40), (130, 1025, 33), (9, 512, 16), (5, 527, 17), (65, 4097, 1), (6, 513, 7)]
)
def test_sizes_of_float_products(n, columns, m, dtype):
    grads, observed = normals(1, n, columns, dtype=dtype), normals(2, m, columns, dtype=dtype)
    contiguous = check_float_products(grads, observed, 10.0)
    np.testing.assert_array_equal(check_float_products(grads, observed, 10.0, "sliced").dots, contiguous.dots)


def test_rounding_of_chains():
    """Equal terms that a double adds exactly: the error is there, and far below that of a sum all in float32."""
    columns = 1_000_000
    grads, observed = np.full((1, columns), 1 / 3, np.float32), np.full(columns, 1 / 3, np.float32)
    single = kernels.clip_scores(grads.astype(np.float32), observed, 1e9, product_dtype="float32").dots[0]
    exact = columns * float(grads[0, 0]) * float(observed[0])
    assert 0 < abs(single / exact - 1) <= 35 * tolerances.U32
    naive = np.cumsum(grads[0] * observed)[-1]
    assert abs(naive / exact - 1) > 100 * abs(single / exact - 1)


def test_products_beyond_float32():
    grads, observed = normals(1, 5, 700, dtype="float32"), normals(2, 3, 700, dtype="float32")
    grads[2] *= np.float32(1e25)
    observed[1] *= np.float32(1e20)
    assert np.isfinite(check_float_products(grads, observed, 1.0).dots).all()


def test_errors_of_float_products():
    wide, narrow = np.ones((3, 4)), np.ones((3, 4), np.float32)
    with pytest.raises(ValueError, match="`product_dtype` must be 'float64', as grads is, got 'float32'"):
        kernels.clip_scores(wide, narrow, 1.0, product_dtype="float32")
    with pytest.raises(ValueError, match=r"`product_dtype` must be 'float64',.*, got <class 'numpy.float32'>"):
        kernels.clip_scores(narrow, wide, 1.0, product_dtype=np.float32)
    with pytest.raises(TypeError, match="`product_dtype` must be 'float32' or 'float64', got 'half'"):
        kernels.clip_scores(narrow, narrow, 1.0, product_dtype="half")
