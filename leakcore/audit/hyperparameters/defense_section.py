"""The defence section: the reconstruction attack against the claimed configuration, with a defence and without."""

from __future__ import annotations

import dataclasses
import functools
from concurrent.futures import Executor
from typing import Any

from leakcore import accounting, bounds, numerics
from leakcore._base.process_wide import one_thread
from leakcore._base.progress import Progress
from leakcore._base.results import Assumptions, Result, jsonable
from leakcore._base.run_folder import PartialResults
from leakcore.audit.hyperparameters import defense_rules, scheme
from leakcore.audit.hyperparameters.config import AuditConfig
from leakcore.audit.hyperparameters.reconstruction_section import ReconstructionPoint
from leakcore.audit.report.format import guarantee, interval, number, percent
from leakcore.audit.report.page import Finding, Part, Section
from leakcore.audit.report.tables import Cell, Column, Row, Table

MOST_RUNS = 128
"""Trainings on either side: each is played step by step, as the defence wants it."""
_PIECE = 32


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Side:
    """One row of the table.

    Attributes:
        attack: the same attacker on the same runs.
        accuracy: of the trained models.
        epsilon: that holds for this release.
        bound: that holds for this release.
    """

    attack: Result
    accuracy: float
    epsilon: Result
    bound: Result


def study(
    config: AuditConfig,
    points: list[ReconstructionPoint],
    pieces: PartialResults,
    progress: Progress,
    executor: Executor | None = None,
) -> tuple[Part, ...]:
    """Nothing without a defence; else one part."""
    defense = defense_rules.parsed(config.defense)
    if defense is None:
        return ()
    point = next(p for p in points if p.claimed)
    runs = min(config.runs, MOST_RUNS)
    counts = {first: min(_PIECE, runs - first) for first in range(0, runs, _PIECE)}
    sides = []
    for name in ("without", "with"):
        firsts = {f"defense-{name}-{first}": first for first in counts}
        jobs = {
            piece: functools.partial(_played, config, point.noise_multiplier, name == "with", first, counts[first])
            for piece, first in firsts.items()
        }
        results, done = {}, 0
        for piece, played in pieces.each(jobs, executor):
            results[firsts[piece]] = played
            done += counts[firsts[piece]]
            progress(f"attack {name} the defence", done, runs)
        hits, right = 0, 0.0
        # In the order of runs, not of finishing, because the accuracies are summed as floats.
        for first, count in counts.items():
            hits, right = hits + results[first]["hits"], right + results[first]["accuracy"] * count
        sides.append(_side(config, point, hits, runs, right / runs, name == "with"))
    return (_part(config, point, sides[0], sides[1], defense_rules.why_bounds_hold(defense)),)


def _played(config: AuditConfig, noise: float, defended: bool, first: int, count: int) -> dict[str, Any]:
    """Runs [first, first + count) as a piece, created from the configuration alone, wherever it is called."""
    import torch  # noqa: F401  # before the limit on its threads

    from leakcore.audit.hyperparameters import defense_game

    with one_thread():
        defence = defense_rules.parsed(config.defense) if defended else None
        return dataclasses.asdict(defense_game.play(config, noise, defence, first, count))


def _side(
    config: AuditConfig, point: ReconstructionPoint, hits: int, runs: int, accuracy: float, defended: bool
) -> Side:
    low, high = numerics.clopper_pearson(hits, runs, confidence=config.confidence)
    more = _released_noise(config, point) if defended else None
    attack = Result(
        quantity="success probability",
        value=hits / runs,
        kind="estimate",
        confidence=config.confidence,
        interval=(float(low), float(high)),
        method="least squares against the noiseless release of each candidate",
        assumptions=Assumptions(
            "add-remove",
            f"knows all rows but the target, {config.num_candidates} candidates for it"
            + (", the defence, and every defended release" if defended else ", and every release"),
            ("a better attack on the defended release may exist",) if defended else (),
        ),
        seed=config.seed,
        provenance="the game of Hayes et al. 2023, Section 3.4",
    )
    return Side(
        attack=attack,
        accuracy=accuracy,
        epsilon=point.epsilon
        if more is None
        else accounting.epsilon(more, 1.0, scheme.total_steps(config), delta=config.delta),
        bound=point.bound
        if more is None
        else bounds.reconstruction(more, 1.0, scheme.total_steps(config), kappa=1 / config.num_candidates),
    )


def _part(config: AuditConfig, point: ReconstructionPoint, plain: Side, under: Side, why: str) -> Part:
    spelling = str(config.defense)
    runs = min(config.runs, MOST_RUNS)
    tighter = float(under.bound.value) < float(plain.bound.value)
    rows = tuple(
        Row(
            (
                Cell(name),
                Cell(percent(side.attack), interval(side.attack)),
                Cell(percent(side.bound)),
                Cell(number(side.epsilon)),
                Cell(percent(side.accuracy)),
            ),
            name != "none",
        )
        for name, side in (("none", plain), (spelling, under))
    )
    table = Table(
        "The same attack with and without the defence",
        (
            Column("defence", "parameter"),
            Column("target named", "estimate"),
            Column("no attacker\nabove", "upper"),
            Column("ε of the run", "upper"),
            Column("accuracy of\nthe models", "estimate"),
        ),
        rows,
        f"The claimed noise σ = {number(point.noise_multiplier, 4)}; {runs} trainings on either side with the same "
        f"seeds, {100 * config.confidence:g}% intervals, add/remove adjacency. The attacker compares what was released "
        "with what the defence, without its noise, would have released for each candidate. Accuracy on rows held out.",
    )
    says = (
        f"with the noise it adds the release is DP-SGD at σ = {number(_more(config, point), 4)}, and both are smaller"
        if tighter
        else "it is credited with no more than that, however much it hampers this attack"
    )
    finding = Finding(
        f"Under {_title(spelling)}: the attack named the target in {percent(under.attack)} of "
        f"{runs} trainings ({interval(under.attack)}; {guarantee(under.attack)}), without the defence in "
        f"{percent(plain.attack)} ({interval(plain.attack)}) of the same. The models' accuracy is "
        f"{percent(under.accuracy)}, without {percent(plain.accuracy)}. Bound and ε hold under it: {why}; {says}.",
        verdict="This is the measured effect on one attacker; the column “no attacker above” bounds every attacker.",
        assumes="the attacker knows the defence and its settings, not its random draws.",
    )
    return Part(
        key="defense",
        findings=(finding,),
        sections=(Section("Under a defence", (table,)),),
        assumptions=(
            (
                f"The defence ({config.defense}) is in the section “Under a defence” only: accountant, bounds, "
                "attacks, labels and layers elsewhere are of DP-SGD's own release. Its scales refer to the mean "
                "gradient that the optimizer steps by."
            ),
        ),
        content={
            "defense": config.defense,
            "runs": runs,
            "without": jsonable(plain),
            "with": jsonable(under),
            "bounds_hold_because": why,
        },
    )


def _title(spelt: str) -> str:
    # A subject ends at the first ": ": "prune:0.1" has none.
    return f"the defence {spelt}"


def _more(config: AuditConfig, point: ReconstructionPoint) -> float:
    return _released_noise(config, point) or point.noise_multiplier


def _released_noise(config: AuditConfig, point: ReconstructionPoint) -> float | None:
    """σ of what the defence releases, where its first part adds Gaussian noise."""
    defense = defense_rules.parsed(config.defense)
    return defense_rules.noise_multiplier(defense, point.noise_multiplier, config.num_rows, config.max_grad_norm)
