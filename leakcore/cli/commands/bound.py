"""`leakcore bound`: what no reconstruction attack beats."""

from __future__ import annotations

import click

from leakcore.cli.exit_codes import checked
from leakcore.cli.numbers import MOST_STEPS, REAL, count
from leakcore.cli.options import one_kappa

_MOST_DRAWS = 10**11


@click.command()
@click.option(
    "--noise-multiplier",
    type=REAL,
    required=True,
    metavar="σ",
    help="Noise standard deviation over the clipping norm.",
)
@click.option("--sample-rate", type=REAL, required=True, metavar="q", help="Poisson sampling rate; 1 for full batches.")
@click.option("--steps", type=count(0, MOST_STEPS), required=True, metavar="T", help="Number of DP-SGD steps.")
@click.option("--num-candidates", type=int, metavar="N", help="Uniform prior over N candidates: κ = 1/N.")
@click.option("--kappa", type=REAL, help="Prior success probability κ of the attacker, in (0, 1].")
@click.option("--log-kappa", type=REAL, help="Natural logarithm of κ, for priors too small for a float.")
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
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
def bound(
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    num_candidates: int | None,
    kappa: float | None,
    log_kappa: float | None,
    method: str,
    num_samples: int,
    confidence: float,
    seed: int,
    as_json: bool,
) -> None:
    """Bound the success of any reconstruction attack on a DP-SGD run.

    Example: leakcore bound --noise-multiplier 1 --sample-rate 1 --steps 1 --num-candidates 10
    """
    from leakcore import bounds
    from leakcore.audit import fixed, guarantee, number

    kappa, log_kappa = one_kappa(num_candidates, kappa, log_kappa)
    if method in bounds.methods.taking("executor") and num_samples * steps > _MOST_DRAWS:
        raise click.UsageError(
            f"--num-samples={num_samples}: times --steps={steps} must be at most {_MOST_DRAWS:,}, which takes an hour"
        )
    result = checked(
        lambda: bounds.reconstruction(
            noise_multiplier,
            sample_rate,
            steps,
            kappa=kappa,
            log_kappa=log_kappa,
            method=method,
            num_samples=num_samples,
            confidence=confidence,
            seed=seed,
        )
    )
    if as_json:
        click.echo(result.to_json(indent=2))
        return
    value, log_value = float(result.value), float(result.log_value)
    shown = (
        fixed(result, 4)
        if value >= 1e-3
        else number(result)
        if value > 0
        else f"exp({number(log_value, 6, result.kind)})"
    )
    click.echo(f"reconstruction success  {shown}")
    click.echo(f"kind        {guarantee(result)}")
    click.echo(f"method      {result.method}")
    if result.interval is not None:
        low, high = (float(v) for v in result.interval)
        click.echo(f"interval    {number(low, 10, 'lower')} to {number(high, 10, 'upper')}")
    if result.standard_error is not None:
        click.echo(f"std. error  {float(result.standard_error):.3g}")
    click.echo(f"attacker    {result.assumptions.attacker}")
    for note in result.assumptions.notes:
        click.echo(f"note        {note}")
    for warning in result.warnings:
        click.echo(f"WARNING     {warning}")
    click.echo(f"source      {result.provenance}")
