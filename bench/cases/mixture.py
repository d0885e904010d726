"""The mixture: log ratios of DP-SGD's dominating pair, and their tails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.case import Case, Contender, Rates
from leakcore import kernels

RATE, SIGMA = 0.01, 1.0


def cases(quick: bool) -> list[Case]:
    sizes = [(10**4, 100)] if quick else [(10**5, 1), (10**5, 100), (10**5, 1000), (10**6, 1), (10**6, 100)]
    if not quick:
        sizes += [(10**6, 1000), (10**7, 1)]
    tails = [(10**4, 100)] if quick else [(10**6, 100)]
    return [*(_log_ratio(*size) for size in sizes), *(_tail(*size) for size in tails), _sweep(*tails[0])]


def _blocks(samples: int, steps: int) -> list[int]:
    """Samples per block such that a block of float64 fits in a second-level cache of half a megabyte."""
    size = max(64, min(2**16, 2**19 // (8 * steps)))
    return [min(size, samples - a) for a in range(0, samples, size)]


def _floor(samples: float, steps: int, name: str) -> Callable[[Rates], float | None]:
    def seconds(rates: Rates) -> float | None:
        if "philox_words" not in rates:
            return None
        return samples * steps * (1 / rates["philox_words"] + 1 / rates[f"exp_{name}"])

    return seconds


def _log_ratio(samples: int, steps: int) -> Case:
    work = samples * steps

    def ours(dtype: str, share: float = 1.0, reuse: bool = True) -> Callable[[Any], Callable[[], Any]]:
        """Into an array of the caller's, as the peers: fresh memory costs all of them the same."""
        count = int(samples * share)
        arguments = {"noise_multiplier": SIGMA, "sample_rate": RATE, "steps": steps, "dtype": dtype}

        def build(_: Any) -> Callable[[], Any]:
            out = np.empty(count, dtype=dtype) if reuse else None
            return lambda: kernels.mixture_log_ratio(count, out=out, **arguments)

        return build

    def in_numpy(dtype: Any, share: float) -> Callable[[Any], Callable[[], Any]]:
        count = int(samples * share)

        def build(_: Any) -> Callable[[], Any]:
            rng = np.random.default_rng(0)
            blocks = _blocks(count, steps)
            x = np.empty((blocks[0], steps), dtype=dtype)
            out = np.empty(count, dtype=dtype)

            def run() -> object:
                a = 0
                for rows in blocks:
                    part = x[:rows]
                    rng.standard_normal(out=part, dtype=dtype)
                    part *= 1 / SIGMA
                    part -= 0.5 / SIGMA**2
                    np.exp(part, out=part)
                    part -= 1
                    part *= RATE
                    np.log1p(part, out=part)
                    np.sum(part, axis=1, out=out[a : a + rows])
                    a += rows
                return out

            return run

        return build

    def in_torch(name: str, share: float) -> Callable[[Any], Callable[[], Any]]:
        count = int(samples * share)

        def build(_: Any) -> Callable[[], Any]:
            import torch

            dtype = getattr(torch, name)
            blocks = _blocks(count, steps)
            x, out = torch.empty(blocks[0], steps, dtype=dtype), torch.empty(count, dtype=dtype)

            def run() -> object:
                a = 0
                for rows in blocks:
                    part = x[:rows].normal_()
                    part.mul_(1 / SIGMA).sub_(0.5 / SIGMA**2).expm1_().mul_(RATE).log1p_()
                    torch.sum(part, 1, out=out[a : a + rows])
                    a += rows
                return out

            return run

        return build

    # A peer's loop is over equal blocks, so a part of them is timed where all would take seconds.
    part = 1.0 if work <= 10**7 else 0.1 if work <= 10**8 else 0.02
    tier_part = 1.0 if work <= 10**8 else 0.1
    contenders = []
    for name, short in (("float64", "f64"), ("float32", "f32")):
        for threads in (1, 2):
            contenders.append(
                Contender(
                    f"leakcore {short}" + (", 2 threads" if threads == 2 else ""),
                    ours(name),
                    threads,
                    floor=_floor(samples, steps, short),
                )
            )
        contenders.append(
            Contender(f"leakcore {short}, fresh memory", ours(name, reuse=False), against=f"leakcore {short}")
        )
        for tier in ("avx2", "baseline"):
            contenders.append(
                Contender(
                    f"leakcore {short}, {tier}",
                    ours(name, tier_part),
                    tier=tier,
                    share=tier_part,
                    against=f"leakcore {short}",
                    floor=_floor(samples, steps, short),
                )
            )
    contenders += [
        Contender("NumPy f64, blocked", in_numpy(np.float64, part), against="leakcore f64", share=part),
        Contender("NumPy f32, blocked", in_numpy(np.float32, part), against="leakcore f32", share=part),
        Contender("torch f64, blocked", in_torch("float64", part), against="leakcore f64", share=part),
        Contender("torch f32, blocked", in_torch("float32", part), against="leakcore f32", share=part),
        Contender("torch f32, 2 threads", in_torch("float32", part), 2, against="leakcore f32, 2 threads", share=part),
    ]
    return Case(
        "mixture",
        f"N={samples:.0e} T={steps}".replace("e+0", "e"),
        lambda: None,
        tuple(contenders),
        work,
        "sample·step",
        limit="one 32-bit Philox word and one exponential per sample·step, each at the rate of its own native loop",
        seconds=12,
    )


