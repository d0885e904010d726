"""The curve of bounds: what no reconstruction attack can beat, at 100 priors, against general tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.case import Case, Contender
from leakcore import bounds

KAPPA = np.geomspace(1e-6, 0.5, 100)
GRID = 1e-4
"""Discretisation of the privacy loss in dp-accounting, its default."""


def cases(quick: bool) -> list[Case]:
    settings = [(1.0, 0.01, 100)] if quick else [(1.0, 0.01, 100), (1.0, 0.01, 1000), (0.59, 0.01, 10_000)]
    return [*(_curve(*setting) for setting in settings), *(_one(*setting) for setting in settings)]


def _curve(sigma: float, rate: float, steps: int) -> Case:
    def exact(_: Any) -> Callable[[], Any]:
        return lambda: bounds.reconstruction(sigma, rate, steps, kappa=KAPPA, method="exact").value

    return Case(
        "curve",
        f"100 κ, σ={sigma} q={rate} T={steps}",
        lambda: None,
        (
            Contender("leakcore exact", exact),
            Contender(
                "riskcal",
                lambda _: lambda: _in_riskcal(sigma, rate, steps),
                against="leakcore exact",
                needs=("riskcal",),
            ),
            Contender(
                "dp-accounting, privacy loss alone",
                lambda _: lambda: _loss(sigma, rate, steps),
                against="leakcore exact",
                needs=("dp_accounting",),
            ),
            Contender(
                "leakcore method='pld'",
                lambda _: lambda: bounds.reconstruction(sigma, rate, steps, kappa=KAPPA, method="pld").value,
                against="leakcore exact",
                needs=("dp_accounting",),
            ),
        ),
        KAPPA.size,
        "κ",
        limit="none useful: Fourier transforms and a search, not a stream",
        seconds=8,
        extra=lambda: agreement(sigma, rate, steps),
    )


def _one(sigma: float, rate: float, steps: int) -> Case:
    """A call for one κ: what a user waits for."""

    def exact(_: Any) -> Callable[[], Any]:
        return lambda: bounds.reconstruction(sigma, rate, steps, kappa=0.1, method="exact").value

    contenders = (Contender("leakcore exact", exact),)
    return Case("curve", f"one κ, σ={sigma} q={rate} T={steps}", lambda: None, contenders, 1.0, "call", seconds=2)


def _loss(sigma: float, rate: float, steps: int) -> Any:
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=rate, value_discretization_interval=GRID, use_connect_dots=True
    ).self_compose(steps)


def _in_riskcal(sigma: float, rate: float, steps: int) -> Any:
    from riskcal.analysis import get_beta_from_pld

    return 1 - get_beta_from_pld(_loss(sigma, rate, steps), alpha=KAPPA)


def agreement(sigma: float, rate: float, steps: int) -> list[list[str]]:
    """The same curve by each tool, at a few κ."""
    try:
        theirs = _in_riskcal(sigma, rate, steps)
    except ImportError:
        theirs = np.full(KAPPA.size, np.nan)
    ours = bounds.reconstruction(sigma, rate, steps, kappa=KAPPA, method="exact").value
    rows = [["κ", "leakcore exact", "riskcal", "riskcal − leakcore"]]
    for j in (0, 33, 66, 99):
        rows.append([f"{KAPPA[j]:.3g}", f"{ours[j]:.9f}", f"{theirs[j]:.9f}", f"{theirs[j] - ours[j]:+.1e}"])
    return rows
