"""ε that Poisson accounting claims for one epoch of shuffled batches, against the lower and the upper end, over σ."""

from __future__ import annotations

import functools

import numpy as np

from leakcore import accounting, mechanisms
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Series, Stated
from leakcore.experiments.verdict import Check

DELTA = 1e-5
_SOURCE = "Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha and Zhang, How Private are DP-SGD Implementations?, ICML 2024"
Point = dict[str, float]
"""σ, and of ε "low", "high" and "claim"."""


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """Each point is one call of the accountant."""
    batches = context.pick("batches an epoch", tiny=(10,), quick=(10, 100, 1000), paper=(10, 100, 1000))
    sigmas = np.geomspace(0.3, 5.0, context.pick(tiny=3, quick=13, paper=33))
    jobs = {f"{b}-{i}": functools.partial(point, float(s), b) for b in batches for i, s in enumerate(sigmas)}
    pieces: dict[str, Point] = {}
    for name, piece in context.pieces.each(jobs, context.executor):
        pieces[name] = piece
        context.progress("ε", len(pieces), len(jobs))
    curves = {b: [pieces[f"{b}-{i}"] for i in range(len(sigmas))] for b in batches}
    return experiment.result(
        context,
        findings(curves),
        settings={"delta": DELTA, "epochs": 1, "batches": batches, "noise_multipliers": sigmas.tolist()},
        provenance=_SOURCE,
    )


def point(sigma: float, batches: int) -> Point:
    """The bracket at one σ, and the claim."""
    spent = accounting.epsilon(mechanisms.Shuffled(sigma, batches, 1), delta=DELTA)
    assert spent.interval is not None
    assert spent.poisson_claim is not None
    low, high = (float(end) for end in spent.interval)
    return {"sigma": sigma, "low": low, "high": high, "claim": spent.poisson_claim}


def findings(curves: dict[int, list[Point]]) -> Findings:
    """What the points say, each sentence decided by them."""
    panels, stated, sentences = [], [], []
    for b, points in curves.items():
        x = np.array([p["sigma"] for p in points])
        low, high, claim = (np.array([p[name] for p in points]) for name in ("low", "high", "claim"))
        panels.append(
            Panel(
                title=f"{b} batches, one epoch",
                x_label="noise multiplier σ",
                y_label="ε at δ = 1e-5",
                log_y=True,
                y_range=None,
                series=(
                    Series(name="upper, any order", role="bound", x=x, y=high),
                    Series(name="lower, fresh permutation", role="orthogonal", x=x, y=low),
                    Series(name="claimed as if sampled by Poisson", role="rdp", x=x, y=claim),
                ),
            )
        )
        below, above = claim < low, claim > high
        sentences.append(f"With {b} batches {_sentence(x, below, above)}.")
        if below.any():
            worst = int(np.argmax(np.where(below, low / claim, 0.0)))
            what = f"{b} batches, σ = {x[worst]:.3g}: least ε of shuffled batches"
            text = f"{claim[worst]:.4g} as if sampled by Poisson"
            stated.append(Stated(what=what, paper=text, ours=float(low[worst]), kind="lower"))
    count = sum(any(p["claim"] < p["low"] for p in points) for points in curves.values())
    return Findings(
        conclusion=" ".join(sentences),
        checks=[
            Check(
                says="for some σ shuffled batches are proved above what Poisson accounting claims",
                holds=count,
                cases=len(curves),
            ),
        ],
        stated=stated,
        panels=panels,
        notes=(
            "zero-out adjacency",
            "the lower end assumes that the epoch has a fresh permutation; the upper end holds for any order",
        ),
    )


def _sentence(x: np.ndarray, below: np.ndarray, above: np.ndarray) -> str:
    """Where the claim is too small, where it is larger than the upper end, and where neither is known."""
    parts = []
    if below.any():
        parts.append(f"the claim is too small {_at(x, below)}")
    if above.any():
        parts.append(f"{'it' if parts else 'the claim'} is above the upper end {_at(x, above)}")
    if not parts:
        return "the claim lies inside the bracket at every σ"
    inside = ~(below | above)
    return ", ".join(parts) + (f", and inside the bracket {_at(x, inside)}" if inside.any() else "")


def _at(x: np.ndarray, where: np.ndarray) -> str:
    """The σ of a run of points, or how many there are."""
    index = np.flatnonzero(where)
    if len(index) == 1:
        return f"at σ = {x[index[0]]:.2g}"
    if index[-1] - index[0] + 1 == len(index):
        return f"from σ = {x[index[0]]:.2g} to {x[index[-1]]:.2g}"
    return f"at {len(index)} of {len(x)} values of σ"
