"""The clip kernels where blocks, segments and stretches begin and end, elements of 16 bits, batches of runs, memory."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from leakcore import kernels
from leakcore.kernels.threads import schedule
from leakcore.reference import kernels as reference
from tests import tolerances
from tests.kernels.layouts import laid_out, normals
from tests.tolerances import HANG

# In blocks and not; across stripes, pieces of 16,384 and segments of 131,072. Rows short and long enough to be summed
# while norms are taken, a multiple of a page apart and not; so long that four or two fill the cache (1 or 2 MiB), and
# longer.
SIZES = [
    (40, 2067),
    (3, 40_001),
    (33, 16_385),
    (520, 130),
    (150, 1100),
    (75, 2048),
    (70, 25_000),
    (69, 50_000),
    (41, 100_003),
    (34, 140_001),
]


@pytest.mark.full(keep=19)
@pytest.mark.parametrize("layout", ["fortran", "reversed", "sliced", "offset"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_layouts(rows, columns, dtype, layout):
    grads = normals(rows, rows, columns, dtype=dtype)
    mask = np.arange(rows) % 3 != 0
    got, wanted = (kernels.clip_and_noise(g, 30.0, mask=mask) for g in (laid_out(grads, layout), grads))
    np.testing.assert_array_equal(got.sum, wanted.sum)
    np.testing.assert_array_equal(got.norms, wanted.norms)
    got, wanted = (kernels.clip_scores(g, grads[:3], 30.0) for g in (laid_out(grads, layout), grads))
    np.testing.assert_array_equal(got.dots, wanted.dots)
    np.testing.assert_array_equal(got.clipped_norms, wanted.clipped_norms)


@pytest.mark.parametrize("rows", [64, 131])
@pytest.mark.parametrize("share", [1.0, 0.4, 0.0])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_layouts_of_lists(rows, share, dtype):
    """Contiguous parameters are summed while the norms of later rows are taken; strided ones after their own norms."""
    shapes = [(40, 41), (40,), (3,), (5, 64), (1,), (17_000,)]
    grads = [normals(i, rows, *shape, dtype=dtype) for i, shape in enumerate(shapes)]
    strided = [np.repeat(g, 2, axis=-1)[..., ::2] for g in grads]
    mask = np.random.default_rng(99).random(rows) < share
    got, wanted = (kernels.clip_and_noise(g, 30.0, mask=mask) for g in (grads, strided))
    np.testing.assert_array_equal(got.norms, wanted.norms)
    for mine, other in zip(got.sum, wanted.sum, strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("layout", ["contiguous", "fortran", "reversed"])
def test_batches_of_runs(layout):
    grads, observed = normals(1, 3, 70, 5003, dtype="float32"), normals(2, 3, 2, 5003, dtype="float32")
    several = kernels.clip_scores(laid_out(grads, layout), laid_out(observed, layout), 50.0, runs=True)
    lone = kernels.clip_scores(laid_out(grads, layout), laid_out(observed[:, 1], layout), 50.0, runs=True)
    assert several.dots.shape == (3, 2, 70)
    assert lone.dots.shape == lone.clipped_norms.shape == (3, 70)
    np.testing.assert_array_equal(lone.dots, several.dots[:, 1])
    for run in range(3):
        single = kernels.clip_scores(grads[run], observed[run], 50.0)
        np.testing.assert_array_equal(several.dots[run], single.dots)
        np.testing.assert_array_equal(several.clipped_norms[run], single.clipped_norms)


def test_errors_of_batches():
    grads, observed = normals(1, 2, 3, 4), normals(2, 2, 5, 4)
    with pytest.raises(ValueError, match=r"`observed` must have .*, for grads is \(2, 3, 4\), got \(3, 5, 4\)"):
        kernels.clip_scores(grads, normals(2, 3, 5, 4), 1.0, runs=True)
    with pytest.raises(ValueError, match=r"`observed` must have shape \(2, 4\) or \(2, M, 4\), .*, got \(4,\)"):
        kernels.clip_scores(grads, observed[0, 0], 1.0, runs=True)
    grads[1, 2, 0] = np.nan
    with pytest.raises(ValueError, match="`grads` must be finite, but run 1, row 2 has norm nan"):
        kernels.clip_scores(grads, observed, 1.0, runs=True)
    grads[1, 2, 0], observed[1, 3, 0] = 0, np.inf
    with pytest.raises(
        ValueError, match=r"`observed` must be finite, .* but run 1, row 3 gives a score that is not finite"
    ):
        kernels.clip_scores(grads, observed, 1.0, runs=True)


GROWTH = """
import resource
import numpy as np
from leakcore import kernels
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
kernels.clip_and_noise(np.ones((2, 3), dtype="f"), 1.0, 1.0, seed=1)
grads = np.ones({shape}, dtype="f")
if {transposed}:
    grads = grads.swapaxes(-1, -2)
