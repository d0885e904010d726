"""The definition of every kernel in plain NumPy float64, and of the label-privacy bound step by step as printed.

Clipping; label solving by a pseudo-inverse; the mixture of Poisson-sampled DP-SGD (Hayes et al. 2023, Corollary 4);
random allocation (Chua et al. 2025; with correlated noise Choquette-Choo et al. 2024), where a `pair` has the
attributes of `kernels.Allocation`, its factor an array or None.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import special

from leakcore.reference import philox


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


@dataclasses.dataclass(frozen=True, eq=False)
class LabelSolution:
    """The solution of one problem.

    Attributes:
        residual: N·C⁺·G.
        leverage: diag((CᵀC)⁺).
        null: each sample's weight in the null space of C, √(1 − (C⁺C)_rr).
        rank: number of singular values above the cut.
        singular_values: those of C, largest first.
    """

    residual: np.ndarray
    leverage: np.ndarray
    null: np.ndarray
    rank: int
    singular_values: np.ndarray


def solve_labels(jacobian: np.ndarray, gradient: np.ndarray, *, rcond: float) -> LabelSolution:
    """One problem: jacobian `(N, d)` is Cᵀ, gradient `(d,)` or `(d, K)`. Singular values below the cut are 0."""
    rows = np.asarray(jacobian, dtype=np.float64)
    n = len(rows)
    if rows.size == 0:
        return LabelSolution(np.zeros((n, *gradient.shape[1:])), np.zeros(n), np.ones(n), 0, np.zeros(0))
    u, s, vt = np.linalg.svd(rows, full_matrices=True)  # rows = U·S·Vᵀ, so C⁺ = U·S⁻¹·Vᵀ and C⁺C = U·Uᵀ
    rank = int((s > rcond * s[0]).sum())
    scaled = u[:, :rank] / s[:rank]
    return LabelSolution(
        residual=n * (scaled @ (vt[:rank] @ np.asarray(gradient, dtype=np.float64))),
        leverage=(scaled**2).sum(axis=1),
        null=np.sqrt((u[:, rank:] ** 2).sum(axis=1)),
        rank=rank,
        singular_values=s,
    )


def identifiable_limit(solution: LabelSolution, *, rcond: float) -> float:
    """The largest weight in the null space of a label that counts as determined: rcond·‖C‖·‖C⁺‖, at most 1e-3."""
    return min(rcond * float(np.linalg.norm(solution.singular_values)) * float(np.sqrt(solution.leverage.sum())), 1e-3)


def mixture_samples(
    num_samples: int,
    *,
    noise_multiplier: np.ndarray,
    sample_rate: np.ndarray,
    under: str = "null",
    seed: int = 0,
    first_sample: int = 0,
) -> np.ndarray:
    """x, `(num_samples, T)`: σ_t·z, plus 1 with probability q_t under the alternative; σ and q of shape `(T,)`."""
    steps = len(noise_multiplier)
    purpose = philox.MIXTURE_ONE if steps == 1 else philox.MIXTURE
    alternative = int(under == "alternative")
    z = _mixture_draws(
        philox.standard_normal, num_samples, steps, first_sample, seed=seed, purpose=purpose, step=alternative
    )
    x: np.ndarray = noise_multiplier * z
    return x + mixture_picks(num_samples, sample_rate, seed=seed, first_sample=first_sample) if alternative else x


def mixture_picks(num_samples: int, sample_rate: np.ndarray, *, seed: int, first_sample: int) -> np.ndarray:
    """1 with probability q_t: 64 random bits, as two 32-bit words, below q_t·2⁶⁴."""
    steps = len(sample_rate)
    purpose = philox.MIXTURE_ONE_PICK if steps == 1 else philox.MIXTURE_PICK
    high, low = (
        _mixture_draws(philox.words, num_samples, steps, first_sample, seed=seed, purpose=purpose, step=half)
        for half in (0, 1)
    )
    limits = [math.floor(q * 2**32) for q in sample_rate]
    rests = [math.floor((q * 2**32 - limit) * 2**32) for q, limit in zip(sample_rate, limits, strict=True)]
    return np.where(high == np.array(limits), low < np.array(rests), high < np.array(limits)).astype(np.float64)


def _mixture_draws(
    draw: Callable[..., np.ndarray], num_samples: int, steps: int, first_sample: int, **stream: int
) -> np.ndarray:
    """`(num_samples, steps)`: sample i is row i. At T = 1 it is draw i % 4 of row i // 4, so that none is wasted."""
    if steps != 1:
        return draw(num_samples, steps, first_row=first_sample, **stream)
    first_row, skip = divmod(first_sample, 4)
    rows = draw((skip + num_samples + 3) // 4, 4, first_row=first_row, **stream)
    return rows.reshape(-1, 1)[skip : skip + num_samples]


def mixture_log_ratio(x: np.ndarray, *, noise_multiplier: np.ndarray, sample_rate: np.ndarray) -> np.ndarray:
    """Σ_t log(1 − q_t + q_t·exp((2x_t − 1)/(2σ_t²))), each step in whichever form loses nothing."""
    sigma, q = np.broadcast_to(noise_multiplier, x.shape), np.broadcast_to(sample_rate, x.shape)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        exponent = np.where(sigma > 0, (x / sigma - 0.5 / sigma) / sigma, np.where(x > 0.5, np.inf, -np.inf))
        near = np.log1p(q * np.expm1(np.minimum(exponent, 700.0)))
        plain = np.log((1.0 - q) + q * np.exp(np.minimum(exponent, 700.0)))
        far = exponent + (np.log(q) + np.log1p((1.0 - q) / q * np.exp(-exponent)))
    terms = np.where(exponent > 700.0, far, np.where((q <= 0.5) | (exponent > -0.5), near, plain))
    terms = np.where(q == 1.0, exponent, np.where(q == 0.0, 0.0, terms))
    return np.asarray(terms.sum(axis=-1))


def mixture_tail(ratios: np.ndarray, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(counts of L ≥ t, the two sums of (1 − e^{t−L})₊ and e^{−L}·1{L ≥ t}, correctly rounded by `math.fsum`)."""
    flat = np.asarray(thresholds, dtype=np.float64).reshape(-1)
    counts = np.array([int((ratios >= t).sum()) for t in flat], dtype=np.int64)
    sums = np.empty((2, flat.size))
    for j, t in enumerate(flat):
        above = ratios[ratios >= t]
        sums[0, j] = math.fsum(-np.expm1(t - above)) if math.isfinite(t) else (len(above) if t < 0 else 0.0)
        sums[1, j] = math.fsum(np.exp(-above))
    shape = np.shape(thresholds)
    return counts.reshape(shape), sums.reshape(2, *shape)


def allocation_samples(
    pair: Any, num_samples: int, *, under: str = "null", seed: int = 0, first_sample: int = 0
) -> np.ndarray:
    """y, `(num_samples, epochs, bins)`: σ·F·z; under the alternative plus 1 in the first k bins, which stand for any k
    of them, or with a factor plus column J of G = F·Fᵀ."""
    columns = pair.bins if pair.factor is None else pair.factor.shape[1]
    alternative = int(under == "alternative")
    rows = {"seed": seed, "first_row": first_sample}
    z = philox.standard_normal(num_samples, pair.epochs * columns, purpose=philox.ALLOCATION, step=alternative, **rows)
    z = z.reshape(num_samples, pair.epochs, columns)
    if pair.factor is None:
        y: np.ndarray = pair.noise_multiplier * z
        y[..., : pair.k] += alternative
        return y
    y = pair.noise_multiplier * (z @ pair.factor.T)
    if alternative:
        words = philox.words(num_samples, 2 * pair.epochs, purpose=philox.ALLOCATION_PICK, **rows).astype(object)
        drawn = (words[:, 0::2] * 2**32 + words[:, 1::2]) * pair.bins // 2**64
        y += (pair.factor @ pair.factor.T)[drawn.astype(np.int64)]
    return y


def allocation_log_ratio(y: np.ndarray, pair: Any) -> np.ndarray:
    """Σ over epochs of log e_k(w)/C(b, k), w_j = exp((y_j − G_jj/2)/σ²), by logarithms throughout."""
    square = np.ones(pair.bins) if pair.factor is None else (pair.factor**2).sum(axis=1)
    # In this order, so that a square beyond float64 is none where the exponent is not.
    exponents = (y / pair.noise_multiplier - 0.5 * square / pair.noise_multiplier) / pair.noise_multiplier
    levels = [np.zeros(y.shape[:-1]), *(np.full(y.shape[:-1], -np.inf) for _ in range(pair.k))]
    for j in range(pair.bins):
        for level in range(pair.k, 0, -1):
            levels[level] = np.logaddexp(levels[level], levels[level - 1] + exponents[..., j])
    return np.asarray((levels[pair.k] - math.log(math.comb(pair.bins, pair.k))).sum(axis=-1))


def label_lower_bounds(
    jacobian: np.ndarray,
    probs: np.ndarray,
    labels: np.ndarray,
    *,
    noise_multiplier: float,
    max_grad_norm: float,
    delta: float,
    grad_norms: np.ndarray | None = None,
    inverse_per_row: bool = True,
) -> np.ndarray:
    """LB_r of every row r, by Algorithm 2 of Yuan, Xue, Wang and Shen (2022), step by step.

    Args:
        jacobian: (N, d), row r = dZ_r/dW, of rank N.
        probs: (N,).
        labels: (N,) of 0 and 1.
        noise_multiplier: σ, above 0.
        max_grad_norm: C, above 0.
        delta: δ.
        grad_norms: (2, N), joint gradient norms of each row under its own and under the flipped label, used for
            clipping instead of the norm of this weight vector's gradient; None: as printed.
        inverse_per_row: True as printed; False computes (CᵀC)⁻¹, which is the same for every row, once.

    Returns:
        (N,) float64; −∞ where P_0 ≤ δ.
    """
    c = np.asarray(jacobian, dtype=np.float64).T
    p = np.asarray(probs, dtype=np.float64)
    y = np.asarray(labels, dtype=np.float64)
    n = p.size
    s = noise_multiplier * max_grad_norm / n

    def clipped_gradient(r: int, label: float, dataset: int) -> np.ndarray:
        gradient = c[:, r] * (p[r] - label)
        norm = float(np.linalg.norm(gradient)) if grad_norms is None else float(grad_norms[dataset, r])
        return np.asarray(gradient / max(1.0, norm / max_grad_norm))

    g0 = [clipped_gradient(r, y[r], 0) for r in range(n)]
    mean0 = np.sum(g0, axis=0) / n
    out = np.empty(n)
    inverse = np.empty(0)
    for r in range(n):
        g1 = clipped_gradient(r, 1.0 - y[r], 1)
        mean1 = mean0 + (g1 - g0[r]) / n
        unit = np.zeros(n)
        unit[r] = 1.0
        if inverse_per_row or r == 0:
            inverse = np.linalg.inv(c.T @ c)
        sign = (-1.0) ** y[r]
        spread = s * np.sqrt(unit @ inverse @ unit)
        log_p1 = special.log_ndtr(sign * (unit @ inverse @ c.T @ mean1) / spread)
        p0 = special.ndtr(sign * (unit @ inverse @ c.T @ mean0) / spread)
        out[r] = np.log(p0 - delta) - log_p1 if p0 > delta else -np.inf
    return out
