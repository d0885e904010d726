"""clip_and_noise at row lengths that a device reads once, and just outside: 128 packs of 16 bytes to 1,024 or 2,048."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.clip.test_clip_and_noise import check
from tests.kernels.devices import kernels
from tests.kernels.layouts import laid_out, normals

pytestmark = pytest.mark.usefixtures("device")

# Four columns to a pack in float32 and float64, eight in float16.
LENGTHS = {
    "float32": (508, 509, 2048, 2049, 4099, 8191, 8192, 8193),
    "float64": (509, 2051, 4096, 4097),
    "float16": (1016, 1017, 4097, 8192, 8193),
}


@pytest.mark.parametrize(("dtype", "columns"), [(d, n) for d, lengths in LENGTHS.items() for n in lengths])
def test_sums_and_norms_at_every_length(dtype, columns):
    grads = normals(columns, 37, columns, dtype=dtype)
    grads[5] = 0
    mask = np.arange(37) % 4 != 1
    noise = normals(columns + 1, columns, dtype="float64" if dtype == "float64" else "float32")
    clip = 0.9 * columns**0.5
    result = kernels.clip_and_noise(grads, clip, 0.5, noise=noise, mask=mask)
    check([result.sum], result.norms, [grads], clip, 0.5, noise=[noise.astype("float64")], mask=mask)


@pytest.mark.parametrize("layout", ["contiguous", "fortran", "reversed", "offset"])
def test_the_bits_do_not_depend_on_the_layout(layout):
    grads = normals(3, 35, 1003, dtype="float32")
    got, wanted = (kernels.clip_and_noise(g, 20.0) for g in (laid_out(grads, layout), grads))
    np.testing.assert_array_equal(got.sum, wanted.sum)
    np.testing.assert_array_equal(got.norms, wanted.norms)


def test_a_list_of_parameters_shares_a_pass():
    shapes = [(40, 41), (40,), (0,), (3,), (5, 64), (1,), (777,)]
    params = [normals(i, 50, *shape, dtype="float32") for i, shape in enumerate(shapes)]
    result = kernels.clip_and_noise(params, 30.0)
    check(result.sum, result.norms, params, 30.0)


def test_a_run_does_not_depend_on_the_others():
    grads = normals(1, 3, 70, 1500, dtype="float32")
    mask = np.random.default_rng(0).random((3, 70)) < 0.5
    several = kernels.clip_and_noise(grads, 20.0, 1.0, runs=True, seed=4, mask=mask)
    for run in range(3):
        lone = kernels.clip_and_noise(grads[run], 20.0, 1.0, seed=4, mask=mask[run], first_run=run)
        np.testing.assert_array_equal(several.sum[run], lone.sum)
        np.testing.assert_array_equal(several.norms[run], lone.norms)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_squares_outside_the_range_of_a_double(scale):
    """Rows that need the second pass over their registers, next to rows that do not."""
    grads = normals(2, 40, 600, dtype="float64")
    grads[7:12] *= scale
    result = kernels.clip_and_noise(grads, 1.0)
    assert np.isfinite(result.norms).all()
    np.testing.assert_allclose(result.norms[7:12], np.linalg.norm(grads[7:12] / scale, axis=1) * scale, rtol=1e-13)
    rest = grads / result.norms[:, None] * np.minimum(result.norms, 1.0)[:, None]
    np.testing.assert_allclose(result.sum, rest.sum(axis=0), rtol=1e-10, atol=1e-12)
