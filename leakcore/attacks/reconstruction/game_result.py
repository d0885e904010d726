"""What a reconstruction game's attacker knows of the batches, and the game's result: counts that merge."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from leakcore._base import pictures
from leakcore._base.results import Adjacency, Assumptions, Result
from leakcore.attacks.reconstruction import prior_aware
from leakcore.numerics import clopper_pearson

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from leakcore.dpsgd import Ensemble


@dataclasses.dataclass(frozen=True)
class Scheme:
    """One way to draw batches: what the attacker knows of them and subtracts, in words, and the bound's adjacency.

    batches: whose batches the attacker knows, as in `dpsgd.Observer`. An attacker who knew more than the scheme's bound
    allows could lie above it although the mechanism is correct. per_epoch: the target is in one batch of each epoch,
    and the attacker does not know in which.
    """

    batches: Literal["common", "all", "none"]
    per_epoch: bool
    adjacency: Adjacency
    knows: str
    subtracts: str = "their clipped gradients"

    def attacker_text(self, subtract_known: bool) -> str:
        """What the attacker knows of the batches, and does with it."""
        return f"{self.knows}, {'subtracts' if subtract_known else 'does not subtract'} {self.subtracts}"


_OF_EACH = " and which of them were in each batch"
SCHEMES: Mapping[str, Scheme] = {
    "poisson": Scheme("common", False, "add-remove", _OF_EACH),
    "allocation": Scheme("common", True, "add-remove", _OF_EACH),
    "shuffled": Scheme("all", False, "zero-out", " and the order of every epoch, hence the batches of the target"),
    "fixed": Scheme(
        "none", False, "replace", ", but not which of them were in a batch", "the average of their clipped gradients"
    ),
}
"""By name. Rows that draw their batches by themselves say nothing of the target's. The size of a batch that is fixed
does: with shuffled batches the attacker may use it, for their bound holds for any known order; with a fresh batch in
each step the bound rests on batches that nobody knows."""


def scheme(ensemble: Ensemble) -> Scheme:
    """The scheme of an ensemble's batches; an unknown one raises ValueError."""
    name = ensemble.sampling.scheme
    if name not in SCHEMES:
        raise ValueError(f"`ensemble` must have batches that the attacker knows, {', '.join(SCHEMES)}, got {name!r}")
    return SCHEMES[name]


def resolve(ensemble: Ensemble, method: str, prior: Any, rows: int) -> str:
    """The method that "auto" stands for: the best where it is known, else Algorithm 2 or 3."""
    if method == "auto" and scheme(ensemble).per_epoch and ensemble.noise_multiplier > 0:
        return "likelihood"
    return prior_aware.resolve(method, _rate(ensemble, rows), prior)


def rule(ensemble: Ensemble, method: str, rows: int) -> prior_aware.Rule:
    """How candidates are scored in runs on this many training rows."""
    return prior_aware.rule(
        method,
        max_grad_norm=ensemble.max_grad_norm,
        sample_rate=_rate(ensemble, rows),
        steps=ensemble.steps,
        noise_multiplier=ensemble.noise_multiplier,
        batches=ensemble.sampling.period(rows) if scheme(ensemble).per_epoch else None,
    )


def _rate(ensemble: Ensemble, rows: int) -> float:
    """Probability of the target to be in a step that the attacker scores."""
    return 1.0 if scheme(ensemble).batches == "all" else ensemble.sampling.share(rows)


