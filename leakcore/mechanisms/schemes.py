"""Training schemes by name, as the command and configuration files ask for them: one table of what each one takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from leakcore._base import validate
from leakcore.mechanisms.allocation import RandomAllocation
from leakcore.mechanisms.fixed_size import FixedSize
from leakcore.mechanisms.mechanism import Mechanism
from leakcore.mechanisms.poisson import FullBatch, Poisson
from leakcore.mechanisms.shuffled import Shuffled


@dataclasses.dataclass(frozen=True)
class Scheme:
    """A training scheme. arguments: what its mechanism takes next to the noise multiplier, by the mechanism's names."""

    mechanism: type[Mechanism]
    arguments: tuple[str, ...]


SCHEMES = {
    "poisson": Scheme(Poisson, ("sample_rate", "steps")),
    "full": Scheme(FullBatch, ("steps",)),
    "fixed": Scheme(FixedSize, ("batch_size", "dataset_size", "steps")),
    "shuffled": Scheme(Shuffled, ("batches", "epochs")),
    "allocation": Scheme(RandomAllocation, ("batches", "epochs")),
}
ARGUMENTS = tuple(dict.fromkeys(name for scheme in SCHEMES.values() for name in scheme.arguments))
"""The arguments of all schemes."""


def misfit(sampling: str, values: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """(missing, too much): arguments that the scheme takes and that are None, and others that are not.

    values: of `ARGUMENTS`; what is absent is None.
    """
    wanted = SCHEMES[validate.one_of(*SCHEMES, sampling=sampling)].arguments
    passed = [name for name in ARGUMENTS if values.get(name) is not None]
    return [name for name in wanted if name not in passed], [name for name in passed if name not in wanted]


def takers(argument: str) -> list[str]:
    """The schemes that take an argument."""
    return [name for name, scheme in SCHEMES.items() if argument in scheme.arguments]


def of_scheme(sampling: str, noise_multiplier: Any, values: Mapping[str, Any]) -> Mechanism:
    """The mechanism of a scheme.

    Raises:
        ValueError: for a value that is not allowed, and for arguments that do not go with the scheme.
    """
    missing, extra = misfit(sampling, values)
    if missing:
        raise ValueError(f"`{missing[0]}` must be given with sampling={sampling!r}")
    if extra:
        raise ValueError(
            f"`{extra[0]}` must be left out with sampling={sampling!r}, got {values[extra[0]]!r}: it belongs to "
            f"{' and '.join(takers(extra[0]))}"
        )
    scheme = SCHEMES[sampling]
    return scheme.mechanism(noise_multiplier, **{name: values[name] for name in scheme.arguments})  # type: ignore[call-arg]
