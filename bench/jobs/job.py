"""What a job is: who does it, at which sizes, and what it needs at least."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

Call = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Doer:
    """One way to do a job.

    build: takes the size, imports what it needs, makes the data, and returns the call to time, which returns what it
    found, in a few words or numbers. does: what it does less or otherwise than the job says; "" where nothing.
    share: the part of the job that one call does, where the whole would take hours. least: no rival but what the job
    cannot do without, such as the training that is recorded.
    """

    build: Callable[[Mapping[str, int]], Call]
    does: str = ""
    share: float = 1.0
    least: bool = False


@dataclasses.dataclass(frozen=True)
class Job:
    """Something that a user waits for.

    doers: by name, leakcore first. size: of the job in the table. growth: for each number of the size, the values at
    which leakcore is timed, all others as in `growth_from` where that is given.
    """

    title: str
    doers: Mapping[str, Doer]
    size: Mapping[str, int]
    growth: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    growth_from: Mapping[str, int] = dataclasses.field(default_factory=dict)
