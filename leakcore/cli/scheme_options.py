"""The options that say how a training takes its batches: a scheme of `mechanisms.SCHEMES`, and its arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from leakcore.cli.exit_codes import checked
from leakcore.cli.numbers import REAL, count
from leakcore.mechanisms import ARGUMENTS, SCHEMES, argument_errors, of_scheme, schemes_taking


def training_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--sampling and what the schemes take. The command gets the `mechanism`.

    Its noise multiplier is that of a --noise-multiplier of the command's, or else 1.
    """

    @functools.wraps(command)
    def call(*, sampling: str, noise_multiplier: float = 1.0, **rest: Any) -> Any:
        values = {name: rest.pop(name) for name in ARGUMENTS}
        return command(mechanism=_mechanism(sampling, noise_multiplier, values), **rest)

    return _options(call, audited=False)


def audited_training_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same options as they are, None where they are left out: the configuration has defaults and checks them."""
    return _options(command, audited=True)


def _options(command: Callable[..., Any], *, audited: bool) -> Callable[..., Any]:
    for name, argument in reversed(ARGUMENTS.items()):
        text = f"{', '.join(schemes_taking(name))}: {argument.meaning}."
        if audited and argument.default is not None:
            text += f"  [default: {argument.default:g}]"
        kind = REAL if argument.most is None else count(argument.least, argument.most)
        command = click.option(_option(name), type=kind, metavar=argument.symbol, help=text)(command)
    return click.option(
        "--sampling",
        type=click.Choice(tuple(SCHEMES)),
        default=None if audited else "poisson",
        show_default=not audited,
        help="How rows come to be in batches; docs/how-to/which-mechanism.md tells which one a program has."
        + ("  [default: poisson]" if audited else ""),
    )(command)


def _mechanism(sampling: str, noise_multiplier: float, values: dict[str, Any]) -> Any:
    """The mechanism; UsageError for options that the scheme lacks or has no use for."""
    missing, needless = argument_errors(sampling, values)
    if missing:
        raise click.UsageError(f"{_option(missing[0])} is missing (--sampling {sampling} needs it)")
    if needless:
        allowed = " or ".join(schemes_taking(needless[0]))
        raise click.UsageError(f"{_option(needless[0])}: only with --sampling {allowed}, not {sampling}")
    return checked(lambda: of_scheme(sampling, noise_multiplier, values))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
