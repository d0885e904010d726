"""clip_and_noise against its reference over shapes, layouts, types, masks and parameters; every edge case and error."""

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


def _needs_the_very_memory(device):
    if device == "cuda":
        pytest.skip("copies on a device neither overlap nor have odd strides")


def check(result_sum, result_norms, params, clip, sigma=0.0, noise=None, mask=None):
    """Sum and norms of one run against the reference, within the derived tolerances."""
    sums, norms = reference.clip_and_noise(params, clip, sigma, noise=noise, mask=mask)
    rows, columns = len(params[0]), sum(int(np.prod(p.shape[1:])) for p in params)
    chosen = np.ones(rows, dtype=bool) if mask is None else mask
    dtype, narrow = result_norms.dtype, params[0].dtype.itemsize == 2
    np.testing.assert_allclose(result_norms, norms, rtol=tolerances.norm(columns, dtype, narrow), atol=1e-300)
    clipped = reference.clip(params, clip)
    for i, (got, wanted) in enumerate(zip(result_sum, sums, strict=True)):
        terms = np.abs(clipped[i][chosen]).sum(axis=0)
        if noise is not None:
            terms = terms + sigma * clip * np.abs(noise[i])
        assert got.dtype == dtype
        assert (np.abs(got - wanted) <= tolerances.clipped_sum(rows, columns, terms, wanted, dtype, narrow)).all()


@checked
@given(seeds, st.integers(0, 9), st.integers(0, 40), dtypes, layouts, st.floats(0.1, 20), st.booleans())
def test_matrix_of_gradients(seed, rows, columns, dtype, layout, clip, masked):
    grads = normals(seed, rows, columns, dtype=dtype)
    grads[rows // 2 : rows // 2 + 1] = 0
    mask = np.random.default_rng(seed).random(rows) < 0.5 if masked else None
    result = kernels.clip_and_noise(laid_out(grads, layout), clip, mask=mask)
    assert result.sum.shape == (columns,)
    assert result.norms.shape == (rows,)
    check([result.sum], result.norms, [grads], clip, mask=mask)


@checked
@given(seeds, st.integers(1, 4), st.integers(0, 5), st.integers(0, 30), dtypes, layouts, st.integers(0, 2**24 - 1))
def test_noise_of_runs(seed, runs, rows, columns, dtype, layout, step):
    grads = normals(seed, runs, rows, columns, dtype=dtype)
    mask = np.random.default_rng(seed).random((runs, rows)) < 0.5
    first = seed % 1000
    result = kernels.clip_and_noise(
        laid_out(grads, layout), 1.5, 0.7, runs=True, seed=seed, step=step, mask=laid_out(mask, layout), first_run=first
    )
    noise = kernels.standard_normal((runs, columns), seed=seed, purpose="clip_noise", step=step, first_row=first)
    assert result.sum.shape == (runs, columns)
    for r in range(runs):
        check([result.sum[r]], result.norms[r], [grads[r]], 1.5, 0.7, noise=[noise[r]], mask=mask[r])
        lone = kernels.clip_and_noise(grads[r], 1.5, 0.7, seed=seed, step=step, mask=mask[r], first_run=first + r)
        np.testing.assert_array_equal(lone.sum, result.sum[r])


@checked
@given(
    seeds, st.integers(0, 5), st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=4), dtypes, layouts
)
def test_joint_norm(seed, rows, shapes, dtype, layout):
    params = [normals(seed + i, rows, *shape, dtype=dtype) for i, shape in enumerate(shapes)]
    columns = [int(np.prod(shape)) for shape in shapes]
    result = kernels.clip_and_noise([laid_out(p, layout) for p in params], 1.0, 0.5, seed=seed, step=1)
    flat = kernels.standard_normal((1, sum(columns)), seed=seed, purpose="clip_noise", step=1)[0]
    pieces = np.split(flat, np.cumsum(columns)[:-1])
    noise = [z.reshape(shape) for z, shape in zip(pieces, shapes, strict=True)]
    assert [s.shape for s in result.sum] == [tuple(shape) for shape in shapes]
    check(result.sum, result.norms, params, 1.0, 0.5, noise=noise)


