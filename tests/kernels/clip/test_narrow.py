"""Gradients of 16 bits, which the CPU adds in float32 by fours: how far the result is from float64, and that no number
is too large or too small for it."""

from __future__ import annotations

import numpy as np
import pytest

from leakcore import kernels
from leakcore.kernels.threads import schedule
from leakcore.reference import clip as reference
from tests import tolerances
from tests.kernels.layouts import normals

torch = pytest.importorskip("torch")

TYPES = [torch.float16, torch.bfloat16]
# Counts of rows that are not a multiple of four, and enough for several blocks. Rows summed while norms are taken:
# eight at a time, or four where they lie a multiple of a page apart. Rows too long for that, and too short.
SIZES = [(3, 700), (41, 2067), (70, 4096), (5, 300_001), (150, 1100), (523, 130), (200, 33)]


def gradients(rows, columns, dtype):
    return torch.from_numpy(normals(rows, rows, columns, dtype="float32")).to(dtype)


def wide(grads):
    return grads.double().numpy()


def within(result, grads, clip, mask=None):
    """Sum and norms are as near as promised to the same computation in float64."""
    (rows, columns), single = grads.shape, np.dtype(np.float32)
    (total,), norms = reference.clip_and_noise([grads], clip, mask=mask)
    (clipped,) = reference.clip([grads], clip)
    terms = np.abs(clipped if mask is None else clipped[mask]).sum(axis=0)
    np.testing.assert_allclose(result.norms, norms, rtol=tolerances.norm(columns, single, True))
    allowed = tolerances.clipped_sum(rows, columns, terms, total, single, True)
    assert (np.abs(result.sum.numpy() - total) <= allowed).all()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_norms_sums_and_scores_are_as_near_as_promised(rows, columns, dtype):
    grads, clip = gradients(rows, columns, dtype), 0.9 * columns**0.5
    mask = np.random.default_rng(rows).random(rows) < 0.6
    within(kernels.clip_and_noise(grads, clip), wide(grads), clip)
    within(kernels.clip_and_noise(grads, clip, mask=torch.from_numpy(mask)), wide(grads), clip, mask)
    observed = gradients(rows + 1, columns, dtype)[:3]
    scores = kernels.clip_scores(grads, observed, clip)
    dots, norms = reference.clip_scores(wide(grads), wide(observed), clip)
    terms = np.abs(wide(observed)) @ np.abs(reference.clip([wide(grads)], clip)[0]).T
    single = np.dtype(np.float32)
    assert (np.abs(scores.dots.numpy() - dots) <= tolerances.score(columns, terms, dots, single, True)).all()
    np.testing.assert_allclose(scores.clipped_norms.numpy(), norms, rtol=tolerances.norm(columns, single, True))


def test_the_rounding_in_float32_is_there():
    """Else the promises of this file would be about nothing: in float64 the same numbers give other bits."""
    grads = gradients(256, 4096, torch.bfloat16)
    narrow, double = kernels.clip_and_noise(grads, 30.0), kernels.clip_and_noise(grads.float(), 30.0)
    assert (narrow.norms != double.norms).any()
    assert (narrow.sum != double.sum).float().mean() > 0.1


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_the_bits_do_not_depend_on_threads_or_on_how_rows_lie(rows, columns, dtype):
    grads, clip = gradients(rows, columns, dtype), 0.9 * columns**0.5
    apart = torch.stack([grads, grads], 2)[:, :, 0]
    mask = torch.from_numpy(np.random.default_rng(rows).random(rows) < 0.7)
    wanted = kernels.clip_and_noise(grads, clip, mask=mask)
    scores = kernels.clip_scores(grads, grads[:2], clip)
    for same in (grads, apart):
        for threads, chunk in ((1, 0), (2, 1), (3, 2)):
            with schedule(threads, chunk):
                got, got_scores = (
                    kernels.clip_and_noise(same, clip, mask=mask),
                    kernels.clip_scores(same, grads[:2], clip),
                )
            assert torch.equal(got.sum, wanted.sum)
            assert torch.equal(got.norms, wanted.norms)
            assert torch.equal(got_scores.dots, scores.dots)
            assert torch.equal(got_scores.clipped_norms, scores.clipped_norms)


@pytest.mark.parametrize(("rows", "columns"), [(40, 3000), (3, 3000), (40, 33)])
@pytest.mark.parametrize("scale", [1e-36, 1e-22, 1e-13, 1e19, 1e25, 1e34])
def test_squares_beyond_the_range_of_float32(scale, rows, columns):
    grads = gradients(rows, columns, torch.bfloat16) * scale
    assert torch.isfinite(grads).all()
    for clip in (1.0, scale):
        result = kernels.clip_and_noise(grads, clip)
        within(result, wide(grads), clip)
        np.testing.assert_array_equal(kernels.clip_scores(grads, grads[:0], 1e38).clipped_norms, result.norms)


@pytest.mark.parametrize(("rows", "columns"), [(40, 3000), (3, 3000), (40, 33)])
@pytest.mark.parametrize("clip", [1e-30, 1e-17])
def test_factors_beyond_the_range_of_float32(clip, rows, columns):
    """1e-42 has ten bits there, and what comes of it is a number of its full precision."""
    grads = gradients(rows, columns, torch.bfloat16) * 1e10
    within(kernels.clip_and_noise(grads, clip), wide(grads), clip)


@pytest.mark.parametrize(("rows", "columns"), [(40, 3000), (3, 3000), (40, 33)])
@pytest.mark.parametrize("clip", [1e36, 3e38])
def test_two_rows_leave_the_range_of_float32(clip, rows, columns):
    grads = gradients(rows, columns, torch.bfloat16)
    grads[:, 0] = torch.tensor([clip, clip, -clip, -clip], dtype=torch.bfloat16).repeat(rows // 4 + 1)[:rows]
    within(kernels.clip_and_noise(grads, clip), wide(grads), clip)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "columns"), [(40, 3000), (40, 33), (5, 70_000)])
def test_a_bad_row_is_named_and_shows_in_an_unchecked_sum(rows, columns, dtype, bad):
    grads = gradients(rows, columns, dtype)
    grads[rows // 2, 7] = bad
    with pytest.raises(ValueError, match=f"clip_and_noise: `grads` must be finite, but row {rows // 2} has norm {bad}"):
        kernels.clip_and_noise(grads, 1.0)
    unchecked = kernels.clip_and_noise(grads, 1.0, check_finite=False)
    assert torch.isnan(unchecked.sum[7])
    mask = torch.arange(rows) != rows // 2
    masked = kernels.clip_and_noise(grads, 1.0, mask=mask)
    clean = torch.where(mask[:, None], grads, torch.zeros((), dtype=dtype))
    assert torch.equal(masked.sum, kernels.clip_and_noise(clean, 1.0, mask=mask).sum)


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_that_are_not_clipped_are_added_as_they_are(dtype):
    """Small whole numbers and a factor of 1: nothing is rounded."""
    grads = torch.from_numpy(np.random.default_rng(5).integers(-9, 10, (77, 1037))).to(dtype)
    result = kernels.clip_and_noise(grads, 1e6)
    assert torch.equal(result.sum, grads.float().sum(0))
    assert torch.equal(result.norms, grads.double().square().sum(1).sqrt().float())
