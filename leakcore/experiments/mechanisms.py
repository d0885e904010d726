"""Published trainings under each scheme of drawing batches, and shuffled batches against their Poisson accounting."""

from __future__ import annotations

import dataclasses
import decimal
import functools
import json
import math
from pathlib import Path

import numpy as np

from leakcore import accounting, bounds, mechanisms
from leakcore.experiments.driver.context import Context
from leakcore.experiments.driver.result import ExperimentResult, Panel, Series, Stated, TextTable
from leakcore.experiments.driver.verdict import Check


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """What a source says of a training.

    epsilon: published, at `delta`. steps: of the source, or ⌊n/B⌋ for each of its epochs where it counts epochs.
    loader: how the source says that batches are drawn; "" where it does not say. is_shuffled: whether that is a
    partition of the rows.
    """

    name: str
    source: str
    noise_multiplier: float
    dataset_size: int
    batch_size: int
    steps: int
    delta: float
    epsilon: float
    loader: str = ""
    is_shuffled: bool = False

    @property
    def sample_rate(self) -> float:
        """The rate by which Poisson accounting goes."""
        return self.batch_size / self.dataset_size

    @property
    def batches(self) -> int:
        """Whole batches in an epoch."""
        return self.dataset_size // self.batch_size

    @property
    def epochs(self) -> int:
        """Whole epochs in the steps, so that no scheme runs more steps than were published."""
        return self.steps // self.batches


_ROWS = json.loads(Path(__file__).with_name("trainings.json").read_text(encoding="utf-8"))
TRAININGS = tuple(Training(**row) for row in _ROWS)


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


def trainings(context: Context) -> ExperimentResult:
    """Each training is one piece."""
    chosen = context.pick(tiny=TRAININGS[-2:], quick=TRAININGS, paper=TRAININGS)
    jobs = {str(TRAININGS.index(training)): functools.partial(cells, training) for training in chosen}
    pieces = context.finish("trainings", jobs)
    return compared(context, [(TRAININGS[int(name)], pieces[name]) for name in jobs])


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


def compared(context: Context, rows: list[tuple[Training, Cells]]) -> ExperimentResult:
    """What the numbers say, each sentence decided by them."""
    holds = [t.epsilon >= c[POISSON][EPSILON][0] for t, c in rows]
    return context.result(
        conclusion=" ".join((*_of_shuffling(rows), _of_allocation(rows))),
        checks=[Check.of("the published ε holds for batches by Poisson sampling", holds)],
        stated=[stated for training, numbers in rows for stated in _stated(training, numbers)],
        panels=[_panel(rows)],
        tables=[_published(rows), *(_table(quantity, rows) for quantity in QUANTITIES)],
        notes=(
            "shuffled batches and random allocation: ⌊n/B⌋ batches, and the whole epochs in the published steps",
            "zero-out adjacency, except in the columns that say replacement: do not compare those with the others",
            "the lower end of shuffled batches is for fresh permutations, and an attacker who sees every step",
        ),
        settings={"kappa": KAPPA, "fpr": FPR, "trainings": [training.name for training, _ in rows]},
        provenance="; ".join(f"{training.name}: {training.source}" for training, _ in rows),
    )


def _panel(rows: list[tuple[Training, Cells]]) -> Panel:
    x = np.array([training.epsilon for training, _ in rows])
    ends = {name: np.array([numbers[name][EPSILON] for _, numbers in rows]) for name in (POISSON, ALLOCATION, SHUFFLED)}
    low, high = ends[SHUFFLED].T
    line = np.linspace(x.min(), x.max(), 50)
    return Panel.of(
        ("ε of eight trainings" if len(rows) == len(TRAININGS) else "ε", "published ε", "ε, zero-out adjacency"),
        Series.of(POISSON, "attack-2", x, ends[POISSON][:, 1]),
        Series.of(ALLOCATION, "attack-3", x, ends[ALLOCATION][:, 1]),
        Series.of("shuffled, from the lower to the upper end", "attack", x, low, low=low, high=high),
        Series.of("as published", "chance", line, line),
        log="y",
    )


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
        Stated(f"{training.name}: ε of Poisson sampling", text, poisson[1], kind="upper"),
        Stated(f"{training.name}: least ε of shuffled batches", text, shuffled[0], kind="lower"),
    ]


