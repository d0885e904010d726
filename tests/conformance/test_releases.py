"""Releases: each row once with norm at most C, whatever a loop does; the trace, the accountant and autograd agree."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

pytest.importorskip("opacus")
from leakcore import dpsgd
from tests.conformance.release_loops import KINDS, MEMBERS, Loop, Member

pytestmark = pytest.mark.filterwarnings("ignore")
DEFAULT, LONG = 12, 300
"""Loops of each member."""
TAKE_PART = {
    "CanaryRecorder": "canaries", "FusedDPOptimizer": "fused", "Recorder": "flat recorded", "record": "canaries",
}  # fmt: skip
"""Public names of `leakcore.dpsgd` by which a program makes or records releases, and a member for each."""
OTHERS = {
    "AllocatedBatches", "Canaries", "CanaryTrace", "CraftedGradient", "Ensemble", "EnsembleRun", "Execution", "Fault",
    "FixedBatches", "Initialisation", "ModuleNetwork", "Network", "Observer", "PerRun", "PoissonBatches", "Rows",
    "Running", "Sampling", "Scorer", "ShuffledBatches", "Trace", "secure_normal",
}  # fmt: skip
"""The ensemble trains its own runs; what is left are settings and results."""


def _try(member: Member, examples: int) -> None:
    machine = type("Loop", (Loop,), {"member": member})
    chosen = settings(
        max_examples=examples, stateful_step_count=12, derandomize=True, database=None, deadline=None,
        suppress_health_check=list(HealthCheck), print_blob=True, phases=(Phase.generate,),
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=chosen)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("member", MEMBERS, ids=lambda m: m.name)
def test_loops(member: Member) -> None:
    _try(member, DEFAULT)


@pytest.mark.slow
@pytest.mark.parametrize("member", MEMBERS, ids=lambda m: m.name)
def test_many_loops(member: Member) -> None:
    _try(member, LONG)


def test_every_public_name_that_takes_part_in_releases_is_a_member() -> None:
    assert set(dpsgd.__all__) == TAKE_PART.keys() | OTHERS, "say of the new name whether it takes part in releases"
    assert set(TAKE_PART.values()) <= KINDS.keys()
