"""solve_labels against a singular value decomposition: rank, who is determined, error bound; routes; alignment."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pytest
import scipy.linalg
from hypothesis import assume, given
from hypothesis import strategies as st

from leakcore.reference import kernels as reference
from tests import tolerances
from tests.kernels.devices import kernels
from tests.kernels.layouts import checked, dtypes, laid_out, layouts, normals, seeds


def gradient_of(jacobian, residual):
    """(1/N)·C·e in float64."""
    return np.swapaxes(jacobian.astype(np.float64), -1, -2) @ residual / max(jacobian.shape[-2], 1)


pytestmark = pytest.mark.usefixtures("device")


def check(result, jacobian, gradient, rcond):
    """One problem against the reference; the cut must not fall among the singular values."""
    wanted = reference.solve_labels(jacobian, gradient, rcond=rcond)
    n, d = jacobian.shape
    rank = wanted.rank
    assert int(result.rank) == rank
    largest, smallest = (wanted.singular_values[[0, rank - 1]]) if rank else (1.0, 1.0)
    condition = largest / smallest
    outside = (
        np.linalg.norm(n * gradient.astype(np.float64) - jacobian.astype(np.float64).T @ wanted.residual) / largest
    )
    error = tolerances.least_squares(n, d, condition, np.linalg.norm(wanted.residual), outside)
    out = tolerances.rounding(result.residual.dtype)
    np.testing.assert_allclose(result.residual, wanted.residual, rtol=out, atol=error + 1e-300)
    relative = condition * tolerances.least_squares(n, d, condition, 1.0, 0.0)
    np.testing.assert_allclose(
        result.leverage, wanted.leverage, rtol=out, atol=relative * wanted.leverage.max(initial=1e-300)
    )
    limit = reference.identifiable_limit(wanted, rcond=rcond)
    assert result.identifiable[wanted.null <= limit / 10].all()
    assert not result.identifiable[wanted.null > 10 * limit].any()
    assert np.isinf(result.error[~result.identifiable]).all()
    assert np.isfinite(result.error[result.identifiable]).all()
    assert np.isfinite(result.residual).all()


def numerical_rank_is_clear(jacobian, rcond):
    s = np.linalg.svd(jacobian.astype(np.float64), compute_uv=False) if jacobian.size else np.zeros(0)
    return s.size == 0 or not ((s > s[0] * rcond / 100) & (s < s[0] * rcond * 100)).any()


@checked
@given(
    seeds,
    st.integers(0, 12),
    st.integers(0, 20),
    dtypes,
    layouts,
    layouts,
    st.lists(st.sampled_from(["zero", "repeat", "combine", "scale"]), max_size=3),
    st.one_of(st.none(), st.integers(0, 3)),
)
def test_pseudo_inverse(seed, n, d, dtype, layout, other_layout, defects, outputs):
    rng = np.random.default_rng(seed)
    jacobian = rng.standard_normal((n, d))
    for defect in defects if n else []:
        r = rng.integers(n)
        if defect == "zero":
            jacobian[r] = 0
        if defect == "repeat":
            jacobian[r] = jacobian[rng.integers(n)]
        if defect == "combine":
            jacobian[r] = rng.standard_normal(n) @ jacobian
        if defect == "scale":
            jacobian[r] *= 1e-3
    jacobian = jacobian.astype(dtype)
    rcond = max(np.finfo(dtype).eps, np.finfo(np.float64).eps * max(n, d))
    assume(numerical_rank_is_clear(jacobian, rcond))
    gradient = normals(seed + 1, d, *([] if outputs is None else [outputs]), dtype=dtype)
    result = kernels.solve_labels(laid_out(jacobian, layout), laid_out(gradient, other_layout))
    shape = (n,) if outputs is None else (n, outputs)
    assert result.residual.shape == result.error.shape == shape
    assert result.residual.dtype == result.leverage.dtype == result.error.dtype == np.dtype(dtype)
    check(result, jacobian, gradient, rcond)


@checked
@given(seeds, st.lists(st.integers(0, 3), max_size=3), layouts, st.booleans())
def test_leading_dimensions(seed, batch, layout, several):
    jacobian = normals(seed, *batch, 4, 7)
    gradient = normals(seed + 1, *batch, 7, *([2] if several else []))
    result = kernels.solve_labels(laid_out(jacobian, layout), laid_out(gradient, layout))
    assert result.residual.shape == (*batch, 4, *([2] if several else []))
    assert result.rank.shape == tuple(batch)
    for i in np.ndindex(*batch):
        lone = kernels.solve_labels(jacobian[i], gradient[i])
        for name in ("residual", "leverage", "identifiable", "error", "rank"):
            np.testing.assert_array_equal(getattr(result, name)[i], getattr(lone, name))


@checked
@given(seeds, st.integers(1, 30), st.integers(0, 60), dtypes, st.floats(-4, 0), st.booleans())
def test_error_bound_of_a_rounded_gradient(seed, n, extra, dtype, spread, saturated):
    """The truth lies within residual ± error when jacobian and gradient were computed in the input's own type."""
    rng = np.random.default_rng(seed)
    d = n + extra
    exact = rng.standard_normal((n, d)) * 10 ** rng.uniform(spread, 0, d)
    true = rng.uniform(-1, 1, n) * (10 ** rng.uniform(-7, 0, n) if saturated else 1)
    jacobian = exact.astype(dtype)
    terms = jacobian.T * true.astype(dtype)  # an averaged gradient, summed naively in its own type
    total = np.zeros(d, dtype=dtype)
    for r in range(n):
        total += terms[:, r]
    gradient = (total / np.asarray(n, dtype=dtype)).astype(dtype)
    result = kernels.solve_labels(jacobian, gradient)
    decided = result.identifiable
    assert (np.abs(result.residual - true)[decided] <= result.error[decided]).all()
    signs = decided & (np.abs(result.residual) > result.error)
    assert (np.sign(result.residual)[signs] == np.sign(true)[signs]).all()


