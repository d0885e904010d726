"""How each step draws its batch: every row by a coin of its own, or an epoch's order of all rows, cut."""

from __future__ import annotations

import dataclasses

from leakcore._base import validate as check


@dataclasses.dataclass(frozen=True)
class PoissonBatches:
    """Each step takes each row with probability `sample_rate`, independently; 1: all rows, full batches.

    sample_rate: q in (0, 1]. expected_batch_size: B > 0, by which the sum is divided; None: q·(common rows + extra
    rows). Give it where B must not depend on whether the target is there: an attacker who knows B would otherwise learn
    that from the update's scale.
    """

    sample_rate: float = 1.0
    expected_batch_size: float | None = None

    def __post_init__(self) -> None:
        rate = check.probability(sample_rate=self.sample_rate)
        if rate == 0:
            raise ValueError("sample_rate=0: must be in (0, 1]")
        object.__setattr__(self, "sample_rate", rate)
        _check_expected(self)


@dataclasses.dataclass(frozen=True)
class ShuffledBatches:
    """Minibatches of exactly `batch_size` rows: each epoch has a fresh order of all rows, cut into batches.

    The order is a function of (seed, run, epoch); rows mod batch_size rows sit an epoch out. expected_batch_size: B,
    by which the sum is divided; None: batch_size.
    """

    batch_size: int
    expected_batch_size: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", check.integer(1, None, batch_size=self.batch_size))
        _check_expected(self)


def _check_expected(batches: PoissonBatches | ShuffledBatches) -> None:
    if batches.expected_batch_size is not None:
        size = check.positive(expected_batch_size=batches.expected_batch_size)
        object.__setattr__(batches, "expected_batch_size", size)


def read_sampling(sample_rate: float | PoissonBatches | ShuffledBatches) -> PoissonBatches | ShuffledBatches:
    """A sample rate stands for Poisson batches of it; the error names `sample_rate`."""
    if isinstance(sample_rate, PoissonBatches | ShuffledBatches):
        return sample_rate
    try:
        return PoissonBatches(sample_rate)
    except (TypeError, ValueError) as why:
        raise type(why)(f"{why}; or a dpsgd.PoissonBatches or a dpsgd.ShuffledBatches") from None
