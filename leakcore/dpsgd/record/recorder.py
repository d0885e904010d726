"""Record an Opacus training run as the adversary sees it, reduced to scores of candidates during the run."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.data import DataLoader

from leakcore._base import validate
from leakcore._base.digest import digest
from leakcore._base.tables import Rows, as_html, as_line, as_text, short
from leakcore.dpsgd.record.candidate_gradients import CandidateGradients, Route
from leakcore.dpsgd.record.candidates import CallForm, CandidateRows, read_candidates, read_members
from leakcore.dpsgd.record.failures import Failures, RecordedRows, require_known
from leakcore.dpsgd.record.forward_passes import Entries, ForwardPass, SummedPasses
from leakcore.dpsgd.record.loss import CalledLoss, LossTerms
from leakcore.dpsgd.record.run_steps import RunSteps
from leakcore.dpsgd.record.sampling import (
    Release,
    RepeatedNoise,
    SamplingOfSteps,
    is_shuffled,
    rate_of_block,
    rate_of_hook,
    rate_of_step,
)
from leakcore.dpsgd.rows.hooks import Arguments, ForwardHook, LoaderHook, Part, StepHook, rows_of, uncompiled
from leakcore.dpsgd.rows.preserve_state import is_paused, pause_recording
from leakcore.dpsgd.rows.ranks import Ranks, behind_hooks, is_parallel, same_coins, wrong_before
from leakcore.dpsgd.trace.file import TraceFile
from leakcore.dpsgd.trace.trace import Divisor, Trace, parse_divisor
from leakcore.gradients import BackwardHook, Criterion
from leakcore.numerics import step_log_ratio


class CandidateScores:
    """Sums over steps for n candidates; `Trace` says what they are.

    Attributes:
        times_seen: (n,) batches with the candidate.
    """

    def __init__(self, n: int) -> None:
        self.times_seen = np.zeros(n, dtype=np.int64)
        self._clipped = np.zeros(n)
        self._membership_sum, self._membership_likelihood = np.zeros(n), np.zeros(n)
        self._pair_sum, self._pair_likelihood = np.zeros((n, n)), np.zeros((n, n))

    def add(
        self,
        products: tuple[np.ndarray, np.ndarray, np.ndarray],
        inside: np.ndarray,
        sigma: float,
        norm: float,
        rate: float | None,
    ) -> None:
        """A step with the candidates `inside` in its batch.

        Args:
            products: ⟨c_j, noise⟩ and ‖c_j‖, (n,), and ⟨c_i, c_j⟩ for i in `inside`.
            inside: their numbers.
            sigma: σ of the step.
            norm: C of the step.
            rate: q by which the likelihood is weighed, or None.
        """
        noise_dots, norms, crossed = products
        together = noise_dots + crossed.sum(axis=0)
        alone = noise_dots + crossed
        self._membership_sum += together / norm**2
        self._pair_sum += noise_dots / norm**2
        self._pair_sum[inside] += crossed / norm**2
        if sigma > 0 and rate:
            base = step_log_ratio(noise_dots, norms, sigma * norm, rate)
            self._membership_likelihood += step_log_ratio(together, norms, sigma * norm, rate)
            self._pair_likelihood += base
            self._pair_likelihood[inside] += step_log_ratio(alone, norms, sigma * norm, rate) - base
        self._clipped += norms >= norm * (1 - 1e-6)
        self.times_seen[inside] += 1

    def arrays(self, steps: int, *, likelihood: bool) -> dict[str, Any]:
        """Copies, by the names of `Trace`. Without a known likelihood it is NaN."""
        return {
            "times_seen": self.times_seen.copy(),
            "clipped_share": self._clipped / steps,
            "membership_sum": self._membership_sum.copy(),
            "pair_sum": self._pair_sum.copy(),
            "membership_likelihood": np.where(likelihood, self._membership_likelihood, np.nan),
            "pair_likelihood": np.where(likelihood, self._pair_likelihood, np.nan),
        }


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class StepPart:
    """One process's part of a step.

    Attributes:
        settings: σ, C, q and the number of accumulated batches.
        parameters: a digest of the parameters, in the first step.
        inside: the candidates in its batch.
        rows: of its batch.
        confirmed: candidates that came with their own targets.
        contradicted: candidates that came with other targets, and these.
        release: from which draws its rows came.
    """

    settings: tuple[float, float, float | None, int]
    parameters: str
    inside: np.ndarray
    rows: int
    confirmed: set[int]
    contradicted: dict[int, Any]
    release: Release


def require_alike(parts: Sequence[StepPart]) -> None:
    """ValueError unless all processes made the same step of the same model."""
    first = parts[0]
    for rank, part in enumerate(parts):
        if part.parameters != first.parameters:
            raise ValueError(
                f"model: its parameters on rank {rank} differ from those on rank 0: wrap the module in Opacus's "
                "DifferentiallyPrivateDistributedDataParallel, which sends them to all, before make_private"
            )
        if part.settings != first.settings:
            raise ValueError(
                "optimizer: (noise_multiplier, max_grad_norm, sample rate, accumulated batches) must be the same in "
                f"every process, got {first.settings} on rank 0 and {part.settings} on rank {rank}"
            )


def inside_of(parts: Sequence[StepPart]) -> np.ndarray:
    """The candidates in the batch of the step, ascending."""
    return np.unique(np.concatenate([part.inside for part in parts]))


def noise_of(optimizer: Any) -> torch.Tensor:
    """The noise of the release, (D,), which Opacus's distributed optimizers add in the first process only."""
    unit = 1.0
    if optimizer.loss_reduction == "mean":
        unit = float(optimizer.expected_batch_size) * int(optimizer.accumulated_iterations)
    release = torch.cat([p.grad.flatten() for p in optimizer.params]) * unit
    return release - torch.cat([p.summed_grad.flatten() for p in optimizer.params])


