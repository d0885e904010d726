"""A recorded run as a file of its own would hold it, without the run."""

from __future__ import annotations

import numpy as np

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
