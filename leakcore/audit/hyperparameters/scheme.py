"""How the audited training takes its batches: the keys of a configuration as a mechanism, as batches, and in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from leakcore import mechanisms
from leakcore.audit.hyperparameters.config import AuditConfig


def mechanism(config: AuditConfig, noise: float) -> mechanisms.Mechanism:
    """What is trained, with this noise multiplier."""
    return mechanisms.of_scheme(config.sampling, noise, vars(config))


def total_steps(config: AuditConfig) -> int:
    """T."""
    if config.steps is not None:
        return config.steps
    assert config.batches is not None
    assert config.epochs is not None
    return config.batches * config.epochs


def full_batches(config: AuditConfig) -> bool:
    """Whether every row is in every batch."""
    return config.sampling == "full" or (config.sampling == "poisson" and config.sample_rate == 1)


def gaussian_steps(config: AuditConfig) -> int | None:
    """In how many steps the target is, where the attacker of the game knows which these are; else None."""
    if config.sampling == "shuffled":
        return config.epochs
    return total_steps(config) if full_batches(config) else None


def batches(config: AuditConfig) -> Any:
    """The batches of `dpsgd.Ensemble`. Their divisor B never depends on whether the target is there."""
    from leakcore import dpsgd

    return _played(config).batches(dpsgd, config)


def words(config: AuditConfig) -> str:
    """The scheme in a few words."""
    return mechanisms.scheme_words(config.sampling, vars(config))


def batches_known(config: AuditConfig) -> str:
    """What the attacker of the game knows of the batches, as the end of a list."""
    return _played(config).known


def _played(config: AuditConfig) -> _Played:
    if config.sampling not in _PLAYED:
        raise ValueError(f"`sampling` must be one of {', '.join(_PLAYED)} in an audit, got {config.sampling!r}")
    return _PLAYED[config.sampling]


class _Played(NamedTuple):
    """How `dpsgd` draws the batches of a scheme, and what the attacker of the game knows of them."""

    batches: Callable[[Any, Any], Any]
    known: str


_OF_EACH = "which of them were in each batch"
_PLAYED: Mapping[str, _Played] = {
    "poisson": _Played(lambda dpsgd, c: dpsgd.PoissonBatches(c.sample_rate, c.sample_rate * c.num_rows), _OF_EACH),
    "full": _Played(lambda dpsgd, c: dpsgd.PoissonBatches(1.0, c.num_rows), _OF_EACH),
    "fixed": _Played(lambda dpsgd, c: dpsgd.FixedBatches(c.batch_size), "but not which of them were in a batch"),
    "shuffled": _Played(
        lambda dpsgd, c: dpsgd.ShuffledBatches(c.num_rows // c.batches),
        "the order of every epoch and so the batches of the target",
    ),
    "allocation": _Played(lambda dpsgd, c: dpsgd.AllocatedBatches(c.batches, c.num_rows / c.batches), _OF_EACH),
}
"""The schemes that the game can be played with."""