before = peak()
kernels.clip_and_noise(grads, 1.0, 1.0, seed=1)
kernels.clip_scores(grads, grads[..., :4, :], 1.0)
print((peak() - before) / grads.nbytes)
"""


@pytest.mark.full(keep=1)
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory as Linux states it")
@pytest.mark.parametrize(
    ("shape", "transposed"),
    [((64, 1_000_000), False), ((8000, 8000), False), ((512, 120_000), False), ((300_000, 200), True)],
)
def test_temporary_memory(shape, transposed):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    program = GROWTH.format(shape=shape, transposed=transposed)
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=HANG)
    assert float(run.stdout) < 0.2, run.stderr


torch = pytest.importorskip("torch")

TYPES = [torch.float16, torch.bfloat16]
# Counts of rows that are not a multiple of four, and enough for several blocks. Rows summed while norms are taken:
# eight at a time, or four where they lie a multiple of a page apart. Rows too long for that, and too short.
NARROW_SIZES = [(3, 700), (41, 2067), (70, 4096), (5, 300_001), (150, 1100), (523, 130), (200, 33)]


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
@pytest.mark.parametrize(("rows", "columns"), NARROW_SIZES)
def test_promised_precision(rows, columns, dtype):
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


def test_float32_rounding():
    """Else the promises of this file would be about nothing: in float64 the same numbers give other bits."""
    grads = gradients(256, 4096, torch.bfloat16)
    narrow, double = kernels.clip_and_noise(grads, 30.0), kernels.clip_and_noise(grads.float(), 30.0)
    assert (narrow.norms != double.norms).any()
    assert (narrow.sum != double.sum).float().mean() > 0.1


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "columns"), NARROW_SIZES)
def test_threads_and_layouts(rows, columns, dtype):
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
def test_squares_beyond_float32(scale, rows, columns):
    grads = gradients(rows, columns, torch.bfloat16) * scale
    assert torch.isfinite(grads).all()
    for clip in (1.0, scale):
        result = kernels.clip_and_noise(grads, clip)
        within(result, wide(grads), clip)
        np.testing.assert_array_equal(kernels.clip_scores(grads, grads[:0], 1e38).clipped_norms, result.norms)


@pytest.mark.parametrize(("rows", "columns"), [(40, 3000), (3, 3000), (40, 33)])
@pytest.mark.parametrize("clip", [1e-30, 1e-17])
def test_factors_beyond_float32(clip, rows, columns):
    """1e-42 has ten bits there, and what comes of it is a number of its full precision."""
    grads = gradients(rows, columns, torch.bfloat16) * 1e10
    within(kernels.clip_and_noise(grads, clip), wide(grads), clip)


@pytest.mark.parametrize(("rows", "columns"), [(40, 3000), (3, 3000), (40, 33)])
@pytest.mark.parametrize("clip", [1e36, 3e38])
def test_two_rows_beyond_float32(clip, rows, columns):
    grads = gradients(rows, columns, torch.bfloat16)
    grads[:, 0] = torch.tensor([clip, clip, -clip, -clip], dtype=torch.bfloat16).repeat(rows // 4 + 1)[:rows]
    within(kernels.clip_and_noise(grads, clip), wide(grads), clip)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "columns"), [(40, 3000), (40, 33), (5, 70_000)])
def test_bad_rows(rows, columns, dtype, bad):
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
def test_unclipped_rows(dtype):
    """Small whole numbers and a factor of 1: nothing is rounded."""
    grads = torch.from_numpy(np.random.default_rng(5).integers(-9, 10, (77, 1037))).to(dtype)
    result = kernels.clip_and_noise(grads, 1e6)
    assert torch.equal(result.sum, grads.float().sum(0))
    assert torch.equal(result.norms, grads.double().square().sum(1).sqrt().float())