@pytest.mark.parametrize(("dtype", "entry", "size"), [("float16", 1.0, 1e-9), ("float32", 1e-30, 1e-17)])
def test_error_bound_of_an_underflowed_gradient(dtype, entry, size):
    jacobian = np.full((1, 1), entry, dtype)
    gradient = np.array([entry * size]).astype(dtype)
    assert gradient == 0
    result = kernels.solve_labels(jacobian, gradient)
    assert result.identifiable.all()
    assert (np.abs(result.residual - size) <= result.error).all()
    assert (result.error < 1e-6).all()  # 1e-6 of a whole label would be seen


def test_error_bound_of_underflowing_terms():
    """500 float16 systems whose products lie about the smallest number of the type, summed there."""
    rng = np.random.default_rng(8)
    jacobian = (rng.standard_normal((500, 4, 12)) * 2.0 ** rng.uniform(-9, -5, (500, 1, 1))).astype("float16")
    true = rng.uniform(-1, 1, (500, 4)) * 2.0 ** rng.uniform(-16, -8, (500, 4))
    gradient = np.zeros((500, 12), "float16")
    for r in range(4):
        gradient += (jacobian[:, r] * true[:, r, None].astype("float16")).astype("float16")
    gradient = (gradient / np.float16(4)).astype("float16")
    result = kernels.solve_labels(jacobian, gradient)
    off = np.abs(result.residual - true.astype("float16"))
    assert (off <= result.error).all()
    # Relative rounding alone, a factor of the terms' own size, is not what was lost.
    assert (off > 40 * 2.0**-11 * np.abs(true)).any()


def test_size_of_the_error_bound():
    """A well-conditioned batch in float32: the bound is a small share of a typical residual, so signs are decided."""
    jacobian, true = normals(1, 50, 200, dtype="float32"), np.random.default_rng(2).uniform(-1, 1, 50)
    result = kernels.solve_labels(jacobian, gradient_of(jacobian, true).astype("float32"))
    assert result.error.max() < 1e-4
    assert np.abs(result.residual - true).max() > 1e-9


def test_gradients():
    rng = np.random.default_rng(3)
    jacobian = rng.standard_normal((40, 60))
    labels = rng.integers(0, 2, 40)
    probs = rng.uniform(0.01, 0.99, 40)
    result = kernels.solve_labels(jacobian, gradient_of(jacobian, probs - labels))
    np.testing.assert_array_equal(result.residual < 0, labels == 1)
    np.testing.assert_allclose(result.residual, probs - labels, atol=1e-12)


