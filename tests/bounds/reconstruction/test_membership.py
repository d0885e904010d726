"""What no membership attack beats, by a second route."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from leakcore import accounting, bounds


def test_membership() -> None:
    fpr = np.array([0.001, 0.1, 0.5])
    bound = bounds.membership(1.0, 0.1, 50, fpr=fpr)
    curve = bounds.reconstruction(1.0, 0.1, 50, kappa=fpr)
    np.testing.assert_array_equal(bound.value, curve.value)
    np.testing.assert_allclose(bound.advantage, curve.value - fpr)
    # max over α of B_α − α is the total variation distance δ(0), found here on a grid of the curve.
    grid = np.linspace(0.01, 0.99, 981)
    largest = (bounds.reconstruction(1.0, 0.1, 50, kappa=grid).value - grid).max()
    assert bound.max_advantage == pytest.approx(largest, abs=1e-6)
    assert bound.max_advantage == pytest.approx(accounting.delta(1.0, 0.1, 50, epsilon=0.0).value, rel=1e-9)
    full = bounds.membership(2.0, 1.0, 4, fpr=0.1)
    assert full.max_advantage == pytest.approx(2.0 * special.ndtr(0.5) - 1.0, rel=1e-12)
    with pytest.raises(ValueError, match=r"`fpr` must be in \(0, 1\], got 0.0"):
        bounds.membership(1.0, 0.1, 50, fpr=0.0)
    # Where the profile cannot be computed: full batches, which leak more.
    assert 0.9 < bounds.membership(1.0, 0.5, 10_000, fpr=0.01).max_advantage <= 1.0
