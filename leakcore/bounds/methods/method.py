"""What every method of `bounds.reconstruction` shares: arguments, options and the result."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from leakcore._base import pictures, validate
from leakcore._base.results import Assumptions, Number, Result
from leakcore.mechanisms import Poisson
from leakcore.numerics import PrivacyLoss

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROUNDING = 2.0**-52
"""Relative rounding of a logarithm."""
ATTACKER = (
    "sees every noisy gradient sum and all model states, knows every other record, the hyperparameters and the prior; "
    "Poisson sampling, independent steps"
)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ReconstructionBound(Result):
    """B_κ, the largest success probability of a reconstruction attack whose blind guess succeeds with probability κ.

    Attributes:
        value: B_κ, a float or an array of κ's shape.
        log_value: its natural logarithm, which stays finite where B_κ underflows.
        kappa: κ that was asked for.
        log_kappa: its natural logarithm.
        advantage: (B_κ − κ)/(1 − κ), 0 at κ = 1.
        interval: (low, high): numerical error of a deterministic method, confidence limits of one that samples.
        log_interval: the interval of `log_value`.
        standard_error: standard error of a Monte-Carlo estimate, else None.
        effective_sample_size: draws that carry a Monte-Carlo estimate, else None.
        num_samples: samples drawn; None for deterministic methods.
        warnings: why the number may mislead; empty if nothing does.
        poisson_claim: for a mechanism that is often accounted for as if it were Poisson sampling, the bound that this
            claims, which may lie below the lower limit; else None.
        state: with `methods.Certified` and its `width` or `resume`, what to pass as `resume` to go on; else None.
    """

    compared_at: ClassVar[tuple[str, ...]] = ("kappa",)

    quantity: str = "success probability"
    log_value: Number
    kappa: Number
    log_kappa: Number
    advantage: Number
    log_interval: tuple[Number, Number] | None = None
    standard_error: Number | None = None
    effective_sample_size: Number | None = None
    num_samples: int | None = None
    warnings: tuple[str, ...] = ()
    poisson_claim: Number | None = None
    state: dict[str, Any] | None = None

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the bound over κ, its interval, and blind guessing, on `ax` or on a new figure."""
        axes = pictures.curve(ax, self.kappa, self.value, self.interval, label=f"no attacker above ({self.method})")
        at = np.sort(np.atleast_1d(self.kappa))
        axes.plot(at, at, linestyle=":", color="0.5", label="blind guess")
        axes.set(xscale="log", xlabel="κ, success of a blind guess", ylabel=self.quantity, ylim=(0.0, 1.02))
        axes.legend()
        return axes


_MOST_STEPS = 10_000_000
"""Most steps of several kinds together that are written out one by one."""


def has_too_many_steps(loss: PrivacyLoss) -> bool:
    """Whether steps of several kinds are too many to be listed one by one."""
    kinds = len(loss.groups) + (loss.gaussian_variance > 0.0) + (loss.log_no_escape < 0.0)
    return kinds > 1 and loss.num_mixture_steps > _MOST_STEPS


def poisson_with(loss: PrivacyLoss) -> Poisson:
    """Poisson-sampled steps that have this loss."""
    steps = [(group.sigma, group.rate, group.count) for group in loss.groups]
    if loss.gaussian_variance > 0.0:
        steps.append((1.0 / math.sqrt(loss.gaussian_variance), 1.0, 1))
    if loss.log_no_escape < 0.0:
        steps.append((0.0, -math.expm1(loss.log_no_escape), 1))
    sigma, rate, count = (np.array([step[i] for step in steps]) for i in range(3))
    if len(steps) == 1:
        return Poisson(sigma[0], rate[0], int(count[0]))
    if has_too_many_steps(loss):
        raise ValueError(
            f"`method` must be 'auto' or 'exact' for several kinds of steps, more than {_MOST_STEPS:.0e} of them "
            f"together, got {sum(step[2] for step in steps):.3g} steps"
        )
    count = count.astype(np.int64)
    return Poisson(np.repeat(sigma, count), np.repeat(rate, count), int(count.sum()))


