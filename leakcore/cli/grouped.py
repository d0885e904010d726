"""Commands listed under the question that they answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from leakcore.cli.exit_codes import Commands

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
