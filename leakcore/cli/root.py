"""The `leakcore` command. Exit codes: 0 done, 1 a gate failed, 2 bad input or no place to write, 130 interrupted,
70 an error of leakcore's own, 141 the reader of the output closed it.

Only click is imported at the top: `leakcore bound` must answer in well under a second.
"""

from __future__ import annotations

import click

from leakcore._base.version import __version__
from leakcore.cli.commands.attack import attack
from leakcore.cli.commands.audit import audit
from leakcore.cli.commands.bench import bench
from leakcore.cli.commands.bound import bound
from leakcore.cli.commands.calibrate import calibrate
from leakcore.cli.commands.doctor import doctor
from leakcore.cli.commands.leakage import leakage
from leakcore.cli.commands.reproduce import reproduce
from leakcore.cli.commands.selftest import selftest
from leakcore.cli.exit_codes import Commands


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__)
def main() -> None:
    """Measure and bound how much a gradient leaks.

    Exit codes: 0 done; 1 a gate failed; 2 bad input, or no place to write; 70 an error of leakcore's own; 130
    interrupted; 141 whoever read the output closed it (`| head`), whatever the answer.
    """


for command in (attack, audit, bench, bound, calibrate, doctor, leakage, reproduce, selftest):
    main.add_command(command)
