"""Plant canaries in an Opacus training run, and reduce what an attacker sees of them to scores."""

from __future__ import annotations

import collections
import contextlib
import logging
import math
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from leakcore import kernels
from leakcore._base.tables import Rows, as_line, as_text
from leakcore.dpsgd.fused.fused_optimizer import FusedDPOptimizer
from leakcore.dpsgd.fused.row_gradients import wide_type
from leakcore.dpsgd.record.canaries import Canaries, CanaryTrace
from leakcore.dpsgd.record.forward_passes import Sums
from leakcore.dpsgd.record.recorder import Recorder
from leakcore.dpsgd.record.sampling import DRAWN_AGAIN, Divisors, RepeatedDraws, RepeatedNoise
from leakcore.dpsgd.rows.hooks import (
    Arguments,
    BatchSource,
    Deliveries,
    Draw,
    ForwardHook,
    Hook,
    LoaderHook,
    ModelHook,
    Part,
    StepHook,
    listeners_of,
    rows_of,
)
from leakcore.dpsgd.rows.preserve_state import Uncopied, is_paused
from leakcore.dpsgd.rows.unsupported_layers import require_real, samples_of
from leakcore.dpsgd.trace.trace import Divisor, Sampling, parse_divisor
from leakcore.numerics import step_log_ratio

_log = logging.getLogger(__name__)
_PLANTED = BatchSource(Sampling(), 0)
SIZE = 4.0
"""Length of a canary's gradient in units of C: it must be clipped."""
_ADDED = 1e-6
"""What Opacus adds to a norm before it divides."""
_CONTROLS = 4
"""Coordinates without a canary that are watched, for each canary."""


class Coordinates:
    """Some coordinates of parameters: `chosen`, (n,), are their distinct numbers, counted through all tensors."""

    def __init__(self, parameters: Sequence[torch.Tensor], chosen: np.ndarray) -> None:
        ends = np.cumsum([p.numel() for p in parameters])
        self.owner = np.searchsorted(ends, chosen, side="right")
        self.offset = chosen - (ends - [p.numel() for p in parameters])[self.owner]
        self._parts = [
            (slots := np.flatnonzero(self.owner == i), torch.from_numpy(self.offset[slots]))
            for i in range(len(parameters))
        ]

    def read(self, tensors: Sequence[torch.Tensor]) -> np.ndarray:
        """(n,) float64, the values there of tensors shaped as the parameters."""
        out = np.empty(len(self.owner))
        for tensor, (slots, offsets) in zip(tensors, self._parts, strict=True):
            if len(slots):
                out[slots] = tensor.detach().reshape(-1)[offsets.to(tensor.device)].double().cpu().numpy()
        return out


class NoiseStatistics:
    """`add` what is left in each step at coordinates without a canary, in units of σC: standard normals, if so."""

    def __init__(self) -> None:
        self._squares, self._count = 0.0, 0
        self._means: list[float] = []
        self._products, self._pairs = 0.0, 0
        self._last: np.ndarray | None = None

    def add(self, noise: np.ndarray, absent: np.ndarray) -> None:
        """The noise of one step. absent: (n,) bool, coordinates without a canary in it."""
        clean = np.where(absent, noise, np.nan)
        values = clean[absent]
        self._squares += float(values @ values)
        self._count += len(values)
        self._means.append(float(values.mean() * math.sqrt(len(values))) if len(values) else 0.0)
        if self._last is not None:
            both = np.isfinite(clean) & np.isfinite(self._last)
            self._products += float(clean[both] @ self._last[both])
            self._pairs += int(both.sum())
        self._last = clean

    @property
    def ratio(self) -> float:
        """Measured standard deviation over the stated one."""
        return math.sqrt(self._squares / self._count) if self._count else math.nan

    @property
    def common(self) -> float:
        """p-value of how far means over coordinates vary; independent noise makes them vary little."""
        scale = self.ratio or 1.0
        return float(stats.chi2.sf(sum((m / scale) ** 2 for m in self._means), len(self._means)))

    @property
    def repeated(self) -> float | None:
        """p-value of products of neighbouring steps' noise; None for one step."""
        if not self._pairs:
            return None
        scale = (self.ratio or 1.0) ** 2
        return float(2 * stats.norm.sf(abs(self._products / scale) / math.sqrt(self._pairs)))


class PlantedDataset:
    """A data set followed by copies of its rows; in all else it is the data set itself, its length included."""

    def __init__(self, dataset: Any, copies: int) -> None:
        self.dataset, self.copies = dataset, copies

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self._own(index)]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        own = [self._own(i) for i in indices]
        several = getattr(self.dataset, "__getitems__", None)
        return several(own) if several is not None else [self.dataset[i] for i in own]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def _own(self, index: int) -> int:
        return index % len(self.dataset)