@dataclasses.dataclass(frozen=True, eq=False)
class Kappa:
    """log κ as a flat array, and the shape in which answers go back."""

    log: np.ndarray
    shape: tuple[int, ...]
    values: np.ndarray | None

    @classmethod
    def parse(cls, kappa: Any, log_kappa: Any) -> Kappa:
        """Read exactly one of κ in (0, 1] and log κ in (−∞, 0]."""
        if (kappa is None) == (log_kappa is None):
            raise ValueError(
                f"exactly one of `kappa` and `log_kappa` must be given, got kappa={kappa!r} and log_kappa={log_kappa!r}"
            )
        if kappa is not None:
            value = validate.real_array("in (0, 1]", lambda v: (v > 0.0) & (v <= 1.0), kappa=kappa)
            return cls(np.log(value).ravel(), value.shape, value.ravel())
        value = validate.real_array("finite and at most 0", lambda v: (v <= 0.0) & (v > -math.inf), log_kappa=log_kappa)
        return cls(value.ravel().copy(), value.shape, None)

    def __str__(self) -> str:
        """The argument that was passed and its first value, for messages."""
        if self.values is None:
            return f"log_kappa={self.log[0]:.6g}"
        return f"kappa={self.values[0]:.6g}"

    @property
    def plain(self) -> np.ndarray:
        """κ itself; 0 where it underflows."""
        return self.values if self.values is not None else np.exp(self.log)

    def shaped(self, flat: np.ndarray) -> Number:
        """A flat answer as a float (0-d) or an array of κ's shape."""
        return float(flat[0]) if self.shape == () else np.asarray(flat, dtype=np.float64).reshape(self.shape)

    def fields(
        self, log_value: np.ndarray, log_low: np.ndarray | None, log_high: np.ndarray | None, *, proved: bool = False
    ) -> dict[str, Any]:
        """The fields of a `ReconstructionBound` that follow from log B and its limits, rounded outward. The low limit
        is at least κ: B_κ ≥ κ always. proved: the value is the high limit, rounded outward too."""
        kappa = self.plain
        value = np.exp(log_value)
        with np.errstate(invalid="ignore", divide="ignore"):
            # 1 − κ from the logarithm: κ close to 1 costs no digits.
            ratio = (kappa - value) / -np.expm1(self.log)
        out: dict[str, Any] = {
            "value": self.shaped(value),
            "log_value": self.shaped(log_value),
            "kappa": self.shaped(kappa),
            "log_kappa": self.shaped(self.log),
            "advantage": self.shaped(np.where(self.log < 0.0, -ratio, 0.0)),
            "interval": None,
        }
        if log_low is not None and log_high is not None:
            log_low, log_high = np.clip(log_low, self.log, 0.0), np.clip(log_high, self.log, 0.0)
            # The exponential of a large logarithm carries the logarithm's own rounding.
            low, high = (np.exp(end) for end in (log_low, log_high))
            low = np.nextafter(low * (1.0 + _ROUNDING * log_low), 0.0)
            low = np.maximum(low, np.minimum(kappa, value))
            high = np.minimum(np.nextafter(high * (1.0 - _ROUNDING * log_high), 2.0), 1.0)
            high = np.maximum(high, value)
            if proved:
                out["value"] = self.shaped(high)
            out["interval"] = (self.shaped(low), self.shaped(high))
            out["log_interval"] = (self.shaped(log_low), self.shaped(log_high))
        return out


PROVENANCE = "Hayes, Mahloujifar and Balle (2023), Theorem 2 and Corollary 4, equation (3)"
POINTWISE = "confidence is pointwise in kappa"
_MAX_SAMPLES = 1 << 40
"""Most samples of one estimate: a day's work of a cluster."""


def _device(value: Any) -> Any:
    if value is not None and value != "cpu":
        from leakcore.kernels import require_device

        require_device(value)
    return value


CHECKS: dict[str, Callable[[Any], Any]] = {
    "num_samples": lambda value: validate.integer(1, _MAX_SAMPLES, num_samples=value),
    "confidence": lambda value: validate.confidence(confidence=value),
    "seed": lambda value: validate.seed(seed=value),
    "device": _device,
    "executor": lambda value: validate.executor(executor=value),
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
    def bound(self, mechanism: Poisson, prior: Kappa) -> ReconstructionBound:
        """B_κ of a checked mechanism for checked κ."""


@dataclasses.dataclass(frozen=True)
class SampledLimits(Method):
    """A method whose limits come from samples.

    Args:
        num_samples: number of draws in all.
        confidence: level of the limits for each κ, in (0, 1 − 1e-12].
        seed: seed of the draws.
    """

    num_samples: int = 1_000_000
    confidence: float = 0.999
    seed: int = 0


def assumptions(*notes: str) -> Assumptions:
    """Assumptions of DP-SGD with Poisson sampling, with these notes."""
    return Assumptions(adjacency="add-remove", attacker=ATTACKER, notes=notes)
