"""What every figure's result shares."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from scipy import special

from leakcore.attacks import ReconstructionGame
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.reconstruction.setting import mechanism
from leakcore.experiments.reconstruction.setting.data import Split
from leakcore.experiments.reconstruction.setting.games import GameSetting
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult
from leakcore.experiments.verdict import Check

_STEP = (
    "learning rate × C is fixed (settings, step) where the paper sweeps the learning rate per ε: shorter steps "
    "leave more gradients clipped and bring the attack nearer to the bound, longer ones teach more"
)
_AVERAGED = "success is averaged over random targets, priors and initial parameters, with 95% Clopper–Pearson intervals"


def report(
    experiment: Experiment,
    context: Context,
    findings: Findings,
    *,
    splits: list[Split],
    setting: GameSetting,
    runs: int | dict[int, int],
    attacked: Sequence[tuple[ReconstructionGame, float]] = (),
    learning_rate_note: str | None = None,
    **settings: Any,
) -> ExperimentResult:
    """The result with the shared notes and settings.

    attacked: every game and the bound on its success. That a bound is too low is tested, and said first: no attack's
    success may exceed it. learning_rate_note: None for that of a fixed step.
    """
    if learning_rate_note is None:
        learning_rate_note = f"{_STEP}; {_AVERAGED}" if attacked else _STEP
    if attacked:
        findings = _held_to_bounds(findings, attacked)
    return experiment.result(
        context,
        findings.with_notes(mechanism.CALIBRATED, learning_rate_note),
        data=(s.described for s in splits),
        settings={**dataclasses.asdict(setting), "runs": runs, "delta": mechanism.DELTA, **settings},
    )


def _held_to_bounds(findings: Findings, attacked: Sequence[tuple[ReconstructionGame, float]]) -> Findings:
    """What a binomial test of every game against its bound says: as a note, and first where a bound is too low."""
    least = min(float(special.bdtrc(g.hits - 1, g.trials, bound)) if g.hits else 1.0 for g, bound in attacked)
    if least * len(attacked) < 0.001:
        conclusion = f"An attack beats its bound (p = {least:.2g}): an error. {findings.conclusion}"
        beaten = dataclasses.replace(
            findings,
            conclusion=conclusion,
            checks=[*findings.checks, Check(says="no attack beats its bound", holds=0, cases=1)],
        )
        return beaten.with_notes("a bound lies below an attack")
    return findings.with_notes(
        f"no attack is significantly above its bound: of {len(attacked)} binomial tests the least p-value is "
        f"{least:.2g}"
    )
