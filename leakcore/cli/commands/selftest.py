"""`leakcore selftest`: do the lower bounds of this installation keep their promise?"""

from __future__ import annotations

import sys

import click

from leakcore.cli.exit_codes import checked
from leakcore.cli.numbers import REAL, count
from leakcore.cli.options import seed_json_quiet
from leakcore.cli.output import finish
from leakcore.cli.progress import bars


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
