"""The two values that a residual may have when the probabilities, and how gradients were clipped, are known."""

from __future__ import annotations

import dataclasses

import numpy as np

from leakcore._base import validate
from leakcore.attacks.labels.conditions import Clipping

_NORM_ROUNDOFFS = 64.0
"""Given joint norms are taken to be right to this many unit roundoffs: sums of squares are made in blocks."""


@dataclasses.dataclass(frozen=True, eq=False)
class ClippedSamples:
    """Each sample's gradient times min(1, C/(norm + slack)): C, slack, and joint norms (S, N) of dZ_r/dθ or None."""

    clip: float
    slack: float
    joint: np.ndarray | None
    roundoff: float


def read_clipping(clipping: Clipping | None, *, known_probs: bool, steps: int | None, n: int) -> ClippedSamples | None:
    """Check it against what the attacker knows; None: not clipped."""
    if clipping is None:
        return None
    validate.instance(Clipping, clipping=clipping)
    if not known_probs:
        raise ValueError(
            "`clipping` is allowed only with known_probs=; clipping keeps every sign, and nothing else is read"
        )
    clip, slack = clipping.max_grad_norm, clipping.clip_slack
    if clipping.grad_norms is None:
        return ClippedSamples(clip, slack, None, 0.0)
    norms, roundoff = validate.host_array(grad_norms=clipping.grad_norms)
    wanted = (2, n) if steps is None else (steps, 2, n)
    if norms.shape != wanted:
        raise ValueError(f"`grad_norms` must have shape {wanted}, joint norms under both labels, got {norms.shape}")
    validate.real_array("at least 0", lambda v: v >= 0, grad_norms=norms)
    return ClippedSamples(clip, slack, norms.sum(axis=-2).reshape(-1, n), roundoff)


def two_values(
    probs: np.ndarray,
    doubt: np.ndarray,
    rows: np.ndarray,
    forward: np.ndarray,
    step: int,
    how: ClippedSamples | None,
    roundoff: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(N,) each: the residual under label 0, what it is above the one under label 1, and the error of either.

    p and p − 1; clipped, u(p) and −u(1 − p) with u(e) = e·min(1, C/(e·J + slack)), J = ‖dZ_r/dθ‖. u grows with e, at
    most as fast as e, and changes by at most the relative error of J.
    """
    if how is None:
        return probs, np.ones(len(probs)), doubt
    own = np.linalg.norm(rows, axis=1)
    reach = own if how.joint is None else how.joint[step]
    short = reach < own * (1.0 - 1e-3)
    if short.any():
        r = int(short.argmax())
        raise ValueError(
            f"`grad_norms` must be at least ‖dZ/dW‖ = {float(own[r])!r} for sample {r} (sum over both "
            f"labels), which is part of it, got {float(reach[r])!r}"
        )
    high, low = (_clipped(e, reach, how) for e in (probs, 1.0 - probs))
    drift = np.divide(forward, reach, out=np.zeros_like(reach), where=reach > 0)
    drift = drift + _NORM_ROUNDOFFS * max(how.roundoff, roundoff)
    return high, high + low, doubt + np.maximum(high, low) * drift


def _clipped(e: np.ndarray, reach: np.ndarray, how: ClippedSamples) -> np.ndarray:
    norm = e * reach + how.slack
    return np.asarray(e * np.divide(how.clip, norm, out=np.ones_like(norm), where=norm > how.clip))
