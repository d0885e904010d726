"""The `leakcore` command: its group, whose help lists every command under the question that it answers.

Only click is imported at the top: `leakcore bound` must answer in well under a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from leakcore._base.version import __version__
from leakcore.cli.attack_inversion import inversion
from leakcore.cli.attack_labels import labels
from leakcore.cli.attack_membership import membership
from leakcore.cli.attack_prior_aware import prior_aware
from leakcore.cli.audit import audit
from leakcore.cli.bound import bound
from leakcore.cli.calibrate import calibrate
from leakcore.cli.exit_codes import Commands
from leakcore.cli.explain import completion, explain, schema
from leakcore.cli.installation import bench, doctor, selftest
from leakcore.cli.leakage import leakage
from leakcore.cli.output import set_verbosity
from leakcore.cli.reports import compare, reports
from leakcore.cli.reproduce import reproduce

_SENTENCE = 120
"""Signs of a command's help that are shown at most: two lines."""


class GroupedCommands(Commands):
    """A group whose help has a section for each question."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._questions: dict[str, list[str]] = {}

    def answers(self, question: str, commands: Iterable[click.Command]) -> None:
        """Add commands under a question."""
        for command in commands:
            self.add_command(command)
            self._questions.setdefault(question, []).append(str(command.name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write every command under its question, with the first sentence of its help."""
        for question, names in self._questions.items():
            formatter.write_paragraph()
            formatter.write(f"{question}\n")
            with formatter.indentation():
                formatter.write_dl([(name, self.commands[name].get_short_help_str(_SENTENCE)) for name in names])


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
    set_verbosity(context, quiet=quiet, verbose=verbose)


@click.group()
def attack() -> None:
    """Attack a DP-SGD configuration on real data, or a gradient or a model of your own."""


for _command in (labels, inversion, membership, prior_aware):
    attack.add_command(_command)

main.answers("What can no attacker do?", (bound, calibrate))
main.answers("What does my run, my claim or my scores file prove, and what changed since?", (audit, compare, reports))
main.answers("What can the best attack do?", (attack,))
main.answers("Where does the leak sit?", (leakage,))
main.answers("What did the papers find?", (reproduce,))
main.answers("Is this installation sound, and how fast is it?", (doctor, selftest, bench))
main.answers("What does a word mean, what may a file hold, what completes my shell?", (explain, schema, completion))
