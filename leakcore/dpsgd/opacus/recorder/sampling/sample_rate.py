"""The sampling rate of an Opacus run, from its accounting hook."""

from __future__ import annotations

import inspect
import math
from typing import Any


def rate_of_hook(hook: Any) -> float | None:
    """The sampling rate that Opacus's accounting hook closes over."""
    if not inspect.isfunction(hook):
        return None
    rate = inspect.getclosurevars(hook).nonlocals.get("sample_rate")
    return float(rate) if isinstance(rate, (int, float)) and 0 <= rate <= 1 else None


def rate_of_block(hook: Any, before: float, *, begun: bool) -> float:
    """q of a recorder's next block, whose optimizer has this hook. ValueError if the steps so far have another q."""
    rate = rate_of_hook(hook)
    if rate is not None and rate != before and begun:
        raise ValueError(
            f"optimizer: its hook has q = {rate:.4g}, and this recorder's steps have q = {before:.4g}: use another "
            "recorder for steps at another q"
        )
    return before if rate is None else rate


def rate_of_step(of_batch: float, batches: int, before: float | None, of_pass: int | None = None) -> float:
    """q of a step that accumulates several batches, each sampled at `of_batch`; `before` is the q of the earlier steps.

    Batches that together contain every row once are a full batch, as in Opacus's accounting. Of the `of_pass` batches
    into which a shuffled pass is cut, several are again one part of equal parts, if their number divides `of_pass`.

    Raises:
        ValueError: for other batches: a row can be in several of them, so they are not a Poisson sample. Also if the
            earlier steps have another q.
    """
    together = of_batch * batches
    rate = of_batch if batches == 1 else 1.0 if math.isclose(together, 1, rel_tol=1e-9) else None
    if rate is None and of_pass is not None and of_pass % batches == 0:
        rate = together
    if rate is not None and before is not None and rate != before:
        raise ValueError(
            f"optimizer: a step accumulates {batches} batch{'' if batches == 1 else 'es'} at q = {of_batch:.4g}, "
            f"together q = {rate:.4g}, and the steps before it have q = {before:.4g}: accumulate the same number in "
            "every step"
        )
    if rate is None:
        raise ValueError(
            f"optimizer: a step accumulates {batches} batches, each sampled at q = {of_batch:.4g}: together they are "
            "neither a Poisson sample nor one of equal parts of a shuffled pass. Sample once per step (Opacus's "
            "BatchMemoryManager computes such a batch in parts), or pass sampling=q if your loop does that"
        )
    return rate