def _published(rows: list[tuple[Training, Cells]]) -> TextTable:
    head = ("training", "σ", "n", "B", "steps", "δ", "published ε", "how batches are drawn", "source")
    return TextTable(
        "What is published",
        head,
        tuple(
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
        f"Under each scheme: {quantity}",
        ("training", *published, *names),
        tuple(
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


DELTA = 1e-5
_SOURCE = "Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha and Zhang, How Private are DP-SGD Implementations?, ICML 2024"
Point = dict[str, float]
"""σ, and of ε "low", "high" and "claim"."""


def shuffling(context: Context) -> ExperimentResult:
    """Each point is one call of the accountant."""
    batches = context.pick("batches an epoch", tiny=(10,), quick=(10, 100, 1000), paper=(10, 100, 1000))
    sigmas = np.geomspace(0.3, 5.0, context.pick(tiny=3, quick=13, paper=33))
    jobs = {f"{b}-{i}": functools.partial(point, float(s), b) for b in batches for i, s in enumerate(sigmas)}
    pieces = context.finish("ε", jobs)
    curves = {b: [pieces[f"{b}-{i}"] for i in range(len(sigmas))] for b in batches}
    return claimed(context, curves)


def point(sigma: float, batches: int) -> Point:
    """The bracket at one σ, and the claim."""
    spent = accounting.epsilon(mechanisms.Shuffled(sigma, batches, 1), delta=DELTA)
    assert spent.interval is not None
    assert spent.poisson_claim is not None
    low, high = (float(end) for end in spent.interval)
    return {"sigma": sigma, "low": low, "high": high, "claim": spent.poisson_claim}


def claimed(context: Context, curves: dict[int, list[Point]]) -> ExperimentResult:
    """What the points say, each sentence decided by them. curves: points in the order of σ, by batches an epoch."""
    panels, stated, sentences = [], [], []
    for b, points in curves.items():
        x = np.array([p["sigma"] for p in points])
        low, high, claim = (np.array([p[name] for p in points]) for name in ("low", "high", "claim"))
        panels.append(
            Panel.of(
                (f"{b} batches, one epoch", "noise multiplier σ", "ε at δ = 1e-5"),
                Series.of("upper, any order", "bound", x, high),
                Series.of("lower, fresh permutation", "orthogonal", x, low),
                Series.of("claimed as if sampled by Poisson", "rdp", x, claim),
                log="y",
            )
        )
        below, above = claim < low, claim > high
        sentences.append(f"With {b} batches {_sentence(x, below, above)}.")
        if below.any():
            worst = int(np.argmax(np.where(below, low / claim, 0.0)))
            what = f"{b} batches, σ = {x[worst]:.3g}: least ε of shuffled batches"
            text = f"{claim[worst]:.4g} as if sampled by Poisson"
            stated.append(Stated(what, text, float(low[worst]), kind="lower"))
    count = sum(any(p["claim"] < p["low"] for p in points) for points in curves.values())
    return context.result(
        conclusion=" ".join(sentences),
        checks=[
            Check(
                says="for some σ shuffled batches are proved above what Poisson accounting claims",
                holds=count,
                cases=len(curves),
            )
        ],
        stated=stated,
        panels=panels,
        notes=(
            "zero-out adjacency",
            "the lower end assumes that the epoch has a fresh permutation; the upper end holds for any order",
        ),
        settings={
            "delta": DELTA,
            "epochs": 1,
            "batches": tuple(curves),
            "noise_multipliers": [p["sigma"] for p in next(iter(curves.values()))],
        },
        provenance=_SOURCE,
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
