"""Published trainings under each scheme: ε, reconstruction at κ = 0.1, true-positive rate at 1% false positives."""

from __future__ import annotations

import decimal
import functools
import math

import numpy as np

from leakcore import accounting, bounds, mechanisms
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.mechanisms.published import TRAININGS, Training
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Series, Stated, TextTable
from leakcore.experiments.verdict import Check

KAPPA = 0.1
FPR = 0.01
LARGE = 0.25
"""Part of the rows in a batch from which full batches are names."""
POISSON, SHUFFLED, ALLOCATION = "Poisson", "shuffled", "random allocation"
SCHEMES = (POISSON, ALLOCATION, SHUFFLED, "full batches", "Poisson, replacement", "fixed size, replacement")
EPSILON, SUCCESS, TPR = "ε", f"success from κ = {KAPPA:g}", f"true positives at {FPR:.0%}"
QUANTITIES = (EPSILON, SUCCESS, TPR)
Cells = dict[str, dict[str, tuple[float, float]]]
"""Scheme: quantity: (low, high)."""


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """Each training is one piece."""
    chosen = context.pick(tiny=TRAININGS[-2:], quick=TRAININGS, paper=TRAININGS)
    jobs = {str(TRAININGS.index(training)): functools.partial(cells, training) for training in chosen}
    pieces: dict[str, Cells] = {}
    for name, piece in context.pieces.each(jobs, context.executor):
        pieces[name] = piece
        context.progress("trainings", len(pieces), len(jobs))
    return experiment.result(
        context,
        findings([(TRAININGS[int(name)], pieces[name]) for name in jobs]),
        settings={"kappa": KAPPA, "fpr": FPR, "trainings": [training.name for training in chosen]},
        provenance="; ".join(f"{training.name}: {training.source}" for training in chosen),
    )


def schemes(training: Training) -> dict[str, tuple[mechanisms.Mechanism, str]]:
    """The mechanism of each scheme, with the relation that its ε is stated under."""
    sigma, b, epochs = training.noise_multiplier, training.batches, training.epochs
    poisson = mechanisms.Poisson(sigma, training.sample_rate, training.steps)
    fixed = mechanisms.FixedSize(sigma, training.batch_size, training.dataset_size, training.steps)
    every: dict[str, tuple[mechanisms.Mechanism, str]] = {
        POISSON: (poisson, "zero-out"),
        ALLOCATION: (mechanisms.RandomAllocation(sigma, b, epochs), "zero-out"),
        SHUFFLED: (mechanisms.Shuffled(sigma, b, epochs), "zero-out"),
        "full batches": (mechanisms.FullBatch(sigma, training.steps), "zero-out"),
        "Poisson, replacement": (poisson, "replace"),
        "fixed size, replacement": (fixed, "replace"),
    }
    if training.sample_rate < LARGE:
        del every["full batches"]
    return every


def cells(training: Training) -> Cells:
    """Every number of one training."""
    out: Cells = {}
    for name, (mechanism, relation) in schemes(training).items():
        out[name] = {EPSILON: _ends(accounting.epsilon(mechanism, delta=training.delta, adjacency=relation))}
        if relation == "zero-out" or relation == mechanism.adjacency:  # of add/remove and zero-out the pair is the same
            out[name][SUCCESS] = _ends(bounds.reconstruction(mechanism, kappa=KAPPA))
            out[name][TPR] = _ends(bounds.membership(mechanism, fpr=FPR))
    return out


def _ends(result: accounting.Epsilon | bounds.ReconstructionBound | bounds.MembershipBound) -> tuple[float, float]:
    ends = (result.value, result.value) if result.interval is None else result.interval
    return float(ends[0]), float(ends[1])


def findings(rows: list[tuple[Training, Cells]]) -> Findings:
    """What the numbers say, each sentence decided by them."""
    holds = [t for t, c in rows if t.epsilon >= c[POISSON][EPSILON][0]]
    return Findings(
        conclusion=" ".join((_of_poisson(rows, len(holds)), *_of_shuffling(rows), _of_allocation(rows))),
        checks=[
            Check(says="the published ε holds for batches by Poisson sampling", holds=len(holds), cases=len(rows)),
        ],
        stated=[stated for training, numbers in rows for stated in _stated(training, numbers)],
        panels=[_panel(rows)],
        tables=[_published(rows), *(_table(quantity, rows) for quantity in QUANTITIES)],
        notes=(
            "shuffled batches and random allocation: ⌊n/B⌋ batches, and the whole epochs in the published steps",
            "zero-out adjacency, except in the columns that say replacement: do not compare those with the others",
            "the lower end of shuffled batches is for fresh permutations, and an attacker who sees every step",
        ),
    )


