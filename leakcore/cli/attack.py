"""`leakcore attack`: one command for each attack."""

from __future__ import annotations

import click

from leakcore.cli.attack_inversion import inversion
from leakcore.cli.attack_labels import labels
from leakcore.cli.attack_membership import membership
from leakcore.cli.attack_prior_aware import prior_aware


@click.group()
def attack() -> None:
    """Attack a DP-SGD configuration on real data, or a gradient or a model of your own."""


attack.add_command(labels)
attack.add_command(inversion)
attack.add_command(membership)
attack.add_command(prior_aware)
