"""The Monte-Carlo estimate of the bound at one step, at the sample sizes whose times its paper prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.case import Case, Contender
from leakcore import bounds

PRINTED = {10**4: 0.002, 10**5: 0.065, 10**6: 0.196, 10**7: 2.084}
"""Seconds by number of samples: Hayes et al. 2023, Appendix A, on a 2.3 GHz 8-core Intel Core i9."""
SIGMA, KAPPA = 1.0, 0.1


def cases(quick: bool) -> list[Case]:
    return [_estimate(n) for n in (list(PRINTED)[:2] if quick else PRINTED)]


def _estimate(samples: int) -> Case:
    def ours(under: str) -> Callable[[Any], Callable[[], Any]]:
        def estimate() -> Any:
            return bounds.reconstruction(
                SIGMA, 1.0, 1, kappa=KAPPA, method=bounds.methods.MonteCarlo(samples, under=under)
            ).value

        return lambda _: estimate

    def printed_algorithm(_: Any) -> Callable[[], Any]:
        rng = np.random.default_rng(0)

        def estimate() -> float:
            x = rng.normal(0.0, SIGMA, samples)
            ratio = np.sort(np.exp((x - 0.5) / SIGMA**2))[::-1]
            return float(ratio[: int(np.ceil(KAPPA * samples))].sum() / samples)

        return estimate

    return Case(
        "Monte Carlo",
        f"T=1, {samples:,} samples; the paper prints {PRINTED[samples]} s",
        lambda: None,
        (
            Contender("leakcore, from ν (Algorithm 1)", ours("null")),
            Contender("leakcore, from ν (Algorithm 1), 2 threads", ours("null"), 2),
            Contender("leakcore, from μ", ours("alternative")),
            Contender("NumPy, Algorithm 1 with its sort", printed_algorithm, against="leakcore, from ν (Algorithm 1)"),
            Contender(
                "leakcore exact",
                lambda _: lambda: bounds.reconstruction(SIGMA, 1.0, 1, kappa=KAPPA).value,
                against="leakcore, from ν (Algorithm 1)",
            ),
        ),
        samples,
        "sample",
        seconds=6,
    )