def _panel(rows: list[tuple[Training, Cells]]) -> Panel:
    x = np.array([training.epsilon for training, _ in rows])
    ends = {name: np.array([numbers[name][EPSILON] for _, numbers in rows]) for name in (POISSON, ALLOCATION, SHUFFLED)}
    low, high = ends[SHUFFLED].T
    line = np.linspace(x.min(), x.max(), 50)
    return Panel(
        title="ε of eight trainings" if len(rows) == len(TRAININGS) else "ε",
        x_label="published ε",
        y_label="ε, zero-out adjacency",
        log_y=True,
        y_range=None,
        series=(
            Series(name=POISSON, role="attack-2", x=x, y=ends[POISSON][:, 1]),
            Series(name=ALLOCATION, role="attack-3", x=x, y=ends[ALLOCATION][:, 1]),
            Series(name="shuffled, from the lower to the upper end", role="attack", x=x, y=low, low=low, high=high),
            Series(name="as published", role="chance", x=line, y=line),
        ),
    )


def _of_poisson(rows: list[tuple[Training, Cells]], holds: int) -> str:
    return f"Under Poisson sampling the published ε holds in {holds} of {len(rows)} trainings."


def _of_shuffling(rows: list[tuple[Training, Cells]]) -> list[str]:
    beyond = [(t, c[SHUFFLED][EPSILON]) for t, c in rows if c[SHUFFLED][EPSILON][0] > t.epsilon]
    upper = sum(c[SHUFFLED][EPSILON][1] <= t.epsilon for t, c in rows)
    if not beyond:
        sentence = f"Shuffled batches are not proved to exceed the published ε in any of {len(rows)}"
        return [sentence + (f", and are proved to keep it in {upper}." if upper else ".")]
    listed = "; ".join(f"{t.name}, at least {_down(low)} instead of {t.epsilon:g}" for t, (low, _) in beyond)
    sentence = f"Shuffled batches have an ε above the published one in {len(beyond)} of {len(rows)}: {listed}."
    shuffling = [t for t, _ in rows if t.is_shuffled]
    documented = sum(t.is_shuffled for t, _ in beyond)
    says = f"{documented} of the {len(shuffling)} trainings whose source says that it shuffles are among them."
    return [sentence, says] if shuffling else [sentence]


def _of_allocation(rows: list[tuple[Training, Cells]]) -> str:
    ratios = [c[ALLOCATION][EPSILON][1] / c[POISSON][EPSILON][1] for _, c in rows]
    return f"Random allocation has {min(ratios):.2f} to {max(ratios):.2f} times the ε of Poisson sampling."


def _stated(training: Training, numbers: Cells) -> list[Stated]:
    poisson, shuffled = numbers[POISSON][EPSILON], numbers[SHUFFLED][EPSILON]
    text = f"{training.epsilon:g}"
    return [
        Stated(what=f"{training.name}: ε of Poisson sampling", paper=text, ours=poisson[1], kind="upper"),
        Stated(what=f"{training.name}: least ε of shuffled batches", paper=text, ours=shuffled[0], kind="lower"),
    ]


def _published(rows: list[tuple[Training, Cells]]) -> TextTable:
    head = ("training", "σ", "n", "B", "steps", "δ", "published ε", "how batches are drawn", "source")
    return TextTable(
        title="What is published",
        head=head,
        rows=tuple(
            (
                t.name,
                f"{t.noise_multiplier:g}",
                f"{t.dataset_size:,}",
                f"{t.batch_size:,}",
                f"{t.steps:,}",
                f"{t.delta:g}",
                f"{t.epsilon:g}",
                t.loader or "not said",
                t.source,
            )
            for t, _ in rows
        ),
    )


def _table(quantity: str, rows: list[tuple[Training, Cells]]) -> TextTable:
    names = [name for name in SCHEMES if any(quantity in numbers.get(name, {}) for _, numbers in rows)]
    published = ("published ε",) if quantity == EPSILON else ()
    return TextTable(
        title=f"Under each scheme: {quantity}",
        head=("training", *published, *names),
        rows=tuple(
            (
                training.name,
                *((f"{training.epsilon:g}",) if published else ()),
                *(_cell(numbers.get(name, {}).get(quantity)) for name in names),
            )
            for training, numbers in rows
        ),
    )


def _cell(ends: tuple[float, float] | None) -> str:
    """An upper bound, rounded up; a bracket, rounded outward, where its ends differ by more than a thousandth."""
    if ends is None:
        return "–"
    low, high = ends
    return _up(high) if low >= (1.0 - 1e-3) * high else f"{_down(low)} to {_up(high)}"


def _up(value: float) -> str:
    return _rounded(value, decimal.ROUND_CEILING)


def _down(value: float) -> str:
    return _rounded(value, decimal.ROUND_FLOOR)


def _rounded(value: float, how: str) -> str:
    """Three digits."""
    if math.isinf(value):
        return "∞"
    return f"{decimal.Context(3, how).create_decimal(repr(value)):f}"
