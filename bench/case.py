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
    force (ours only); "" is the widest. beside: the contender of ours that it is compared with ("" for ours). share:
    the part of the case's work that one call does, its time is divided by it: only where work is a loop over equal
    blocks, or (more than 1) a bare part is done several times. needs: modules without which the row says "not
    installed". floor: the case's floor as it applies to this contender, if not the case's own. spins: ours, but its
    threads are those of torch, as a peer's are. least: it is no contender but a bare part of the work (one read of the
    arrays, the multiply-adds), of which the floor is a multiple.
    """

    name: str
    build: Callable[[Any], Callable[[], Any]]
    threads: int = 1
    tier: str = ""
    beside: str = ""
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

    data: made once per worker process. work: how many units one call does, to show time per unit. floor: seconds that
    the hardware needs at least, given its rates with the contender's threads and tier (None: no useful limit), and
    limit says in words what it counts. least: instead, the floor is as many times what the contender marked `least`
    takes, in the same rounds. memory: whether peak memory is measured, each contender in a process of its own. extra:
    something to print beside the times (accuracy), computed once in the main worker.
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
