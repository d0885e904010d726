"""`leakcore doctor`, `selftest` and `bench`: what this installation has, whether its bounds hold, how fast it is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from leakcore.cli.exit_codes import Failure, checked
from leakcore.cli.numbers import REAL, count
from leakcore.cli.options import as_json, seed_json_quiet
from leakcore.cli.output import bars, finish


@click.command()
@as_json("the facts")
def doctor(as_json: bool) -> None:
    """Say what this installation has, what is missing, and what is wrong (exit code 2).

    Wrong are: an environment variable with a value that leakcore refuses, an installed package that cannot be imported.
    """
    from leakcore.audit import diagnose

    facts = diagnose()
    finish(facts, as_json, lambda: _lines(facts))
    sys.exit(0 if facts["wrong"] == "nothing" else 2)


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    width = max(map(len, facts))
    for name, value in facts.items():
        between = "\n" + " " * (width + 2) if name in ("missing", "wrong") else ", "
        said = ("no", "yes")[value] if isinstance(value, bool) else value
        text = between.join(map(str, value)) or "none" if isinstance(value, list) else said
        yield f"{name.replace('_', ' '):<{width}}  {text}"


@click.command()
@click.option(
    "--audits",
    type=count(1, 10**6),
    default=500,
    show_default=True,
    help="Audits per method; five times as many for ε = 0.",
)
@click.option(
    "--confidence", type=REAL, default=0.95, show_default=True, help="Confidence of the bounds that are tested."
)
@seed_json_quiet()
def selftest(audits: int, confidence: float, seed: int, as_json: bool) -> None:
    """Audit mechanisms whose ε is known and count how often a lower bound exceeds it.

    Prints the false-positive rate and the coverage of every method with their intervals, in well under a minute. Exits
    with 1 when a method breaks its promise beyond doubt (99.9%, over all methods together).
    """
    from leakcore import audit as audits_of

    result = checked(lambda: audits_of.selftest(audits=audits, confidence=confidence, seed=seed, progress=bars()))
    finish(result, as_json, result.to_text)
    sys.exit(0 if result.passed else 1)


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> None:
    """Time the kernels next to their peers: `python -m bench` of a source checkout, with the same options."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "bench" / "__main__.py").exists():
        raise Failure("the benchmark is not in the wheel: run `make bench` in a checkout of the repository")
    sys.exit(subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=root, check=False).returncode)
