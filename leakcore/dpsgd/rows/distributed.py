"""The processes that train one model together, and what their recorders tell each other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from leakcore._base.digest import digest

T = TypeVar("T")
PATIENCE = timedelta(minutes=10)
"""How long a process waits for the others, as NCCL does: then torch raises an error."""


def behind_hooks(model: Any) -> Any:
    """The module that Opacus's hooks were attached to."""
    return getattr(model, "_module", model)


def behind_wrappers(model: Any) -> Any:
    """The module without the wrappers around it. DistributedDataParallel's forward would wait for other processes."""
    module = behind_hooks(model)
    return module.module if is_parallel(module) else module


def is_parallel(model: Any) -> bool:
    """Whether the processes of a run train this module together, by torch's or Opacus's DistributedDataParallel."""
    from opacus.distributed import DifferentiallyPrivateDistributedDataParallel

    module = behind_hooks(model)
    return isinstance(module, nn.Module) and isinstance(
        module, (DistributedDataParallel, DifferentiallyPrivateDistributedDataParallel)
    )


class WrongRowsError(ValueError):
    """What shows that the steps recorded so far are wrong, too."""


@contextlib.contextmanager
def wrong_before() -> Iterator[None]:
    """A ValueError in this block is a `WrongRowsError`."""
    try:
        yield
    except ValueError as error:
        raise WrongRowsError(str(error)) from error


_KINDS: dict[str, type[Exception]] = {c.__name__: c for c in (ValueError, TypeError, WrongRowsError)}


class Ranks:
    """All processes of a run of Opacus's distributed optimizer; of any other run, the one that there is.

    Every process must call `share` equally often. The processes exchange numbers through a group of their own, over
    gloo, so that they do not meet what the training sends meanwhile. RuntimeError if the others do not do the same
    within `PATIENCE`. `own` is the number of this process among `count`.
    """

    def __init__(self, optimizer: Any) -> None:
        self.own, self.count = int(getattr(optimizer, "rank", 0)), int(getattr(optimizer, "world_size", 1))
        self._group: Any = None
        if self.count > 1:
            from torch import distributed

            try:
                self._group = distributed.new_group(backend="gloo", timeout=PATIENCE)
            except RuntimeError as error:
                raise RuntimeError(self._alone()) from error

    @property
    def is_first(self) -> bool:
        """Whether noise is added here, and files are written here."""
        return self.own == 0

    def share(self, work: Callable[[], T]) -> list[T]:
        """Do the work here, and return what it gave in every process, in their order.

        If it fails in one, every process raises the error of the first in which it does, with its number if they
        differ.
        """
        error: Exception | None = None
        value: Any = None
        try:
            value = work()
        except Exception as why:
            error = why
        if self.count == 1:
            if error is not None:
                raise error
            return [value]
        from torch import distributed

        mine = (value, None) if error is None else (None, (type(error).__name__, str(error) or type(error).__name__))
        answers: list[Any] = [None] * self.count
        try:
            distributed.all_gather_object(answers, mine, group=self._group)
        except RuntimeError as why:
            raise RuntimeError(self._alone()) from why
        wrong = [(rank, failed) for rank, (_, failed) in enumerate(answers) if failed is not None]
        if wrong:
            rank, (kind, text) = wrong[0]
            everywhere = len(wrong) == self.count and len({failed for _, failed in wrong}) == 1
            raise _KINDS.get(kind, RuntimeError)(text if everywhere else f"rank {rank}: {text}") from error
        return [one for one, _ in answers]

    def require_equal(self, **values: Any) -> None:
        """ValueError in every process if a value differs between them. Call it with what can be compared by ==."""
        for name, everywhere in zip(values, zip(*self.share(lambda: tuple(values.values())), strict=True), strict=True):
            other = next((rank for rank, value in enumerate(everywhere) if value != everywhere[0]), None)
            if other is not None:
                raise ValueError(
                    f"`{name}` must be the same in every process, got {everywhere[0]} on rank 0 and "
                    f"{everywhere[other]} on rank {other}"
                )

    def _alone(self) -> str:
        return (
            f"record: rank {self.own} of {self.count} waited for the others: every process of the run must call "
            "record, enter its block and make every step there"
        )


def same_coins(ranks: Ranks) -> str:
    """A sentence if processes begin with the same state of torch's generator, by which samplers draw; else ""."""
    if ranks.count == 1:
        return ""
    states = ranks.share(lambda: digest(torch.random.get_rng_state()))
    twin = next((rank for rank, state in enumerate(states) if states.index(state) < rank), None)
    if twin is None:
        return ""
    return (
        f"torch's generator begins in the same state on ranks {states.index(states[twin])} and {twin}, so that rows of "
        "different processes are drawn by the same coins: seed each process by its rank"
    )
