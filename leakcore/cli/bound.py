"""`leakcore bound`: what no reconstruction attack beats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from leakcore.cli.exit_codes import checked
from leakcore.cli.numbers import REAL, count
from leakcore.cli.options import SEED, as_json, prior_options
from leakcore.cli.output import finish
from leakcore.cli.scheme_options import training_options

if TYPE_CHECKING:
    from leakcore.bounds import ReconstructionBound
    from leakcore.mechanisms import Mechanism

_MOST_DRAWS = 10**11


@click.command()
@click.option(
    "--noise-multiplier", type=REAL, required=True, metavar="σ", help="Noise standard deviation over the clipping norm."
)
@training_options
@prior_options
@click.option(
    "--method",
    default="auto",
    show_default=True,
    help="auto, closed-form, exact, pld, certified, importance, monte-carlo or dkw-bennett.",
)
@click.option(
    "--num-samples",
    type=count(1, 10**10),
    default=1_000_000,
    show_default=True,
    help="Samples of certified, importance, monte-carlo and dkw-bennett.",
)
@click.option(
    "--confidence",
    type=REAL,
    default=0.999,
    show_default=True,
    help="Confidence of the interval of certified, importance and dkw-bennett.",
)
@SEED
@as_json("the whole result")
def bound(mechanism: Mechanism, as_json: bool, **how: Any) -> None:
    """Bound the success of any reconstruction attack on a DP-SGD run.

    \b
    leakcore bound --noise-multiplier 1 --sample-rate 1 --steps 1 --num-candidates 10
    leakcore bound --noise-multiplier 1 --sampling shuffled --batches 100 --epochs 5 --kappa 0.1
    """
    from leakcore import bounds

    steps = getattr(mechanism, "steps", 0)
    if how["method"] in bounds.methods.taking("executor") and how["num_samples"] * steps > _MOST_DRAWS:
        raise click.UsageError(
            f"`--num-samples` times `--steps` must be at most {_MOST_DRAWS:,}, which takes an hour, got "
            f"{how['num_samples']} times {steps}"
        )
    result = checked(lambda: bounds.reconstruction(mechanism, **how))
    finish(result, as_json, lambda: _lines(mechanism, result))


def _lines(mechanism: Mechanism, result: ReconstructionBound) -> Iterator[str]:
    from leakcore.audit import fixed, guarantee, number, poisson_claim, understated

    value, log_value = float(result.value), float(result.log_value)
    success = (
        fixed(result, 4)
        if value >= 1e-3
        else number(result)
        if value > 0
        else f"exp({number(log_value, 6, result.kind)})"
    )
    yield f"reconstruction success  {success}"
    yield f"kind        {guarantee(result)}"
    yield f"mechanism   {mechanism!r}"
    yield f"method      {result.method}"
    if result.interval is not None:
        low, high = (float(v) for v in result.interval)
        yield f"interval    {number(low, 10, 'lower')} to {number(high, 10, 'upper')}"
    if result.standard_error is not None:
        yield f"std. error  {float(result.standard_error):.3g}"
    yield f"attacker    {result.assumptions.attacker}"
    yield from (f"note        {note}" for note in result.assumptions.notes)
    if result.poisson_claim is not None:
        yield f"if Poisson  {poisson_claim(result)}"
    yield from (f"WARNING     {warning}" for warning in (*result.warnings, *understated(result)))
    yield f"source      {result.provenance}"
