"""Random allocation: log ratios of b bins, of k among them, and of bins with correlated noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.case import Case, Contender
from leakcore import kernels

SIGMA = 1.0
Build = Callable[[Any], Callable[[], Any]]


def cases(quick: bool) -> list[Case]:
    samples = 10**3 if quick else 10**5
    return [_bins(samples, bins) for bins in ((100,) if quick else (10, 100, 1000))] + [
        _subsets(samples // 10, 100, 10),
        _banded(samples // 10, 100, 10),
    ]


def _blocks(samples: int, bins: int) -> list[int]:
    """Samples per block such that a block of float64 fits in a second-level cache of half a megabyte."""
    size = max(64, min(2**16, 2**19 // (8 * bins)))
    return [min(size, samples - a) for a in range(0, samples, size)]


def _draws_and_exponentials(samples: int, bins: int) -> Build:
    """As many normals, by our own generator, and exponentials in float64 and nothing else, a block at a time."""

    def build(_: Any) -> Callable[[], Any]:
        blocks = _blocks(samples, bins)
        x = np.empty((1, blocks[0] * bins))  # one long row, which is drawn fastest

        def run() -> None:
            for row, size in enumerate(blocks):
                part = x[:, : size * bins]
                kernels.standard_normal(part.shape, seed=0, purpose="caller", first_row=row, out=part)
                np.exp(part, out=part)

        return run

    return build


def _in_numpy(samples: int, bins: int, dtype: Any) -> Build:
    """With nothing but what is needed: the mean's factor and the ½ come after the sum."""

    def build(_: Any) -> Callable[[], Any]:
        rng = np.random.default_rng(0)
        blocks = _blocks(samples, bins)
        x = np.empty((blocks[0], bins), dtype=dtype)
        out = np.empty(samples, dtype=dtype)

        def run() -> object:
            first = 0
            for rows in blocks:
                part = x[:rows]
                rng.standard_normal(out=part, dtype=dtype)
                part *= dtype(1 / SIGMA)
                np.exp(part, out=part)
                np.sum(part, axis=1, out=out[first : first + rows])
                first += rows
            np.log(out, out=out)
            return np.subtract(out, dtype(np.log(bins) + 0.5 / SIGMA**2), out=out)

        return run

    return build


def _in_jax_privacy(samples: int, bins: int, band: int) -> Build:
    def build(_: Any) -> Callable[[], Any]:
        from jax_privacy import batch_selection
        from jax_privacy.experimental.monte_carlo import sample_generation

        strategy = batch_selection.BallsInBinsSampling(cycle_length=bins, iterations=bins)
        return lambda: sample_generation.get_privacy_loss_sample(
            strategy=strategy, noise_multiplier=SIGMA, c_col=np.full(band, band**-0.5), positive_sample=False,
            num_samples=samples,
        )  # fmt: skip

    return build


def _ours(pair: kernels.Allocation, samples: int, dtype: str = "float64", under: str = "null") -> Build:
    return lambda _: lambda: kernels.allocation_log_ratio(pair, samples, dtype=dtype, under=under)


