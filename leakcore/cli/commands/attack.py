"""`leakcore attack`: one command for each attack."""

from __future__ import annotations

import click

from leakcore.cli.commands.inversion import inversion
from leakcore.cli.commands.labels import labels
from leakcore.cli.commands.prior_aware import prior_aware


@click.group()
def attack() -> None:
    """Attack a DP-SGD configuration on real data, or a gradient of your own."""


attack.add_command(labels)
attack.add_command(inversion)
attack.add_command(prior_aware)
