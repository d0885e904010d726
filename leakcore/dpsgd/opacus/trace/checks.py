"""Checks of a trace that was read from a file, which may come from anywhere."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from leakcore.dpsgd.opacus.trace.origin import Origin
from leakcore.dpsgd.opacus.trace.sampling import Sampling
from leakcore.dpsgd.opacus.trace.unrecorded_steps import Stretch

ARRAYS = {
    "noise_multiplier": 1,
    "max_grad_norm": 1,
    "batch_rows": 1,
    "members": 1,
    "times_seen": 1,
    "clipped_share": 1,
    "membership_sum": 1,
    "membership_likelihood": 1,
    "pair_sum": 2,
    "pair_likelihood": 2,
}
"""Fields of a trace that are arrays, and their dimensions."""
_LEAST = {"noise_multiplier": 0, "max_grad_norm": 0, "batch_rows": 0, "times_seen": 0, "clipped_share": 0}
_PER_STEP = ("noise_multiplier", "max_grad_norm", "batch_rows")
_HEX = frozenset("0123456789abcdef")
_MOST = 2**53


def check_file(trace: Any) -> None:
    """ValueError that names the field in which a trace that was read from a file cannot be one."""
    _check_arrays(trace)
    for name in ("sample_rate", "expected_batch_size"):
        value = getattr(trace, name)
        if value is not None and not 0 <= value < _MOST:
            raise ValueError(f"`{name}` must be a number of at least 0 or null, got {value}")
    before, total = 0, trace.steps
    for stretch in trace.unrecorded:
        total += stretch.steps
        if not _is_possible(stretch, before, trace.steps) or total > _MOST:
            raise ValueError(
                "`unrecorded` must be a list of [recorded steps before, noise_multiplier, sample_rate, steps]"
            )
        before = stretch.after
    _check_sampling(trace.sampling)
    if trace.origin is not None and not _is_origin(trace.origin):
        raise ValueError("`origin` must be digests of candidates and parameters, and shapes")


def _check_arrays(trace: Any) -> None:
    steps, n = trace.noise_multiplier.shape[:1], trace.members.shape[:1]
    for name, dimensions in ARRAYS.items():
        values = getattr(trace, name)
        wanted = steps if name in _PER_STEP else n * dimensions
        if values.ndim != dimensions or values.shape != wanted or values.dtype.kind not in "biuf":
            raise ValueError(
                f"`{name}` must be real numbers of shape {wanted}, got {values.dtype} of shape {values.shape}"
            )
    if steps == (0,) or n == (0,):
        raise ValueError(f"a trace must hold at least one step and one candidate, got {steps[0]} and {n[0]}")
    for name, low in _LEAST.items():
        values = getattr(trace, name)
        if not (np.isfinite(values) & (values >= low)).all():
            raise ValueError(f"`{name}` must be finite numbers of at least {low}")
    if trace.members.dtype != np.bool_:
        raise ValueError(f"`members` must be of type bool, got {trace.members.dtype}")
    for name in ("membership_sum", "pair_sum"):
        if not np.isfinite(getattr(trace, name)).all():
            raise ValueError(f"`{name}` must be finite")


def _check_sampling(sampling: Sampling) -> None:
    numbers = (sampling.batch_size, sampling.dataset_size, sampling.batches, sampling.passes, sampling.left_out)
    rate = sampling.sample_rate
    needs = {"poisson": rate, "shuffled": sampling.batches, "fixed-size": sampling.batch_size}
    if (
        any(value is not None and not 0 <= value < _MOST for value in numbers)
        or not (rate is None or 0 <= rate <= 1)
        or needs.get(sampling.scheme, 1) is None
        or (sampling.scheme == "shuffled" and sampling.batches == 0)
        or (sampling.scheme == "fixed-size" and not 1 <= (sampling.batch_size or 0) <= (sampling.dataset_size or 0))
    ):
        raise ValueError("`sampling` must be a scheme with its numbers")


def _is_possible(stretch: Stretch, before: int, steps: int) -> bool:
    settings = ((stretch.noise_multiplier, math.inf), (stretch.sample_rate, 1.0))
    known = [(value, high) for value, high in settings if value is not None]
    return (
        before <= stretch.after <= steps
        and 1 <= stretch.steps <= _MOST
        and all(0 <= value <= min(high, 2.0**1000) for value, high in known)
    )


def _is_origin(origin: Origin) -> bool:
    digests = [d for d in (origin.candidates, origin.before, origin.after) if d is not None]
    return all(len(d) == 64 and _HEX.issuperset(d) for d in digests) and all(
        0 <= size < 2**63 for shape in origin.shapes for size in shape
    )
