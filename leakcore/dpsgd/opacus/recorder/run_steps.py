"""The place of the recorded steps in their run, and the steps of the run that were not recorded."""

from __future__ import annotations

from typing import Any

import numpy as np

from leakcore._base.digest import digest
from leakcore.dpsgd.opacus.recorder.accountant import accountants_of, read_history, step_count
from leakcore.dpsgd.trace.trace import Origin, Stretch, between, settings_of

Place = tuple[int, int]
"""Steps before this one: as the accountant counts, and as the wrapped optimizer does."""


class RunSteps:
    """The recorded steps and their place among all steps of the run.

    The run's other steps come from the history of the accountant that the optimizer's hook informs, if that counts each
    recorded step once; otherwise from the wrapped optimizer's own count.
    """

    def __init__(self, optimizer: Any, candidates: list[Any]) -> None:
        self._optimizer, self._candidates = optimizer, candidates
        self._wrapped = optimizer.original_optimizer
        self._count = step_count(self._wrapped)
        self._hook: Any = None
        self._accountants: list[Any] = []
        self._counted: list[int | None] = []
        self._accountant: Any = None
        self._agrees = True
        self._places: list[Place] = []
        self._known_candidates, self._before = "", ""
        self._after: tuple[int, str] | None = None

    def enter(self, hook: Any) -> None:
        """A recording begins; `hook` is what the optimizer calls at each step."""
        self._hook = hook
        self._accountants = accountants_of(hook)

    def leave(self) -> None:
        """A recording ends. If its last step was finished, the present parameters are the ones after that step."""
        if self._places and self._count.read(self._wrapped) == self._places[-1][1] + 1:
            self._after = len(self._places), digest(self._optimizer.params)

    def before(self) -> None:
        """A step begins, in which the optimizer's hook may inform accountants."""
        if self._optimizer.step_hook is not self._hook:
            self.enter(self._optimizer.step_hook)
        self._counted = [_total(a) for a in self._accountants]

    def account(self) -> Place:
        """The place of this step, which ends."""
        before, after = self._counted, [_total(a) for a in self._accountants]
        counted = [
            (b, a) for a, b, e in zip(self._accountants, before, after, strict=True) if b is not None and e == b + 1
        ]
        own = self._count.read(self._wrapped)
        if not self._places and counted:
            self._accountant = max(counted, key=lambda c: c[0])[1]
        mine = [b for b, accountant in counted if accountant is self._accountant]
        self._agrees = self._agrees and bool(mine)
        return mine[0] if mine else max([b for b in before if b is not None], default=own), own

    def take(self, place: Place) -> None:
        """The step at this place was recorded; the present parameters are the ones before it."""
        if not self._places:
            self._before = digest(self._optimizer.params)
        self._places.append(place)

    def candidates(self) -> str:
        """A digest of the candidates."""
        self._known_candidates = self._known_candidates or digest(self._candidates)
        return self._known_candidates

    def origin(self) -> Origin:
        """What identifies the trace of these steps."""
        after = self._after[1] if self._after is not None and self._after[0] == len(self._places) else None
        shapes = tuple(tuple(p.shape) for p in self._optimizer.params)
        return Origin(candidates=self.candidates(), shapes=shapes, before=self._before, after=after)

    def unrecorded(self, noise_multiplier: np.ndarray, sample_rate: float | None) -> tuple[tuple[Stretch, ...], bool]:
        """The run's steps up to now that were not recorded, and whether there can be no others."""
        if len(self._places) != len(noise_multiplier):  # interrupted in the middle of a step
            return (), False
        places, own = np.array(self._places, dtype=np.int64).T
        own_total = max(self._count.read(self._wrapped), int(own[-1]) + 1)
        history = read_history(self._accountant) if self._agrees else None
        if history is not None and _fits(history, places, noise_multiplier):
            total = sum(steps for *_, steps in history)
            stretches = settings_of(history, between(places, total))
            if sample_rate is not None and not _sampled(history, places, sample_rate):
                stretches = tuple(s._replace(sample_rate=None) for s in stretches)
            missing = max(int((own - places).max()), own_total - total)
            if missing > 0:  # the optimizer made steps that the accountant does not know
                return (Stretch(0, None, None, missing), *stretches), False
            return stretches, True
        if not (np.diff(own) > 0).all():
            return (), False
        counted = between(own, own_total)
        more = int(places[0]) - int(own[0])
        first = [Stretch(0, None, None, more)] if more > 0 else []
        rest = [Stretch(after, None, None, end - start) for after, start, end in counted]
        return (*first, *rest), self._count.complete and not self._accountants


def _total(accountant: Any) -> int | None:
    history = read_history(accountant)
    return None if history is None else sum(steps for *_, steps in history)


def _entries(history: list[tuple[float, float | None, int]], places: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.cumsum([steps for *_, steps in history]), places, side="right")


def _fits(history: list[tuple[float, float | None, int]], places: np.ndarray, noise_multiplier: np.ndarray) -> bool:
    """Whether the history still has every recorded step in its place."""
    if not (np.diff(places) > 0).all() or places[-1] >= sum(steps for *_, steps in history):
        return False
    sigma = np.array([s for s, *_ in history])[_entries(history, places)]
    return bool(np.allclose(sigma, noise_multiplier, rtol=1e-9, atol=0))


def _sampled(history: list[tuple[float, float | None, int]], places: np.ndarray, sample_rate: float) -> bool:
    """Whether the accountant and the recorder agree on how the recorded steps were sampled."""
    rates = np.array([np.nan if q is None else q for _, q, _ in history])[_entries(history, places)]
    return bool(np.allclose(rates, sample_rate, rtol=1e-9, atol=0))
