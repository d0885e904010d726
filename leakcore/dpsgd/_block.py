"""The training loop of one block: a fixed number of slots, run by run at the slot of its number, in one thread."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import torch

from leakcore.dpsgd._activations import ACTIVATIONS
from leakcore.dpsgd._parameters import Layout
from leakcore.dpsgd._rows import Pass, Rows
from leakcore.dpsgd._streams import Streams

SLOTS = 32
"""Runs per block. With 1,000 rows and ten units a buffer is 1.3 MB, which the third-level cache holds. On two threads
16 slots measured 25% slower (the interpreter's lock changes hands twice as often), 64 slots 4% faster for twice the
padding."""

Matrices = list[torch.Tensor]
"""One (slots, out, in + 1) matrix per layer."""


class Cancelled(Exception):
    """Another block failed, or the user interrupted."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The mechanism, as numbers."""

    layers: tuple[int, ...]
    activation: str
    noise_multiplier: float
    max_grad_norm: float
    learning_rate: float
    steps: int
    sample_rate: float
    expected_batch_size: float
    clip_slack: float
    fixed_initialisation: bool
    dtype: str
    streams: Streams


@dataclasses.dataclass(frozen=True)
class BlockInput:
    """What one block reads. Arrays have one entry per slot; slots that belong to no requested run hold zeros."""

    first_run: int
    extra: Rows | None = None
    candidates: Rows | None = None
    initial: np.ndarray | None = None
    noise: np.ndarray | None = None
    batches: np.ndarray | None = None


@dataclasses.dataclass
class BlockOutput:
    """What one block leaves: (slots, ...) arrays."""

    parameters: np.ndarray
    dots: np.ndarray | None
    norms: np.ndarray | None
    cosine: np.ndarray | None


class Trainer:
    """Buffers of one thread. `common` are row chunks that all runs and threads share."""

    def __init__(
        self, plan: Plan, common: list[Rows], *, extra: int, candidates: int, subtract_known: bool, cosines: bool
    ) -> None:
        self._plan = plan
        self._common = common
        self._layout = Layout(plan.layers)
        self._dtype: torch.dtype = getattr(torch, plan.dtype)
        self._passes = {rows: self._new_pass(rows) for rows in {chunk.count for chunk in common}}
        self._extra = self._new_pass(extra) if extra else None
        self._candidates = self._new_pass(candidates) if candidates else None
        self._num_rows = sum(chunk.count for chunk in common) + extra
        self._subtract_known = subtract_known
        self._cosines = cosines

    def _new_pass(self, rows: int) -> Pass:
        plan = self._plan
        activation = ACTIVATIONS[plan.activation]
        return Pass(SLOTS, rows, plan.layers, activation, plan.max_grad_norm, plan.clip_slack, self._dtype)

    def train(self, given: BlockInput, stop: threading.Event) -> BlockOutput:
        """All steps of the block's runs; raises `Cancelled` between steps once `stop` is set."""
        plan, layout = self._plan, self._layout
        weights = layout.empty(SLOTS, self._dtype)
        layout.write(torch.from_numpy(self._initial(given)), weights)
        known, private = layout.empty(SLOTS, self._dtype), layout.empty(SLOTS, self._dtype)
        out = self._outputs()
        for step in range(plan.steps):
            if stop.is_set():
                raise Cancelled
            self._gradients(given, weights, step, known, private)
            released = [k.add_(p) for k, p in zip(known, private, strict=True)]
            if given.candidates is not None:
                observed = private if self._subtract_known else released
                self._score(given.candidates, weights, observed, step, out)
            for w, g in zip(weights, released, strict=True):
                w.add_(g, alpha=-plan.learning_rate / plan.expected_batch_size)
        out.parameters = layout.read(weights).numpy()
        if out.cosine is not None:
            out.cosine /= max(plan.steps, 1)
        return out

    def _initial(self, given: BlockInput) -> np.ndarray:
        plan, layout = self._plan, self._layout
        if given.initial is not None:
            return given.initial
        if plan.fixed_initialisation:
            draws = np.repeat(plan.streams.initial(1, layout.size, first_run=0), SLOTS, axis=0)
        else:
            draws = plan.streams.initial(SLOTS, layout.size, first_run=given.first_run)
        scaled: np.ndarray = (2 * draws - 1) * layout.bounds()
        return scaled.astype(plan.dtype)

    def _gradients(
        self, given: BlockInput, weights: Matrices, step: int, known: Matrices, private: Matrices
    ) -> None:  # fmt: skip
        """known = Σ over the common rows of the batch; private = Σ over the extra rows of the batch + noise."""
        plan = self._plan
        mask = self._batch(given, step)
        start = 0
        for i, chunk in enumerate(self._common):
            end = start + chunk.count
            work = self._passes[chunk.count]
            work.run(chunk, weights)
            work.add_clipped_sum(chunk, known, mask=None if mask is None else mask[:, start:end], fresh=i == 0)
            start = end
        if self._extra is not None and given.extra is not None:
            self._extra.run(given.extra, weights)
            self._extra.add_clipped_sum(
                given.extra, private, mask=None if mask is None else mask[:, start:], fresh=True
            )
        else:
            for p in private:
                p.zero_()
        if plan.noise_multiplier > 0:
            if given.noise is not None:
                draws = np.ascontiguousarray(given.noise[:, step])
            else:
                draws = plan.streams.noise(SLOTS, self._layout.size, step, first_run=given.first_run)
            self._layout.add(torch.from_numpy(draws), plan.noise_multiplier * plan.max_grad_norm, private)

    def _batch(self, given: BlockInput, step: int) -> torch.Tensor | None:
        plan = self._plan
        if given.batches is not None:
            taken = given.batches[:, step]
        elif plan.sample_rate < 1:
            taken = plan.streams.batch(SLOTS, self._num_rows, plan.sample_rate, step, first_run=given.first_run)
        else:
            return None
        return torch.from_numpy(taken.astype(plan.dtype))

    def _outputs(self) -> BlockOutput:
        scored = None if self._candidates is None else self._candidates.norms.shape[1]
        shape = (SLOTS, self._plan.steps, scored or 0)
        return BlockOutput(
            parameters=np.empty(0),
            dots=None if scored is None else np.empty(shape, self._plan.dtype),
            norms=None if scored is None else np.empty(shape, self._plan.dtype),
            cosine=np.zeros(SLOTS) if scored is not None and self._cosines else None,
        )

    def _score(self, rows: Rows, weights: Matrices, observed: Matrices, step: int, out: BlockOutput) -> None:
        assert self._candidates is not None
        assert out.dots is not None
        assert out.norms is not None
        self._candidates.run(rows, weights)
        out.dots[:, step] = self._candidates.scores(rows, observed).numpy()
        out.norms[:, step] = self._candidates.clipped_norms().numpy()
        if out.cosine is not None:
            out.cosine += self._candidates.nearest_cosine(rows).numpy()