def _bins(samples: int, bins: int) -> Case:
    samples = samples * 100 // bins
    pair = kernels.Allocation(SIGMA, bins)
    bare = _draws_and_exponentials(samples, bins)
    contenders = [
        Contender("leakcore f64", _ours(pair, samples)),
        Contender("leakcore f64, 2 threads", _ours(pair, samples), 2),
        Contender("leakcore f64, alternative", _ours(pair, samples, under="alternative"), against="leakcore f64"),
        Contender("leakcore f64, avx2", _ours(pair, samples), tier="avx2", against="leakcore f64"),
        Contender("leakcore f32", _ours(pair, samples, "float32")),
        Contender("leakcore f32, 2 threads", _ours(pair, samples, "float32"), 2),
        Contender("normals and exponentials", bare, least=True),
        Contender("NumPy f64, blocked", _in_numpy(samples, bins, np.float64), against="leakcore f64"),
        Contender("NumPy f32, blocked", _in_numpy(samples, bins, np.float32), against="leakcore f32"),
        Contender(
            "jax_privacy",
            _in_jax_privacy(max(samples // 100, 1), bins, 1),
            against="leakcore f64",
            share=max(samples // 100, 1) / samples,
            needs=("jax_privacy",),
        ),
    ]
    return Case(
        "allocation",
        f"b={bins} N={samples:.0e}".replace("e+0", "e"),
        lambda: None,
        tuple(contenders),
        samples * bins,
        "bin",
        limit="as many normals of our generator and exponentials of NumPy in float64, blocked",
        least=1,
        seconds=8,
    )


def _subsets(samples: int, bins: int, k: int) -> Case:
    """Their own recursion in NumPy, over blocks whose levels fit the cache."""
    pair = kernels.Allocation(SIGMA, bins, k=k)

    def in_numpy(_: Any) -> Callable[[], Any]:
        rng = np.random.default_rng(0)
        size = 1024
        levels = np.empty((k + 1, size))

        def run() -> object:
            out = []
            for first in range(0, samples, size):
                weights = np.exp(rng.standard_normal((bins, min(size, samples - first))) / SIGMA)
                part = levels[:, : weights.shape[1]]
                part[0], part[1:] = 1.0, 0.0
                for w in weights:
                    part[1:] += w * part[:-1]
                out.append(np.log(part[k]))
            return np.concatenate(out)

        return run

    return Case(
        "allocation",
        f"{k} of b={bins} N={samples:.0e}".replace("e+0", "e"),
        lambda: None,
        (
            Contender("leakcore f64", _ours(pair, samples)),
            Contender("normals and exponentials", _draws_and_exponentials(samples, bins), least=True),
            Contender("NumPy f64, blocked", in_numpy, against="leakcore f64"),
        ),
        samples * bins,
        "bin",
        limit="as many normals of our generator and exponentials of NumPy in float64, blocked",
        least=1,
        seconds=8,
    )


def _banded(samples: int, bins: int, band: int) -> Case:
    """Noise correlated by a banded and by a dense factor of the same G."""
    factor = (np.tri(bins) - np.tri(bins, k=-band)) / np.sqrt(band)
    banded = kernels.Allocation(SIGMA, bins, factor=factor)
    rotated, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((bins, bins)))
    dense = kernels.Allocation(SIGMA, bins, factor=factor @ rotated)

    def in_numpy(_: Any) -> Callable[[], Any]:
        rng = np.random.default_rng(0)
        blocks = _blocks(samples, bins)
        transposed = np.ascontiguousarray(factor.T) / SIGMA
        half = 0.5 * (factor**2).sum(axis=1) / SIGMA**2

        def run() -> object:
            out = []
            for rows in blocks:
                y = rng.standard_normal((rows, bins)) @ transposed
                y -= half
                out.append(np.log(np.exp(y, out=y).mean(axis=1)))
            return np.concatenate(out)

        return run

    return Case(
        "allocation",
        f"factor, b={bins} w={band} N={samples:.0e}".replace("e+0", "e"),
        lambda: None,
        (
            Contender("leakcore f64, banded", _ours(banded, samples)),
            Contender("leakcore f64, banded, alternative", _ours(banded, samples, under="alternative")),
            Contender("leakcore f64, dense", _ours(dense, samples)),
            Contender("normals and exponentials", _draws_and_exponentials(samples, bins), least=True),
            Contender("NumPy f64, blocked", in_numpy, against="leakcore f64, banded"),
            Contender(
                "jax_privacy",
                _in_jax_privacy(max(samples // 10, 1), bins, band),
                against="leakcore f64, banded",
                share=max(samples // 10, 1) / samples,
                needs=("jax_privacy",),
            ),
        ),
        samples * bins,
        "bin",
        limit="as many normals of our generator and exponentials of NumPy in float64, blocked",
        least=1,
        seconds=8,
    )
