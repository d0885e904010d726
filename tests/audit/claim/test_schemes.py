"""A claim about batches of a fixed size, and about rows that are allocated to the batches of an epoch."""

from __future__ import annotations

from typing import Any

import pytest

from leakcore import accounting, audit, mechanisms
from leakcore.audit.claim.proofs import claim_of

SECTIONS: dict[str, dict[str, Any]] = {
    "data": {"name": "digits", "num_rows": 200}, "audit": {"trials": 60, "k": [1]},
}  # fmt: skip
FIXED = {"sampling": "fixed", "batch_size": 40, "steps": 10}
ALLOCATED = {"sampling": "allocation", "batches": 5, "steps": 10}


def _sections(mechanism: dict[str, Any], **more: dict[str, Any]) -> dict[str, dict[str, Any]]:
    sigma = {"noise_multiplier": 2.0}
    return {
        **SECTIONS,
        **more,
        "mechanism": {**sigma, **mechanism},
        "audit": {**SECTIONS["audit"], **more.get("audit", {})},
    }


@pytest.mark.parametrize(
    ("keys", "adjacency", "mechanism"),
    [
        (FIXED, "replace", mechanisms.FixedSize(2.0, 40, 200, 10)),
        (ALLOCATED, "add-remove", mechanisms.RandomAllocation(2.0, 5, 2)),
        (ALLOCATED, "replace", mechanisms.RandomAllocation(2.0, 5, 2)),
    ],
)
def test_the_claim_is_the_mechanisms_own(
    keys: dict[str, Any], adjacency: str, mechanism: mechanisms.Mechanism
) -> None:  # fmt: skip
    config = audit.ClaimConfig.from_dict(_sections(keys, claim={"adjacency": adjacency}))
    claimed = claim_of(config, 200)
    assert claimed.epsilon == float(accounting.epsilon(mechanism, delta=1e-5, adjacency=adjacency).value)
    assert not claimed.gaussian  # so the Gaussian family, which would prove more, is not used


@pytest.mark.parametrize(("keys", "adjacency"), [(FIXED, "replace"), (ALLOCATED, "add-remove")])
def test_a_correct_mechanism_passes_and_one_without_noise_does_not(keys: dict[str, Any], adjacency: str) -> None:
    sections = _sections({**keys, "noise_multiplier": 8.0}, claim={"adjacency": adjacency})
    honest = audit.claim(sections)
    assert honest.passed
    assert honest.epsilon < honest.claim.epsilon
    broken = audit.claim({**sections, "fault": {"noise": 1e-3}})
    assert not broken.passed
    words = {"fixed": "fresh batches of 40", "allocation": "rows allocated to 5 batches an epoch"}
    assert words[keys["sampling"]] in honest.title


@pytest.mark.parametrize(
    ("keys", "more", "message"),
    [
        ({"sampling": "allocation"}, {}, "`mechanism.batches` must be given with mechanism.sampling='allocation'"),
        ({"sampling": "shuffled"}, {}, "`mechanism.batch_size` must be given with mechanism.sampling='shuffled'"),
        ({"sampling": "poisson", "batch_size": 40}, {}, "`mechanism.batch_size` must be left out with poisson batches"),
        ({"batches": 5}, {}, "`mechanism.batches` must be left out with poisson batches, got 5"),
        ({**ALLOCATED, "steps": 11}, {}, "`mechanism.steps` must be whole epochs of 5 batches, got 11"),
        (
            {**FIXED, "sample_rate": 0.5},
            {"claim": {"adjacency": "replace"}},
            "`mechanism.sample_rate` must be 1 with fixed batches, got 0.5",
        ),
        (FIXED, {}, "`claim.adjacency` must be 'replace' with mechanism.sampling='fixed', got 'add-remove'"),
        (ALLOCATED, {"audit": {"attack": "one-run"}}, "`audit.attack` must be a poisoning attack"),
    ],
)
def test_keys_that_do_not_go_together_are_named(
    keys: dict[str, Any], more: dict[str, dict[str, Any]], message: str
) -> None:  # fmt: skip
    with pytest.raises(ValueError, match=message):
        audit.ClaimConfig.from_dict(_sections(keys, **more))
