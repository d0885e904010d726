"""The training loop of one block: a fixed number of slots, run by run at the slot of its number, in one thread."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from leakcore._base import validate
from leakcore.dpsgd.ensemble.network import Initialisation
from leakcore.dpsgd.ensemble.observer import Running, Watch
from leakcore.dpsgd.ensemble.passes import (
    IN_PLACE_ACTIVATIONS,
    FlatLayout,
    Matrices,
    ModulePass,
    NativeSums,
    ParameterLayout,
    Pass,
    RowGroup,
)
from leakcore.dpsgd.ensemble.sampling import SLOTS, Batches, DrawnBatches, Gather, Streams, gathered_rows
from leakcore.kernels import EnsembleRows, EnsembleSums


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """How a faulty implementation departs from DP-SGD. The defaults change nothing.

    Use it to show that an audit detects the fault.

    Args:
        noise: factor, at least 0, on the standard deviation of all noise; 0.5 gives σ/2.
        bias_noise: further factor, at least 0, for the noise of biases; 0 leaves biases without noise.
        clip: "sample" clips each gradient to C, as DP-SGD must. "batch" clips the mean gradient instead, g = Σ
            ∇ℓ·min{1, C/‖(1/B) Σ ∇ℓ‖}: one row then moves the sum by up to B·C, while the noise covers C.
        clip_slack: added to the norm before dividing, at least 0. Opacus adds 1e-6, which departs from the definition
            but is not a fault.

    Raises:
        ValueError: for a negative number or another `clip`.

    Example:
        >>> from leakcore import dpsgd
        >>> settings = {"noise_multiplier": 2.0, "max_grad_norm": 1.0, "learning_rate": 0.1, "steps": 1, "seed": 0}
        >>> broken = dpsgd.Ensemble((4, 2), fault=dpsgd.Fault(noise=0.5), **settings)
        >>> broken.fault.noise
        0.5
    """

    noise: float = 1.0
    bias_noise: float = 1.0
    clip: str = "sample"
    clip_slack: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", validate.non_negative(noise=self.noise))
        object.__setattr__(self, "bias_noise", validate.non_negative(bias_noise=self.bias_noise))
        validate.one_of("sample", "batch", clip=self.clip)
        object.__setattr__(self, "clip_slack", validate.non_negative(clip_slack=self.clip_slack))


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
    sampling: Batches
    expected_batch_size: float
    initialisation: Initialisation
    fault: Fault
    dtype: str
    streams: Streams
    module: torch.nn.Module | None = None
    input_shape: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class BlockInput:
    """What one block reads: arrays with one entry per slot. Slots that are not `used` hold zeros."""

    first_run: int
    used: range = range(SLOTS)
    extra: RowGroup | None = None
    candidates: RowGroup | None = None
    probes: RowGroup | None = None
    initial: np.ndarray | None = None
    noise: np.ndarray | None = None
    batches: np.ndarray | None = None
    crafted: np.ndarray | None = None
    crafted_batches: np.ndarray | None = None


@dataclasses.dataclass
class BlockOutput:
    """The arrays that one block yields, (slots, ...)."""

    parameters: np.ndarray
    dots: np.ndarray | None = None
    clipped_norms: np.ndarray | None = None
    cosine: np.ndarray | None = None
    clipped: np.ndarray | None = None
    scores: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    thetas: np.ndarray | None = None
    observed: np.ndarray | None = None
    probe_logits: np.ndarray | None = None

    def part(self, which: slice) -> BlockOutput:
        """Some of the slots."""
        arrays: dict[str, Any] = {
            name: None if (array := getattr(self, name)) is None else array[which] for name in ARRAYS
        }
        return BlockOutput(**arrays, scores={name: scores[which] for name, scores in self.scores.items()})


ARRAYS = tuple(field.name for field in dataclasses.fields(BlockOutput) if field.name != "scores")
"""Fields of `BlockOutput` that hold an array."""


class Trainer:
    """Buffers of one thread. `common` and `probes` are chunks of rows that all runs and threads share."""

    def __init__(
        self,
        plan: Plan,
        common: list[RowGroup] | EnsembleRows,
        watch: Watch,
        *,
        extra: int,
        candidates: int,
        probes: list[RowGroup],
        device: torch.device,
    ) -> None:
        self._plan = plan
        self._clip_to = math.inf if plan.fault.clip == "batch" else plan.max_grad_norm
        self._native: NativeSums | None = None
        if isinstance(common, EnsembleRows):
            limits = {"max_grad_norm": self._clip_to, "slack": plan.fault.clip_slack}
            sums = EnsembleSums(SLOTS, plan.layers, plan.activation, plan.dtype, **limits)
            self._native, common = NativeSums(sums, common), []
        self._common, self._watch = common, watch
        self._layout = ParameterLayout(plan.layers) if plan.module is None else FlatLayout(plan.module)
        self._dtype: torch.dtype = getattr(torch, plan.dtype)
        self._device = device
        self._extra = self._new_pass(extra) if extra and self._native is None else None
        self._scored = candidates
        self._candidates = self._new_pass(candidates) if candidates else None
        self._num_common = sum(chunk.count for chunk in common) if self._native is None else self._native.num_common
        self._num_rows = self._num_common + extra
        self._probes = probes
        blocks = [gathered_rows(chunk.count, plan.sampling, self._num_rows) for chunk in common]
        self._gathers = [n if n is None else Gather(c, SLOTS, n) for c, n in zip(common, blocks, strict=True)]
        self._share = plan.sampling.share(self._num_rows)
        self._drawn = DrawnBatches(plan.sampling, plan.streams, self._num_rows)
        shapes = {c.count if g is None else g.rows for c, g in zip(common, self._gathers, strict=True)}
        self._passes = {rows: self._new_pass(rows) for rows in shapes}

    def _new_pass(self, rows: int) -> Pass | ModulePass:
        plan, clip = self._plan, (self._clip_to, self._plan.fault.clip_slack)
        norms = torch.zeros((SLOTS, rows), dtype=self._dtype, device=self._device)
        if plan.module is not None:
            return ModulePass(norms, plan.module, plan.input_shape, *clip)
        return Pass(norms, plan.layers, IN_PLACE_ACTIVATIONS[plan.activation], *clip)

    def train(self, block: BlockInput, stop: threading.Event) -> BlockOutput:
        """All steps of the block's runs; raises `Cancelled` between steps once `stop` is set."""
        plan, layout = self._plan, self._layout
        weights, known, private = (layout.empty(SLOTS, self._dtype, self._device) for _ in range(3))
        watch, averaged = self._watch, None
        if watch.subtract_known and watch.batches == "none" and block.candidates is not None:
            averaged = layout.empty(SLOTS, self._dtype, self._device)
        layout.write(self._there(self._initial(block)), weights)
        if self._native is not None:
            self._native.begin(block.extra)
        for work in (self._extra, self._candidates, *self._passes.values()):
            if isinstance(work, ModulePass):
                work.used = block.used
        out = self._outputs()
        running = {name: scorer.start((SLOTS, self._scored)) for name, scorer in watch.scorers.items()}
        for step in range(plan.steps):
            if stop.is_set():
                raise Cancelled
            taken = self._drawn.batch(step, block.first_run) if block.batches is None else block.batches[:, step]
            self._gradients(block, weights, taken, step, known, private)
            released = [k.add_(p) for k, p in zip(known, private, strict=True)]
            observed = private if watch.subtract_known else released
            if averaged is not None:
                observed = self._without_average(block, weights, released, averaged)
            if out.thetas is not None:
                assert out.observed is not None
                out.thetas[:, step] = _here(layout.read(weights))
                out.observed[:, step] = _here(layout.read(observed))
            if block.candidates is not None:
                known_batches = taken if watch.batches == "all" else None
                scored = None if known_batches is None else np.any(known_batches[:, self._num_common :], axis=1)
                self._score(block.candidates, weights, observed, step, scored, out, running)
            for w, g in zip(weights, released, strict=True):
                w.add_(g, alpha=-plan.learning_rate / plan.expected_batch_size)
        out.parameters = _here(layout.read(weights))
        out.probe_logits = self._probed(block, weights)
        out.scores = {name: scores.scores() for name, scores in running.items()}
        if out.cosine is not None:
            out.cosine /= max(plan.steps, 1)
        return out

    def _initial(self, block: BlockInput) -> np.ndarray:
        plan, layout, first = self._plan, self._layout, block.first_run
        how = plan.initialisation
        base = block.initial
        if base is None:
            assert isinstance(layout, ParameterLayout), "a module brings its own parameters"
            base = how.base(plan.streams, layout, SLOTS, first_run=first)
        return how.around(plan.streams, layout, base, first_run=first).astype(plan.dtype)

    def _gradients(
        self,
        block: BlockInput,
        weights: Matrices,
        taken: np.ndarray | None,
        step: int,
        known: Matrices,
        private: Matrices,
    ) -> None:
        """known = Σ over the common rows of the batch; private = Σ over the extra rows of the batch +
        the crafted gradient + noise."""
        plan = self._plan
        if self._native is not None:
            self._native.add(weights, taken, known, private)
        else:
            self._products(block, weights, taken, known, private)
        if block.crafted is not None and block.crafted_batches is not None:
            self._craft(block.crafted[min(step, len(block.crafted) - 1)], block.crafted_batches[:, step], private)
        if plan.fault.clip == "batch":
            self._clip_whole(known, private)
        scale = plan.noise_multiplier * plan.max_grad_norm * plan.fault.noise
        if scale > 0:
            if block.noise is not None:
                draws = np.ascontiguousarray(block.noise[:, step])
            else:
                draws = plan.streams.noise(SLOTS, self._layout.size, step, first_run=block.first_run)
            self._layout.add(self._there(draws), scale, private, bias_scale=scale * plan.fault.bias_noise)

    def _craft(self, gradient: np.ndarray, taken: np.ndarray, private: Matrices) -> None:
        """Add a gradient, clipped as a row's, to the runs whose batch holds it; taken: (slots,) bool."""
        norm = float(np.linalg.norm(gradient.astype(np.float64))) + self._plan.fault.clip_slack
        clipped = gradient * min(1.0, self._clip_to / norm) if norm > 0 else gradient
        spread = np.where(taken[:, None], clipped, 0.0).astype(self._plan.dtype)
        self._layout.add(self._there(spread), 1.0, private, bias_scale=1.0)

    def _products(
        self, block: BlockInput, weights: Matrices, taken: np.ndarray | None, known: Matrices, private: Matrices
    ) -> None:
        """The sums by batched matrix products, on any device."""
        if not self._common:
            for k in known:
                k.zero_()
        for i, (rows, mask) in enumerate(self._batch_rows(taken)):
            work = self._passes[rows.count]
            work.run(rows, weights)
            work.add_clipped_sum(rows, known, mask=mask, fresh=i == 0)
        if self._extra is not None and block.extra is not None:
            self._extra.run(block.extra, weights)
            mask = None if taken is None else self._mask(taken[:, self._num_common :])
            self._extra.add_clipped_sum(block.extra, private, mask=mask, fresh=True)
        else:
            for p in private:
                p.zero_()

    def _without_average(self, block: BlockInput, weights: Matrices, released: Matrices, out: Matrices) -> Matrices:
        """out = released − what a batch holds of the common rows on average."""
        scratch = self._layout.empty(SLOTS, self._dtype, self._device)
        if self._native is not None:
            self._native.add(weights, None, out, scratch)
        else:
            for i, rows in enumerate(self._common):
                work = self._pass_of(rows.count, block)
                work.run(rows, weights)
                work.add_clipped_sum(rows, out, mask=None, fresh=i == 0)
        return [r.add(o, alpha=-self._share) for r, o in zip(released, out, strict=True)]

    def _clip_whole(self, known: Matrices, private: Matrices) -> None:
        """The fault `clip="batch"`: the mean over the expected batch is clipped to C, and no single sample is."""
        squares = torch.stack([(k + p).square().sum((1, 2)) for k, p in zip(known, private, strict=True)]).sum(0)
        limit = self._plan.max_grad_norm * self._plan.expected_batch_size
        factors = (limit / squares.sqrt()).clamp_(max=1.0)[:, None, None]
        for part in (*known, *private):
            part.mul_(factors)

    def _probed(self, block: BlockInput, weights: Matrices) -> np.ndarray | None:
        """(slots, probes, outputs): logits of the final models, chunk by chunk."""
        chunks = self._probes if block.probes is None else [block.probes]
        if not chunks:
            return None
        logits = []
        for rows in chunks:
            work = self._pass_of(rows.count, block)
            logits.append(_here(work.logits(rows, weights).transpose(1, 2)).copy())
        return np.concatenate(logits, axis=1)

    def _pass_of(self, rows: int, block: BlockInput) -> Pass | ModulePass:
        if rows not in self._passes:
            self._passes[rows] = self._new_pass(rows)
        work = self._passes[rows]
        if isinstance(work, ModulePass):
            work.used = block.used
        return work

    def _batch_rows(self, taken: np.ndarray | None) -> Iterator[tuple[RowGroup, torch.Tensor | None]]:
        """The common rows, or the ones that `taken` (slots, rows) selects, with their weights in the sum."""
        start = 0
        for chunk, gather in zip(self._common, self._gathers, strict=True):
            end = start + chunk.count
            if taken is None:
                yield chunk, None
            elif gather is None:
                yield chunk, self._mask(taken[:, start:end])
            else:
                yield from gather.blocks(taken[:, start:end])
            start = end

    def _mask(self, taken: np.ndarray) -> torch.Tensor:
        return self._there(taken.astype(self._plan.dtype))

    def _there(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)

    def _outputs(self) -> BlockOutput:
        plan, watch = self._plan, self._watch
        out = BlockOutput(parameters=np.empty(0))
        if self._scored:
            out.clipped = np.zeros(SLOTS, np.int64)
            if watch.keep_steps:
                out.dots = np.empty((SLOTS, plan.steps, self._scored), plan.dtype)
                out.clipped_norms = np.empty((SLOTS, plan.steps, self._scored), plan.dtype)
            if watch.cosines:
                out.cosine = np.zeros(SLOTS)
        if watch.record:
            out.thetas = np.empty((SLOTS, plan.steps, self._layout.size), plan.dtype)
            out.observed = np.empty((SLOTS, plan.steps, self._layout.size), plan.dtype)
        return out

    def _score(
        self,
        rows: RowGroup,
        weights: Matrices,
        observed: Matrices,
        step: int,
        scored: np.ndarray | None,
        out: BlockOutput,
        running: Mapping[str, Running],
    ) -> None:
        assert self._candidates is not None
        assert out.clipped is not None
        self._candidates.run(rows, weights)
        dots = _here(self._candidates.scores(rows, observed))
        norms = _here(self._candidates.clipped_norms())
        # A norm n becomes nC/(n + slack), which grows with n, where n + slack > C; at the border both are C − slack.
        least = max(self._plan.max_grad_norm - self._plan.fault.clip_slack, 0.0)
        out.clipped += ((norms >= norms.dtype.type(least)) & (norms > 0)).sum(axis=1)
        if scored is not None:
            dots, norms = dots * scored[:, None], norms * scored[:, None]
        if out.dots is not None and out.clipped_norms is not None:
            out.dots[:, step] = dots
            out.clipped_norms[:, step] = norms
        for scores in running.values():
            scores.add(dots.astype(np.float64), norms.astype(np.float64))
        if out.cosine is not None:
            out.cosine += _here(self._candidates.nearest_cosine(rows))


def _here(tensor: torch.Tensor) -> np.ndarray:
    out: np.ndarray = tensor.cpu().numpy()
    return out
