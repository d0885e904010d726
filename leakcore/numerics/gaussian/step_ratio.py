"""What one released gradient says of one candidate."""

from __future__ import annotations

import math

import numpy as np


def step_log_ratio(dots: np.ndarray, norms: np.ndarray, noise: float, sample_rate: float) -> np.ndarray:
    """log(1 − q + q·exp((2s − n²)/(2·noise²))), Hayes, Mahloujifar and Balle (2023), Appendix G.

    dots, norms: s = ⟨c, ḡ⟩ and n = ‖c‖ of the candidate's clipped gradient c. noise: σC > 0. sample_rate: q in (0, 1].
    """
    log_out = math.log1p(-sample_rate) if sample_rate < 1 else -math.inf
    out: np.ndarray = np.logaddexp(log_out, math.log(sample_rate) + (2 * dots - norms**2) / (2 * noise**2))
    return out
