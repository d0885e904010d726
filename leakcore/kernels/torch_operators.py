"""The kernels as torch operators: visible to `torch.compile`, fake tensors and the meta device.

Importing this module registers `torch.ops.leakcore.clip_and_noise`, `clip_and_noise_list`, `clip_scores`,
`solve_labels`, `mixture_log_ratio` and `allocation_log_ratio`. `leakcore.clip_and_noise` and the others take this way
by themselves where torch is tracing; import the module to call the operators by name. Each computes what the function
of its name does, on the CPU and on CUDA, and has no derivative: kernels refuse tensors that require grad, and operators
any forward-mode differentiation around them. A seed (or `first_sample`) of 2⁶³ or more is given to an operator less
2⁶⁴, as torch has no larger integers.
Under `vmap` noise from a seed is refused, since every element would get the same: use runs=True.

An operator cannot look at values while it is traced, so errors about values (a row that is not finite) come when it
runs. Needs torch 2.4 or newer; ImportError says so otherwise.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from leakcore._base import array_memory
from leakcore.kernels.allocation import Allocation
from leakcore.kernels.allocation import allocation_log_ratio as _allocation_log_ratio
from leakcore.kernels.clip import PRODUCTS, Clipped, Scores
from leakcore.kernels.clip import clip_and_noise as _clip_and_noise
from leakcore.kernels.clip import clip_scores as _clip_scores
from leakcore.kernels.mixture import mixture_log_ratio as _mixture_log_ratio
from leakcore.kernels.random import float_dtype
from leakcore.kernels.solve_labels import LabelSolution
from leakcore.kernels.solve_labels import solve_labels as _solve_labels

_HALF, _WHOLE = 2**63, 2**64


def signed(value: int | None, name: str = "seed") -> int | None:
    """A seed, or the index of a sample, as the 64-bit integer that an operator takes."""
    if value is None or value < _HALF:
        if value is not None and value < 0:
            raise ValueError(f"`{name}` must be in [0, {_WHOLE - 1}], got {value}")
        return value
    return value - _WHOLE if value < _WHOLE else value


def unsigned(value: Any) -> Any:
    """The seed or index that an operator's integer stands for."""
    return value + _WHOLE if value is not None and value < 0 else value


if not hasattr(torch.library, "custom_op"):
    raise ImportError(f"{__name__} needs torch 2.4 or newer, whose library has custom_op; this is {torch.__version__}")

# Annotations are read by torch, which knows no strings: each signature is given as a schema.
_CLIP = (
    "float max_grad_norm, float noise_multiplier, bool runs, int? seed, int step, Tensor{many}? noise, Tensor? mask, "
    "bool? check_finite, int first_run"
)
_RATIO = (
    "int num_samples, float noise_multiplier, float sample_rate, int steps, str under, int seed, int first_sample, "
    "str dtype"
)

_ALLOCATION = (
    "float noise_multiplier, int bins, int epochs, int k, int num_samples, str under, int seed, int first_sample, "
    "str dtype"
)


