"""Record an Opacus training run as the adversary sees it, reduced to scores of candidates during the run."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from leakcore._base import validate
from leakcore._base.digest import digest
from leakcore._base.tables import Rows, as_html, as_line, as_text, short
from leakcore.dpsgd.record.candidate_gradients import CandidateGradients, Products, Route
from leakcore.dpsgd.record.candidates import CallForm, CandidateRows, read_candidates, read_members
from leakcore.dpsgd.record.forward_passes import Entries, ForwardPass, SummedPasses
from leakcore.dpsgd.record.loss import LoopLoss, LossTerms
from leakcore.dpsgd.record.refusals import Failures, RecordedRows, require_known
from leakcore.dpsgd.record.run_steps import RunSteps
from leakcore.dpsgd.record.sampling import Release, RepeatedNoise, SampleRate, SamplingOfSteps, is_shuffled
from leakcore.dpsgd.rows.distributed import Ranks, behind_hooks, is_parallel, same_coins, wrong_before
from leakcore.dpsgd.rows.hooks import Arguments, ForwardHook, Hook, LoaderHook, ModelHook, Part, StepHook, rows_of
from leakcore.dpsgd.rows.preserve_state import is_paused, pause_recording
from leakcore.dpsgd.trace.output_file import TraceFile
from leakcore.dpsgd.trace.trace import Divisor, Trace, parse_divisor
from leakcore.gradients import BackwardHook, Criterion
from leakcore.numerics import step_log_ratio

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


class CandidateScores:
    """Sums over steps for n candidates; `Trace` says what they are."""

    def __init__(self, n: int) -> None:
        self.times_seen = np.zeros(n, dtype=np.int64)
        self._clipped = np.zeros(n)
        self._membership_sum, self._membership_likelihood = np.zeros(n), np.zeros(n)
        self._pair_sum, self._pair_likelihood = np.zeros((n, n)), np.zeros((n, n))

    def add(self, products: Products, inside: np.ndarray, sigma: float, norm: float, rate: float | None) -> None:
        """A step of σ, C and, unless it is None, q, with the candidates `inside` in its batch."""
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
    """One process's part of a step: σ, C, q and the number of accumulated batches; a digest of the parameters, in the
    first step; what `CandidateRows` has seen of the candidates, and the numbers of those in the batch; and its rows'
    draws.
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


def noise_of(optimizer: Any) -> torch.Tensor:
    """The noise of the release, (D,), which Opacus's distributed optimizers add in the first process only."""
    unit = 1.0
    if optimizer.loss_reduction == "mean":
        unit = float(optimizer.expected_batch_size) * int(optimizer.accumulated_iterations)
    release = torch.cat([p.grad.flatten() for p in optimizer.params]) * unit
    return release - torch.cat([p.summed_grad.flatten() for p in optimizer.params])


