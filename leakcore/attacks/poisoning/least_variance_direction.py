"""The direction in which rows vary least, the same on every machine even where several do."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from leakcore._base.process_wide import one_thread


def least_direction(x: np.ndarray) -> np.ndarray:
    """(d,) unit: a right singular vector of the smallest singular value of the (n, d) rows, its largest entry positive.

    Where that value is not simple (features that are constant, fewer rows than features) a decomposition returns any
    direction of its space, another with every BLAS and number of threads. This takes the projection onto that space of
    the axis that lies nearest to it, the first of several: of a constant feature, that feature alone.
    """
    with one_thread():
        # Of the triangle, whose singular values equal the ones of the rows; the Gram matrix would square the condition.
        triangle = x if x.shape[0] <= x.shape[1] else scipy.linalg.qr(x, mode="r", check_finite=False)[0][: x.shape[1]]
        _, values, vectors = scipy.linalg.svd(triangle, full_matrices=True, check_finite=False)
        values = np.append(values, np.zeros(x.shape[1] - len(values)))
        same = values <= values[-1] + 8.0 * max(x.shape) * np.finfo(np.float64).eps * values[0]
        space = vectors[same]
        share = np.sqrt((space * space).sum(axis=0))  # of each axis, the length of its projection onto the space
        axis = int(np.argmax(share >= share.max() * (1.0 - 1e-6)))
        direction = space[:, axis] @ space
    return np.asarray(direction * (np.sign(direction[np.abs(direction).argmax()]) / np.linalg.norm(direction)))
