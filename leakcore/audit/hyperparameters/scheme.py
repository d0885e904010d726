"""How the audited training takes its batches: the keys of a configuration as a mechanism, as batches, and in words."""

from __future__ import annotations

from typing import Any

from leakcore import mechanisms
from leakcore.audit.hyperparameters.request import AuditConfig
from leakcore.audit.shared.format import counted


def mechanism(config: AuditConfig, noise: float) -> mechanisms.Mechanism:
    """What is trained, with this noise."""
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

    rows = config.num_rows
    if config.sampling == "fixed":
        assert config.batch_size is not None
        return dpsgd.FixedBatches(config.batch_size)
    if config.sampling in ("shuffled", "allocation"):
        assert config.batches is not None
        if config.sampling == "shuffled":
            return dpsgd.ShuffledBatches(rows // config.batches)
        return dpsgd.AllocatedBatches(config.batches, expected_batch_size=rows / config.batches)
    rate = 1.0 if config.sample_rate is None else config.sample_rate
    return dpsgd.PoissonBatches(rate, expected_batch_size=rate * rows)


def words(config: AuditConfig) -> str:
    """The scheme in a few words."""
    if config.sampling == "fixed":
        return f"a fresh batch of {config.batch_size:,} of {config.num_rows:,} rows in each step"
    if config.sampling == "shuffled":
        return f"{counted(config.batches or 0, 'shuffled batch', 'shuffled batches')} an epoch"
    if config.sampling == "allocation":
        return f"random allocation to {counted(config.batches or 0, 'batch', 'batches')} an epoch"
    return "full batches" if full_batches(config) else f"Poisson sampling q = {config.sample_rate:g}"


def batches_known(config: AuditConfig) -> str:
    """What the attacker of the game knows of the batches, as the end of a list."""
    if config.sampling == "shuffled":
        return "the order of every epoch and so the batches of the target"
    if config.sampling == "fixed":
        return "but not which of them were in a batch"
    return "which of them were in each batch"