class PlantedLoader:
    """A loader of Opacus's, between `plant` and `remove` with more rows in its data set and for its sampler.

    TypeError for anything but a DataLoader. ValueError unless its batches are Poisson samples of rows with numbers.
    """

    def __init__(self, loader: Any) -> None:
        if not isinstance(loader, DataLoader):
            raise TypeError(
                f"`sampling` must be the DataLoader that the loop iterates over, got {type(loader).__name__}"
            )
        if isinstance(loader.dataset, IterableDataset):
            raise ValueError("`sampling` must have a data set with rows by number, got a stream")
        if isinstance(loader.dataset, PlantedDataset):
            raise ValueError("`sampling` must not hold canaries already: another recording has planted some")
        sampler: Any = loader.batch_sampler
        if type(sampler) is BatchSplittingSampler:
            sampler = sampler.sampler
        if type(sampler) is not UniformWithReplacementSampler:
            raise ValueError(
                "`sampling` must draw Poisson samples (make_private(..., poisson_sampling=True)), got batches of "
                f"{type(sampler).__name__}"
            )
        if not getattr(loader, "in_order", True):
            raise ValueError("`sampling` must give batches in the order in which they were drawn, got in_order=False")
        if sampler.num_samples != len(loader.dataset):  # type: ignore[arg-type]
            raise ValueError(
                f"`sampling` must sample all {len(loader.dataset):,} rows of its data set, "  # type: ignore[arg-type]
                f"got {sampler.num_samples:,}"
            )
        self._loader, self._sampler, self._dataset = loader, sampler, loader.dataset
        self.rows = int(sampler.num_samples)
        self.sample_rate = float(sampler.sample_rate)
        self.planted: PlantedDataset | None = None

    def plant(self, copies: int) -> None:
        """Add this number of rows."""
        if getattr(self._loader, "_iterator", None) is not None:
            raise ValueError("`sampling` must not have workers yet, got one with persistent workers that were started")
        self.planted = PlantedDataset(self._dataset, copies)
        self._loader.__dict__["dataset"] = self.planted  # its own setter refuses another data set
        self._sampler.num_samples = self.rows + copies

    def remove(self) -> None:
        """Restore the loader."""
        self._loader.__dict__["dataset"] = self._dataset
        self._sampler.num_samples = self.rows
        self.planted = None


class PlantedRows:
    """The canaries among the rows that an optimizer clips, until `stop`.

    It knows on which batches of the planted data set forward passes train, of the first module called that holds all
    parameters. Coordinates begin with those of the canaries in the data. Index len(dataset) + i is canary i.
    """

    def __init__(self, dataset: Any, parameters: Sequence[torch.Tensor], coordinates: Coordinates) -> None:
        self._dataset, self._parameters, self._coordinates = dataset, parameters, coordinates
        self._own = {id(p) for p in parameters}
        self._deliveries = Deliveries()
        self._passes: collections.deque[Part | None] = collections.deque()
        self._model_hook, self._is_watched = ModelHook(self._returned), False
        self._hooks: list[Hook] = [ForwardHook(self._before), self._model_hook, LoaderHook(self._came)]

    def stop(self) -> None:
        """Watch no longer."""
        for hook in self._hooks:
            hook.remove()

    def clear(self) -> None:
        """A step ended: forward passes before it belong to no later one."""
        self._passes.clear()

    def _before(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._is_watched or not torch.is_grad_enabled() or is_paused():
            return
        if self._own <= {id(p) for p in module.parameters()}:
            self._is_watched = True
            self._model_hook.attach(module, inputs)

    def _returned(self, module: nn.Module, arguments: Arguments, output: Any, drew: bool) -> None:
        """The model returned."""
        if module.training and torch.is_grad_enabled() and output is not None:
            use = self._deliveries.use_of(rows_of(arguments))
            whole = use is not None and (use.start, use.stop) == (0, None)
            self._passes.append(use.part if use is not None and whole else None)

    def _came(self, iterator: Any, batch: Any, part: Part) -> None:
        if iterator._dataset is self._dataset and part.indices is not None:
            self._deliveries.delivered(_PLANTED, part, batch)

    @contextlib.contextmanager
    def planted(self, norm: float) -> Iterator[tuple[np.ndarray, np.ndarray, list[Part]]]:
        """While inside, rows of canaries hold their own gradients, of length SIZE·C.

        Gives what the other rows add at each coordinate (clipped here and not by the optimizer), which canaries are in
        the batch, and the batch, as parts of draws.
        """
        batches = [_batches(p) for p in self._parameters]
        if len({tuple(len(b) for b in several) for several in batches}) > 1:
            raise ValueError("model: all parameters must have per-sample gradients of the same rows")
        passes = list(zip(*batches, strict=True))
        saved: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        present: list[np.ndarray] = []
        parts: list[Part] = []
        added = np.zeros(len(self._coordinates.owner))
        with torch.no_grad():
            try:
                for samples in passes:
                    parts.append(self._part(len(samples[0])))
                    places, canaries = self._places(parts[-1])
                    present.append(canaries)
                    for i, grads in enumerate(samples):
                        at = places.to(grads.device)
                        saved.append((grads, at, grads[at].clone()))
                        grads[at] = 0
                        mine = np.flatnonzero(self._coordinates.owner[canaries] == i)
                        _put(grads, places[mine], self._coordinates.offset[canaries[mine]], SIZE * norm)
                    added += self._others(samples, places, norm)
                yield added, np.concatenate(present) if present else np.zeros(0, dtype=np.int64), parts
            finally:
                for grads, at, values in saved:
                    grads[at] = values

    def _part(self, rows: int) -> Part:
        """The batch of the first forward pass with this number of rows. Passes before it did not come to be clipped."""
        while self._passes and (part := self._passes.popleft()) is not None:
            if len(part.indices or ()) == rows:
                return part
        raise ValueError(
            f"record: the optimizer clips {rows:,} rows, and `sampling` gave no such batch since the step before. The "
            "loop must train on its batches as they are, without cutting, joining or repeating them"
        )

    def _places(self, part: Part) -> tuple[torch.Tensor, np.ndarray]:
        numbers, rows = np.array(part.indices, dtype=np.int64), len(self._dataset)
        places = np.flatnonzero(numbers >= rows)
        return torch.from_numpy(places), numbers[places] - rows

    def _others(self, samples: Sequence[torch.Tensor], places: torch.Tensor, norm: float) -> np.ndarray:
        """The sum of all clipped gradients but the canaries', at the coordinates."""
        device = samples[0].device
        squares = sum(
            torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1, dtype=torch.float64).square().to(device)
            for g in samples
        )
        factors = (norm / (torch.as_tensor(squares, device=device).sqrt() + _ADDED)).clamp(max=1.0)
        factors[places.to(device)] = 0.0
        sums = [torch.einsum("i,i...->...", factors.to(g.device, wide_type(g)), g.to(wide_type(g))) for g in samples]
        return self._coordinates.read(sums)


