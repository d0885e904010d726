"""Calls of the kernels as torch operators: arguments are bound by the kernel's own signature, which stands once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from leakcore.kernels.allocation import allocation_log_ratio as _allocation_log_ratio
from leakcore.kernels.clip import PRODUCTS, Clipped, Scores
from leakcore.kernels.clip import clip_and_noise as _clip_and_noise
from leakcore.kernels.clip import clip_scores as _clip_scores
from leakcore.kernels.mixture import mixture_log_ratio as _mixture_log_ratio
from leakcore.kernels.random.philox import float_dtype
from leakcore.kernels.solve_labels import LabelSolution
from leakcore.kernels.solve_labels import solve_labels as _solve_labels
from leakcore.kernels.torch import operators
from leakcore.kernels.torch.integers import signed


def _bound(kernel: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """What binds a call's arguments to the kernel's parameters, defaults included; TypeError as the kernel's own."""
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


_CLIP, _SCORES = _bound(_clip_and_noise), _bound(_clip_scores)
_LABELS, _RATIO = _bound(_solve_labels), _bound(_mixture_log_ratio)
_ALLOCATION = _bound(_allocation_log_ratio)


def clip_and_noise(*args: Any, **kwargs: Any) -> Clipped:
    """`kernels.clip_and_noise`, traced."""
    x = _CLIP(args, kwargs)
    _require_no_out("clip_and_noise", x.pop("out"))
    op = operators.clip_and_noise_list if isinstance(x["grads"], (list, tuple)) else operators.clip_and_noise
    x["seed"] = signed(x["seed"])
    return Clipped(*op(*x.values()))


def clip_scores(*args: Any, **kwargs: Any) -> Scores:
    """`kernels.clip_scores`, traced."""
    x = _SCORES(args, kwargs)
    if not isinstance(x[PRODUCTS], str):
        x[PRODUCTS] = float_dtype("clip_scores", x[PRODUCTS], PRODUCTS).name
    return Scores(*operators.clip_scores(*x.values()))


def solve_labels(*args: Any, **kwargs: Any) -> LabelSolution:
    """`kernels.solve_labels`, traced."""
    return LabelSolution(*operators.solve_labels(*_LABELS(args, kwargs).values()))


def mixture_log_ratio(*args: Any, **kwargs: Any) -> Any:
    """`kernels.mixture_log_ratio`, traced."""
    x = _RATIO(args, kwargs)
    _require_no_out("mixture_log_ratio", x.pop("out"))
    _simplify("mixture_log_ratio", x)
    return operators.mixture_log_ratio(x.pop("like"), *x.values())


def allocation_log_ratio(*args: Any, **kwargs: Any) -> Any:
    """`kernels.allocation_log_ratio`, traced."""
    x = _ALLOCATION(args, kwargs)
    pair = x.pop("allocation")
    if pair.factor is not None:
        raise ValueError("allocation_log_ratio: allocation has a factor, which torch cannot trace")
    _simplify("allocation_log_ratio", x)
    like = x.pop("like")
    return operators.allocation_log_ratio(like, pair.noise_multiplier, pair.bins, pair.epochs, pair.k, *x.values())


def _simplify(kernel: str, x: dict[str, Any]) -> None:
    """Sampling arguments as the operators take them."""
    if not isinstance(x["dtype"], str):
        x["dtype"] = float_dtype(kernel, x["dtype"]).name
    x["seed"], x["first_sample"] = signed(x["seed"]), signed(x["first_sample"], "first_sample")


def _require_no_out(kernel: str, out: Any) -> None:
    if out is not None:
        raise ValueError(f"{kernel}: `out` must be None where torch is tracing: copy the result there instead")
