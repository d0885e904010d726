"""Where outputs without the record pile up at the least loss: ε of the direction "add" from below, next to its end.

δ_add(ε) = E_ν(1 − e^{ε+L})_+ is 0 from ε = −min L on. On the event that z_t ≤ z in every step, of probability Φ(z)^T
under ν, L is at most Σ ℓ_t(z), so that δ_add(ε) ≥ Φ(z)^T·(1 − e^{ε + Σℓ_t(z)}) for every z.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr

from leakcore.numerics.privacy_loss.loss import PrivacyLoss

_PLACES = np.linspace(-8.0, 12.0, 401)
_ROUNDING = 1e-14


def epsilon_from_below(loss: PrivacyLoss, log_delta: float) -> float:
    """The largest ε for which the event proves that δ_add(ε) ≥ e^{log_delta}, less rounding; −∞ where there is none."""
    if loss.gaussian_variance > 0.0 or not loss.groups or len(loss.groups) > len(_PLACES):
        return -math.inf
    log_share = loss.num_mixture_steps * log_ndtr(_PLACES) * (1.0 + _ROUNDING)
    with np.errstate(over="ignore"):  # a float cannot hold the losses of very little noise
        losses = np.sum([group.count * group.term(_PLACES) for group in loss.groups], axis=0)
    used = (log_share > log_delta) & np.isfinite(losses)
    if not used.any():
        return -math.inf
    log_rest = np.log1p(-np.exp(log_delta - log_share[used]))
    best = float(np.max(log_rest - losses[used]))
    return best - _ROUNDING * (loss.num_mixture_steps * 1e-2 + abs(best) + abs(loss.minimum))
