"""Opacus's DPOptimizer without per-sample gradients: book-keeping, and counter-based or cryptographic noise."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from leakcore import kernels
from leakcore.dpsgd.fused.row_gradients import Dense, wide_type
from leakcore.dpsgd.fused.secure_noise import secure_normal
from leakcore.dpsgd.rows.distributed import Ranks, behind_hooks, behind_wrappers, is_parallel
from leakcore.dpsgd.rows.hooks import BatchSource, Deliveries, Draw, LoaderHook, Part, rows_of
from leakcore.dpsgd.rows.preserve_state import Uncopied, is_paused
from leakcore.dpsgd.rows.row_check import RowCheck
from leakcore.dpsgd.rows.unsupported_layers import names_of, require_real, unsupported_layers
from leakcore.dpsgd.trace.trace import Sampling

try:
    from opacus.optimizers import DistributedDPOptimizer, DPOptimizer
    from opacus.optimizers.optimizer import _check_processed_flag, _mark_as_processed

    from leakcore.dpsgd.fused import activation_hooks
except ImportError as error:
    raise ImportError("FusedDPOptimizer builds on Opacus: pip install 'leakcore[opacus]'") from error

_log = logging.getLogger(__name__)
_FROM = BatchSource(Sampling(), 0)
_SETTINGS = "noise_multiplier max_grad_norm expected_batch_size loss_reduction generator secure_mode".split()
_ADDED = 1e-6
"""What Opacus adds to a norm before it divides: factors are slightly smaller than Algorithm 1's, never larger."""


