"""The run that a trace is a part of: its steps and their settings, or why these are not known."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Result
from leakcore.audit.report.format import counted
from leakcore.dpsgd import Trace

_LARGEST = 10**9
"""Steps of the longest run: no training makes as many, and accountants take minutes for more."""
_WRITTEN_OUT = 10**7
"""Steps of different settings that are written out, one by one, for the bounds."""
R = TypeVar("R", bound=Result)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extent:
    """How much of a run was recorded. recorded: steps of the trace. steps: of the run up to the end of the recording,
    at least that many unless `exact`. said: by the caller. unknown: why ε and bounds of the whole run are not known;
    empty where they are.
    """

    recorded: int
    steps: int
    exact: bool
    said: bool
    unknown: str

    @property
    def partial(self) -> bool:
        """Whether the run has, or may have, steps that were not recorded."""
        return self.recorded < self.steps or bool(self.unknown)

    @property
    def words(self) -> str:
        """`20 steps`, `12 of 48 steps`, `12 of at least 48 steps`."""
        if not self.partial:
            return counted(self.steps, "step")
        return f"{self.recorded:,} of {'' if self.exact else 'at least '}{counted(self.steps, 'step')}"

    @property
    def alone(self) -> str:
        """`the 12 recorded steps`."""
        return f"the {counted(self.recorded, 'recorded step')}"

    @property
    def others(self) -> str:
        """Who says what the steps are that were not recorded."""
        how = "the caller says, at the recorded σ and q" if self.said else "the optimizer's accountant has them"
        return f"{self.recorded:,} were recorded, {self.steps - self.recorded:,} are as {how}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WholeRun:
    """Settings for the bounds, each one number where all steps have the same: the whole run's where they are known,
    else those of the recorded steps.
    """

    extent: Extent
    noise_multiplier: Any
    sample_rate: Any
    steps: int

    def of(self, result: R) -> R:
        """The result, which says so where it is of the recorded steps alone."""
        extent = self.extent
        if not extent.unknown:
            return result
        others = extent.steps - extent.recorded
        more = f"{'' if extent.exact else 'at least '}{others:,} more" if others else "perhaps more"
        note = f"of {extent.alone} alone, not of their run, which has {more}"
        assumed = result.assumptions
        return dataclasses.replace(result, assumptions=dataclasses.replace(assumed, notes=(*assumed.notes, note)))


def whole_run(trace: Trace, steps: int | None) -> WholeRun:
    """The run of a trace, whose q is known. steps: its number of steps as the caller says it, for a trace that does not
    know all of them: those not known are taken at the recorded σ and q.

    ValueError where the trace says otherwise, or σ is not one number that could be taken.
    """
    stretches, total = trace.unrecorded, trace.run_steps
    known = trace.complete and all(None not in s for s in stretches)
    if steps is not None:
        total = _agreed(trace, validate.integer(1, _LARGEST, steps=steps))
    if total > _LARGEST:
        raise ValueError(f"`trace` must be of a run of at most {_LARGEST:,} steps, for bounds, got {total:,}")
    sigma = trace.noise_multiplier
    runs = (
        [(float(s), trace.sample_rate, 1) for s in sigma]
        if (sigma != sigma[0]).any()
        else [(float(sigma[0]), trace.sample_rate, trace.steps)]
    )
    extent = Extent(
        recorded=trace.steps,
        steps=total,
        exact=trace.complete or steps is not None,
        said=steps is not None and not known,
        unknown="" if known or steps is not None else _why(trace),
    )
    if not extent.unknown:
        runs += [
            (
                float(sigma[0]) if s.noise_multiplier is None else s.noise_multiplier,
                trace.sample_rate if s.sample_rate is None else s.sample_rate,
                s.steps,
            )
            for s in stretches
        ]
        if more := total - trace.run_steps:
            runs.append((float(sigma[0]), trace.sample_rate, more))
    counts = [count for *_, count in runs]
    noise, rates = (_one_or_all([run[i] for run in runs], counts) for i in (0, 1))
    return WholeRun(extent=extent, noise_multiplier=noise, sample_rate=rates, steps=sum(counts))


def _agreed(trace: Trace, steps: int) -> int:
    if trace.complete and steps != trace.run_steps:
        raise ValueError(
            f"`steps` must be left out, for the trace knows that its run has {trace.run_steps:,}, got {steps}"
        )
    if steps < trace.run_steps:
        raise ValueError(f"`steps` must be at least {trace.run_steps:,}, as many as the trace's run has, got {steps}")
    sigma = trace.noise_multiplier
    taken = steps > trace.run_steps or any(s.noise_multiplier is None for s in trace.unrecorded)
    if taken and (sigma != sigma[0]).any():
        raise ValueError(
            f"`steps` must be left out where σ varies, got {steps}: the recorded steps have σ from {sigma.min():.4g} "
            f"to {sigma.max():.4g}, so that of the others cannot be taken from them; record the run from its first "
            "step, or with Opacus's accountant"
        )
    return steps


def _why(trace: Trace) -> str:
    if trace.complete:
        others = sum(s.steps for s in trace.unrecorded if None in s)
        return (
            f"σ and q of {counted(others, 'step')} that were not recorded are not known: no accountant of Opacus's has "
            "them (steps=, or --steps, says that they are the recorded ones)"
        )
    return (
        "what else was trained is not known: no accountant of Opacus's counted every step, or the file is of a version "
        "that did not say (steps=, or --steps, says how many steps the run has)"
    )


def _one_or_all(values: list[Any], counts: list[int]) -> Any:
    if all(value == values[0] for value in values):
        return values[0]
    if sum(counts) > _WRITTEN_OUT:
        raise ValueError(
            f"`trace` must be of a run of at most {_WRITTEN_OUT:,} steps of different settings, for bounds, got "
            f"{sum(counts):,}"
        )
    return np.repeat(np.array(values, dtype=np.float64), counts)
