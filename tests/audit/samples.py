"""Small inputs of audits that tests share: recorded runs, canaries, scores, and one report of each form."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from leakcore import audit, dpsgd, mechanisms
from leakcore._base.pages import drawing
from leakcore.audit.shared import elements
from leakcore.dpsgd import Sampling, Trace


def by_poisson(q: float) -> Sampling:
    """What the trace of a loader that samples by Poisson says of it."""
    return Sampling(scheme="poisson", sample_rate=q, evidence=f"UniformWithReplacementSampler(sample_rate={q})")


def orthogonal(candidates: int) -> Trace:
    """Candidates with orthogonal gradients, the first half trained on, twenty steps at σ = 2, q = 0.3."""
    rng = np.random.default_rng(0)
    n, steps = candidates, 20
    members = np.arange(n) < n // 2
    pairs = rng.standard_normal((n, n)) + 2 * np.diag(members.astype(float))
    return Trace(
        noise_multiplier=np.full(steps, 2.0), max_grad_norm=np.ones(steps),
        batch_rows=10 + np.arange(steps) % 3, sample_rate=0.3, expected_batch_size=10.0, members=members,
        members_given=True, times_seen=members.astype(np.int64), clipped_share=np.ones(n), membership_sum=pairs[0],
        membership_likelihood=pairs.diagonal().copy(), pair_sum=pairs, pair_likelihood=pairs,
        sampling=by_poisson(0.3),
    )  # fmt: skip


def simulated(mechanism: mechanisms.Poisson, count: int, seed: int = 0, **facts: Any) -> dpsgd.CanaryTrace:
    """Half of the canaries are in the data, so that audits share simulations; four controls for each canary."""
    coins = np.arange(count) < count // 2
    scores = mechanism.sample_log_ratio(5 * count, "null", seed, 0)
    scores[:count][coins] = mechanism.sample_log_ratio(int(coins.sum()), "alternative", seed, 0)
    steps = mechanism.steps
    return dpsgd.CanaryTrace(**{
        "noise_multiplier": np.full(steps, mechanism.noise_multiplier), "max_grad_norm": np.ones(steps),
        "sample_rate": mechanism.sample_rate, "rows": 1000, "parameters": 10**5, "coins": coins,
        "times_seen": coins * 2, "scores": scores, "release_scores": scores, "noise_ratio": 1.0, "common_noise": 0.5,
        "repeated_noise": 0.5, "interference": 0.1, **facts,
    })  # fmt: skip


RNG = np.random.default_rng(0)
INSIDE, OUTSIDE = RNG.normal(1, 1, 300), RNG.normal(0, 1, 280)
BOTH = np.concatenate([INSIDE, OUTSIDE])
LABELS = np.arange(580) < 300


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
    markup = report.sections()[0].figure.markup()  # type: ignore[union-attr]
    figure = elements.Figure(svg=drawing(markup), alt="again", caption="again")
    part = elements.Part(
        key="more", findings=(elements.Finding(f"More: {USER}", verdict=USER, assumes=USER),), assumptions=(USER,),
        sections=(elements.Section(USER, (), figure),),
    )  # fmt: skip
    return report.with_parts(part)