def _observes(callback: Callable[..., None]) -> Callable[..., None]:
    """A callback that rests while the recording is paused or over. Its errors end the recording, not the loop."""

    @functools.wraps(callback)
    def observe(self: Recorder, *arguments: Any) -> None:
        if self._failures.is_over or is_paused():
            return
        try:
            callback(self, *arguments)
        except Exception as error:
            self._failures.add(error)

    return observe


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
        every: number of steps for one that is scored.
        divisor: "rows" or "constant".

    Raises:
        ValueError: names the argument, its value and what is allowed.
        TypeError: for an optimizer that clips otherwise, or an argument of another type.
    """

    # The states of a recording, and what leads from one to the next:
    #
    #   ready       no hooks; a block may begin              __enter__ → recording
    #   recording   `_hooks` call back                       __exit__ → ready
    #   left out    `_failures.of_step`: the present step    an error in a callback or in the score; the step's end →
    #               is not recorded                          recording, or over after three in a row
    #   over        `_failures.is_over`, and `has_ended`     no way back
    #               once its step is: steps are only counted
    #   lost        `_failures.is_lost`: over, and what was  no way back: there is no trace
    #               recorded before may be wrong, too
    #
    # What it knows, and since when:
    #
    #   of the run    `_optimizer`, `_ranks`, `_rows` (candidates, members), `_model`, `_form` (how the loop calls it),
    #                 `_loss`, `_rate`, `_sampling`, `_run` (the place of the recorded steps among all)
    #   of all steps  `_schedule` (σ, C and rows of each), `_scores`, `_noise`, `_route` (how gradients are computed)
    #   of this step  `_sum` (forward passes, and which are summed), `_versions` (of the parameters at the last forward
    #                 pass), `_terms` (of the loss), `_clipped` (whether rows are those of the batch), `_gradients`

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
        self._optimizer, self._model = optimizer, model
        self._ranks = Ranks(optimizer)
        self._ranks.share(lambda: self._set_up(candidates, members, criterion, sampling, out))
        if self._ranks.count > 1:
            rows = self._run.candidates()
            self._ranks.require_equal(candidates=rows, members=digest(self._rows.members), sampling=self._rate.value)

    def _set_up(
        self, candidates: Any, members: Any, criterion: Criterion | None, sampling: Any, out: str | Path | None
    ) -> None:
        optimizer = self._optimizer
        rows = read_candidates(candidates)
        self._rows = CandidateRows(rows, None if members is None else read_members(members, len(rows)))
        self._own = {id(p) for p in optimizer.params}
        self._loss, self._terms = LoopLoss(self._holds_all, criterion), LossTerms(self._own)
        self._sampling = SamplingOfSteps(sampling, divided=self._ranks.count > 1)
        self._rate = SampleRate(self._sampling.rate, optimizer.step_hook)
        self._out = None if out is None or not self._ranks.is_first else TraceFile(out)
        self._run = RunSteps(optimizer, rows.content())
        self._clipped, self._sum = RecordedRows(optimizer), SummedPasses(optimizer)
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._form: CallForm | None = None
        self._gradients: CandidateGradients | None = None
        self._route, self._failures = Route(), Failures()
        self._schedule: list[tuple[float, float, int]] = []
        self._scores, self._noise = CandidateScores(len(rows)), RepeatedNoise()
        self._model_hook = ModelHook(self._after_model)
        self._hooks: list[Hook] = []

    def __repr__(self) -> str:
        return as_line("Recorder", self._table_rows())

    def __str__(self) -> str:
        return as_text("Recorder", self._table_rows())

    def _repr_html_(self) -> str:
        return as_html("Recorder", self._table_rows())

    def _table_rows(self) -> Rows:
        failed = self._failures
        state = "broken" if failed.of_step else "over" if failed.is_over else "recording" if self._hooks else "ready"
        return [
            ("state", state),
            ("steps recorded", str(self.steps)),
            ("candidates", str(len(self._rows.candidates))),
            ("sample rate", "not known yet" if self._rate.value is None else short(self._rate.value)),
            ("file", "none" if self._out is None else str(self._out.path)),
        ]

    def __enter__(self) -> Recorder:
        if self._hooks:
            raise ValueError("record: this recorder is in use already")
        self._ranks.share(lambda: None if self._out is None else self._out.require_free())
        self._sampling.coins = same_coins(self._ranks)
        hook = self._optimizer.step_hook
        self._rate.begin_block(hook, has_steps=bool(self._schedule))
        self._run.enter(hook)
        self._sum = SummedPasses(self._optimizer)
        self._hooks = [
            StepHook(self._optimizer, self),
            ForwardHook(self._before_forward, self._after_forward),
            BackwardHook(self._before_backward),
            LoaderHook(self._after_fetch),
            self._model_hook,
        ]
        if self._model is not None:
            self._model_hook.attach(self._model)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._clipped.stop()
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
        if unused := self._clipped.unused(error):
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
        rate, members = self._rate.value, self._rows.members
        self._rows.require_targets(self.steps, rate)
        sigma, norm, rows = (np.array(column) for column in zip(*self._schedule, strict=True))
        size = self._optimizer.expected_batch_size
        unrecorded, complete = self._run.unrecorded(sigma, rate)
        return Trace(
            noise_multiplier=sigma.astype(np.float64),
            max_grad_norm=norm.astype(np.float64),
            batch_rows=rows.astype(np.int64),
            sample_rate=rate,
            expected_batch_size=None if size is None else float(size) * self._ranks.count,
            members=self._scores.times_seen > 0 if members is None else members.copy(),
            members_given=members is not None,
            **self._scores.arrays(self.steps, likelihood=bool(rate) and bool((sigma > 0).all())),
            unrecorded=unrecorded,
            complete=complete,
            origin=self._run.origin(),
            sampling=self._sampling.sampling(),
            divisor=self._divisor,
        )

    def _holds_all(self, module: nn.Module) -> bool:
        return self._own <= {id(p) for p in module.parameters()}

    @_observes
    def _before_forward(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._loss.before(module)
        if not torch.is_grad_enabled():
            return
        if self._model is None and self._holds_all(module):
            self._model = module
            self._model_hook.attach(module, inputs)
        self._clipped.before(module, inputs, self._model)
        if module.training and any(id(p) in self._own for p in module._parameters.values()):
            self._terms.called(module, within=self._model_hook.is_running or module is self._model)

    @_observes
    def _after_forward(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self._loss.after(module, inputs, output)
        self._clipped.after(module, inputs, output)

    @_observes
    def _after_model(self, module: nn.Module, arguments: Arguments, output: Any, drew: bool) -> None:
        if not module.training or not torch.is_grad_enabled() or output is None:
            return
        self._versions = [(p, p._version) for p in module.parameters()]
        passed = ForwardPass(arguments, output, self._sampling.use_of(rows_of(arguments)), drew=drew)
        self._sum.passes.append(passed)
        self._loss.gave(passed.outputs)

    @_observes
    def _after_fetch(self, iterator: Any, batch: Any, part: Part) -> None:
        self._sampling.fetched(iterator, batch, part)

    @_observes
    def _before_backward(self, roots: list[torch.Tensor]) -> None:
        self._sum.before_backward()
        self._loss.go_back(roots)
        self._terms.go_back([t.grad_fn for t in roots if t.grad_fn is not None], self._sum.passes)

    def before_step(self, optimizer: Any) -> None:
        """The optimizer's `pre_step` begins."""
        self._run.before()
        if self._failures.has_ended:
            return
        self._sum.before_step()
        if self._sum.holds_others and not hasattr(optimizer, "sum_is_fresh") and not self._schedule:
            raise ValueError(_LEFT_OVER)

    def after_step(self, optimizer: Any, released: bool | None) -> None:
        """`pre_step` ended."""
        if self._failures.has_ended:
            if released:
                self._run.account()
            return
        entries = self._sum.after_step(released)
        if released is None:  # refused: its loss is not that of the next step
            self._loss.clear()
        if released:
            self._end_step(optimizer, entries)

    def _end_step(self, optimizer: Any, entries: Entries | None) -> None:
        """A step made its release. `entries`: what its sum holds; None: others are in it, too."""
        place = self._run.account()
        is_scored = (self._failures.step - 1) % self._every == 0
        batch = self._sum.passes if entries is None else list(dict.fromkeys(p for passes in entries for p in passes))
        release = self._sampling.release(None if entries is None else [[p.use for p in passes] for passes in entries])
        elsewhere: list[Release] = []
        try:
            if is_scored:
                with pause_recording(), torch.no_grad():
                    elsewhere = self._score(optimizer, batch, entries is not None, release)
        except Exception as error:
            refused = not self._schedule and isinstance(error, (TypeError, ValueError))
            if not self._failures.of_step:
                self._failures.add(error, warn=not refused)
            if refused:  # wrong arguments are reported before any work is lost
                raise
        finally:
            is_left_out = self._failures.end_step()
            self._sum.passes = []
            self._model_hook.clear()
            self._loss.clear()
            divides = optimizer.loss_reduction == "mean" and optimizer.expected_batch_size is not None
            size = float(optimizer.expected_batch_size) if divides else None
            self._sampling.step(release, elsewhere, rows=_rows_in(batch), divisor=size)
        if is_left_out or not is_scored:
            return
        self._run.take(place)
        if self._out is not None and self.steps % _AUTOSAVE == 0:
            try:
                self._out.save(self.trace())
            except OSError as error:  # the next may succeed
                _log.warning("record: %s was not written: %s", self._out.path, error)

    def _score(self, optimizer: Any, batch: list[ForwardPass], known: bool, release: Release) -> list[Release]:
        """Score the step, with what the other processes have of it. Returns how their batches were sampled."""
        sigma, norm = float(optimizer.noise_multiplier), float(optimizer.max_grad_norm)
        parts = self._ranks.share(lambda: self._part(optimizer, batch, known, release))
        gradients, rows = self._gradients, sum(part.rows for part in parts)
        inside = np.unique(np.concatenate([part.inside for part in parts]))
        assert gradients is not None

        def products() -> Any:
            for part in parts:
                self._rows.learn(part.confirmed, part.contradicted)
            require_alike(parts)
            with wrong_before():
                self._rows.require_targets(self.steps + 1, self._rate.value)
            scores = None
            if self._ranks.is_first:
                noise = noise_of(optimizer)
                with wrong_before():
                    self._require_new(noise, sigma * norm, rows * norm)
                scores = gradients.products_of_batch(noise, inside, norm, batch)
            if batch and (self.steps & (self.steps + 1) == 0 or not self._route.compared):  # steps 1, 2, 4, 8, …
                self._compare(gradients, batch[-1])
            return scores

        self._scores.add(self._ranks.share(products)[0], inside, sigma, norm, self._rate.value)
        self._schedule.append((sigma, norm, rows))
        return [part.release for part in parts]

    def _require_new(self, noise: torch.Tensor, std: float, largest_sum: float) -> None:
        """ValueError if a step's noise, of that deviation, is an earlier step's. `largest_sum` bounds its sum."""
        if std > 0:
            eps = max(torch.finfo(p.dtype).eps for p in self._optimizer.params)
            values = noise[torch.from_numpy(RepeatedNoise.places(len(noise))).to(noise.device)]
            self._noise.require_new(values.double().cpu().numpy() / std, eps * (largest_sum / std + 5))

    def _part(self, optimizer: Any, batch: list[ForwardPass], known: bool, release: Release) -> StepPart:
        """What this process has of the step, checked."""
        if self._failures.of_step:
            raise RuntimeError(self._failures.last)
        if hasattr(optimizer, "_adjusted_noise_multiplier"):  # adaptive ghost clipping sets it in the backward pass
            raise TypeError("`optimizer` must clip by a fixed max_grad_norm, got one that clips adaptively")
        self._terms.require_known(optimizer)
        with wrong_before():
            self._clipped.require()
        if any(p._version != version for p, version in self._versions):
            raise ValueError(
                "model: its parameters were changed between its forward pass and this step (by another optimizer's "
                "step?), so the candidates' gradients at the batch's parameters can no longer be computed: call this "
                "optimizer's step first"
            )
        self._loss.take(optimizer.loss_reduction)
        criterion, form = self._loss.criterion, self._called(batch)
        if not known:
            raise ValueError(_OTHERS)
        autocast = batch[-1].autocast if batch else None
        gradients = self._gradients = CandidateGradients(
            optimizer, self._model, criterion, form, self.memory, self._route, self.steps, autocast
        )
        self._sampling.require_stated(release)
        inside = self._rows.of_batch(batch, form)
        batches = int(optimizer.accumulated_iterations) if release.why else len(release.sources)
        cuts = {p.source.sampling.batches if is_shuffled(p.source) else None for p in batch}
        self._rate.add_step(batches, cuts.pop() if len(cuts) == 1 else None)
        if not self.steps and not isinstance(criterion, nn.Module):
            gradients.require_of_rows(optimizer.loss_reduction)
        return StepPart(
            settings=(float(optimizer.noise_multiplier), float(optimizer.max_grad_norm), self._rate.value, batches),
            parameters="" if self.steps or self._ranks.count == 1 else digest(optimizer.params),
            inside=inside,
            rows=_rows_in(batch),
            confirmed=self._rows.confirmed,
            contradicted=self._rows.contradicted,
            release=release,
        )

    def _called(self, batch: list[ForwardPass]) -> CallForm:
        """How the loop calls the model. ValueError if the candidates do not have that form."""
        if self._form is None:
            passes = batch or self._sum.passes
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
        if places and (norm := self._clipped.norm(places[0][1])) is not None:
            self._route.compared = True
            with wrong_before():
                gradients.require_norm(places[0][0], norm)


def _rows_in(batch: Iterable[ForwardPass]) -> int:
    return sum(len(p.rows) for p in batch if p.rows is not None)
