"""The definition of clipping, in NumPy float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def norms(params: Sequence[np.ndarray]) -> np.ndarray:
    """Joint Euclidean norm of every row of several `(B, …)` arrays."""
    rows = [np.asarray(p, dtype=np.float64).reshape(p.shape[0], math.prod(p.shape[1:])) for p in params]
    return np.asarray(np.linalg.norm(np.concatenate(rows, axis=1), axis=1))


def clip(params: Sequence[np.ndarray], max_grad_norm: float) -> list[np.ndarray]:
    """g_i·min(1, C/‖g_i‖) by the joint norm; a zero gradient stays zero."""
    length = norms(params)
    factor = np.minimum(1.0, max_grad_norm / np.where(length > 0, length, max_grad_norm))
    return [np.asarray(p, dtype=np.float64) * factor.reshape(-1, *[1] * (p.ndim - 1)) for p in params]


def clip_and_noise(
    params: Sequence[np.ndarray],
    max_grad_norm: float,
    noise_multiplier: float = 0.0,
    *,
    noise: Sequence[np.ndarray] | None = None,
    mask: np.ndarray | None = None,
) -> tuple[list[np.ndarray], np.ndarray]:
    """(Σ_i clip_C(g_i) + σC·noise, per parameter; joint norms before clipping)."""
    rows = slice(None) if mask is None else np.asarray(mask)
    sums = [c[rows].sum(axis=0) for c in clip(params, max_grad_norm)]
    if noise is not None and noise_multiplier > 0:
        sums = [s + noise_multiplier * max_grad_norm * z for s, z in zip(sums, noise, strict=True)]
    return sums, norms(params)


def clip_scores(grads: np.ndarray, observed: np.ndarray, max_grad_norm: float) -> tuple[np.ndarray, np.ndarray]:
    """(⟨clip_C(g_i), o_m⟩ with observations first, ‖clip_C(g_i)‖), of grads (n, …) and observed (M, …) or (…)."""
    (clipped,) = clip([grads], max_grad_norm)
    columns = math.prod(grads.shape[1:])
    rows = np.asarray(observed, dtype=np.float64).reshape(*observed.shape[: observed.ndim - grads.ndim + 1], columns)
    return rows @ clipped.reshape(len(grads), columns).T, norms([clipped])
