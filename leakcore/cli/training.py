"""The options that say how a training takes its batches: a scheme, and what that scheme needs to be told."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from leakcore.cli.exit_codes import checked
from leakcore.cli.numbers import MOST_STEPS, REAL, count

_MOST_ROWS = 10**12
_SCHEMES = ("poisson", "full", "fixed", "shuffled", "allocation")
"""As `mechanisms` has them. Listed here, since help and completion must not wait for NumPy."""
_OPTIONS: dict[str, tuple[Any, str, str]] = {
    "sample_rate": (REAL, "q", "poisson: probability of a row to be in a batch; 1 for full batches."),
    "steps": (count(0, MOST_STEPS), "T", "poisson, full, fixed: number of DP-SGD steps."),
    "batch_size": (count(1, _MOST_ROWS), "B", "fixed: rows of a batch, drawn in each step without replacement."),
    "dataset_size": (count(1, _MOST_ROWS), "n", "fixed: rows of the data set."),
    "batches": (count(1, MOST_STEPS), "b", "shuffled, allocation: batches of an epoch."),
    "epochs": (count(1, MOST_STEPS), "E", "shuffled, allocation: passes over the data set."),
}
"""Argument of a mechanism: its type, letter and help."""


def training_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--sampling and what the schemes take. The command gets the `mechanism`.

    Its noise multiplier is that of a --noise-multiplier of the command's, or else 1.
    """

    @functools.wraps(command)
    def call(*, sampling: str, noise_multiplier: float = 1.0, **rest: Any) -> Any:
        values = {name: rest.pop(name) for name in _OPTIONS}
        return command(mechanism=_mechanism(sampling, noise_multiplier, values), **rest)

    return scheme_options(*_OPTIONS, default="poisson")(call)


def scheme_options(*names: str, default: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--sampling and the options of these names, as they are. default: of --sampling; None: the command's."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(names):
            kind, letter, text = _OPTIONS[name]
            command = click.option(_option(name), type=kind, metavar=letter, help=text)(command)
        return click.option(
            "--sampling",
            type=click.Choice(_SCHEMES),
            default=default,
            show_default=default is not None,
            help="How rows come to be in batches; docs/how-to/which-mechanism.md tells which one a program has."
            + ("" if default else "  [default: poisson]"),
        )(command)

    return decorate


def _mechanism(sampling: str, noise_multiplier: float, values: dict[str, Any]) -> Any:
    """UsageError for options that the scheme lacks or has no use for."""
    from leakcore import mechanisms

    missing, extra = mechanisms.misfit(sampling, values)
    if missing:
        raise click.UsageError(f"{_option(missing[0])} is missing (--sampling {sampling} needs it)")
    if extra:
        takers = " or ".join(mechanisms.takers(extra[0]))
        raise click.UsageError(f"{_option(extra[0])}: only with --sampling {takers}, not {sampling}")
    return checked(lambda: mechanisms.of_scheme(sampling, noise_multiplier, values))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
