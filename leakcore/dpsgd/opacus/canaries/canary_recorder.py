"""Plant canaries in an Opacus training run, and reduce what an attacker sees of them to scores."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from leakcore import kernels
from leakcore._base.results.table import Rows, as_line, as_text
from leakcore.dpsgd.opacus.canaries.canaries import Canaries
from leakcore.dpsgd.opacus.canaries.canary_trace import CanaryTrace
from leakcore.dpsgd.opacus.canaries.coordinates import Coordinates
from leakcore.dpsgd.opacus.canaries.drawn_indices import DrawnIndices
from leakcore.dpsgd.opacus.canaries.noise_statistics import NoiseStatistics
from leakcore.dpsgd.opacus.canaries.planted_loader import PlantedLoader
from leakcore.dpsgd.opacus.canaries.planted_rows import PlantedRows
from leakcore.dpsgd.opacus.recorder.recorder import Recorder
from leakcore.dpsgd.opacus.recorder.sampling.drawn_batches import Draw, Part
from leakcore.dpsgd.opacus.recorder.sampling.repetitions import RepeatedDraws, RepeatedNoise
from leakcore.dpsgd.opacus.recorder.sampling.sample_rate import Divisors
from leakcore.dpsgd.opacus.recorder.steps import Steps, Sums
from leakcore.dpsgd.opacus.row_check.uncopied import Uncopied
from leakcore.dpsgd.opacus.row_check.unsupported_layers import require_real
from leakcore.dpsgd.trace.trace import Divisor, parse_divisor
from leakcore.numerics import step_log_ratio

_log = logging.getLogger(__name__)
_CONTROLS = 4
"""Coordinates without a canary that are watched, for each canary."""


class CanaryRecorder:
    """A recording of one run with canaries; `record` creates it and explains the guarantees.

    Args:
        optimizer: Opacus's `DPOptimizer`.
        loader: the DataLoader of Poisson samples.
        canaries: how many, and the seed of coins and coordinates.
        out: npz file for the trace, or None.
        divisor: "rows" or "constant", as for `record`.

    Raises:
        ValueError: names the argument, its value and what is allowed.
        TypeError: for an optimizer that clips otherwise, or an argument of another type.
    """

    def __init__(
        self, optimizer: Any, loader: Any, canaries: Canaries, out: str | Path | None, divisor: Divisor = "rows"
    ) -> None:
        self._divisor = parse_divisor(divisor)
        _require_dense(optimizer)
        require_real(optimizer.params, {})
        self._optimizer, self._loader = optimizer, PlantedLoader(loader)
        self._count, self._seed = canaries.count, canaries.seed
        self._out = None if out is None else Path(out)
        self._require_free()
        self._parameters = list(optimizer.params)
        self._total = sum(p.numel() for p in self._parameters)
        if self._count > self._total:
            raise ValueError(
                f"`canaries` must be at most {self._total:,}, because each canary needs a coordinate of its own among "
                f"the optimizer's parameters, got {self._count:,}"
            )
        rng = kernels.generator(self._seed, kernels.Stream.PLANTED_COINS)
        self._coins = rng.random(self._count) < 0.5
        if not self._coins.any() or self._coins.all():
            raise ValueError(f"`canaries` must be more, got {self._count}: all coins of this seed fell on one side")
        watched = min(self._total, (1 + _CONTROLS) * self._count)
        chosen = rng.choice(self._total, size=watched, replace=False)
        inside = np.flatnonzero(self._coins)
        # Canary i of the loader is the i-th that is in the data.
        self._order = np.concatenate([inside, np.flatnonzero(~self._coins), np.arange(self._count, watched)])
        self._coordinates = Coordinates(self._parameters, chosen[self._order])
        self._inside = len(inside)
        self._schedule: list[tuple[float, float]] = []
        self._noise, self._interference = NoiseStatistics(), 0.0
        self._before, self._repeated = RepeatedNoise(), RepeatedDraws()
        self._scores, self._alone = np.zeros(watched), np.zeros(watched)
        self._seen = np.zeros(watched, dtype=np.int64)
        self._others, self._present = np.zeros(watched), np.zeros(watched)
        self._divisors = Divisors()
        self._failure = ""
        self._drawn: DrawnIndices | None = None
        self._rows: PlantedRows | None = None
        self._sums = Sums(optimizer)
        self._parts: list[Part] = []
        self._released: weakref.WeakSet[Draw] = weakref.WeakSet()
        self._end_listening: Callable[[], None] = lambda: None
        self._outer_clip: Any = None
        self._own_clip: Any = None

    def __repr__(self) -> str:
        return as_line("CanaryRecorder", self._table_rows())

    def __str__(self) -> str:
        return as_text("CanaryRecorder", self._table_rows())

    def _table_rows(self) -> Rows:
        state = "over" if self._failure else "recording" if self._drawn is not None else "ready"
        return [
            ("state", state),
            ("steps recorded", str(self.steps)),
            ("canaries", str(self._count)),
            ("controls", str(len(self._scores) - self._count)),
            ("file", "none" if self._out is None else str(self._out)),
        ]

    def __enter__(self) -> CanaryRecorder:
        if self._drawn is not None or self._schedule:
            raise ValueError("record: a recorder serves one block")
        self._require_free()
        self._loader.plant(self._inside)
        self._drawn = DrawnIndices(self._loader.planted, self._parameters)
        self._rows = PlantedRows(self._parameters, self._coordinates, self._drawn.of_batch, self._loader.rows)
        self._own_clip = vars(self._optimizer).get("clip_and_accumulate")
        self._outer_clip = self._optimizer.clip_and_accumulate
        self._optimizer.clip_and_accumulate = Uncopied(self._clip)
        self._end_listening = Steps.listen(self._optimizer, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._drawn is not None
        self._drawn.stop()
        self._loader.remove()
        vars(self._optimizer).pop("clip_and_accumulate", None)
        if self._own_clip is not None:
            self._optimizer.clip_and_accumulate = self._own_clip
        self._end_listening()
        if self._out is not None and self._schedule and not self._failure:
            try:
                self._require_free()
                self.trace().save(self._out)
            except Exception as why:
                if error is None:
                    raise
                _log.error("record: %s was not written: %s", self._out, why)

    @property
    def steps(self) -> int:
        """Steps recorded so far."""
        return len(self._schedule)

    def trace(self) -> CanaryTrace:
        """The recording so far.

        Returns:
            A `CanaryTrace`.

        Raises:
            ValueError: before the first step, or if the recording failed.
        """
        if self._failure or not self._schedule:
            why = self._failure or "no step was recorded: did optimizer.step() run inside the with block?"
            raise ValueError(f"record: {why}")
        sigma, norm = (np.array(column) for column in zip(*self._schedule, strict=True))
        back = np.argsort(self._order)
        return CanaryTrace(
            noise_multiplier=sigma,
            max_grad_norm=norm,
            sample_rate=self._loader.sample_rate,
            rows=self._loader.rows,
            parameters=self._total,
            coins=self._coins.copy(),
            times_seen=self._seen[back][: self._count],
            scores=self._scores[back],
            release_scores=self._alone[back],
            noise_ratio=self._noise.ratio,
            common_noise=self._noise.common,
            repeated_noise=self._noise.repeated,
            interference=float(np.sqrt(self._interference / len(sigma))),
            divisor=self._divisor,
        )

    def _require_free(self) -> None:
        if self._out is not None and self._out.exists():
            raise ValueError(f"`out` must not exist already, got {str(self._out)!r}: choose another name")

    def _clip(self) -> None:
        """Opacus's clipping, with the canaries' gradients in the place of their copies'."""
        if self._failure:
            self._outer_clip()
            return
        assert self._rows is not None
        with contextlib.ExitStack() as stack:
            try:
                self._require_known_sum()
                added, present, parts = stack.enter_context(self._rows.planted(float(self._optimizer.max_grad_norm)))
                self._others += added
                np.add.at(self._present, present, 1.0)
                self._parts += parts
            except Exception as error:
                self._fail(error)
            self._outer_clip()
        self._sums.know()

    def _require_known_sum(self) -> None:
        """Begin again with an empty sum; ValueError if the sum holds rows that this recording did not see."""
        if self._sums.are_empty:
            self._clear()
        elif not self._sums.are_known and not self._sums.are_spent:
            raise ValueError(
                "optimizer: it holds the sum of a batch that was begun before the recording and never released, and "
                "would release its rows together with rows of the recorded batch: finish that batch before record, or "
                "drop it (p.summed_grad = None for p in optimizer.params)"
            )

    def before_step(self, optimizer: Any) -> None:
        """The optimizer's `pre_step` begins."""
        if not self._failure:
            try:
                _require_alone(Steps.listeners_of(optimizer))
            except ValueError as error:
                self._fail(error)

    def after_step(self, optimizer: Any, released: bool | None) -> None:
        """`pre_step` ended."""
        if not self._failure and released:
            try:
                self._score(optimizer)
            except Exception as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Wrong arguments are reported in the first step; later the training goes on without the recording."""
        if not self._schedule:
            raise error
        self._failure = f"step {self.steps + 1}: {error or type(error).__name__}"
        _log.error("record: %s. The training continues, and nothing more is recorded", self._failure)

    def _score(self, optimizer: Any) -> None:
        self._require_one_draw()
        sigma, norm = float(optimizer.noise_multiplier), float(optimizer.max_grad_norm)
        if not sigma > 0:
            raise ValueError(f"`optimizer` must have a positive noise_multiplier, got {sigma:g}: no ε to audit")
        unit = float(optimizer.expected_batch_size) if optimizer.loss_reduction == "mean" else 1.0
        self._require_own_divisor(optimizer, unit)
        release = self._coordinates.read([p.grad for p in self._parameters]) * unit / norm
        others, rate = self._others / norm, self._loader.sample_rate
        left, ones = release - others, np.ones(len(release))
        self._scores += step_log_ratio(left, ones, sigma, rate)
        self._alone += step_log_ratio(release, ones, sigma, rate)
        self._noise.add(left / sigma, self._present == 0)
        clean = (left / sigma)[self._inside :]  # canaries that are out, and controls
        rounding = max(torch.finfo(p.dtype).eps for p in self._parameters)
        self._before.require_new(clean[RepeatedNoise.places(len(clean))], rounding * (self._drawn_rows / sigma + 5))
        assert self._drawn is not None
        self._drawn.clear()
        self._interference += float(np.mean((others / sigma) ** 2))
        self._seen += self._present > 0
        self._schedule.append((sigma, norm))
        self._clear()

    @property
    def _drawn_rows(self) -> int:
        """Rows of the data in the step's sum."""
        return sum(len(part.indices or ()) for part in self._parts)

    def _require_own_divisor(self, optimizer: Any, unit: float) -> None:
        """ValueError if what the sum is divided by is the number of rows that were drawn."""
        if optimizer.loss_reduction == "mean":
            self._divisors.add(unit, self._drawn_rows)
        if self._divisors.follow_the_draws:
            raise ValueError(
                "optimizer: expected_batch_size, by which it divides the sum, is the number of rows that were drawn: "
                "the size of the noise tells how many these are, which no accountant of Poisson samples counts"
            )

    def _require_one_draw(self) -> None:
        """ValueError unless the sum holds all rows of one draw that no step before it used."""
        draws = list(dict.fromkeys(part.draw for part in self._parts))
        if len(draws) != 1:
            raise ValueError(
                f"record: a step must train on one Poisson sample, got rows of {len(draws)} samples (accumulated ones, "
                "or what a pass that was broken off had summed), for which Opacus's accountant assumes another "
                "mechanism; BatchMemoryManager divides one sample into parts"
            )
        numbers = sorted(part.number for part in self._parts)
        if not draws[0].complete or numbers != list(range(len(draws[0].parts))) or draws[0] in self._released:
            raise ValueError(
                f"record: a step must train on all rows of one Poisson sample, got part {numbers} of "
                f"{len(draws[0].parts)} of it, or a sample used again"
            )
        self._released.add(draws[0])
        rows = self._loader.rows + self._inside
        if self._repeated.is_repeated_sample(draws[0], self._loader.sample_rate, rows):
            raise ValueError(
                "record: the sampler drew a batch again (its generator was seeded again), so that it is not a fresh "
                "sample"
            )

    def _clear(self) -> None:
        """Nothing is summed."""
        self._others[:] = 0.0
        self._present[:] = 0.0
        self._parts = []


