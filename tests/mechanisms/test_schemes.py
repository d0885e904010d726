"""Schemes by name: what each takes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from leakcore import mechanisms
from leakcore.mechanisms import schemes

VALUES: dict[str, Any] = {
    "sample_rate": 0.5, "steps": 3, "batch_size": 2, "dataset_size": 4, "batches": 5, "epochs": 6,
}  # fmt: skip


def _of(sampling: str) -> dict[str, Any]:
    return {name: VALUES[name] for name in schemes.SCHEMES[sampling].arguments}


@pytest.mark.parametrize(
    ("sampling", "mechanism"),
    [
        ("poisson", mechanisms.Poisson(2.0, 0.5, 3)),
        ("full", mechanisms.FullBatch(2.0, 3)),
        ("fixed", mechanisms.FixedSize(2.0, 2, 4, 3)),
        ("shuffled", mechanisms.Shuffled(2.0, 5, 6)),
        ("allocation", mechanisms.RandomAllocation(2.0, 5, 6)),
    ],
)
def test_a_scheme_is_its_mechanism(sampling: str, mechanism: mechanisms.Mechanism) -> None:
    assert schemes.of_scheme(sampling, 2.0, _of(sampling)) == mechanism


@pytest.mark.parametrize("sampling", schemes.SCHEMES)
def test_each_argument_is_needed_and_no_other_is_taken(sampling: str) -> None:
    own = _of(sampling)
    for name in schemes.ARGUMENTS:
        if name in own:
            with pytest.raises(ValueError, match=f"`{name}` must be given with sampling='{sampling}'"):
                schemes.of_scheme(sampling, 1.0, {**own, name: None})
        else:
            with pytest.raises(ValueError, match=f"`{name}` must be left out with sampling='{sampling}', got"):
                schemes.of_scheme(sampling, 1.0, {**own, name: VALUES[name]})
            assert sampling not in schemes.takers(name)


def test_a_scheme_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="sampling"):
        schemes.of_scheme("cyclic", 1.0, {})