_log = logging.getLogger(__name__)
_AUTOSAVE = 100
_LEFT_OVER = (
    "optimizer: it holds the sum of a batch that was begun before the recording and never released (a pass with "
    "BatchMemoryManager that was broken off, a skipped step), and would release these rows together with the first "
    "recorded batch. Finish that batch before record, or drop it: p.summed_grad = None for p in optimizer.params"
)
_OTHERS = (
    "optimizer: the step's sum holds gradients that did not come of a call of the model since the step before "
    "(computed before the recording, or replaced in the loop), so that nobody sees whose rows they are: call "
    "optimizer.zero_grad() before the batch's backward pass"
)


class Recorder:
    """A recording of one run; `record` creates it and explains the arguments and the guarantees.

    Use it as a context manager around the training loop. `audit.from_trace` takes a recorder as well as a `Trace`.
    Steps outside the block are counted too: by the accountant that the optimizer's hook informs, or else (as "at
    least") by the wrapped optimizer. In the candidates' gradients dropout is off, because the adversary does not know
    the mask. The cost is one forward and backward pass over the candidates per scored step; models that vmap refuses
    are evaluated candidate by candidate, with a warning.

    Attributes:
        memory: bytes for gradients of candidates at a time.

    Args:
        optimizer: Opacus's optimizer, or a `FusedDPOptimizer`.
        candidates: n rows, in one of the forms of `record`.
        members: (n,) bool, or None.
        model: the module that holds the parameters, or None.
        criterion: the loss, or None.
        sampling: a DataLoader, or q, or None.
        out: npz file for the trace, or None.
        every: how many steps there are for one that is scored.
        divisor: "rows" or "constant".

    Raises:
        ValueError: names the argument, its value and what is allowed.
        TypeError: for an optimizer that clips otherwise, or an argument of another type.
    """

    memory = 1 << 28

    def __init__(
        self,
        optimizer: Any,
        candidates: Any,
        members: Any,
        model: nn.Module | None,
        criterion: Criterion | None,
        sampling: DataLoader[Any] | float | None,
        out: str | Path | None,
        every: int = 1,
        divisor: Divisor = "rows",
    ) -> None:
        for name in ("step_hook", "noise_multiplier", "max_grad_norm", "params"):
            if not hasattr(optimizer, name):
                raise TypeError(
                    f"`optimizer` must be Opacus's DPOptimizer, got a {type(optimizer).__name__} without {name}"
                )
        require_known(optimizer)
        self._every = validate.integer(1, every=every)
        self._divisor: Divisor = parse_divisor(divisor)
        if self._every > 1 and members is None:
            raise ValueError(
                f"`every` must be 1 without `members`, got {every}: nobody sees whom the other steps train on"
            )
        self._optimizer = optimizer
        self._ranks = Ranks(optimizer)
        self._ranks.share(lambda: self._set_up(candidates, members, model, criterion, sampling, out))
        if self._ranks.count > 1:
            rows = self._run.candidates()
            self._ranks.require_equal(candidates=rows, members=digest(self._given), sampling=self._rate)

    def _set_up(
        self,
        candidates: Any,
        members: Any,
        model: nn.Module | None,
        criterion: Criterion | None,
        sampling: Any,
        out: str | Path | None,
    ) -> None:
        optimizer = self._optimizer
        rows = read_candidates(candidates)
        n = len(rows)
        self._given = None if members is None else read_members(members, n)
        self._rows = CandidateRows(rows, self._given)
        self._model, self._criterion = model, criterion
        named = criterion if isinstance(criterion, nn.Module) else None
        self._loss = CalledLoss(self._holds_all, named) if criterion is None or named is not None else None
        self._sampling = SamplingOfSteps(sampling, divided=self._ranks.count > 1)
        self._rate = self._sampling.rate
        self._rate_of_batch = rate_of_hook(optimizer.step_hook) if self._rate is None else None
        self._out = None if out is None or not self._ranks.is_first else TraceFile(out)
        self._run = RunSteps(optimizer, rows.content())
        self._own = {id(p) for p in optimizer.params}
        self._recorded = RecordedRows(optimizer)
        self._sum = SummedPasses(optimizer, lambda: self._passes)
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._terms = LossTerms(self._own)
        self._calls = ForwardHook(self._returned)
        self._form: CallForm | None = None
        self._gradients: CandidateGradients | None = None
        self._compared = False
        self._passes: list[ForwardPass] = []
        self._route = Route()
        self._failures, self._number, self._is_finished = Failures(), 1, False
        self._schedule: list[tuple[float, float, int]] = []
        self._scores, self._noise = CandidateScores(n), RepeatedNoise()
        self._handles: list[Any] = []

    def __repr__(self) -> str:
        return as_line("Recorder", self._table_rows())

    def __str__(self) -> str:
        return as_text("Recorder", self._table_rows())

    def _repr_html_(self) -> str:
        return as_html("Recorder", self._table_rows())

    def _table_rows(self) -> Rows:
        failed = self._failures
        state = "broken" if failed.of_step else "over" if failed.is_over else "recording" if self._handles else "ready"
        return [
            ("state", state),
            ("steps recorded", str(self.steps)),
            ("candidates", str(len(self._rows.candidates))),
            ("sample rate", "not known yet" if self._rate is None else short(self._rate)),
            ("file", "none" if self._out is None else str(self._out.path)),
        ]

    def __enter__(self) -> Recorder:
        if self._handles:
            raise ValueError("record: this recorder is in use already")
        self._ranks.share(lambda: None if self._out is None else self._out.require_free())
        self._sampling.coins = same_coins(self._ranks)
        hook = self._optimizer.step_hook
        if self._rate_of_batch is not None:
            self._rate_of_batch = rate_of_block(hook, self._rate_of_batch, begun=bool(self._schedule))
        self._run.enter(hook)
        self._passes, self._sum = [], SummedPasses(self._optimizer, lambda: self._passes)
        self._end_listening = StepHook.listen(self._optimizer, self)
        self._handles = [
            torch_module.register_module_forward_pre_hook(self._before_forward),
            torch_module.register_module_forward_hook(self._after_forward, always_call=True),
            BackwardHook(self._before_backward),
            LoaderHook(self._fetched),
        ]
        if self._model is not None:
            self._calls.watch(self._model)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._calls.stop()
        self._end_listening()
        self._recorded.stop()
        self._run.leave()
        if self._failures.last and kind is None and (self._failures.is_lost or not self._schedule):
            where = "" if self._out is None else f" to {self._out.path}"
            _log.error("record: no trace was written%s: %s", where, self._failures.last)
        if self._out is not None and self._schedule and not self._failures.is_lost:
            try:
                self._out.save(self.trace())
            except Exception as why:
                if error is None:
                    raise
                _log.error("record: %s was not written: %s", self._out.path, why)
        if unused := self._recorded.unused(error):
            raise ValueError(f"model: {unused}") from error

    @property
    def steps(self) -> int:
        """Steps recorded so far."""
        return len(self._schedule)

    def trace(self) -> Trace:
        """The recording so far, with the run's other steps until now, including those that could not be recorded.

        Returns:
            A `Trace`.

        Raises:
            ValueError: before the first step, or if the recording stopped because rows or targets are wrong.
        """
        if not self._schedule:
            why = self._failures.last or "did optimizer.step() run inside the with block?"
            raise ValueError(f"record: no step was recorded: {why}")
        if self._failures.is_lost:
            raise ValueError(f"record: {self._failures.last}")
        self._rows.require_targets(len(self._schedule), self._rate)
        sigma, norm, rows = (np.array(column) for column in zip(*self._schedule, strict=True))
        known = bool(self._rate) and bool((sigma > 0).all())
        size = self._optimizer.expected_batch_size
        unrecorded, complete = self._run.unrecorded(sigma, self._rate)
        return Trace(
            noise_multiplier=sigma.astype(np.float64),
            max_grad_norm=norm.astype(np.float64),
            batch_rows=rows.astype(np.int64),
            sample_rate=self._rate,
            expected_batch_size=None if size is None else float(size) * self._ranks.count,
            members=self._scores.times_seen > 0 if self._given is None else self._given.copy(),
            members_given=self._given is not None,
            **self._scores.arrays(len(sigma), likelihood=known),
            unrecorded=unrecorded,
            complete=complete,
            origin=self._run.origin(),
            sampling=self._sampling.sampling(),
            divisor=self._divisor,
        )

    def _holds_all(self, module: nn.Module) -> bool:
        return self._own <= {id(p) for p in module.parameters()}

    @contextlib.contextmanager
    def _unharmed(self) -> Iterator[None]:
        """An error of the recording ends the recording, but not the loop that is recorded."""
        try:
            yield
        except Exception as error:
            self._failures.add(error, self._number)

    def _watching(self) -> bool:
        return not self._failures.is_over and not is_paused()

    @uncompiled
    def _before_forward(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._watching():
            with self._unharmed():
                self._enter(module, inputs)

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._loss is not None:
            self._loss.before(module)
        if not torch.is_grad_enabled():
            return
        if self._model is None and self._holds_all(module):
            self._model = module
            self._calls.watch(module, inputs)
        self._recorded.before(module, inputs, self._model)
        if module.training and any(id(p) in self._own for p in module._parameters.values()):
            self._terms.called(module, within=self._calls.are_under_way or module is self._model)

    @uncompiled
    def _after_forward(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if self._watching():
            with self._unharmed():
                if self._loss is not None:
                    self._loss.after(module, inputs, output)
                self._recorded.after(module, inputs, output)

    def _returned(self, module: nn.Module, arguments: Arguments, output: Any, drew: bool) -> None:
        """The model returned."""
        if not self._watching() or not module.training or not torch.is_grad_enabled() or output is None:
            return
        with self._unharmed():
            self._versions = [(p, p._version) for p in module.parameters()]
            passed = ForwardPass(arguments, output, self._sampling.use_of(rows_of(arguments)), drew=drew)
            self._passes.append(passed)
            if self._loss is not None:
                self._loss.gave(passed.outputs)

    def _fetched(self, iterator: Any, batch: Any, part: Part) -> None:
        if self._watching():
            with self._unharmed():
                self._sampling.fetched(iterator, batch, part)

    def _before_backward(self, roots: list[torch.Tensor]) -> None:
        if self._watching():
            with self._unharmed():
                self._sum.before_backward()
                if self._loss is not None:
                    self._loss.go_back(roots)
                self._terms.go_back([t.grad_fn for t in roots if t.grad_fn is not None], self._passes)

    def before_step(self, optimizer: Any) -> None:
        """The optimizer's `pre_step` begins."""
        self._run.before()
        if self._is_finished:
            return
        self._sum.before_step()
        if self._sum.holds_others and not hasattr(optimizer, "sum_is_fresh") and not self._schedule:
            raise ValueError(_LEFT_OVER)

    def after_step(self, optimizer: Any, released: bool | None) -> None:
        """`pre_step` ended."""
        if self._is_finished:
            if released:
                self._run.account()
            return
        entries = self._sum.after_step(released)
        if released is None and self._loss is not None:  # refused: its loss is not that of the next step
            self._loss.clear()
        if released:
            self._step(optimizer, entries)

    def _step(self, optimizer: Any, entries: Entries | None) -> None:
        place = self._run.account()
        is_scored = (self._number - 1) % self._every == 0
        batch = self._passes if entries is None else list(dict.fromkeys(p for passes in entries for p in passes))
        release = self._sampling.release(None if entries is None else [[p.use for p in passes] for passes in entries])
        elsewhere: list[Release] = []
        try:
            if is_scored:
                with pause_recording(), torch.no_grad():
                    elsewhere = self._score(optimizer, batch, entries is not None, release)
        except Exception as error:
            refused = not self._schedule and isinstance(error, (TypeError, ValueError))
            if not self._failures.of_step:
                self._failures.add(error, self._number, warn=not refused)
            if refused:  # wrong arguments are reported before any work is lost
                raise
        finally:
            is_left_out = self._failures.end_step()
            self._is_finished = self._failures.is_over
            self._number += 1
            self._passes = []
            self._calls.clear()
            if self._loss is not None:
                self._loss.clear()
            rows = sum(len(p.rows) for p in batch if p.rows is not None)
            divides = optimizer.loss_reduction == "mean" and optimizer.expected_batch_size is not None
            size = float(optimizer.expected_batch_size) if divides else None
            self._sampling.step(release, elsewhere, rows=rows, divisor=size)
        if is_left_out or not is_scored:
            return
        self._run.take(place)
        if self._out is not None and len(self._schedule) % _AUTOSAVE == 0:
            try:
                self._out.save(self.trace())
            except OSError as error:  # the next may succeed
                _log.warning("record: %s was not written: %s", self._out.path, error)

    def _score(self, optimizer: Any, batch: list[ForwardPass], known: bool, release: Release) -> list[Release]:
        """Score the step, with what the other processes have of it. Returns how their batches were sampled."""
        sigma, norm = float(optimizer.noise_multiplier), float(optimizer.max_grad_norm)
        parts = self._ranks.share(lambda: self._part(optimizer, batch, known, release))
        gradients, inside = self._gradients, inside_of(parts)
        assert gradients is not None

        def products() -> Any:
            for part in parts:
                self._rows.learn(part.confirmed, part.contradicted)
            require_alike(parts)
            with wrong_before():
                self._rows.require_targets(len(self._schedule) + 1, self._rate)
            scores = None
            if self._ranks.is_first:
                noise = noise_of(optimizer)
                with wrong_before():
                    self._require_new(noise, sigma * norm, sum(part.rows for part in parts) * norm)
                scores = gradients.products_of_batch(noise, inside, norm, batch)
            steps = len(self._schedule)
            if batch and (steps & (steps + 1) == 0 or not self._compared):  # steps 1, 2, 4, 8, …
                self._compare(gradients, batch[-1])
            return scores

        self._scores.add(self._ranks.share(products)[0], inside, sigma, norm, self._rate)
        self._schedule.append((sigma, norm, sum(part.rows for part in parts)))
        return [part.release for part in parts]

    def _require_new(self, noise: torch.Tensor, std: float, most: float) -> None:
        """ValueError if a step's noise is an earlier step's. `most` is what the norm of its sum is at most."""
        if std > 0:
            eps = max(torch.finfo(p.dtype).eps for p in self._optimizer.params)
            values = noise[torch.from_numpy(RepeatedNoise.places(len(noise))).to(noise.device)]
            self._noise.require_new(values.double().cpu().numpy() / std, eps * (most / std + 5))

    def _part(self, optimizer: Any, batch: list[ForwardPass], known: bool, release: Release) -> StepPart:
        """What this process has of the step, checked."""
        if self._failures.of_step:
            raise RuntimeError(self._failures.last)
        if hasattr(
            optimizer, "_adjusted_noise_multiplier"
        ):  # Opacus's adaptive ghost clipping sets it in the backward pass
            raise TypeError("`optimizer` must clip by a fixed max_grad_norm, got one that clips adaptively")
        self._terms.require_known(optimizer)
        with wrong_before():
            self._recorded.require()
        if any(p._version != version for p, version in self._versions):
            raise ValueError(
                "model: its parameters were changed between its forward pass and this step (by another optimizer's "
                "step?), so the candidates' gradients at the batch's parameters can no longer be computed: call this "
                "optimizer's step first"
            )
        if self._loss is not None:
            self._criterion = self._loss.take(optimizer.loss_reduction) or self._criterion
        steps = len(self._schedule)
        form = self._called(batch)
        if not known:
            raise ValueError(_OTHERS)
        gradients = self._gradients = CandidateGradients(
            optimizer,
            self._model,
            self._criterion,
            form,
            self.memory,
            self._route,
            steps,
            batch[-1].autocast if batch else None,
        )
        self._sampling.require_stated(release)
        inside = self._rows.of_batch(batch, form)
        batches = int(optimizer.accumulated_iterations) if release.why else len(release.sources)
        if self._rate_of_batch is not None:
            cuts = {p.source.sampling.batches if is_shuffled(p.source) else None for p in batch}
            of_pass = cuts.pop() if len(cuts) == 1 else None
            self._rate = rate_of_step(self._rate_of_batch, batches, self._rate, of_pass)
        if not steps and not (isinstance(self._criterion, nn.Module) and self._loss is not None):
            gradients.require_of_rows(optimizer.loss_reduction)
        settings = (float(optimizer.noise_multiplier), float(optimizer.max_grad_norm), self._rate, batches)
        return StepPart(
            settings=settings,
            parameters="" if steps or self._ranks.count == 1 else digest(optimizer.params),
            inside=inside,
            rows=sum(len(p.rows) for p in batch if p.rows is not None),
            confirmed=self._rows.confirmed,
            contradicted=self._rows.contradicted,
            release=release,
        )

    def _called(self, batch: list[ForwardPass]) -> CallForm:
        """How the loop calls the model. ValueError if the candidates do not have that form."""
        if self._form is None:
            passes = batch or self._passes
            if self._model is None or not passes:
                raise ValueError("model: no module that holds the optimizer's parameters was called: pass model=")
            if is_parallel(self._model) and not hasattr(self._optimizer, "reduce_gradients"):
                raise ValueError(
                    f"`optimizer` must be a distributed one for a {type(behind_hooks(self._model)).__name__}, got "
                    f"{type(self._optimizer).__name__}: each process would release the gradients of its own rows"
                )
            self._form = CallForm(self._rows.candidates, self._model, passes[0].args, passes[0].kwargs)
        return self._form

    def _compare(self, gradients: CandidateGradients, last: ForwardPass) -> None:
        """ValueError unless a candidate in the step's last batch has the norm there that it has alone."""
        places = [] if last.drew else self._rows.places(last, self._called([last]))
        if places and (norm := self._recorded.norm(places[0][1])) is not None:
            self._compared = True
            with wrong_before():
                gradients.require_norm(places[0][0], norm)