def test_undetermined_samples():
    jacobian, true = normals(4, 6, 10), np.array([0.5, -0.5, 0.25, -0.25, 0.75, -0.75])
    jacobian[1] = 0
    jacobian[4] = jacobian[2]
    result = kernels.solve_labels(jacobian, gradient_of(jacobian, true))
    assert int(result.rank) == 4
    np.testing.assert_array_equal(result.identifiable, [True, False, False, True, False, True])
    np.testing.assert_allclose(result.residual[[0, 3, 5]], true[[0, 3, 5]], atol=1e-13)
    np.testing.assert_allclose(result.residual[[2, 4]], (true[2] + true[4]) / 2, atol=1e-13)
    assert result.residual[1] == result.leverage[1] == 0


def test_weak_dependence():
    jacobian = normals(5, 5, 9)
    jacobian[3] = jacobian[0] + 0.01 * jacobian[1]
    result = kernels.solve_labels(jacobian, gradient_of(jacobian, np.full(5, 0.5)))
    np.testing.assert_array_equal(result.identifiable, [False, False, True, False, True])


def test_more_samples_than_weights():
    result = kernels.solve_labels(normals(6, 9, 4), normals(7, 4))
    assert int(result.rank) == 4
    assert not result.identifiable.any()


@pytest.mark.parametrize("singular", [1e-3, 1e-9, 1e-11, 1e-13])
@pytest.mark.parametrize("rcond", [1e-10, 1e-12])
@pytest.mark.parametrize("shape", [(8, 12), (12, 8), (8, 8)])
def test_cut_among_small_singular_values(singular, rcond, shape):
    """The one case where QR cannot tell: the Jacobi route must count and solve as the reference does."""
    rng = np.random.default_rng(8)
    k = min(shape)
    u, _ = np.linalg.qr(rng.standard_normal((shape[0], k)))
    v, _ = np.linalg.qr(rng.standard_normal((shape[1], k)))
    jacobian = (u * np.array([1.0] * (k - 2) + [30 * singular, singular])) @ v.T
    result = kernels.solve_labels(jacobian, gradient_of(jacobian, np.full(shape[0], 0.5)), rcond=rcond)
    wanted = reference.solve_labels(jacobian, gradient_of(jacobian, np.full(shape[0], 0.5)), rcond=rcond)
    assert int(result.rank) == wanted.rank
    near = max(singular, rcond)
    np.testing.assert_allclose(result.residual, wanted.residual, atol=1e-13 / near)
    np.testing.assert_allclose(result.leverage, wanted.leverage, rtol=1e-12 / near, atol=1e-6 * wanted.leverage.max())


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e200])
def test_scale_of_the_system(scale):
    jacobian, true = normals(9, 5, 8), np.linspace(-0.5, 0.5, 5)
    result = kernels.solve_labels(scale * jacobian, scale * gradient_of(jacobian, true))
    np.testing.assert_allclose(result.residual, true, atol=1e-13)
    assert result.identifiable.all()
    assert int(result.rank) == 5


@pytest.mark.parametrize(("n", "d"), [(0, 0), (0, 3), (3, 0), (1, 1)])
def test_smallest_systems(n, d):
    result = kernels.solve_labels(np.ones((n, d)), np.full(d, 0.5))
    assert result.residual.shape == result.leverage.shape == result.identifiable.shape == (n,)
    assert int(result.rank) == min(n, d)
    np.testing.assert_array_equal(result.residual, np.full(n, 0.5 if d else 0.0))
    np.testing.assert_array_equal(result.identifiable, np.full(n, d > 0))


@pytest.mark.parametrize("n", [7, 8, 9, 24, 33, 64, 130, 200])
def test_sizes_around_stripes(n):
    """A whole number of stripes, one sample more or fewer, and a Jacobian of more columns than one pass takes."""
    jacobian = normals(n, n, 2 * n + 301)
    gradient = normals(n + 1, 2 * n + 301)
    check(kernels.solve_labels(jacobian, gradient), jacobian, gradient, np.finfo(np.float64).eps * (2 * n + 301))


