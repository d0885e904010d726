"""Calls of the kernels as torch operators, with the kernels' own signatures and results."""

from __future__ import annotations

from typing import Any

from leakcore.kernels.clip import PRODUCTS, Clipped, Scores
from leakcore.kernels.random.philox import float_dtype
from leakcore.kernels.solve_labels import LabelSolution
from leakcore.kernels.torch import operators
from leakcore.kernels.torch.integers import signed


def clip_and_noise(
    grads: Any,
    max_grad_norm: float,
    noise_multiplier: float = 0.0,
    *,
    seed: int | None = None,
    step: int = 0,
    noise: Any = None,
    mask: Any = None,
    out: Any = None,
    check_finite: bool | None = None,
    first_run: int = 0,
) -> Clipped:
    """`kernels.clip_and_noise`, traced."""
    _require_no_out("clip_and_noise", out)
    op = operators.clip_and_noise_list if isinstance(grads, (list, tuple)) else operators.clip_and_noise
    key = signed(seed)
    return Clipped(*op(grads, max_grad_norm, noise_multiplier, key, step, noise, mask, check_finite, first_run))


def clip_scores(
    grads: Any, observed: Any, max_grad_norm: float, *, check_finite: bool | None = None, product_dtype: Any = "float64"
) -> Scores:
    """`kernels.clip_scores`, traced."""
    kind = product_dtype
    if not isinstance(kind, str):
        kind = float_dtype("clip_scores", product_dtype, PRODUCTS).name
    return Scores(*operators.clip_scores(grads, observed, max_grad_norm, check_finite, kind))


def solve_labels(
    jacobian: Any, gradient: Any, *, rcond: float | None = None, check_finite: bool | None = None
) -> LabelSolution:
    """`kernels.solve_labels`, traced."""
    return LabelSolution(*operators.solve_labels(jacobian, gradient, rcond, check_finite))


def mixture_log_ratio(
    num_samples: int,
    *,
    noise_multiplier: Any,
    sample_rate: Any,
    steps: int,
    under: str = "null",
    seed: int = 0,
    first_sample: int = 0,
    dtype: Any = "float64",
    out: Any = None,
    like: Any = None,
) -> Any:
    """`kernels.mixture_log_ratio`, traced."""
    _require_no_out("mixture_log_ratio", out)
    kind = dtype if isinstance(dtype, str) else float_dtype("mixture_log_ratio", dtype).name
    key, first = signed(seed), signed(first_sample, "first_sample")
    return operators.mixture_log_ratio(like, num_samples, noise_multiplier, sample_rate, steps, under, key, first, kind)


def _require_no_out(kernel: str, out: Any) -> None:
    if out is not None:
        raise ValueError(f"{kernel}: out is given where torch is tracing: copy the result there instead")