def _batches(parameter: Any) -> list[torch.Tensor]:
    samples = samples_of(parameter)
    gradients = [b.detach() for b in samples if isinstance(b, torch.Tensor)]
    if getattr(parameter, "grad_sample", None) is None or len(gradients) < len(samples):
        raise ValueError(
            "record: a parameter has no per-sample gradients: call backward before step, with the model that "
            "make_private returned"
        )
    return gradients


def _put(gradients: torch.Tensor, rows: torch.Tensor, offsets: np.ndarray, value: float) -> None:
    """Set one entry of each of these rows."""
    places = np.unravel_index(offsets, tuple(gradients.shape[1:])) if gradients.ndim > 1 else ()
    at = (rows.to(gradients.device), *(torch.as_tensor(p, device=gradients.device) for p in places))
    gradients[at] = value


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
        self._scores, self._alone, self._others, self._present = np.zeros((4, watched))
        self._seen = np.zeros(watched, dtype=np.int64)
        self._divisors, self._sums, self._failure = Divisors(), Sums(optimizer), ""
        self._rows: PlantedRows | None = None
        self._parts: list[Part] = []
        self._released: weakref.WeakSet[Draw] = weakref.WeakSet()
        self._outer_clip: Any = None
        self._own_clip: Any = None

    def __repr__(self) -> str:
        return as_line("CanaryRecorder", self._table_rows())

    def __str__(self) -> str:
        return as_text("CanaryRecorder", self._table_rows())

    def _table_rows(self) -> Rows:
        state = "over" if self._failure else "recording" if self._rows is not None else "ready"
        return [
            ("state", state),
            ("steps recorded", str(self.steps)),
            ("canaries", str(self._count)),
            ("controls", str(len(self._scores) - self._count)),
            ("file", "none" if self._out is None else str(self._out)),
        ]

    def __enter__(self) -> CanaryRecorder:
        if self._rows is not None or self._schedule:
            raise ValueError("record: a recorder serves one block")
        self._require_free()
        self._loader.plant(self._inside)
        self._rows = PlantedRows(self._loader.planted, self._parameters, self._coordinates)
        self._own_clip = vars(self._optimizer).get("clip_and_accumulate")
        self._outer_clip = self._optimizer.clip_and_accumulate
        self._optimizer.clip_and_accumulate = Uncopied(self._clip)
        self._step_hook = StepHook(self._optimizer, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._rows is not None
        self._rows.stop()
        self._loader.remove()
        vars(self._optimizer).pop("clip_and_accumulate", None)
        if self._own_clip is not None:
            self._optimizer.clip_and_accumulate = self._own_clip
        self._step_hook.remove()
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
        others = [listener for listener in listeners_of(optimizer) if isinstance(listener, Recorder)]
        if others and not self._failure:  # copies of its candidates' rows would be taken for them
            why = "because copies of rows carry the canaries: record them in two runs"
            self._fail(ValueError(f"`optimizer` must not be recorded with candidates in the same run, {why}"))

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
        assert self._rows is not None
        self._rows.clear()
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
            raise ValueError(f"record: {DRAWN_AGAIN}")

    def _clear(self) -> None:
        """Nothing is summed."""
        self._others[:] = 0.0
        self._present[:] = 0.0
        self._parts = []


def _require_dense(optimizer: Any) -> None:
    """TypeError for an optimizer whose per-sample gradients cannot be replaced before it clips."""
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
