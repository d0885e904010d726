"""Figure 1: error of the model-based and of the gradient-based attack over ε."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
from scipy import special

from leakcore import attacks, bounds
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.reconstruction.setting import (
    both_image_sets,
    data,
    games,
    mechanism,
    notes,
    oblivious,
)
from leakcore.experiments.reconstruction.setting.model_based import NOTE, Errors, ModelBased
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Series, Stated, TextTable
from leakcore.experiments.verdict import Check

_GOOD_FROM = {"MNIST": "10² < ε < 10³", "CIFAR-10": "10³ < ε < 10⁴"}
_STEP = 0.1
"""Learning rate × C. The paper sweeps the rate for each ε; steps this short help both attacks (docs/papers)."""
_KEPT = 0.05
"""Relative difference up to which the noise of final parameters is that of the sum of all released gradients."""

_KNOWLEDGE = (
    "the gradient-based attack knows the label and no image; the model-based one knows other images and not the label"
)
_TARGETS = "95% intervals over targets by Student's t"


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """Mean squared error per pixel, compared with the nearest neighbour and with guesses."""
    epsilons = both_image_sets.epsilons(context)
    few = context.pick("values of ε of the model-based attack", tiny=epsilons, quick=epsilons[::2], paper=epsilons)
    targets = context.pick("targets of the gradient attack", tiny=2, quick=8, paper=1000)
    read = context.pick("targets of the model-based attack", tiny=4, quick=64, paper=1000)
    shadows = context.pick("shadow models", tiny=32, quick=2048, paper=40_000)
    curves = []
    for name, split, hidden, clip in both_image_sets.settings(context):
        attacked = both_image_sets.attacked(context, split, hidden, clip, epsilons, targets, _STEP)
        model = ModelBased(
            context, name, split, both_image_sets.setting(few[0], hidden, clip, _STEP),
            oblivious.drawn_targets(context, split, read), shadows,
        )  # fmt: skip
        curves.append(
            _Curves(
                name, split, epsilons, [f.error(split) for f in attacked], few, [model.errors(e) for e in few],
                model.errors(None), model.blind, len(model.chosen),
                float(attacks.nearest_neighbour_mse(split.images[:2000]).mean()),
                [_naming(context, e, len(split.images)) for e in epsilons],
            )
        )  # fmt: skip
    findings = Findings(
        checks=[
            Check(
                says="at the largest ε the gradient-based attack's error is below 0.8 times that of the paper's "
                "model-based attack, the perceptron",
                holds=sum(c.last_gradient < 0.8 * c.last_published for c in curves),
                cases=len(curves),
            ),
            Check(
                says="it is below a tenth",
                holds=sum(c.last_gradient * 10 <= c.last_published for c in curves),
                cases=len(curves),
                about="size",
            ),
            Check(
                says="some ε tried gives a reconstruction nearer than the nearest neighbour",
                holds=sum(bool(c.good) for c in curves),
                cases=len(curves),
                about="size",
            ),
        ],
        conclusion=" ".join(
            [*(c.sentence for c in curves), "The lower bound of Guo et al. holds for unbiased attacks only."]
        ),
        stated=[row for c in curves for row in c.stated()],
        panels=[c.panel(context) for c in curves],
        tables=[c.table() for c in curves],
        notes=(
            oblivious.NOTE,
            oblivious.FEATURES,
            NOTE,
            f"the text trains 40,000 shadow models; here {_counted(curves)}, each of another image",
            _KNOWLEDGE,
            f"{targets} targets for the gradient-based attack, {read} with these for the model-based one; {_TARGETS}",
        ),
    )
    return notes.report(
        experiment,
        context,
        findings,
        splits=[c.split for c in curves],
        setting=both_image_sets.setting(epsilons[-1], hidden, clip, _STEP),
        runs=targets,
        shadow_models={c.name: c.shadows for c in curves},
        optimiser=oblivious.settings(context),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Curves:
    """One data set: errors of both attacks, and what they are compared with."""

    name: str
    split: data.Split
    epsilons: tuple[float, ...]
    gradient: list[np.ndarray]
    few: tuple[float, ...]
    model: list[Errors]
    noiseless: Errors
    blind: float
    shadows: int
    near: float
    naming: list[float]

    @property
    def last_gradient(self) -> float:
        return float(self.gradient[-1].mean())

    @property
    def last_published(self) -> float:
        """Of the model-based attack as the paper has it."""
        return float(self.model[-1].plain.mean())

    @property
    def best(self) -> list[tuple[float, float]]:
        """The least error by ε."""
        every = [*zip(self.epsilons, self.gradient, strict=True)]
        for e, errors in zip(self.few, self.model, strict=True):
            every += [(e, errors.mixed), (e, errors.plain)]
        return [(e, min(float(errors.mean()) for at, errors in every if at == e)) for e in self.epsilons]

    @property
    def good(self) -> list[float]:
        """Where the best attack is nearer than the nearest neighbour."""
        return [e for e, error in self.best if error < self.near]

    @property
    def sentence(self) -> str:
        mixed, plain = ([float(getattr(m, n).mean()) for m in self.model] for n in ("mixed", "plain"))
        gradient = {e: float(g.mean()) for e, g in zip(self.epsilons, self.gradient, strict=True)}
        ahead = [e for e, m, p in zip(self.few, mixed, plain, strict=True) if min(m, p) < gradient[e]]
        ratio = [m.noise_ratio for m in self.model]
        least = float(self.noiseless.mixed.mean())
        parts = [
            (f"On {self.name} the mean squared error at ε = {', '.join(f'{e:g}' for e in self.few)} is "
            f"{_list(gradient[e] for e in self.few)} for the gradient-based attack, {_list(mixed)} for the model-based "
            f"attack with mixed rows and {_list(plain)} for its perceptron; the mean of other images has "
            f"{self.blind:.4f}, the nearest neighbour {self.near:.4f}."),
            f"A near-perfect reconstruction begins at ε = {self.good[0]:g}." if self.good else
            "No reconstruction is near-perfect.",
            f"The model-based attack is ahead of the gradient-based one at {len(ahead)} of {len(self.few)} ε.",
        ]  # fmt: skip
        if max(abs(r - 1) for r in ratio) <= _KEPT:
            parts.append(
                "With these short steps the final parameters hold the sum of all released gradients: their noise is "
                f"{min(ratio):.3f} to {max(ratio):.3f} times that of the sum."
            )
        if least > 0.5 * mixed[-1]:
            parts.append(
                f"Without any noise the model-based attack still errs by {least:.4f}: at ε = {self.few[-1]:g} what "
                f"limits it is less the noise than {self.shadows:,} shadow models"
                + (" and the features." if self.split.embed is not None else ".")
            )
        limited = [(e, b) for e, b in zip(self.epsilons, self.naming, strict=True) if b < 0.5]
        if limited:
            parts.append(
                f"At ε = {limited[-1][0]:g} the bound lets no attack name the target among the "
                f"{len(self.split.images):,} images with a probability above {limited[-1][1]:.3f}, so few targets can "
                "be told from the other images."
            )
        return " ".join(parts)

    def stated(self) -> list[Stated]:
        rows = [
            _measured(f"{self.name}, ε = {e:g}: error, gradient-based", errors)
            for e, errors in zip(self.epsilons, self.gradient, strict=True)
        ]
        for e, errors in zip(self.few, self.model, strict=True):
            rows.append(_measured(f"{self.name}, ε = {e:g}: error, model-based, mixed rows", errors.mixed))
            rows.append(_measured(f"{self.name}, ε = {e:g}: error, model-based, perceptron", errors.plain))
        rows.append(
            Stated(what=f"{self.name}: least ε tried with a near-perfect reconstruction", paper=_GOOD_FROM[self.name],
                   ours=min(self.good) if self.good else None, comment="" if self.good else "none of those tried")
        )  # fmt: skip
        return rows

    def panel(self, context: Context) -> Panel:
        x, few = np.array(self.epsilons), np.array(self.few)
        grid = np.geomspace(min(self.epsilons), max(self.epsilons), context.pick(tiny=2, quick=30, paper=60))
        least = [_unbiased(context, float(e), self.split.images.shape[1]) for e in grid]

        def level(name: str, role: str, value: float) -> Series:
            return Series(name=name, role=role, x=x, y=np.full(len(x), value))

        return Panel(
            title=self.name, x_label=games.EPSILON, y_label="mean squared error per pixel", log_x=True, log_y=True,
            y_range=(1e-4, 2.0),
            series=(
                level("nearest neighbour: near-perfect below", "orthogonal", self.near),
                level("mean of other images", "baseline", self.blind),
                level("random guess: poor above", "chance", attacks.UNIFORM_MSE),
                Series(name="lower bound, Guo et al. 2022a", role="bound", x=grid, y=np.array(least)),
                _series("model-based attack, perceptron", "attack-3", few, [m.plain for m in self.model]),
                _series("model-based attack, mixed rows", "attack-2", few, [m.mixed for m in self.model]),
                _series("gradient-based attack", "attack", x, self.gradient),
            ),
        )  # fmt: skip

    def table(self) -> TextTable:
        by_epsilon = dict(zip(self.few, self.model, strict=True))
        rows = []
        for e, errors, bound in zip(self.epsilons, self.gradient, self.naming, strict=True):
            model = by_epsilon.get(e)
            rows.append(
                (
                    f"{e:g}", _interval_text(errors), _interval_text(model.mixed) if model else "–",
                    _interval_text(model.plain) if model else "–", f"{bound:.3f}",
                )
            )  # fmt: skip
        none = self.noiseless
        rows.append(("no noise", "–", _interval_text(none.mixed), _interval_text(none.plain), "1"))
        return TextTable(
            title=f"{self.name}: mean squared error per pixel with 95% intervals. The nearest neighbour has "
            f"{self.near:.4f}, the mean of other images {self.blind:.4f}",
            head=(
                "ε", "gradient-based", "model-based, mixed rows", "model-based, perceptron",
                f"bound on naming the target among {len(self.split.images):,} images",
            ),
            rows=tuple(rows),
        )  # fmt: skip


def _counted(curves: list[_Curves]) -> str:
    return " and ".join(f"{c.shadows:,} ({c.name})" for c in curves)


def _interval(errors: np.ndarray) -> tuple[float, float]:
    """95% by Student's t over targets, at least 0."""
    mean, n = float(errors.mean()), len(errors)
    half = float(special.stdtrit(n - 1, 0.975)) * float(errors.std(ddof=1)) / n**0.5
    return max(0.0, mean - half), mean + half


