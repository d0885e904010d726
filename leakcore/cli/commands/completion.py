"""`leakcore completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes leakcore's commands and options in SHELL.

    \b
    bash:  leakcore completion bash > ~/.local/share/bash-completion/completions/leakcore
    zsh:   leakcore completion zsh > ~/.zfunc/_leakcore      (a folder of $fpath)
    fish:  leakcore completion fish > ~/.config/fish/completions/leakcore.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click has these three"
    script = kind(context.find_root().command, {}, "leakcore", "_LEAKCORE_COMPLETE")
    click.echo(script.source_template % script.source_vars())