def _tail(samples: int, steps: int) -> Case:
    arguments: dict[str, Any] = {"noise_multiplier": SIGMA, "sample_rate": RATE, "steps": steps, "under": "alternative"}
    thresholds = np.linspace(-0.5, 2, 10)

    def ours(_: Any) -> Callable[[], Any]:
        return lambda: kernels.mixture_tail(samples, thresholds, **arguments)

    def stored(_: Any) -> Callable[[], Any]:
        def run() -> object:
            ratios = kernels.mixture_log_ratio(samples, **arguments)
            sums = [np.maximum(-np.expm1(t - ratios), 0).sum() for t in thresholds]
            return sums, [np.exp(-ratios[ratios >= t]).sum() for t in thresholds]

        return run

    def in_numpy(_: Any) -> Callable[[], Any]:
        part = samples // 10
        rng = np.random.default_rng(0)

        def run() -> object:
            counts, excess = np.zeros(thresholds.size, dtype=np.int64), np.zeros(thresholds.size)
            for rows in _blocks(part, steps):
                x = rng.standard_normal((rows, steps))
                x += rng.random((rows, steps)) < RATE
                x -= 0.5
                x /= SIGMA**2
                np.exp(x, out=x)
                x -= 1
                x *= RATE
                np.log1p(x, out=x)
                ratios = x.sum(axis=1)
                for j, t in enumerate(thresholds):
                    counts[j] += np.count_nonzero(ratios >= t)
                    excess[j] -= np.expm1(t - ratios[ratios >= t]).sum()
            return counts, excess

        return run

    def floor(rates: Rates) -> float | None:
        once = _floor(samples, steps, "f64")(rates)
        return None if once is None else once + samples * steps / rates["philox_words"]

    return Case(
        "mixture_tail",
        f"N={samples:.0e} T={steps}".replace("e+0", "e"),
        lambda: None,
        (
            Contender("leakcore", ours),
            Contender("leakcore, 2 threads", ours, 2),
            Contender("our log ratios, NumPy sums", stored, against="leakcore"),
            Contender("NumPy f64, blocked", in_numpy, against="leakcore", share=0.1),
        ),
        samples * steps,
        "sample·step",
        floor,
        "two Philox words (one picks the component) and one exponential per sample·step",
        seconds=8,
    )


def _sweep(samples: int, steps: int) -> Case:
    """16 (σ, q) over the same random numbers, as a search over hyperparameters wants them."""
    samples //= 4
    sigma = np.repeat([0.8, 1.0, 1.5, 2.0], 4)
    rate = np.tile([0.005, 0.01, 0.02, 0.05], 4)
    thresholds = np.linspace(-0.5, 2, 10)

    def together(_: Any) -> Callable[[], Any]:
        return lambda: kernels.mixture_tail(
            samples, thresholds, noise_multiplier=sigma[:, None], sample_rate=rate[:, None], steps=steps
        )

    def apart(_: Any) -> Callable[[], Any]:
        return lambda: [
            kernels.mixture_tail(samples, thresholds, noise_multiplier=s, sample_rate=q, steps=steps)
            for s, q in zip(sigma, rate, strict=True)
        ]

    def floor(rates: Rates) -> float | None:
        if "philox_words" not in rates:
            return None
        return samples * steps * (1 / rates["philox_words"] + sigma.size / rates["exp_f64"])

    return Case(
        "mixture_tail",
        f"{sigma.size} configurations N={samples:.1e} T={steps}".replace("e+0", "e"),
        lambda: None,
        (
            Contender("leakcore, one call", together),
            Contender("leakcore, a call each", apart, against="leakcore, one call"),
        ),
        samples * steps * sigma.size,
        "configuration·sample·step",
        floor,
        "one Philox word per sample·step, one exponential for each configuration",
        seconds=8,
    )