def _result_dtype(*tensors: torch.Tensor) -> torch.dtype:
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def _operator(name: str, schema: str, compute: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    @functools.wraps(compute)
    def checked(*args: Any) -> Any:
        # Here the tangents are gone, and torch would take them for zero.
        if array_memory.in_forward_mode():
            raise ValueError(f"{name}: called in forward-mode differentiation: kernels have no derivative")
        return compute(*args)

    # A graph of CUDA's would replay the noise of one seed, and small tables from memory that is gone.
    unsafe: dict[str, Any] = {"tags": (torch.Tag.cudagraph_unsafe,)} if hasattr(torch.Tag, "cudagraph_unsafe") else {}
    registered = torch.library.custom_op(f"leakcore::{name}", checked, mutates_args=(), schema=schema, **unsafe)
    registered.register_fake(fake)
    if hasattr(registered, "register_vmap"):  # torch 2.5
        registered.register_vmap(functools.partial(_each, name, registered))
    return registered


def _each(name: str, op: Any, info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
    """One call per element of a `vmap`, as torch does by itself; refuses noise from a seed, which would be the same."""
    if name.startswith("clip_and_noise"):
        how = _keywords(_CLIP, args[1:])
        if how["noise_multiplier"] > 0 and how["seed"] is not None:
            raise ValueError(
                f"{name}: `noise_multiplier` must be 0 with a seed under vmap, got {how['noise_multiplier']}: every "
                "element would get the same noise; use runs=True"
            )

    if info.batch_size == 0:
        raise ValueError(f"{name}: called under vmap over no elements: nothing says what shape the result has")

    def pick(value: Any, dim: Any, i: int) -> Any:
        if isinstance(value, (list, tuple)):
            return [pick(v, d, i) for v, d in zip(value, dim or [None] * len(value), strict=True)]
        return value if dim is None else value.select(dim, i)

    done = [op(*(pick(v, d, i) for v, d in zip(args, in_dims, strict=True))) for i in range(info.batch_size)]
    return _stacked(done), _zeros(done[0])


def _stacked(results: list[Any]) -> Any:
    if isinstance(results[0], torch.Tensor):
        return torch.stack(results)
    return type(results[0])(_stacked(list(parts)) for parts in zip(*results, strict=True))


def _zeros(result: Any) -> Any:
    """Where `_stacked` put the elements: dimension 0 of each tensor."""
    return 0 if isinstance(result, torch.Tensor) else type(result)(_zeros(part) for part in result)


def _clip(grads: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    done = _clip_and_noise(grads, **_keywords(_CLIP, rest))
    return done.sum, done.norms


def _keywords(schema: str, values: Sequence[Any]) -> dict[str, Any]:
    """An operator's arguments by the names in its schema; seeds and first samples as the kernels take them."""
    names = [part.partition("=")[0].split()[-1] for part in schema.split(", ")]
    out = dict(zip(names, values, strict=True))
    return out | {name: unsigned(out[name]) for name in ("seed", "first_sample") if name in out}


def _clip_fake(grads: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    lead = 1 + _keywords(_CLIP, rest)["runs"]
    _require_rows("clip_and_noise", grads, lead)
    (total,), norms = _sums_and_norms([grads], lead)
    return total, norms


def _require_rows(kernel: str, grads: torch.Tensor, lead: int) -> None:
    if grads.ndim <= lead:
        wanted = "(B, ...)" if lead == 1 else "(runs, B, ...)"
        raise ValueError(f"{kernel}: `grads` must have shape {wanted}, got {tuple(grads.shape)}")


def _sums_and_norms(params: Sequence[torch.Tensor], lead: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    kind = _result_dtype(*params)
    sums = [p.new_empty((*p.shape[: lead - 1], *p.shape[lead:]), dtype=kind) for p in params]
    return sums, params[0].new_empty(params[0].shape[:lead], dtype=kind)


def _clip_list(grads: Sequence[torch.Tensor], *rest: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
    how = _keywords(_CLIP, rest)
    noise = how.pop("noise")
    done = _clip_and_noise(list(grads), **how, noise=None if noise is None else list(noise))
    return list(done.sum), done.norms


def _clip_list_fake(grads: Sequence[torch.Tensor], *rest: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
    return _sums_and_norms(grads, 1 + _keywords(_CLIP, rest)["runs"])


def _scores(
    grads: torch.Tensor,
    observed: torch.Tensor,
    max_grad_norm: float,
    runs: bool,
    product_dtype: str,
    check_finite: bool | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    done = _clip_scores(
        grads, observed, max_grad_norm, runs=runs, product_dtype=product_dtype, check_finite=check_finite
    )
    return done.dots, done.clipped_norms


def _scores_fake(
    grads: torch.Tensor, observed: torch.Tensor, max_grad_norm: float, runs: bool, *_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    kind, lead = _result_dtype(grads, observed), 1 + runs
    _require_rows("clip_scores", grads, lead)
    if observed.ndim not in (grads.ndim - 1, grads.ndim):
        shapes = f"{tuple(grads.shape)} and {tuple(observed.shape)}"
        raise ValueError(f"clip_scores: `observed` must be shaped like one gradient or several, got {shapes}")
    observations = observed.shape[: observed.ndim - grads.ndim + lead]
    return (
        grads.new_empty((*observations, grads.shape[lead - 1]), dtype=kind),
        grads.new_empty(grads.shape[:lead], dtype=kind),
    )


_Five = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _labels(
    jacobian: torch.Tensor, gradient: torch.Tensor, rcond: float | None, check_finite: bool | None = None
) -> _Five:
    done = _solve_labels(jacobian, gradient, rcond=rcond, check_finite=check_finite)
    return done.residual, done.leverage, done.identifiable, done.error, done.rank


def _labels_fake(jacobian: torch.Tensor, gradient: torch.Tensor, *_: Any) -> _Five:
    kind = _result_dtype(jacobian, gradient)
    samples = jacobian.shape[:-1]
    outputs = (*samples, gradient.shape[-1]) if gradient.ndim == jacobian.ndim else samples
    return (
        jacobian.new_empty(outputs, dtype=kind),
        jacobian.new_empty(samples, dtype=kind),
        jacobian.new_empty(samples, dtype=torch.bool),
        jacobian.new_empty(outputs, dtype=kind),
        jacobian.new_empty(jacobian.shape[:-2], dtype=torch.int64),
    )


def _ratio(like: torch.Tensor, *rest: Any) -> torch.Tensor:
    ratios: torch.Tensor = _mixture_log_ratio(**_keywords(_RATIO, rest), like=like)
    return ratios


def _allocation_ratio(like: torch.Tensor, *rest: Any) -> torch.Tensor:
    x = _keywords(_ALLOCATION, rest)
    pair = Allocation(*(x.pop(name) for name in ("noise_multiplier", "bins", "epochs", "k")))
    ratios: torch.Tensor = _allocation_log_ratio(pair, **x, like=like)
    return ratios


def _allocation_fake(like: torch.Tensor, noise_multiplier: float, bins: int, epochs: int, k: int, *rest: Any) -> Any:
    return _ratio_fake(like, *rest)


def _ratio_fake(like: torch.Tensor, num_samples: int, *rest: Any) -> torch.Tensor:
    kind = torch.float32 if rest[-1] == "float32" else torch.float64
    return like.new_empty((num_samples,), dtype=kind)


clip_and_noise = _operator(
    "clip_and_noise", f"(Tensor grads, {_CLIP.format(many='')}) -> (Tensor, Tensor)", _clip, _clip_fake
)
clip_and_noise_list = _operator(
    "clip_and_noise_list",
    f"(Tensor[] grads, {_CLIP.format(many='[]')}) -> (Tensor[], Tensor)",
    _clip_list,
    _clip_list_fake,
)
clip_scores = _operator(
    "clip_scores",
    "(Tensor grads, Tensor observed, float max_grad_norm, bool runs, str product_dtype, bool? check_finite)"
    " -> (Tensor, Tensor)",
    _scores,
    _scores_fake,
)
solve_labels = _operator(
    "solve_labels",
    "(Tensor jacobian, Tensor gradient, float? rcond, bool? check_finite=None)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _labels,
    _labels_fake,
)
mixture_log_ratio = _operator("mixture_log_ratio", f"(Tensor like, {_RATIO}) -> Tensor", _ratio, _ratio_fake)
allocation_log_ratio = _operator(
    "allocation_log_ratio", f"(Tensor like, {_ALLOCATION}) -> Tensor", _allocation_ratio, _allocation_fake
)


def _bound(kernel: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """A function that binds a call's arguments to the kernel's parameters, with defaults and its TypeErrors."""
    # inspect.Signature.bind cannot be traced by torch.compile; a function of names and defaults can.
    parameters = inspect.signature(kernel).parameters
    names = tuple(parameters)
    positional = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters.values())
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    title = kernel.__name__

    def bind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if len(args) > positional:
            raise TypeError(f"{title}() takes {positional} positional arguments but {len(args)} were given")
        bound = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name in bound:
                raise TypeError(f"{title}() got multiple values for argument {name!r}")
            if name not in names:
                raise TypeError(f"{title}() got an unexpected keyword argument {name!r}")
            bound[name] = value
        for name in names:
            if name not in bound and name not in defaults:
                raise TypeError(f"{title}() missing a required argument: {name!r}")
        return {name: bound[name] if name in bound else defaults[name] for name in names}

    return bind


_BIND_CLIP, _BIND_SCORES = _bound(_clip_and_noise), _bound(_clip_scores)
_BIND_LABELS, _BIND_RATIO = _bound(_solve_labels), _bound(_mixture_log_ratio)
_BIND_ALLOCATION = _bound(_allocation_log_ratio)


def traced_clip_and_noise(*args: Any, **kwargs: Any) -> Clipped:
    """`kernels.clip_and_noise`, traced."""
    x = _BIND_CLIP(args, kwargs)
    _require_no_out("clip_and_noise", x.pop("out"))
    op = clip_and_noise_list if isinstance(x["grads"], (list, tuple)) else clip_and_noise
    x["seed"] = signed(x["seed"])
    return Clipped(*op(*x.values()))


def traced_clip_scores(*args: Any, **kwargs: Any) -> Scores:
    """`kernels.clip_scores`, traced."""
    x = _BIND_SCORES(args, kwargs)
    if not isinstance(x[PRODUCTS], str):
        x[PRODUCTS] = float_dtype("clip_scores", x[PRODUCTS], PRODUCTS).name
    return Scores(*clip_scores(*x.values()))


def traced_solve_labels(*args: Any, **kwargs: Any) -> LabelSolution:
    """`kernels.solve_labels`, traced."""
    return LabelSolution(*solve_labels(*_BIND_LABELS(args, kwargs).values()))


def traced_mixture_log_ratio(*args: Any, **kwargs: Any) -> Any:
    """`kernels.mixture_log_ratio`, traced."""
    x = _BIND_RATIO(args, kwargs)
    _require_no_out("mixture_log_ratio", x.pop("out"))
    _simplify("mixture_log_ratio", x)
    return mixture_log_ratio(x.pop("like"), *x.values())


def traced_allocation_log_ratio(*args: Any, **kwargs: Any) -> Any:
    """`kernels.allocation_log_ratio`, traced."""
    x = _BIND_ALLOCATION(args, kwargs)
    pair = x.pop("allocation")
    if pair.factor is not None:
        raise ValueError("allocation_log_ratio: allocation has a factor, which torch cannot trace")
    _simplify("allocation_log_ratio", x)
    like = x.pop("like")
    return allocation_log_ratio(like, pair.noise_multiplier, pair.bins, pair.epochs, pair.k, *x.values())


def _simplify(kernel: str, x: dict[str, Any]) -> None:
    """Sampling arguments as the operators take them."""
    if not isinstance(x["dtype"], str):
        x["dtype"] = float_dtype(kernel, x["dtype"]).name
    x["seed"], x["first_sample"] = signed(x["seed"]), signed(x["first_sample"], "first_sample")


def _require_no_out(kernel: str, out: Any) -> None:
    if out is not None:
        raise ValueError(f"{kernel}: `out` must be None where torch is tracing: copy the result there instead")