def _require_alone(listeners: list[Any]) -> None:
    """ValueError where candidates are recorded as well: copies of their rows would be taken for them."""
    if any(isinstance(listener, Recorder) for listener in listeners):
        raise ValueError(
            "`optimizer` must not be recorded with candidates in the same run, because copies of rows carry the "
            "canaries: record them in two runs"
        )


def _require_dense(optimizer: Any) -> None:
    """TypeError for an optimizer whose per-sample gradients cannot be replaced before it clips."""
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping

    from leakcore.dpsgd.fused.fused_optimizer import FusedDPOptimizer

    if isinstance(optimizer, (DPOptimizerFastGradientClipping, FusedDPOptimizer)):
        raise TypeError(
            f"`optimizer` must be Opacus's DPOptimizer, which holds per-sample gradients, got "
            f"{type(optimizer).__name__}, which never has them: for the audit use make_private(..., "
            "grad_sample_mode='hooks')"
        )
    if hasattr(optimizer, "reduce_gradients"):
        raise TypeError(
            f"`optimizer` must be Opacus's DPOptimizer of a run in one process, got {type(optimizer).__name__}: the "
            "proof from canaries needs one sampler for all rows; record candidates in the run of several processes"
        )
    if type(optimizer) is not DPOptimizer:
        raise TypeError(
            f"`optimizer` must be Opacus's DPOptimizer with flat clipping, got {type(optimizer).__name__}: "
            "make_private(..., clipping='flat')"
        )