@pytest.mark.parametrize(("rows", "columns"), [(3, 20_000), (5000, 3), (4097, 1), (1, 1025), (2049, 1500)])
def test_sizes_around_tiles(rows, columns):
    grads = normals(rows, rows, columns, dtype="float32")
    result = kernels.clip_and_noise(grads, 2.0)
    check([result.sum], result.norms, [grads], 2.0)


def test_standard_normal_noise():
    empty = np.zeros((2, 0, 3001))
    result = kernels.clip_and_noise(empty, 1.0, 1.0, runs=True, seed=11, step=5)
    expected = kernels.standard_normal((2, 3001), seed=11, purpose="clip_noise", step=5)
    np.testing.assert_array_equal(result.sum, expected)
    assert result.norms.shape == (2, 0)


def test_given_noise():
    grads, noise = normals(1, 6, 50), normals(2, 50)
    quiet = kernels.clip_and_noise(grads, 0.5)
    loud = kernels.clip_and_noise(grads, 0.5, 3.0, noise=laid_out(noise, "reversed"))
    np.testing.assert_allclose(loud.sum, quiet.sum + 1.5 * noise, rtol=1e-14, atol=1e-14)


def test_gradient_on_the_sphere():
    grads = np.array([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_array_equal(kernels.clip_and_noise(grads, 5.0).sum, [3.0, 4.0])
    np.testing.assert_array_equal(kernels.clip_and_noise(grads, 5.0).norms, [5.0, 0.0])


@pytest.mark.parametrize("scale", [1e-200, 1e-310, 1e200])
def test_norms_beyond_squares(scale):
    grads = scale * np.array([[3.0, 4.0], [0.0, 0.0]])
    result = kernels.clip_and_noise(grads, 1.0)
    np.testing.assert_allclose(result.norms, [5 * scale, 0], rtol=1e-9)
    np.testing.assert_allclose(result.sum, [0.6, 0.8] if scale > 1 else grads[0], rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_result_dtype(dtype):
    grads = normals(3, 4, 9, dtype=dtype)
    result = kernels.clip_and_noise(grads, 1.0)
    assert result.sum.dtype == result.norms.dtype == (np.float64 if dtype == "float64" else np.float32)
    check([result.sum], result.norms, [grads], 1.0)


def test_float16_values():
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    result = kernels.clip_and_noise(finite[None, :], 1e30)
    np.testing.assert_array_equal(result.sum, finite.astype(np.float32))


def test_out():
    grads = normals(4, 2, 5, 7, dtype="float32")
    expected = kernels.clip_and_noise(grads, 1.0, 1.0, runs=True, seed=1).sum
    out = laid_out(np.zeros((2, 7), dtype=np.float32), "reversed")
    assert kernels.clip_and_noise(grads, 1.0, 1.0, runs=True, seed=1, out=out).sum is out
    np.testing.assert_array_equal(out, expected)
    outs = [np.zeros((5,)), np.zeros((2, 2))]
    params = [normals(5, 3, 5), normals(6, 3, 2, 2)]
    result = kernels.clip_and_noise(params, 1.0, out=outs)
    assert result.sum is outs
    np.testing.assert_array_equal(outs[1], kernels.clip_and_noise(params, 1.0).sum[1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_rows(bad, device):
    grads = normals(7, 6, 5)
    grads[4, 2] = grads[5, 1] = bad
    out = np.full(5, 7.0)
    with pytest.raises(ValueError, match=r"clip_and_noise: `grads` must be finite, but row 4 has norm (nan|inf)"):
        kernels.clip_and_noise(grads, 1.0, out=out)
    if device == "cpu":  # a device finds it from the norms, when the sum is done
        np.testing.assert_array_equal(out, 7.0)
    with pytest.raises(ValueError, match="`grads` must be finite, but run 1, row 1 has norm"):
        kernels.clip_and_noise(grads.reshape(2, 3, 5), 1.0, runs=True)
    chosen = np.array([True] * 4 + [False] * 2)
    np.testing.assert_array_equal(
        kernels.clip_and_noise(grads, 1.0, mask=chosen).sum, kernels.clip_and_noise(grads[:4], 1.0).sum
    )
    # In every column: one that looked healthy would lack the row.
    assert np.isnan(kernels.clip_and_noise(grads, 1.0, check_finite=False).sum).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_noise(device, bad):
    if device != "cpu":
        pytest.skip("on a device only norms are looked at")
    grads, noise, out = np.ones((6, 3000)), np.zeros(3000), np.full(3000, 7.0)
    noise[2999] = bad
    with pytest.raises(ValueError, match="`noise` must be finite, which column 2999 is not"):
        kernels.clip_and_noise(grads, 1.0, 0.5, noise=noise, out=out)
    np.testing.assert_array_equal(out, 7.0)
    runs = np.zeros((2, 3000))
    runs[1, 5] = bad
    with pytest.raises(ValueError, match="`noise` must be finite, which run 1, column 5 is not"):
        kernels.clip_and_noise(grads.reshape(2, 3, 3000), 1.0, 0.5, runs=True, noise=runs)
    parts = [np.zeros(2000), noise[2000:]]
    with pytest.raises(ValueError, match="`noise` must be finite, which column 2999 is not"):
        kernels.clip_and_noise([grads[:, :2000], grads[:, 2000:]], 1.0, 0.5, noise=parts)
    assert not np.isfinite(kernels.clip_and_noise(grads, 1.0, 0.5, noise=noise, check_finite=False).sum[2999])
    assert np.isfinite(kernels.clip_and_noise(grads, 1.0, noise=noise).sum).all()  # without σ it is not read


def test_norm_beyond_floats():
    grads = np.array([[1.7e308, 1.7e308, 0.0], [1.0, 1.0, 1.0]])
    with pytest.raises(ValueError, match="`grads` must be finite, but row 0 has norm inf"):
        kernels.clip_and_noise(grads, 1.0)
    assert np.isnan(kernels.clip_and_noise(grads, 1.0, check_finite=False).sum).all()
    assert np.isnan(kernels.clip_scores(grads, np.ones(3), 1.0, check_finite=False).dots[0])


def test_memory_of_outputs(device):
    _needs_the_very_memory(device)
    grads = [np.ones((2, 3)), np.full((2, 3), 5.0)]
    both = np.zeros(6)
    with pytest.raises(ValueError, match=r"`out\[1\]` must be an array of its own, but overlaps `out\[0\]` in"):
        kernels.clip_and_noise(grads, 99.0, out=[both[:3], both[:3]])
    np.testing.assert_array_equal(
        np.stack(kernels.clip_and_noise(grads, 99.0, out=[both[:3], both[3:]]).sum)[:, 0], [2, 10]
    )
    spread = np.lib.stride_tricks.as_strided(np.zeros(1), (3,), (0,))
    with pytest.raises(ValueError, match="`out` must be an array of its own, but has elements that share"):
        kernels.clip_and_noise(grads[0], 99.0, out=spread)
    with pytest.raises(ValueError, match="`out` must be an array of its own, but has elements that share"):
        kernels.standard_normal((1, 3), seed=0, purpose="init", out=spread[None])


GRADS = np.ones((3, 4))


@pytest.mark.parametrize(
    ("grads", "change", "error", "message"),
    [
        (GRADS, {"max_grad_norm": 0.0}, ValueError, r"`max_grad_norm` must be above 0, got 0.0"),
        (GRADS, {"max_grad_norm": -1}, ValueError, "`max_grad_norm` must be above 0, got -1"),
        (GRADS, {"max_grad_norm": float("nan")}, ValueError, "`max_grad_norm` must be a number, got nan"),
        (GRADS, {"max_grad_norm": "1"}, TypeError, "`max_grad_norm` must be a real number, got '1'"),
        (
            GRADS,
            {"noise_multiplier": 1e300, "max_grad_norm": 1e10, "seed": 1},
            ValueError,
            r"`noise_multiplier` times `max_grad_norm` must be within float64, got 1e\+300 and 10000000000.0",
        ),
        (GRADS, {"noise_multiplier": -0.1}, ValueError, r"`noise_multiplier` must be at least 0, got -0.1"),
        (
            GRADS,
            {"noise_multiplier": 1.0},
            ValueError,
            r"`seed` is required with noise_multiplier=1.0, or standard normals as `noise`: a default seed",
        ),
        (
            GRADS,
            {"noise_multiplier": 1.0, "seed": 1, "noise": np.ones(4)},
            ValueError,
            "`seed` must be None with noise, got 1",
        ),
        (
            GRADS,
            {"noise_multiplier": 1.0, "seed": 2**64},
            ValueError,
            r"`seed` must be in \[0,.*, got 18446744073709551616",
        ),
        (GRADS, {"seed": 1, "step": 2**24}, ValueError, r"`step` must be in \[0, 16777215\], got 16777216"),
        (GRADS, {"first_run": -1}, ValueError, r"`first_run` must be in \[0, 9223372036854775807\], got -1"),
        (GRADS, {"noise": np.ones(3)}, ValueError, r"`noise` must have shape \(4,\), got \(3,\)"),
        (GRADS, {"mask": np.ones(2, dtype=bool)}, ValueError, r"`mask` must have shape \(3,\), got \(2,\)"),
        (GRADS, {"mask": np.ones(3)}, TypeError, "`mask` must be of type bool, got float64"),
        (GRADS, {"out": np.ones(3)}, ValueError, r"`out` must have shape \(4,\), got \(3,\)"),
        (GRADS, {"out": np.ones(4, dtype="float32")}, TypeError, "`out` must be of type float64, got float32"),
        (GRADS, {"out": GRADS[0]}, ValueError, "`out` must be an array of its own, but overlaps `grads` in memory"),
        (GRADS, {"check_finite": 1}, TypeError, "`check_finite` must be True, False or None, got 1"),
        (GRADS[0], {}, ValueError, r"`grads` must have shape \(B, ...\), rows before their gradients, got \(4,\); one"),
        (np.ones(()), {}, ValueError, r"`grads` must have shape \(B, ...\), rows before their gradients, got \(\)$"),
        (GRADS, {"runs": True}, ValueError, r"`grads` must have shape \(runs, B, ...\).*; pass runs=False"),
        (GRADS, {"runs": 1}, TypeError, "`runs` must be True or False, got 1"),
        (GRADS.astype(int), {}, TypeError, r"`grads` must be of type float16, bfloat16, float32.*, got int64"),
        (GRADS.astype(complex), {}, TypeError, r"`grads` must be of type float16, bfloat16,.*, got complex128"),
        (GRADS.astype(">f8"), {}, ValueError, "`grads` must be in native byte order, got '>f8'"),
        (np.ma.masked_array(GRADS), {}, TypeError, "`grads` must be a plain array, got a masked one"),
        (3.0, {}, TypeError, "`grads` must be a NumPy array, a torch tensor or a DLPack array, got float"),
        ([], {}, ValueError, r"`grads` must hold at least one \(B, ...\) array, got an empty sequence"),
        ([GRADS, np.ones((2, 4))], {}, ValueError, r"`grads\[1\]` must have the 3 rows of grads\[0\], got 2 rows"),
        (
            [GRADS[None], np.ones((1, 2, 4))],
            {"runs": True},
            ValueError,
            r"`grads\[1\]` must have the 1 runs and 3 rows of grads\[0\], got 1 runs and 2 rows",
        ),
        ([GRADS, GRADS.astype("f")], {}, TypeError, r"`grads\[1\]` must be of type float64, as.*, got float32"),
        ([np.array(1.0)], {}, ValueError, r"`grads\[0\]` must have shape \(B, ...\), rows.*, got \(\)"),
        ([GRADS], {"out": np.ones(4)}, ValueError, "`out` must be a sequence of 1 arrays, one per"),
        ([GRADS], {"noise": [np.ones(3)]}, ValueError, r"`noise\[0\]` must have shape \(4,\), got \(3,\)"),
    ],
)
def test_errors(device, grads, change, error, message):
    if "overlaps" in message:
        _needs_the_very_memory(device)
    arguments = {"max_grad_norm": 1.0, **change}
    with pytest.raises(error, match=message):
        kernels.clip_and_noise(grads, arguments.pop("max_grad_norm"), **arguments)


def test_bad_strides(device):
    _needs_the_very_memory(device)
    records = np.zeros(3, dtype=[("tag", "u1"), ("g", "f4", (4,))])
    with pytest.raises(ValueError, match=r"`grads` must have strides that are multiples.*, got \(17, 4\) bytes"):
        kernels.clip_and_noise(records["g"], 1.0)


# Four columns to a pack in float32 and float64, eight in float16.
LENGTHS = {
    "float32": (508, 509, 2048, 2049, 4099, 8191, 8192, 8193),
    "float64": (509, 2051, 4096, 4097),
    "float16": (1016, 1017, 4097, 8192, 8193),
}


@pytest.mark.parametrize(("dtype", "columns"), [(d, n) for d, lengths in LENGTHS.items() for n in lengths])
def test_lengths(dtype, columns):
    grads = normals(columns, 37, columns, dtype=dtype)
    grads[5] = 0
    mask = np.arange(37) % 4 != 1
    noise = normals(columns + 1, columns, dtype="float64" if dtype == "float64" else "float32")
    clip = 0.9 * columns**0.5
    result = kernels.clip_and_noise(grads, clip, 0.5, noise=noise, mask=mask)
    check([result.sum], result.norms, [grads], clip, 0.5, noise=[noise.astype("float64")], mask=mask)


@pytest.mark.parametrize("layout", ["contiguous", "fortran", "reversed", "offset"])
def test_layouts(layout):
    grads = normals(3, 35, 1003, dtype="float32")
    got, wanted = (kernels.clip_and_noise(g, 20.0) for g in (laid_out(grads, layout), grads))
    np.testing.assert_array_equal(got.sum, wanted.sum)
    np.testing.assert_array_equal(got.norms, wanted.norms)


def test_lists_of_parameters():
    shapes = [(40, 41), (40,), (0,), (3,), (5, 64), (1,), (777,)]
    params = [normals(i, 50, *shape, dtype="float32") for i, shape in enumerate(shapes)]
    result = kernels.clip_and_noise(params, 30.0)
    check(result.sum, result.norms, params, 30.0)


def test_independence_of_runs():
    grads = normals(1, 3, 70, 1500, dtype="float32")
    mask = np.random.default_rng(0).random((3, 70)) < 0.5
    several = kernels.clip_and_noise(grads, 20.0, 1.0, runs=True, seed=4, mask=mask)
    for run in range(3):
        lone = kernels.clip_and_noise(grads[run], 20.0, 1.0, seed=4, mask=mask[run], first_run=run)
        np.testing.assert_array_equal(several.sum[run], lone.sum)
        np.testing.assert_array_equal(several.norms[run], lone.norms)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_squares_beyond_doubles(scale):
    """Rows that need the second pass over their registers, next to rows that do not."""
    grads = normals(2, 40, 600, dtype="float64")
    grads[7:12] *= scale
    result = kernels.clip_and_noise(grads, 1.0)
    assert np.isfinite(result.norms).all()
    np.testing.assert_allclose(result.norms[7:12], np.linalg.norm(grads[7:12] / scale, axis=1) * scale, rtol=1e-13)
    rest = grads / result.norms[:, None] * np.minimum(result.norms, 1.0)[:, None]
    np.testing.assert_allclose(result.sum, rest.sum(axis=0), rtol=1e-10, atol=1e-12)
