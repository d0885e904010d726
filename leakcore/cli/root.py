"""The `leakcore` command. Exit codes: 0 done, 1 a gate failed, 2 bad input or no place to write, 130 interrupted,
70 an error of leakcore's own, 141 the reader of the output closed it.

Only click is imported at the top: `leakcore bound` must answer in well under a second.
"""

from __future__ import annotations

import click

from leakcore._base.version import __version__
from leakcore.cli.commands.attack import attack
from leakcore.cli.commands.audit.group import audit
from leakcore.cli.commands.bench import bench
from leakcore.cli.commands.bound import bound
from leakcore.cli.commands.calibrate import calibrate
from leakcore.cli.commands.compare import compare
from leakcore.cli.commands.completion import completion
from leakcore.cli.commands.doctor import doctor
from leakcore.cli.commands.explain import explain
from leakcore.cli.commands.leakage import leakage
from leakcore.cli.commands.reports import reports
from leakcore.cli.commands.reproduce import reproduce
from leakcore.cli.commands.schema import schema
from leakcore.cli.commands.selftest import selftest
from leakcore.cli.grouped import GroupedCommands
from leakcore.cli.progress import set_loudness


@click.group(cls=GroupedCommands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--quiet", is_flag=True, help="No progress bars, and errors alone.")
@click.option("-v", "--verbose", is_flag=True, help="Say what is computed, with times, on standard error.")
@click.version_option(__version__)
@click.pass_context
def main(context: click.Context, quiet: bool, verbose: bool) -> None:
    """Measure and bound how much a gradient leaks.

    Exit codes: 0 done; 1 a gate failed; 2 bad input, or no place to write; 70 an error of leakcore's own; 130
    interrupted; 141 the reader of the output closed it (`| head`), whatever the answer.
    """
    if quiet and verbose:
        raise click.UsageError("--quiet, --verbose: give one or the other")
    set_loudness(context, quiet=quiet, verbose=verbose)


main.answers("What can no attacker do?", (bound, calibrate))
main.answers("What does my run, my claim or my scores file prove, and what changed since?", (audit, compare, reports))
main.answers("What can the best attack do?", (attack,))
main.answers("Where does the leak sit?", (leakage,))
main.answers("What did the papers find?", (reproduce,))
main.answers("Is this installation sound, and how fast is it?", (doctor, selftest, bench))
main.answers("What does a word mean, what may a file hold, what completes my shell?", (explain, schema, completion))
