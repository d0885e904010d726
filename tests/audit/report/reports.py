"""One small report of each form of audit, for the tests of the page; made once."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from leakcore import audit, mechanisms
from leakcore.audit.shared import page
from tests.audit.canaries.canary_traces import simulated
from tests.audit.trace.traces import orthogonal

USER = '<script>alert("x")</script>&'


@functools.cache
def trace() -> audit.AuditReport:
    return audit.from_trace(orthogonal(60), coins=True).with_limit(100)


@functools.cache
def scores() -> audit.AuditReport:
    rng = np.random.default_rng(0)
    return audit.from_scores(
        rng.normal(1, 1, 400),
        rng.normal(0, 1, 400),
        retrained=True,
        claimed_epsilon=0.01,
        claimed_adjacency="add-remove",
        adjacency="add-remove",
    )


@functools.cache
def canaries() -> audit.AuditReport:
    return audit.from_canaries(simulated(mechanisms.Poisson(1.0, 0.3, 3), 60), claimed_epsilon=0.01)


@functools.cache
def claim() -> audit.AuditReport:
    return audit.claim(
        {
            "data": {"num_rows": 100},
            "mechanism": {"learning_rate": 0.5, "steps": 4},
            "claim": {"epsilon": 4.0},
            "audit": {"trials": 20, "k": [1]},
        }
    )


@functools.cache
def run() -> audit.AuditReport:
    small: dict[str, Any] = {"runs": 16, "sweep": (4.0,), "num_rows": 60, "steps": 4, "label_trials": 2}
    report = audit.run(audit.AuditConfig(**small, label_steps=4))
    figure = page.Figure(svg=report.sections()[0].figure.markup(), alt="again", caption="again")  # type: ignore[union-attr]
    part = page.Part(
        key="more", findings=(page.Finding(f"More: {USER}", verdict=USER, assumes=USER),), assumptions=(USER,),
        sections=(page.Section(USER, (), figure),),
    )  # fmt: skip
    return report.with_parts(part)
