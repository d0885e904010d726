"""The kernels beside what a careful user would write in NumPy and torch for the same result."""

from __future__ import annotations

import numpy as np
import torch

from bench.harness import OURS, Case, Limits
from leakcore import kernels

BLOCK = 4096  # samples per block of the NumPy and torch mixtures: what fits in the second-level cache


def clip_and_noise(limits: Limits, quick: bool) -> Case:
    rows, columns = (64, 100_000) if quick else (256, 400_000)
    clip, sigma = 1.0, 1.0
    grads = np.random.default_rng(0).standard_normal((rows, columns), dtype=np.float32)
    tensor = torch.from_numpy(grads)
    rng = np.random.default_rng(1)

    def in_numpy() -> object:
        norms = np.sqrt(np.einsum("ij,ij->i", grads, grads))
        noise = rng.standard_normal(columns, dtype=np.float32)
        return np.minimum(1, clip / norms).astype(np.float32) @ grads + sigma * clip * noise

    def in_torch() -> object:
        norms = torch.linalg.vector_norm(tensor, dim=1)
        return (clip / norms).clamp(max=1) @ tensor + sigma * clip * torch.randn(columns)

    def materialised() -> object:
        norms = torch.linalg.vector_norm(tensor, dim=1)
        return (tensor * (clip / norms).clamp(max=1)[:, None]).sum(0) + sigma * clip * torch.randn(columns)

    return Case(
        "clip_and_noise",
        f"clip, sum and noise {rows} gradients of {columns:,} float32",
        {
            OURS: lambda: kernels.clip_and_noise(grads, clip, sigma, seed=1),
            "numpy, norm and product": in_numpy,
            "torch, norm and product": in_torch,
            "torch, clipped copy": materialised,
        },
        grads.nbytes / limits.read_bytes_per_second,
        "one read of the gradients at the measured bandwidth",
    )


def clip_scores(limits: Limits, quick: bool) -> Case:
    rows, columns, observed = (64, 50_000, 4) if quick else (512, 100_000, 4)
    rng = np.random.default_rng(0)
    grads = rng.standard_normal((rows, columns), dtype=np.float32)
    seen = rng.standard_normal((observed, columns), dtype=np.float32)
    tensor, watched = torch.from_numpy(grads), torch.from_numpy(seen)

    def in_numpy() -> object:
        return seen @ grads.T * np.minimum(1, 1 / np.sqrt(np.einsum("ij,ij->i", grads, grads)))

    def in_torch() -> object:
        return watched @ tensor.T * (1 / torch.linalg.vector_norm(tensor, dim=1)).clamp(max=1)

    return Case(
        "clip_scores",
        f"scores of {rows} candidates of {columns:,} float32 against {observed} observations",
        {
            OURS: lambda: kernels.clip_scores(grads, seen, 1.0),
            "numpy, norm and product": in_numpy,
            "torch, norm and product": in_torch,
        },
        grads.nbytes / limits.read_bytes_per_second,
        "one read of the gradients at the measured bandwidth",
    )


def solve_labels(limits: Limits, quick: bool) -> Case:
    problems, n, d = (32, 50, 200) if quick else (128, 50, 200)
    rng = np.random.default_rng(0)
    jacobian = rng.standard_normal((problems, n, d))
    gradient = np.einsum("bnd,bn->bd", jacobian, rng.uniform(-1, 1, (problems, n))) / n
    system, side = torch.from_numpy(jacobian).mT, torch.from_numpy(gradient)[..., None]

    return Case(
        "solve_labels",
        f"{problems} systems of {n} samples and {d} weights, float64",
        {
            OURS: lambda: kernels.solve_labels(jacobian, gradient),
            "numpy pinv": lambda: n * np.linalg.pinv(jacobian.swapaxes(1, 2)) @ gradient[..., None],
            "torch pinv": lambda: n * torch.linalg.pinv(system) @ side,
            "torch lstsq (residuals only)": lambda: n * torch.linalg.lstsq(system, side, driver="gelsy").solution,
        },
        problems * (2 * d * n**2 + n**3 / 3) / limits.flops,
        "QR and triangular inverse, 2dN² + N³/3 operations, at the measured speed of large matrix products",
    )


def mixture_log_ratio(limits: Limits, quick: bool) -> Case:
    samples, steps = (100_000, 100) if quick else (300_000, 100)
    rate, sigma = 0.1, 1.0
    rng = np.random.default_rng(0)

    def in_numpy() -> object:
        out = np.empty(samples)
        x = np.empty((BLOCK, steps))
        for a in range(0, samples, BLOCK):
            part = x[: min(BLOCK, samples - a)]
            rng.standard_normal(out=part)
            part *= 1 / sigma
            part -= 0.5 / sigma**2
            np.exp(part, out=part)
            part -= 1
            part *= rate
            np.log1p(part, out=part)
            part.sum(axis=1, out=out[a : a + BLOCK])
        return out

    def in_torch(dtype: torch.dtype) -> object:
        out = torch.empty(samples, dtype=dtype)
        for a in range(0, samples, BLOCK):
            x = torch.randn(min(BLOCK, samples - a), steps, dtype=dtype)
            x.mul_(1 / sigma).sub_(0.5 / sigma**2).expm1_().mul_(rate).log1p_()
            out[a : a + BLOCK] = x.sum(1)
        return out

    # Per step: 20 for a quarter of Philox, 25 for half a Box-Muller pair, 25 for the exponential and the product.
    operations = 70.0 * samples * steps
    return Case(
        "mixture_log_ratio",
        f"{samples:,} samples of {steps} steps, q={rate}, σ={sigma}",
        {
            OURS: lambda: kernels.mixture_log_ratio(samples, noise_multiplier=sigma, sample_rate=rate, steps=steps),
            "numpy float64, blocked": in_numpy,
            "torch float32, blocked": lambda: in_torch(torch.float32),
            "torch float64, blocked": lambda: in_torch(torch.float64),
        },
        operations / limits.flops,
        "70 operations per sample and step, at the measured speed of large matrix products (widest vectors, fused)",
    )


def mixture_tail(limits: Limits, quick: bool) -> Case:
    samples, steps = (100_000, 100) if quick else (300_000, 100)
    arguments = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": steps, "under": "alternative"}
    thresholds = np.linspace(-2, 6, 10)

    def stored() -> object:
        ratios = kernels.mixture_log_ratio(samples, **arguments)
        sums = [np.maximum(-np.expm1(t - ratios), 0).sum() for t in thresholds]
        return sums, [np.exp(-ratios[ratios >= t]).sum() for t in thresholds], [(ratios >= t).sum() for t in thresholds]

    return Case(
        "mixture_tail",
        f"tails of {samples:,} samples of {steps} steps at {len(thresholds)} thresholds",
        {
            OURS: lambda: kernels.mixture_tail(samples, thresholds, **arguments),
            "our log ratios, numpy sums": stored,
        },
        90.0 * samples * steps / limits.flops,
        "90 operations per sample and step (a second draw picks the component), as above",
    )


ALL = {c.__name__: c for c in (clip_and_noise, clip_scores, solve_labels, mixture_log_ratio, mixture_tail)}
