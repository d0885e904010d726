"""What a method of `bounds.reconstruction` is: a small frozen object that knows its options and gives the bound."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

from leakcore._base import validate
from leakcore._base.results import Assumptions
from leakcore.bounds.reconstruction.arguments import ATTACKER, Kappa, ReconstructionBound, SampledGaussian

PROVENANCE = "Hayes, Mahloujifar and Balle (2023), Theorem 2 and Corollary 4, equation (3)"
POINTWISE = "confidence is pointwise in kappa"
_MAX_SAMPLES = 1 << 40
"""Samples of one estimate: a day's work of a cluster."""


def _device(value: Any) -> Any:
    if value is not None and value != "cpu":
        from leakcore.kernels import require_device

        require_device(value)
    return value


def _executor(value: Any) -> Any:
    validate.executor(executor=value)
    return value


CHECKS: dict[str, Callable[[Any], Any]] = {
    "num_samples": lambda value: validate.integer(1, _MAX_SAMPLES, num_samples=value),
    "confidence": lambda value: validate.confidence(confidence=value),
    "seed": lambda value: validate.seed(seed=value),
    "device": _device,
    "executor": _executor,
}
"""The options that `reconstruction` takes as keywords, and how each is checked, whichever method has it."""


@dataclasses.dataclass(frozen=True)
class Method(abc.ABC):
    """One way to compute B_κ. Its fields are its options; an option without a field is refused.

    Attributes:
        name: what `reconstruction(method=)` calls it.
    """

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.name in CHECKS:
                object.__setattr__(self, field.name, CHECKS[field.name](getattr(self, field.name)))

    @classmethod
    def options(cls) -> frozenset[str]:
        """Names of the options."""
        return frozenset(field.name for field in dataclasses.fields(cls))

    @abc.abstractmethod
    def bound(self, mechanism: SampledGaussian, prior: Kappa) -> ReconstructionBound:
        """B_κ of a checked mechanism for checked κ."""


@dataclasses.dataclass(frozen=True)
class SampledLimits(Method):
    """A method whose limits come from samples.

    Args:
        num_samples: drawn in all.
        confidence: of the limits, in (0, 1 − 1e-12], for each κ.
        seed: of the samples.
    """

    num_samples: int = 1_000_000
    confidence: float = 0.999
    seed: int = 0


def assumptions(*notes: str) -> Assumptions:
    """Assumptions of DP-SGD with Poisson sampling, with these notes."""
    return Assumptions(adjacency="add-remove", attacker=ATTACKER, notes=notes)
