"""log masses of one-dimensional laws between edges."""

from __future__ import annotations

import numpy as np

from leakcore.numerics.gaussian.gaussian_pair import log1mexp
from leakcore.numerics.gaussian.step_tables import log_masses


def log_normal_masses(edges: np.ndarray) -> np.ndarray:
    """log of a standard normal variate's mass between neighbouring edges; −∞ where they coincide."""
    out = np.full(len(edges) - 1, -np.inf)
    wide = edges[1:] > edges[:-1]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        out[wide] = log_masses(edges[:-1][wide], edges[1:][wide])
    return out


def log_differences(log_below: np.ndarray, log_above: np.ndarray) -> np.ndarray:
    """log of the mass between neighbouring edges, from the logarithms of what lies below each and above each.

    The smaller of the two is the one that is subtracted, so that neither tail loses its digits.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        low = log_below[1:] + log1mexp(np.minimum(log_below[:-1] - log_below[1:], 0.0))
        high = log_above[:-1] + log1mexp(np.minimum(log_above[1:] - log_above[:-1], 0.0))
    out = np.where(log_below[1:] < log_above[:-1], low, high)
    return np.where(np.isnan(out), -np.inf, out)