def test_bad_problems():
    """Ill-conditioned, rank-deficient and tiny problems take the other route; their neighbours' bits stay."""
    jacobian, gradient = normals(11, 40, 6, 9), normals(12, 40, 9)
    alone = kernels.solve_labels(jacobian, gradient)
    jacobian[3, 2] = jacobian[3, 1]
    jacobian[17] *= 1e-200
    jacobian[20, 0] = jacobian[20, 1] + 1e-9 * normals(14, 9)
    mixed = kernels.solve_labels(jacobian, gradient)
    others = np.setdiff1d(np.arange(40), [3, 17, 20])
    for name in ("residual", "leverage", "error", "identifiable", "rank"):
        np.testing.assert_array_equal(getattr(alone, name)[others], getattr(mixed, name)[others])
    np.testing.assert_array_equal(mixed.rank[[3, 17, 20]], [5, 6, 6])


def test_residual_beyond_the_dtype():
    """The system determines the label, and the type cannot hold it: the error is infinite, as for any other unknown."""
    for dtype, entry, gradient in (("float64", 1e-300, 1e300), ("float32", 1e-40, 1.0)):
        narrow = np.array([[entry]], dtype=dtype)
        with np.errstate(over="ignore"):
            result = kernels.solve_labels(narrow, np.array([gradient], dtype=dtype))
        assert not np.isfinite(result.residual).any()
        assert (result.error == np.inf).all()


JAC, GRAD = np.ones((2, 3, 4)), np.ones((2, 4))


@pytest.mark.parametrize(
    ("jacobian", "gradient", "rcond", "error", "message"),
    [
        (JAC, np.ones((2, 3)), None, ValueError, r"`gradient` must have shape \(2, 4\) or \(2, 4,.*, got \(2, 3\)"),
        (JAC, np.ones(4), None, ValueError, r"`gradient` must have shape \(2, 4\) or \(2, 4, 'K'\).*, got \(4,\)"),
        (np.ones(3), GRAD, None, ValueError, r"`jacobian` must have shape \(..., N, d\), got \(3,\)"),
        (JAC.astype(int), GRAD, None, TypeError, r"`jacobian` must be of type float16, bfloat16,.*, got int64"),
        (JAC, GRAD.astype(bool), None, TypeError, r"`gradient` must be of type float16, bfloat16,.*, got bool"),
        (JAC, GRAD, -1e-3, ValueError, r"`rcond` must be in \[0, 1\), got -0.001"),
        (JAC, GRAD, np.inf, ValueError, r"`rcond` must be in \[0, 1\), got inf"),
        (JAC, GRAD, 1.0, ValueError, r"`rcond` must be in \[0, 1\), got 1.0"),
        (
            JAC * [[[1.0]], [[np.nan]]],
            GRAD,
            None,
            ValueError,
            r"`jacobian\[1\]` must be finite, but has a NaN or an infinity",
        ),
        (
            JAC,
            GRAD * [[1.0], [np.inf]],
            None,
            ValueError,
            r"`gradient\[1\]` must be finite, but has a NaN or an infinity",
        ),
        (JAC[0] * np.inf, GRAD[0], None, ValueError, "solve_labels: `jacobian` must be finite, but has a"),
    ],
)
def test_errors(jacobian, gradient, rcond, error, message):
    with pytest.raises(error, match=message):
        kernels.solve_labels(jacobian, gradient, rcond=rcond)


def test_large_systems(device):
    """A device gives a block more where it is asked: up to N = 128 and more where 96 KiB are there."""
    for n in (90, 91, 128, 161):
        c, g = normals(n, 2, n, n + 20), normals(n + 1, 2, n + 20)
        result = kernels.solve_labels(c, g)
        wanted = np.linalg.lstsq(c[0].T, g[0], rcond=None)[0] * n
        assert result.identifiable.all()
        np.testing.assert_allclose(result.residual[0], wanted, rtol=0, atol=np.max(result.error[0]) + 1e-9)


def test_interruptible_calls(monkeypatch):
    jacobian = normals(0, 4, 3, 5, 9)[:, :, ::-1]
    gradient = normals(1, 4, 3, 9, 2)
    whole = kernels.solve_labels(jacobian, gradient)
    monkeypatch.setattr(
        sys.modules["leakcore.kernels.solve_labels"], "_WORK_PER_CALL", 1000
    )  # four problems of 5 × 5 × 9
    for a, b in ((jacobian, gradient), (jacobian.swapaxes(0, 1).copy().swapaxes(0, 1), gradient)):
        parts = kernels.solve_labels(a, b)
        for field in dataclasses.fields(parts):
            np.testing.assert_array_equal(getattr(parts, field.name), getattr(whole, field.name))
    bad = jacobian.copy()
    bad[3, 1, 2, 2] = np.nan
    with pytest.raises(ValueError, match=r"`jacobian\[3, 1\]` must be finite, but has a NaN or an infinity"):
        kernels.solve_labels(bad, gradient)


