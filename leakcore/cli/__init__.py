"""The `leakcore` command. Exit codes: 0 done, 1 a gate failed, 2 bad input or no place to write, 130 interrupted,
70 an error of leakcore's own, 141 the reader of the output closed it.

Only click is imported at the top: `leakcore bound` must answer in well under a second.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click

from leakcore._base.version import __version__
from leakcore.cli._attack import attack as _attack
from leakcore.cli._audit import audit as _audit
from leakcore.cli._calibrate import calibrate
from leakcore.cli._checked import Commands
from leakcore.cli._checked import Failure as _Failure
from leakcore.cli._checked import checked as _checked
from leakcore.cli._checked import one_kappa as _one_kappa
from leakcore.cli._leakage import leakage
from leakcore.cli._numbers import MOST_STEPS, REAL, count
from leakcore.cli._reproduce import reproduce
from leakcore.cli._selftest import selftest


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__)
def main() -> None:
    """Measure and bound how much a gradient leaks.

    Exit codes: 0 done; 1 a gate failed; 2 bad input, or no place to write; 70 an error of leakcore's own; 130
    interrupted; 141 whoever read the output closed it (`| head`), whatever the answer.
    """


main.add_command(_attack)
main.add_command(_audit)
main.add_command(calibrate)
main.add_command(leakage)
main.add_command(reproduce)
main.add_command(selftest)


_MOST_DRAWS = 10**11


@main.command()
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

    kappa, log_kappa = _one_kappa(num_candidates, kappa, log_kappa)
    if method in bounds.methods.taking("executor") and num_samples * steps > _MOST_DRAWS:
        raise click.UsageError(
            f"--num-samples={num_samples}: times --steps={steps} must be at most {_MOST_DRAWS:,}, which takes an hour"
        )
    result = _checked(
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


@main.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> None:
    """Time the kernels beside their peers: `python -m bench` of a source checkout, with the same options."""
    root = Path(__file__).resolve().parent.parent.parent
    if not (root / "bench" / "__main__.py").exists():
        raise _Failure("the benchmark is not in the wheel: run `make bench` in a checkout of the repository")
    sys.exit(subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=root, check=False).returncode)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
def doctor(as_json: bool) -> None:
    """Say what this installation has, what is missing, and what is wrong (exit code 2).

    Wrong are: an environment variable with a value that leakcore refuses, an installed package that cannot be imported.
    """
    from leakcore.audit import diagnose

    facts = diagnose()
    if as_json:
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        width = max(map(len, facts))
        for name, value in facts.items():
            between = "\n" + " " * (width + 2) if name in ("missing", "wrong") else ", "
            shown = between.join(map(str, value)) or "none" if isinstance(value, list) else value
            click.echo(f"{name:<{width}}  {shown}")
    sys.exit(0 if facts["wrong"] == "nothing" else 2)