def _interval_text(errors: np.ndarray) -> str:
    low, high = _interval(errors)
    return f"{errors.mean():.4f} [{low:.4f}, {high:.4f}]"


def _measured(what: str, errors: np.ndarray) -> Stated:
    return Stated(
        what=what, paper="shown only", ours=float(errors.mean()), interval=_interval(errors), kind="estimate",
        confidence=0.95, comment=f"{len(errors)} targets",
    )  # fmt: skip


def _series(name: str, role: str, x: np.ndarray, errors: list[np.ndarray]) -> Series:
    low, high = np.array([_interval(e) for e in errors]).T
    return Series(name=name, role=role, x=x, y=np.array([e.mean() for e in errors]), low=low, high=high)


def _list(values: Iterable[float]) -> str:
    return ", ".join(f"{v:.4f}" for v in values)


def _naming(context: Context, epsilon: float, images: int) -> float:
    """The bound on naming the target among so many equally likely images."""
    return mechanism.upper(mechanism.noise_for(context, epsilon, 1.0, 100), 1.0, 100, images)


def _unbiased(context: Context, epsilon: float, pixels: int) -> float:
    noise = mechanism.noise_for(context, epsilon, 1.0, 100)
    lower = bounds.mse_lower_bound(noise, 1.0, 100, diameters=np.ones(pixels), adjacency="add-remove")
    return float(lower.value)
