"""Gradients of a system."""

from __future__ import annotations

import numpy as np


def gradient_of(jacobian, residual):
    """(1/N)·C·e in float64."""
    return np.swapaxes(jacobian.astype(np.float64), -1, -2) @ residual / max(jacobian.shape[-2], 1)