OUT_OF_RANGE = 2.0**-300
"""Exact, and it sends a float64 system past the normal equations to the rank-revealing route."""


def conditioned(rng, n, d, condition):
    """Singular values from 1 down to 1/condition, evenly in the logarithm."""
    u, _ = np.linalg.qr(rng.standard_normal((d, n)))
    v, _ = np.linalg.qr(rng.standard_normal((n, n)))
    return v @ (u * np.geomspace(1, 1 / condition, n)).T


def both_routes(jacobian, gradient, rcond=None):
    slow = kernels.solve_labels(OUT_OF_RANGE * jacobian, OUT_OF_RANGE * gradient, rcond=rcond)
    return kernels.solve_labels(jacobian, gradient, rcond=rcond), slow


def agree(fast, slow):
    assert int(fast.rank) == int(slow.rank)
    np.testing.assert_array_equal(fast.identifiable, slow.identifiable)
    known = fast.identifiable
    assert (np.abs(fast.residual - slow.residual)[known] <= (fast.error + slow.error)[known]).all()


@checked
@given(seeds, st.integers(1, 70), st.integers(0, 90), st.floats(0, 9), st.one_of(st.none(), st.integers(1, 3)))
def test_two_routes(seed, n, extra, log_condition, outputs):
    rng = np.random.default_rng(seed)
    jacobian = conditioned(rng, n, n + extra, 10**log_condition) * 10 ** rng.uniform(-2, 2, (n, 1))
    gradient = rng.standard_normal((n + extra, *([] if outputs is None else [outputs])))
    fast, slow = both_routes(jacobian, gradient)
    agree(fast, slow)
    scale = OUT_OF_RANGE**2
    relative = tolerances.normal_leverage(*jacobian.shape, jacobian, fast.leverage)
    np.testing.assert_allclose(fast.leverage, slow.leverage * scale, rtol=relative)


@pytest.mark.parametrize("offset", [-1e-3, -1e-6, -1e-9, 1e-9, 1e-6, 1e-3])
@pytest.mark.parametrize("condition", [3.0, 300.0])
def test_routes_near_the_cut(offset, condition):
    """rcond just below and above 1/(‖C‖·‖C⁺‖), where the proof ends, and 1/κ, where the rank falls."""
    jacobian = conditioned(np.random.default_rng(10), 20, 30, condition)
    gradient = gradient_of(jacobian, np.full(20, 0.5))
    s = np.linalg.svd(jacobian, compute_uv=False)
    proof = 1 / (np.linalg.norm(s) * np.linalg.norm(1 / s))
    for rcond in (proof * (1 + offset), (1 + offset) / condition):
        fast, slow = both_routes(jacobian, gradient, rcond)
        agree(fast, slow)
        assert int(fast.rank) == (s > rcond * s[0]).sum()


def in_longdouble(jacobian, gradient):
    """Residuals and leverages of a batch by Gram–Schmidt, every vector orthogonalised twice, in 64 bits of mantissa."""
    q = jacobian.swapaxes(-1, -2).astype(np.longdouble)
    batch, n = len(q), q.shape[-1]
    r, inverse = np.zeros((batch, n, n), np.longdouble), np.tile(np.eye(n, dtype=np.longdouble), (batch, 1, 1))
    for k in range(n):
        for _ in range(2):
            h = (q[:, :, :k] * q[:, :, k, None]).sum(axis=1)
            q[:, :, k] -= (q[:, :, :k] * h[:, None]).sum(axis=2)
            r[:, :k, k] += h
        r[:, k, k] = np.sqrt((q[:, :, k] ** 2).sum(axis=1))
        q[:, :, k] /= r[:, k, k, None]
    for i in range(n - 1, -1, -1):
        inverse[:, i] -= (r[:, i, i + 1 :, None] * inverse[:, i + 1 :]).sum(axis=1)
        inverse[:, i] /= r[:, i, i, None]
    projected = (q * (n * gradient.astype(np.longdouble))[:, :, None]).sum(axis=1)
    return (inverse * projected[:, None]).sum(axis=2), (inverse**2).sum(axis=2)


