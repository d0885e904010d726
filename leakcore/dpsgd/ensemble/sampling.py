"""How each step draws its batch: by a coin for each row, as a subset of fixed size, or epoch by epoch."""

from __future__ import annotations

import dataclasses

from leakcore._base import validate


@dataclasses.dataclass(frozen=True)
class PoissonBatches:
    """Each step includes each row with probability `sample_rate`, independently.

    Args:
        sample_rate: q in (0, 1]; 1 takes all rows in each step (full batches).
        expected_batch_size: B above 0, by which the sum is divided; None: q·(common rows + extra rows). Choose it where
            B must not depend on whether the target is present: an attacker who knows B would otherwise learn that from
            the scale of the update.

    Raises:
        ValueError: for a number out of range.

    Example:
        >>> from leakcore import dpsgd
        >>> batches = dpsgd.PoissonBatches(0.1, expected_batch_size=50)
        >>> ensemble = dpsgd.Ensemble(
        ...     (4, 2), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.1, steps=9, sample_rate=batches, seed=0
        ... )
        >>> ensemble.sample_rate, ensemble.expected_batch_size
        (0.1, 50.0)
    """

    sample_rate: float
    expected_batch_size: float | None = None

    def __post_init__(self) -> None:
        rate = validate.probability(sample_rate=self.sample_rate)
        if rate == 0:
            raise ValueError("`sample_rate` must be in (0, 1], got 0")
        object.__setattr__(self, "sample_rate", rate)
        _check_expected(self)


@dataclasses.dataclass(frozen=True)
class ShuffledBatches:
    """Minibatches of exactly `batch_size` rows: each epoch shuffles all rows and cuts the order into batches.

    The order is a function of (seed, run, epoch). The rows that remain after the last whole batch sit the epoch out.

    Args:
        batch_size: rows of each batch, at least 1.
        expected_batch_size: B above 0, by which the sum is divided; None: `batch_size`.

    Raises:
        ValueError: for a number out of range.

    Example:
        >>> from leakcore import dpsgd
        >>> ensemble = dpsgd.Ensemble(
        ...     (4, 2), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.1, steps=10,
        ...     sample_rate=dpsgd.ShuffledBatches(50), seed=0,
        ... )
        >>> ensemble.batch_size
        50
    """

    batch_size: int
    expected_batch_size: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", validate.integer(1, None, batch_size=self.batch_size))
        _check_expected(self)


@dataclasses.dataclass(frozen=True)
class FixedBatches:
    """Each step draws a fresh batch of exactly `batch_size` rows without replacement, all batches alike.

    Args:
        batch_size: rows of each batch, at least 1.
        expected_batch_size: B above 0, by which the sum is divided; None: `batch_size`.

    Raises:
        ValueError: for a number out of range.

    Example:
        >>> from leakcore import dpsgd
        >>> ensemble = dpsgd.Ensemble(
        ...     (4, 2), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.1, steps=10,
        ...     sample_rate=dpsgd.FixedBatches(50), seed=0,
        ... )
        >>> ensemble.batch_size
        50
    """

    batch_size: int
    expected_batch_size: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", validate.integer(1, None, batch_size=self.batch_size))
        _check_expected(self)


@dataclasses.dataclass(frozen=True)
class AllocatedBatches:
    """Each row draws one of the `batches` of an epoch for itself (random allocation, balls in bins).

    The draws are a function of (seed, run, epoch); batches differ in size, and may be empty.

    Args:
        batches: b, steps of an epoch, at least 1.
        expected_batch_size: B above 0, by which the sum is divided; None: (common rows + extra rows)/b. Choose it where
            B must not depend on whether the target is present.

    Raises:
        ValueError: for a number out of range.

    Example:
        >>> from leakcore import dpsgd
        >>> ensemble = dpsgd.Ensemble(
        ...     (4, 2), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.1, steps=10,
        ...     sample_rate=dpsgd.AllocatedBatches(5), seed=0,
        ... )
        >>> ensemble.sample_rate
        0.2
    """

    batches: int
    expected_batch_size: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", validate.integer(1, None, batches=self.batches))
        _check_expected(self)


Batches = PoissonBatches | ShuffledBatches | FixedBatches | AllocatedBatches
"""Every way in which an ensemble draws its batches."""


def _check_expected(batches: Batches) -> None:
    if batches.expected_batch_size is not None:
        size = validate.positive(expected_batch_size=batches.expected_batch_size)
        object.__setattr__(batches, "expected_batch_size", size)


def share(batches: Batches, rows: int) -> float:
    """What part of `rows` training rows a batch holds on average."""
    if isinstance(batches, ShuffledBatches | FixedBatches):
        return batches.batch_size / rows
    return 1 / batches.batches if isinstance(batches, AllocatedBatches) else batches.sample_rate


def read_sampling(sample_rate: float | Batches) -> Batches:
    """A sample rate stands for Poisson batches of it; the error names `sample_rate`."""
    if isinstance(sample_rate, Batches):
        return sample_rate
    try:
        return PoissonBatches(sample_rate)
    except (TypeError, ValueError) as why:
        raise type(why)(
            f"{why}; a dpsgd.PoissonBatches, ShuffledBatches, FixedBatches or AllocatedBatches is allowed, too"
        ) from None