COUNTS = ("hits", "undecided", "clipped", "gradients", "cosine_units")
FIXED_POINT = 2**40
"""Cosines are summed as integers of this unit, so that partial results merge to the same bits in any order."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ReconstructionGame(Result):
    """Success rate of a prior-aware attack over independent runs, with its Clopper–Pearson interval.

    Attributes:
        value: hits/trials, an estimate of the success probability of *this* attack over everything the game draws
            (prior, target, initial parameters, batches, noise). It does not say what a better attack achieves.
        interval: contains that probability with probability `confidence`.
        hits: trials in which the guess was right.
        trials: number of runs.
        undecided: trials in which two candidates shared the best score. They count as misses, so guessing among them
            could add at most `undecided` hits.
        num_candidates: n.
        chance: the largest prior probability, 1/n where candidates are equally likely: what a guess without any
            observation achieves, the κ of the bound.
        clipped: how many of the candidates' gradients, over all runs, steps and candidates, had norm C after clipping.
            Unclipped gradients are weaker signals than the bound assumes.
        gradients: how many candidates' gradients there were.
        cosine_units: Σ over runs of round(2⁴⁰ · the run's mean cosine between a candidate's gradient and the nearest
            other candidate's). Near ones are hard to tell apart; the orthogonal curve assumes 0.
        run_ranges: [first, stop) of the runs counted, sorted, disjoint.
        settings: everything that defines the game; games merge only where it is equal.
    """

    schema: ClassVar[str] = "leakcore.reconstruction_game/3"
    compared_at: ClassVar[tuple[str, ...]] = ("kappa",)

    quantity: str = "success probability"
    hits: int
    trials: int
    undecided: int
    num_candidates: int
    chance: float
    clipped: int
    gradients: int
    cosine_units: int
    run_ranges: tuple[tuple[int, int], ...]
    settings: Mapping[str, Any]

    @property
    def clipped_share(self) -> float:
        """Share of the candidates' gradients that clipping shortened to C; NaN without steps."""
        return self.clipped / self.gradients if self.gradients else float("nan")

    @property
    def nearest_cosine(self) -> float:
        """Mean cosine between a candidate's gradient and the nearest other's; NaN without steps or measurement."""
        measured = self.gradients and self.settings["nearest_cosines"]
        return self.cosine_units / (FIXED_POINT * self.trials) if measured else float("nan")

    @property
    def kappa(self) -> float:
        """What a guess without the release achieves: the κ of the bound that this attack is compared with."""
        return self.chance

    def merge(self, other: ReconstructionGame) -> ReconstructionGame:
        """The game over both sets of runs: exactly what one call over their union returns.

        ValueError where the settings differ or a run would count twice.
        """
        if not isinstance(other, ReconstructionGame):
            raise TypeError(f"`other` must be a ReconstructionGame, got {type(other).__name__}")
        for key in sorted(self.settings.keys() | other.settings.keys()):
            ours, theirs = self.settings.get(key), other.settings.get(key)
            if ours != theirs:
                raise ValueError(f"`other` must be of an equal game, got {key}={theirs!r} there, {ours!r} here")
        return result(
            self.settings,
            _joined(self.run_ranges + other.run_ranges),
            {name: getattr(self, name) + getattr(other, name) for name in COUNTS},
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "run_ranges", _joined(self.run_ranges))
        trials = sum(high - low for low, high in self.run_ranges)
        if not (0 <= self.hits <= self.hits + self.undecided <= trials == self.trials):
            raise ValueError(
                f"`hits` and `undecided` must be at least 0 and add up to at most trials={self.trials}, which must be "
                f"the {trials} runs, got {self.hits} and {self.undecided}"
            )
        if self.value != self.hits / trials:
            raise ValueError(f"`value` must be hits/trials, {self.hits}/{trials}, got {self.value}")
        if not 0 <= self.clipped <= self.gradients:
            raise ValueError(f"`clipped` must be among the gradients ({self.gradients}), got {self.clipped}")

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the success rate with its interval, and blind guessing.

        Args:
            ax: where to draw; None: on a new figure of pyplot's.

        Returns:
            The axes.
        """
        axes = pictures.bars(ax, ["this attack"], [self.value], self.interval, label=self.quantity)
        axes.axvline(self.chance, linestyle=":", color="0.5", label="blind guess")
        axes.set_xlim(0.0, 1.0)
        axes.legend()
        return axes


def _joined(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Sorted and with neighbours united; ValueError where two overlap."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if not 0 <= low <= high:
            raise ValueError(f"`run_ranges` must hold ranges of runs, got ({low}, {high})")
        if out and low < out[-1][1]:
            raise ValueError(f"`other` must be of other runs, but run {low} is in both games and would count twice")
        if out and low == out[-1][1]:
            out[-1] = (out[-1][0], high)
        else:
            out.append((low, high))
    return tuple(out)


def result(
    settings: Mapping[str, Any], ranges: tuple[tuple[int, int], ...], counts: Mapping[str, Any]
) -> ReconstructionGame:
    """The game over these runs, from its `COUNTS`."""
    trials, hits = sum(high - low for low, high in ranges), counts["hits"]
    algorithm = {"sum": "Algorithm 2", "top": "Algorithm 3", "likelihood": "Appendix G"}[settings["method"]]
    scheme = SCHEMES[settings["sampling"]]
    if settings["method"] == "likelihood" and scheme.per_epoch:
        algorithm += " for one batch of each epoch"
    likely = "equally likely candidates" if settings["prior"] is None else "candidates and how likely each is"
    return ReconstructionGame(
        value=hits / trials,
        kind="estimate",
        confidence=settings["confidence"],
        interval=clopper_pearson(hits, trials, confidence=settings["confidence"]),
        method=f"prior-aware attack, {algorithm}, {trials} independent runs; Clopper–Pearson interval",
        assumptions=Assumptions(
            adjacency=scheme.adjacency,
            attacker=f"sees every released gradient, knows the {settings['known_rows']} other training rows"
            f"{scheme.attacker_text(settings['subtract_known'])}, knows {settings['num_candidates']} {likely}",
            notes=(
                "the success rate of this attack, averaged over priors, targets and training: others may do better",
            ),
        ),
        seed=settings["seed"],
        provenance=f"Hayes et al. 2023, Section 3.4, {algorithm}",
        trials=trials,
        num_candidates=settings["num_candidates"],
        chance=1 / settings["num_candidates"] if settings["prior"] is None else max(settings["prior"]),
        run_ranges=ranges,
        settings=settings,
        **counts,
    )