@pytest.mark.full(keep=60)
@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="needs a long double longer than a double")
@pytest.mark.parametrize("outside", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("log_condition", range(8))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_accuracy_against_pivoted_qr(dtype, log_condition, outside):
    """LAPACK's gelsy in the input's type, no singular value cut by either. Single errors scatter by a factor of two
    either way, so what is held to gelsy is the geometric mean over 24 systems, at five of its standard errors."""
    rng = np.random.default_rng(13)
    jacobian = np.stack([conditioned(rng, 20, 50, 10.0**log_condition) for _ in range(24)])
    terms = jacobian * rng.uniform(-1, 1, (24, 20, 1))
    gradient = ((terms.sum(axis=1) + outside * rng.standard_normal((24, 50))) / 20).astype(dtype)
    jacobian = jacobian.astype(dtype)
    truth, leverage = in_longdouble(jacobian, gradient)
    result = kernels.solve_labels(jacobian, gradient, rcond=1e-12)
    assert result.identifiable.all()
    assert (np.abs(result.residual - truth) <= result.error).all()
    rounding = tolerances.rounding(np.dtype(dtype))
    np.testing.assert_allclose(result.leverage, leverage.astype(np.float64), rtol=1e-8 + rounding)
    logs = []
    for i in range(24):
        peer = scipy.linalg.lstsq(jacobian[i].T, 20 * gradient[i], cond=1e-12, lapack_driver="gelsy")[0]
        ours, theirs = (np.linalg.norm((x - truth[i]).astype(np.float64)) for x in (result.residual[i], peer))
        logs.append(np.log(ours / theirs))
    assert np.mean(logs) <= 5 * np.std(logs) / len(logs) ** 0.5


LINE = 64


def beginning_at(values: np.ndarray, offset: int, gap: int) -> np.ndarray:
    """A copy that begins `offset` bytes after a line does, with `gap` entries of NaN after every row."""
    *batch, n, d = values.shape
    room = values.itemsize * int(np.prod([*batch, n])) * (d + gap)
    raw = np.full((room + 3 * LINE) // values.itemsize, np.nan, values.dtype)
    skipped = (-raw.ctypes.data % LINE + offset) // values.itemsize
    inside = raw[skipped : skipped + room // values.itemsize].reshape(*batch, n, d + gap)[..., :d]
    inside[...] = values
    assert (inside.ctypes.data - offset) % LINE == 0
    return inside


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("n", "d"),
    [(1, 1), (2, 3), (3, 8), (5, 16), (7, 17), (13, 31), (11, 64), (12, 72), (9, 80), (9, 88), (6, 520), (50, 200)],
)
def test_places_of_rows(dtype, n, d):
    jacobian, gradient = normals(n, 3, n, d, dtype=dtype), normals(d, 3, d, dtype=dtype)
    wanted = kernels.solve_labels(jacobian, gradient)
    for offset in range(0, LINE, jacobian.itemsize):
        for gap in (0, -d % 16, 3):
            placed = beginning_at(jacobian, offset, gap)
            result = kernels.solve_labels(placed, gradient)
            for name in ("residual", "error", "leverage", "identifiable", "rank"):
                np.testing.assert_array_equal(getattr(result, name), getattr(wanted, name), err_msg=f"{offset} {gap}")


def test_kinds_of_gradient():
    """Gradients are taken from where they are, converted a vector at a time, or element by element."""
    jacobian, gradient = normals(1, 4, 20, 43, dtype="float32"), normals(2, 4, 43, dtype="float16")
    wanted = kernels.solve_labels(jacobian.astype("float64"), gradient.astype("float64"))
    apart = np.full((4, 86), np.nan, "float32")[:, ::2]
    apart[...] = gradient
    for same in (gradient.astype("float32"), apart, gradient.astype("float64")):
        for system in (jacobian, jacobian.astype("float64")):
            result = kernels.solve_labels(system, same)
            np.testing.assert_array_equal(result.rank, wanted.rank)
            np.testing.assert_allclose(result.residual, wanted.residual, rtol=3e-7)
