"""Join two parts of one run to one trace, after checking that they belong together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from leakcore._base.version import __version__
from leakcore.dpsgd.trace.trace import Sampling, Stretch, Trace, unknown

_ALIKE = ("sample_rate", "expected_batch_size", "members_given", "candidates")


def joined(first: Trace, later: Trace) -> Trace:
    """The steps of two neighbouring parts of a run as one trace.

    Sums of scores and log-likelihood ratios are added, because each is a sum over steps; shares are computed again.

    Raises:
        ValueError: says why these are not neighbouring parts of one run.
    """
    _require_alike(first, later)
    ahead = sum(s.steps for s in later.unrecorded if s.after == 0)  # at least, if `later` is not complete
    _require_neighbours(first, later, ahead)
    steps = first.steps + later.steps
    inside = [s for s in first.unrecorded if s.after < first.steps]
    # An incomplete later part may have counted more steps before it than the first part knows.
    more = ahead - (first.steps + sum(s.steps for s in inside))
    known = [Stretch(0, None, None, more)] if more > 0 else []
    rest = [s._replace(after=s.after + first.steps) for s in later.unrecorded if s.after]
    times = first.times_seen + later.times_seen
    clipped = np.rint(first.clipped_share * first.steps) + np.rint(later.clipped_share * later.steps)
    added: dict[str, Any] = {
        name: getattr(first, name) + getattr(later, name)
        for name in ("membership_sum", "pair_sum", "membership_likelihood", "pair_likelihood")
    }
    rows: dict[str, Any] = {
        name: np.concatenate([getattr(first, name), getattr(later, name)])
        for name in ("noise_multiplier", "max_grad_norm", "batch_rows")
    }
    divisors = {first.divisor, later.divisor}
    assert first.origin is not None
    assert later.origin is not None
    return dataclasses.replace(
        first,
        **rows,
        **added,
        times_seen=times,
        clipped_share=clipped / steps,
        members=first.members if first.members_given else times > 0,
        unrecorded=(*known, *inside, *rest),
        complete=first.complete and later.complete,
        origin=dataclasses.replace(first.origin, after=later.origin.after),
        version=__version__,
        sampling=_joined_sampling(first.sampling, later.sampling),
        divisor="rows" if "rows" in divisors else first.divisor if len(divisors) == 1 else None,  # what claims least
    )


def _require_alike(first: Trace, later: Trace) -> None:
    if first.origin is None or later.origin is None:
        raise ValueError(
            "does not record its candidates and parameters (the file of an older version): cannot be joined"
        )
    if first.origin.candidates != later.origin.candidates:
        raise ValueError("its candidates differ from the part before: another run, or another way of recording")
    if first.origin.shapes != later.origin.shapes:
        raise ValueError(f"its parameters have shapes {later.origin.shapes}, in the part before {first.origin.shapes}")
    for name in _ALIKE:
        ours, theirs = getattr(first, name), getattr(later, name)
        if ours != theirs and (None in (ours, theirs) or not math.isclose(ours, theirs, rel_tol=1e-9)):
            raise ValueError(
                f"{name} is {theirs}, in the part before {ours}: one trace has one value; a report on either part "
                "covers the whole run"
            )
    if first.members_given and not (first.members == later.members).all():
        raise ValueError("its members differ from the part before: another run")


def _require_neighbours(first: Trace, later: Trace, ahead: int) -> None:
    """ValueError unless the later part's first step follows the first part's last step."""
    assert first.origin is not None
    assert later.origin is not None
    end = first.steps + sum(s.steps for s in first.unrecorded if s.after < first.steps)
    if later.complete and ahead < end:
        raise ValueError(
            f"its first step is number {ahead + 1} of the run, and the part before ends with number {end}: they "
            "overlap, are not in the order of the run, or belong to different runs"
        )
    if first.complete and ahead > end:
        raise ValueError(
            f"its first step is number {ahead + 1} of the run, and the part before ends with number {end}: steps "
            "between them are missing; a report on either part covers the whole run"
        )
    if first.complete and later.complete:
        _require_same_steps(first, later, end)
    if None not in (first.origin.after, later.origin.before) and first.origin.after != later.origin.before:
        raise ValueError(
            "its parameters before its first step differ from the ones after the last step of the part before: "
            "another run, another order, or another checkpoint"
        )
    if first.origin.before == later.origin.before and np.array_equal(first.pair_sum, later.pair_sum):
        raise ValueError("repeats the part before")


def _require_same_steps(first: Trace, later: Trace, end: int) -> None:
    """ValueError if the later part's accountant has other settings for the first part's steps."""
    place = 0
    ours, theirs = _schedule(first), _schedule(later)
    a, b = next(ours), next(theirs)
    while place < end:
        for what, x, y in zip(("σ", "q"), a[:2], b[:2], strict=True):
            if None not in (x, y) and not math.isclose(x, y, rel_tol=1e-9):  # type: ignore[arg-type]
                raise ValueError(
                    f"its accountant has step {place + 1} of the run at {what} = {y:.6g}, the part before at {x:.6g}: "
                    "different runs"
                )
        taken = min(a[2], b[2])
        place += taken
        a = (*a[:2], a[2] - taken) if a[2] > taken else next(ours, a)
        b = (*b[:2], b[2] - taken) if b[2] > taken else next(theirs, b)


def _schedule(trace: Trace) -> Iterator[tuple[float | None, float | None, int]]:
    """(σ, q, steps) in the order of the run, the recorded steps one by one."""
    before = 0
    for after, sigma, rate, count in (*trace.unrecorded, (trace.steps, None, None, 0)):
        for step in range(before, after):
            yield float(trace.noise_multiplier[step]), trace.sample_rate, 1
        before = after
        if count:
            yield sigma, rate, count


def _joined_sampling(first: Sampling, later: Sampling) -> Sampling:
    """The sampling of two parts of one run; unknown where they differ."""
    counts = {"passes": None, "left_out": 0}
    alike = dataclasses.replace(first, **counts) == dataclasses.replace(later, **counts)  # type: ignore[arg-type]
    if not alike:
        if not first.is_known or not later.is_known:
            order = ("", "sampling", "sensitivity")
            return max(first, later, key=lambda s: (not s.is_known, order.index(s.violation)))
        return unknown(f"the parts of the run were sampled in different ways: {first.evidence}; {later.evidence}")
    passes = None if first.passes is None or later.passes is None else first.passes + later.passes
    return dataclasses.replace(first, passes=passes, left_out=first.left_out + later.left_out)
