"""solve_labels where rows begin anywhere on a line of the cache, with NaN around them that must not be read."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.devices import kernels
from tests.kernels.layouts import normals

pytestmark = pytest.mark.usefixtures("device")

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
def test_no_bit_depends_on_where_rows_begin(dtype, n, d):
    jacobian, gradient = normals(n, 3, n, d, dtype=dtype), normals(d, 3, d, dtype=dtype)
    wanted = kernels.solve_labels(jacobian, gradient)
    for offset in range(0, LINE, jacobian.itemsize):
        for gap in (0, -d % 16, 3):
            placed = beginning_at(jacobian, offset, gap)
            result = kernels.solve_labels(placed, gradient)
            for name in ("residual", "error", "leverage", "identifiable", "rank"):
                np.testing.assert_array_equal(getattr(result, name), getattr(wanted, name), err_msg=f"{offset} {gap}")


def test_a_gradient_of_any_kind_gives_the_same():
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
