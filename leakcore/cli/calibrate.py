"""`leakcore calibrate`: noise for a wanted limit on reconstruction."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from leakcore.cli.exit_codes import checked
from leakcore.cli.numbers import REAL
from leakcore.cli.options import as_json, prior_options
from leakcore.cli.output import finish
from leakcore.cli.scheme_options import training_options

if TYPE_CHECKING:
    from leakcore.bounds import CalibratedNoise
    from leakcore.mechanisms import Mechanism


@click.command()
@click.option("--target-success", type=REAL, required=True, metavar="γ", help="Success that no attack may exceed.")
@prior_options
@training_options
@click.option("--delta", type=REAL, default=1e-5, show_default=True, help="δ of the comparison with ε-calibration.")
@as_json("the whole result")
def calibrate(
    mechanism: Mechanism,
    target_success: float,
    kappa: float | None,
    log_kappa: float | None,
    delta: float,
    as_json: bool,
) -> None:
    """Find the least noise that keeps reconstruction success at or below γ.

    \b
    leakcore calibrate --target-success 0.5 --num-candidates 10 --sample-rate 1 --steps 100
    leakcore calibrate --target-success 0.5 --kappa 0.1 --sampling shuffled --batches 100 --epochs 5
    """
    from leakcore import bounds

    result = checked(
        lambda: bounds.calibrate_noise(mechanism, target_success, kappa=kappa, log_kappa=log_kappa, delta=delta)
    )
    finish(result, as_json, lambda: _lines(result, target_success))


def _lines(result: CalibratedNoise, target_success: float) -> Iterator[str]:
    from leakcore.audit import guarantee, number

    sure, limit = guarantee(result), number(target_success, 6, result.kind)
    yield f"noise multiplier  {number(result, 6)}  no attack succeeds with more than {limit} ({sure})"
    yield f"success bound     {number(result.success, 6, result.kind)}  at that noise ({sure})"
    yield f"by ε instead      {number(result.epsilon_noise_multiplier, 6, result.kind)}  {_by_epsilon(result)}"
    yield f"less noise by     {_less(result)}"
    # The noise has no interval that a note could be about.
    notes = (note for note in result.assumptions.notes[1:] if not note.startswith("interval"))
    yield from (f"note              {note}" for note in notes)
    yield f"attacker          {result.assumptions.attacker}"
    yield f"source            {result.provenance}"


def _by_epsilon(result: CalibratedNoise) -> str:
    from leakcore.audit import guarantee, number, power

    at = f"at δ = {power(result.delta)}"
    if result.epsilon < 0:
        return f"no ε {at} implies that limit, whatever the noise"
    if math.isinf(result.epsilon):
        return "any ε implies that limit"
    if math.isnan(result.epsilon_noise_multiplier):
        return f"beyond the accountant: the noise of ε = {number(result.epsilon, kind='lower')} {at}"
    largest = number(result.epsilon, kind="lower")  # a larger ε would not imply it
    return f"the noise of ε = {largest} {at}, which implies the same limit ({guarantee(result)})"


def _less(result: CalibratedNoise) -> str:
    if math.isnan(result.epsilon_noise_multiplier):
        return "no number: by ε it is not known"
    if math.isnan(result.savings):
        return "nothing: neither way needs any"
    if float(result.value) == 0:
        return "all of it: none is needed"
    if math.isinf(result.savings):
        return "no number: by ε no noise is enough"
    return f"{result.savings:.3g} times"