class FusedDPOptimizer(DPOptimizer):  # type: ignore[misc]  # opacus ships no types
    """A drop-in replacement for Opacus's `DPOptimizer` (flat clipping): the same step in less time and memory.

    The release is (Σ_i g_i·min(1, C/(‖g_i‖ + 1e-6)) + σC·z)/expected_batch_size with z ~ N(0, I) (Abadi et al. 2016,
    Algorithm 1, with Opacus's constant): sensitivity C, and Opacus's ε. `PrivacyEngine` computes
    expected_batch_size from the number of rows: ε is then for a public number of rows (zero-out adjacency).

    Per-sample gradients are not built; norms and the clipped sum come from the layers' inputs and output gradients
    (book-keeping: Bu, Wang, Zha and Karypis 2022, sections 3 and 4). Layers without such a rule keep Opacus's hooks.
    docs/how-to/fused-optimizer.md lists them.

    Args:
        optimizer: the torch optimizer to wrap.
        module: the `GradSampleModule` (or, with `wrap_model=False`, the hooks) that Opacus made. None: the first called
            that has Opacus's hooks and holds the parameters.
        **settings: further arguments of Opacus's `DPOptimizer`. `generator` gives one 64-bit seed per step for Philox
            noise, for experiments and audits. `secure_mode=True` draws noise by `secure_normal`, for models to be
            released.

    Raises:
        ValueError: in a step, before anything is released, for layers whose rows are not the batch's (steps 1, 2, 4, 8,
            ... compare a few rows with autograd), for a loss scaled by a GradScaler, and on the CPU for non-finite
            gradients, with the row. On CUDA those make the sum NaN. Before that, for layers that have no rows.
        TypeError: for per-layer clipping norms, or a module of DistributedDataParallel.

    Guarantees:
        After `backward`, `p.grad` holds no plain gradient; `optimizer.grad_samples` builds per-sample gradients on
        demand.

    Example:
        >>> import torch
        >>> from opacus import GradSampleModule
        >>> from leakcore import dpsgd
        >>> model = GradSampleModule(torch.nn.Linear(4, 2))
        >>> optimizer = dpsgd.FusedDPOptimizer(
        ...     torch.optim.SGD(model.parameters(), lr=0.1), module=model, noise_multiplier=1.0, max_grad_norm=1.0,
        ...     expected_batch_size=20,
        ... )
        >>> torch.nn.functional.cross_entropy(model(torch.ones(20, 4)), torch.arange(20) % 2).backward()
        >>> [gradient.shape for gradient in optimizer.grad_samples]
        [torch.Size([20, 2, 4]), torch.Size([20, 2])]
        >>> _ = optimizer.step()
    """

    _step_supports_amp_scaling = True
    """torch's GradScaler then informs the optimizer of itself, instead of looking for gradients."""
    _is_last_step_skipped: bool

    def __init__(self, optimizer: torch.optim.Optimizer, *, module: Any = None, **settings: Any) -> None:
        if isinstance(settings.get("max_grad_norm"), (list, tuple)):
            raise TypeError(
                "`max_grad_norm` must be one norm, since FusedDPOptimizer clips whole gradients, got a list"
            )
        super().__init__(optimizer, **settings)
        _noise_std(self.noise_multiplier, self.max_grad_norm)
        self._names: dict[int, str] = names_of(module) if isinstance(module, nn.Module) else {}
        self._root: nn.Module | None = None
        self._hooks: Any = None
        self._check: RowCheck | None = None
        require_real(self.params, self._names)
        mine = weakref.ref(self)
        self._batch = LogicalBatch(lambda other: other is not None and other is mine())
        if module is None:
            _attach_when_called(self)
        else:
            self._attach(module)

    @classmethod
    def replace(cls, optimizer: DPOptimizer, module: Any = None) -> FusedDPOptimizer:
        """The same optimizer with this class's step.

        Args:
            optimizer: Opacus's `DPOptimizer` or `DistributedDPOptimizer`, as `PrivacyEngine.make_private` returned it.
                Its settings, accounting hook and wrapped optimizer are taken over; do not use it any more.
            module: the `GradSampleModule` that Opacus made; None: the first called that holds the parameters.

        Returns:
            A `FusedDPOptimizer`.

        Raises:
            TypeError: for any other one, because per-layer, adaptive and ghost clipping step differently.
        """
        allowed = "Opacus's DPOptimizer or DistributedDPOptimizer with flat clipping"
        require_type(optimizer, (DPOptimizer, DistributedDPOptimizer), allowed)
        kind = DistributedFusedDPOptimizer if type(optimizer) is DistributedDPOptimizer else cls
        settings = {name: getattr(optimizer, name) for name in _SETTINGS}
        fused = kind(optimizer.original_optimizer, module=module, **settings)
        fused.attach_step_hook(optimizer.step_hook)
        return fused

    def _attach(self, module: Any, args: tuple[Any, ...] | None = None) -> None:
        """Take over this module's layers from Opacus's hooks. `args`: the arguments of a call that is under way."""
        self._require_processes(module)
        activation_hooks.attach(module, self.params)
        self._hooks = activation_hooks.find_hooks(module)
        self._root = root = behind_wrappers(self._hooks)
        self._names = names_of(root)
        self._check = RowCheck(root, self.params, self._hooks)
        self._check.start(None if args is None else module, args or ())
        called = self._batch.called  # which does not keep the optimizer alive
        handle = root.register_forward_pre_hook(Uncopied(called), with_kwargs=True)
        weakref.finalize(self, handle.remove).atexit = False
        if args is not None and module is root:  # whose call is under way
            called(module, args, {})

    def _require_processes(self, module: Any) -> None:
        if is_parallel(module):
            raise TypeError(
                f"`module` must not be a {type(behind_hooks(module)).__name__} here, because each process would "
                "release the gradients of its own rows: FusedDPOptimizer.replace(optimizer) takes Opacus's distributed "
                "optimizer"
            )

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Clip and sum; unless a virtual step ends here, also add noise, divide and inform the accountant.

        A step that is refused drops the sum. The other parts of its virtual step are refused, too.
        """
        if not self.params:
            return True
        only_sum = self._batch.begin(self._check_skip_next_step)
        if self._batch.is_fresh and self._is_last_step_skipped:
            self._clear_sums()
        try:
            self._sum_rows(only_sum)
            if not only_sum:
                self.add_noise()
                self.scale_grad()
                if self.step_hook:
                    self.step_hook(self)
        except BaseException:
            self._clear_sums()
            self._is_last_step_skipped = False
            self._batch.refuse(only_summed=only_sum)
            raise
        self._batch.end(only_summed=only_sum)
        self._is_last_step_skipped = only_sum
        return not only_sum

    def _sum_rows(self, only_sum: bool) -> None:
        self._batch.require_whole()
        self.clip_and_accumulate()

    def _clear_sums(self) -> None:
        for p in self.params:
            p.summed_grad = None

    @property
    def sum_is_fresh(self) -> bool:
        """Whether the last step began a sum."""
        return self._batch.is_fresh

    def _take_signal(self) -> bool:
        """The flag that Opacus gave the part that it just drew, which keeps it."""
        return bool(self._step_skip_queue.pop())

    def __getstate__(self) -> Any:
        raise TypeError(
            "FusedDPOptimizer must not be copied or pickled, because Opacus's optimizers lose all but their state "
            "thereby: save optimizer.state_dict(), and copy the model"
        )

    def clip_and_accumulate(self) -> None:
        """Add Σ_i clip_C(g_i) to `p.summed_grad`, which is float32 for narrower parameters."""
        _noise_std(self.noise_multiplier, self.max_grad_norm)
        if self.__dict__.pop("found_inf", None) is not None:
            self.__dict__.pop("grad_scale", None)
            raise ValueError(
                "the loss must not be scaled by a GradScaler, because scaled gradients would be clipped at C/scale: "
                "use bfloat16, which needs no scaling, or GradScaler(enabled=False)"
            )
        parameters = self.params
        if lacking := unsupported_layers(parameters, self._names, root=self._root):
            raise ValueError(f"Per sample gradient is not initialized. Not updated in backward pass? {lacking}")
        batches = [_read(p) for p in parameters]
        for p in parameters:
            _check_processed_flag(p.grad_sample)
        if len({len(rows_of_batch) for rows_of_batch in batches}) > 1:
            raise ValueError("Number of accumulated steps is inconsistent across parameters")
        if self._check is not None and batches[0]:
            last = [rows[-1] for rows in batches]
            self._check.step(parameters, last, mean=self._hooks.loss_reduction == "mean")
        for batch in zip(*batches, strict=True):
            factors = self._factors(batch)
            for p, rows in zip(parameters, batch, strict=True):
                wide = wide_type(p)
                total = rows.weighted_sum(factors.to(p.device, wide)) if rows.rows else torch.zeros_like(p)
                total = total.detach().to(wide).view(p.shape)
                p.summed_grad = total if p.summed_grad is None else p.summed_grad.add_(total)
                if isinstance(rows, activation_hooks.LazyRowGradients):
                    rows.forget()  # at once, so that the sums take the place of what they are computed from
        for p in parameters:
            _mark_as_processed(p.grad_sample)

    def add_noise(self) -> None:
        """`p.grad` = `p.summed_grad` + σC·z."""
        parameters = self.params
        for p in parameters:
            _check_processed_flag(p.summed_grad)
        std = _noise_std(self.noise_multiplier, self.max_grad_norm)
        draw = self._normals() if std > 0 else None
        for index, p in enumerate(parameters):
            if draw is None:
                p.grad = p.summed_grad.to(p.dtype, copy=True)
            else:  # rounded once, after the noise: what a narrow type loses is lost of the release
                p.grad = draw(index, p).mul_(std).add_(p.summed_grad).to(p.dtype)
            _mark_as_processed(p.summed_grad)

    def _factors(self, batch: tuple[Any, ...]) -> torch.Tensor:
        """min(1, C/(‖g_i‖ + 1e-6)), (B,), float64."""
        counts = sorted({rows.rows for rows in batch})
        if len(counts) > 1 and counts[0] > 0:
            by_count = {rows.rows: p for rows, p in zip(batch, self.params, strict=True)}
            named = [f"{n} of {self._names.get(id(by_count[n]), 'a parameter')}" for n in counts]
            raise ValueError(
                "all parameters must have per-sample gradients of the rows of the batch, the first dimension of each "
                f"layer's input, got {counts} ({', '.join(named)})"
            )
        device = self.params[0].device
        squares = torch.zeros(counts[0], dtype=torch.float64, device=device)
        for rows in batch if counts[0] else ():
            squares += rows.squared_norms().to(device)
        norms = squares.sqrt()
        if device.type == "cpu" and not torch.isfinite(norms).all():
            row = int(torch.isfinite(norms).logical_not().nonzero()[0])
            raise ValueError(f"the gradient of row {row} must be finite, got norm {float(norms[row])}")
        return (float(self.max_grad_norm) / (norms + _ADDED)).clamp(max=1.0)

    def _normals(self) -> Callable[[int, torch.Tensor], torch.Tensor]:
        """A function that draws standard normals like a parameter, from its index, one array at a time."""
        if self.secure_mode:
            return lambda index, p: torch.from_numpy(secure_normal(p.numel())).to(p.device, wide_type(p)).view_as(p)
        device = "cpu" if self.generator is None else self.generator.device
        seed = int(torch.randint(2**63 - 1, (), generator=self.generator, device=device))

        def draw(index: int, p: torch.Tensor) -> torch.Tensor:
            kind = "float64" if wide_type(p) == torch.float64 else "float32"
            normals = kernels.standard_normal(
                (1, p.numel()), seed=seed, purpose="clip_noise", step=0, first_row=index, dtype=kind, like=p.detach()
            )
            return normals.view(p.shape)  # type: ignore[no-any-return]

        return draw

    def _get_flat_grad_sample(self, p: torch.Tensor) -> torch.Tensor:
        """Opacus's method, for `grad_samples`; rows that do not exist yet are computed."""
        parts = [rows.values if isinstance(rows, Dense) else rows.dense().view(-1, *p.shape) for rows in _read(p)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class DistributedFusedDPOptimizer(FusedDPOptimizer, DistributedDPOptimizer):  # type: ignore[misc]
    """The same in several processes: each clips and sums its rows, rank 0 adds noise, and the sums are added.

    What one process refuses is raised in all of them, before anything is released.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *, module: Any = None, **settings: Any) -> None:
        super().__init__(optimizer, module=module, **settings)
        self._ranks = Ranks(self)
        self._error: Exception | None = None

    def _require_processes(self, module: Any) -> None:
        if isinstance(behind_hooks(module), DistributedDataParallel):
            raise TypeError(
                "`module` must be wrapped in Opacus's DifferentiallyPrivateDistributedDataParallel, got torch's "
                "DistributedDataParallel, which waits for plain gradients that FusedDPOptimizer does not compute"
            )
        if narrow := next((p.dtype for p in self.params if wide_type(p) != p.dtype), None):
            raise TypeError(
                f"`module` must have parameters of float32 or float64 in several processes, got {narrow}: the sum of a "
                "process would be rounded before rank 0's noise covers it"
            )

    def _sum_rows(self, only_sum: bool) -> None:
        """An error waits for the virtual step's end; processes may divide it into different numbers of steps."""
        if self._batch.is_fresh:
            self._error = None
        try:
            if self._error is None:
                super()._sum_rows(only_sum)
        except Exception as why:
            self._error = why
        if not only_sum:
            error, self._error = self._error, None
            self._ranks.share(functools.partial(_raise, error))

    def add_noise(self) -> None:
        """In the first process; the others leave their sums as they are."""
        if self._ranks.is_first:
            super().add_noise()
            return
        for p in self.params:
            _check_processed_flag(p.summed_grad)
            p.grad = p.summed_grad.clone()
            _mark_as_processed(p.summed_grad)


class LogicalBatch:
    """Follows the parts that Opacus's `BatchMemoryManager` hands out for one optimizer, from draw to release.

    Opacus gives each part a flag in a queue, and takes one in each step. A part without a step (an exception, a
    `break`) shifts them, so that rows of several draws come into one sum. Here a part keeps its own flag, and the part
    of a step is the one that its forward pass had. A batch with a part that was refused, left out or used twice is
    void: every further step on its parts is refused, and the next batch begins with an empty sum, as `is_fresh` says.
    `is_mine` says whether an optimizer is the one that sums, without keeping it alive.
    """

    def __init__(self, is_mine: Callable[[Any], bool]) -> None:
        self._is_mine = is_mine
        self._deliveries = Deliveries()
        self._drawing = LoaderHook(self._delivered)
        self._of_call: Part | None = None
        self._draw: Draw | None = None
        self._summed = 0
        self._void = ""
        self._elsewhere = False
        self.is_fresh = True

    def called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model is called."""
        if not module.training or not torch.is_grad_enabled() or is_paused() or not self._deliveries.any:
            return
        use = self._deliveries.use_of(rows_of((args, kwargs)))
        self._of_call = self._deliveries.newest() if use is None else use.part

    def begin(self, is_skipped: Callable[[], bool]) -> bool:
        """A step begins; `is_skipped` takes a flag from Opacus's queue. Returns whether the step only sums."""
        part, self._of_call = self._of_call or self._deliveries.newest(), None
        elsewhere, self._elsewhere = self._elsewhere, False
        draw = None if part is None else part.draw
        if part is None and self._draw is not None and not elsewhere:
            draw, skip = self._draw, True
            self._void = self._void or "another step was made on the same part of it"
        else:
            skip = is_skipped() if part is None else not part.is_last
        self.is_fresh = self._summed == 0 or draw is not self._draw
        if draw is not self._draw:
            if self._summed:
                _log.warning(
                    "FusedDPOptimizer: a batch was broken off after %d of its parts. Their sum is dropped, so that it "
                    "is not released together with another batch.",
                    self._summed,
                )
            self._draw, self._summed, self._void = draw, 0, ""
        if part is not None and part.number != self._summed and not self._void:
            which = "was left out" if part.number > self._summed else "was used twice"
            self._void = f"a part of it {which}"
        return skip

    def require_whole(self) -> None:
        """ValueError if nothing of the batch may be released."""
        if self._void:
            raise ValueError(
                f"this batch is divided into parts, and {self._void}: nothing of it is released, its other parts are "
                "refused, and the next batch begins with an empty sum"
            )

    def end(self, *, only_summed: bool) -> None:
        """The step ended."""
        self._summed += 1
        if not only_summed:
            self._draw, self._summed, self._void = None, 0, ""

    def refuse(self, *, only_summed: bool) -> None:
        """The step was refused: the batch is void up to its last part."""
        self._void = self._void or "one was refused"
        self.end(only_summed=only_summed)

    def _delivered(self, iterator: Any, batch: Any, part: Part) -> None:
        if self._is_mine(part.draw.optimizer):
            self._deliveries.delivered(_FROM, part, batch)
        else:
            self._elsewhere = True


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


def require_type(optimizer: Any, kinds: tuple[type, ...], allowed: str) -> None:
    """TypeError for any other type. A subclass may clip by layer, change C, or release a part of the sum, unseen."""
    if type(optimizer) not in kinds:
        raise TypeError(f"`optimizer` must be {allowed}, got {type(optimizer).__name__}")


def _read(parameter: torch.Tensor) -> list[Any]:
    """The rows of each backward pass since the last step."""
    samples = getattr(parameter, "grad_sample", None)
    if samples is None:
        raise ValueError("Per sample gradient is not initialized. Not updated in backward pass?")
    batches = samples if isinstance(samples, list) else [samples]
    return [Dense(rows.detach()) if isinstance(rows, torch.Tensor) else rows for rows in batches]


def _attach_when_called(optimizer: FusedDPOptimizer) -> None:
    """Attach to the first module called that has Opacus's hooks and holds the optimizer's parameters."""
    known = weakref.ref(optimizer)

    def before(module: nn.Module, inputs: Any) -> None:
        if "autograd_grad_sample_hooks" not in module.__dict__:
            return
        mine = known()
        if mine is None:
            handle.remove()
        elif {id(p) for p in mine.params} <= {id(p) for p in module.parameters()}:
            handle.remove()
            mine._attach(module, inputs)

    handle = register_module_forward_pre_hook(before)
    weakref.finalize(optimizer, handle.remove)


def _noise_std(sigma: Any, clip: Any) -> float:
    """σC; ValueError if either is negative or NaN, because then no noise would be added, or nothing clipped."""
    for name, value in (("noise_multiplier", sigma), ("max_grad_norm", clip)):
        if not float(value) >= 0.0:
            raise ValueError(f"`{name}` must be at least 0, got {value}")
    return float(sigma) * float(clip)
