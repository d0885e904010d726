"""What is timed: a case is one job at one size, its contenders do the same job."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from bench import environment

Rates = dict[str, float]
"""What one tier can do with a number of threads, per second: `read` bytes, `fma_f64`, `exp_f32`, … operations."""


@dataclasses.dataclass(frozen=True)
class Contender:
    """Who does the job, and how.

    build: takes the case's data, returns the call to time. threads: what it may use. tier: an instruction tier to
    force (ours only); "" is the widest. against: our contender that it is compared with ("" for ours). share:
    the part of the case's work that one call does; its time is divided by it. Only for work that is a loop over equal
    blocks, or (more than 1) for a bare part that is done several times. needs: modules without which the row says "not
    installed". floor: the case's floor as it applies to this contender, if not the case's own. spins: ours, but it uses
    torch's threads, as a peer does. least: not a contender but a bare part of the work (one read of the arrays, the
    multiply-adds); the floor is a multiple of it.
    """

    name: str
    build: Callable[[Any], Callable[[], Any]]
    threads: int = 1
    tier: str = ""
    against: str = ""
    share: float = 1.0
    needs: tuple[str, ...] = ()
    floor: Callable[[Rates], float | None] | None = None
    spins: bool = False
    least: bool = False

    @property
    def ours(self) -> bool:
        return self.name.startswith("leakcore")

    @property
    def home(self) -> str:
        """The worker process that it is timed in."""
        return environment.SPINNING if self.threads > 1 and (self.spins or not (self.ours or self.least)) else self.tier


@dataclasses.dataclass(frozen=True)
class Case:
    """One size of one kernel.

    data: made once per worker process. work: how many units one call does, to show time per unit. floor: the least
    seconds that the hardware needs, given its rates with the contender's threads and tier (None: no useful limit), and
    limit says in words what it counts. least: instead, the floor is this many times the time of the contender marked
    `least`, in the same rounds. memory: whether peak memory is measured, each contender in a process of its own. extra:
    a table to print after the times (accuracy), computed once in the main worker.
    """

    kernel: str
    size: str
    data: Callable[[], Any]
    contenders: tuple[Contender, ...]
    work: float
    unit: str
    floor: Callable[[Rates], float | None] = lambda rates: None
    limit: str = ""
    least: int = 0
    memory: bool = False
    seconds: float = 10.0
    extra: Callable[[], list[list[str]]] | None = None

    @property
    def key(self) -> str:
        return f"{self.kernel} {self.size}"
