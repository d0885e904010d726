"""Training schemes by name: one table for Python, the command, configurations of audits and the docs.

A mechanism that can be asked for by name takes one line of `SCHEMES`; an argument that no scheme has yet takes one of
`ARGUMENTS`. Neither needs NumPy, so that help and completion of the command stay quick.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from leakcore.mechanisms.mechanism import Mechanism

_MOST_STEPS = 2**24 - 1
"""Steps that the random generator tells apart."""


@dataclasses.dataclass(frozen=True)
class Argument:
    """An argument of mechanisms.

    Attributes:
        symbol: what formulas call it.
        meaning: what it is, in words.
        least: its smallest value, where it is a whole number.
        most: its largest value, where it is a whole number; None: it is a probability.
        default: its value in the configuration of an audit that leaves it out; None: it has to be there.
    """

    symbol: str
    meaning: str
    least: int = 1
    most: int | None = None
    default: float | None = None


ARGUMENTS = {
    "sample_rate": Argument("q", "probability of a row to be in a batch; 1 for full batches", default=1.0),
    "steps": Argument("T", "number of DP-SGD steps", 0, _MOST_STEPS, default=100),
    "batch_size": Argument("B", "rows of a batch, drawn in each step without replacement", 1, 10**12),
    "dataset_size": Argument("n", "rows of the data set", 1, 10**12),
    "batches": Argument("b", "batches of an epoch", 1, _MOST_STEPS),
    "epochs": Argument("E", "passes over the data set", 1, _MOST_STEPS),
}


@dataclasses.dataclass(frozen=True)
class Scheme:
    """A training scheme: its class in `leakcore.mechanisms`, what this takes after the noise multiplier, by name, and
    the scheme in a few words, with arguments in braces."""

    mechanism: str
    arguments: tuple[str, ...]
    words: str


SCHEMES = {
    "poisson": Scheme("Poisson", ("sample_rate", "steps"), "Poisson sampling q = {sample_rate:g}"),
    "full": Scheme("FullBatch", ("steps",), "full batches"),
    "fixed": Scheme(
        "FixedSize",
        ("batch_size", "dataset_size", "steps"),
        "a fresh batch of {batch_size:,} of {dataset_size:,} rows in each step",
    ),
    "shuffled": Scheme("Shuffled", ("batches", "epochs"), "{batches:,} shuffled batch{es} an epoch"),
    "allocation": Scheme(
        "RandomAllocation", ("batches", "epochs"), "random allocation to {batches:,} batch{es} an epoch"
    ),
}
if TYPE_CHECKING:
    SchemeName = str
else:
    SchemeName = Literal[tuple(SCHEMES)]
    """The schemes as the type of a configuration's key."""


def schemes_taking(argument: str) -> list[str]:
    """The names of the schemes that take an argument."""
    return [name for name, scheme in SCHEMES.items() if argument in scheme.arguments]


def argument_errors(sampling: str, values: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The arguments that a scheme lacks, and those that it has no use for.

    Args:
        sampling: name of the scheme.
        values: arguments by name; others than those of `ARGUMENTS` do not count, and None is none.

    Returns:
        (missing, needless), in the order of the tables.

    Raises:
        ValueError: for a scheme that does not exist.
    """
    from leakcore._base import validate

    wanted = SCHEMES[validate.one_of(*SCHEMES, sampling=sampling)].arguments
    passed = [name for name in ARGUMENTS if values.get(name) is not None]
    return [name for name in wanted if name not in passed], [name for name in passed if name not in wanted]


def of_scheme(sampling: str, noise_multiplier: Any, values: Mapping[str, Any]) -> Mechanism:
    """The mechanism of a scheme.

    Args:
        sampling: name of the scheme.
        noise_multiplier: σ, as the scheme's mechanism takes it.
        values: arguments by name, as in `argument_errors`.

    Raises:
        ValueError: for a value that is not allowed, and for arguments that do not go with the scheme.
    """
    from leakcore import mechanisms

    missing, needless = argument_errors(sampling, values)
    if missing:
        raise ValueError(f"`{missing[0]}` must be given with sampling={sampling!r}")
    if needless:
        raise ValueError(
            f"`{needless[0]}` must be left out with sampling={sampling!r}, got {values[needless[0]]!r}: it belongs to "
            f"{' and '.join(schemes_taking(needless[0]))}"
        )
    scheme = SCHEMES[sampling]
    out: Mechanism = getattr(mechanisms, scheme.mechanism)(
        noise_multiplier, **{name: values[name] for name in scheme.arguments}
    )
    return out


def scheme_words(sampling: str, values: Mapping[str, Any]) -> str:
    """A scheme in a few words, with its arguments: "4 shuffled batches an epoch"."""
    if values.get("sample_rate") == 1:
        sampling = "full"
    return SCHEMES[sampling].words.format(es="" if values.get("batches") == 1 else "es", **values)
