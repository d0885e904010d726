"""Per-sample clipping, fused with the sum it feeds or the scores it is compared by."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from leakcore import _C
from leakcore._base import validate
from leakcore._base.array_record import ArrayRecord
from leakcore.kernels import arrays, threads
from leakcore.kernels.random import MAX_DRAWS, float_dtype, read_out
from leakcore.kernels.streams import step_in_range

PRODUCTS = "product_dtype"
_PASSES = "(check_finite=False lets it pass)"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Clipped(ArrayRecord):
    """What `clip_and_noise` returns.

    Attributes:
        sum: the clipped and noised sum, not divided by the batch size, shaped like the parameter: grads without its
            axis of rows. A list of such arrays where grads is a sequence.
        norms: the joint norm of every row *before* clipping, (B,); with runs=True (runs, B).

    Example:
        >>> import numpy as np
        >>> import leakcore
        >>> clipped = leakcore.clip_and_noise(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0)
        >>> clipped.norms.tolist(), np.round(clipped.sum, 6).tolist()
        ([5.0, 0.5], [0.9, 1.2])
    """

    sum: Any
    norms: Any


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Scores(ArrayRecord):
    """What `clip_scores` returns.

    Attributes:
        dots: ⟨clip_C(g_i), o_m⟩, (M, n), or (n,) for one observation; with runs=True (runs, ...).
        clipped_norms: ‖clip_C(g_i)‖, (n,); with runs=True (runs, n).

    Example:
        >>> import numpy as np
        >>> import leakcore
        >>> scores = leakcore.clip_scores(np.array([[3.0, 4.0], [0.3, 0.4]]), np.array([1.0, 0.0]), 1.0)
        >>> np.round(scores.dots, 6).tolist(), np.round(scores.clipped_norms, 6).tolist()
        ([0.6, 0.3], [1.0, 0.5])
    """

    dots: Any
    clipped_norms: Any


def clip_and_noise(
    grads: Any,
    max_grad_norm: float,
    noise_multiplier: float = 0.0,
    *,
    runs: bool = False,
    seed: int | None = None,
    step: int = 0,
    noise: Any = None,
    mask: Any = None,
    out: Any = None,
    check_finite: bool | None = None,
    first_run: int = 0,
) -> Clipped:
    """The sum that DP-SGD releases: Σ_i g_i·min(1, C/‖g_i‖) + σC·z, z ~ N(0, I) (Abadi et al. 2016, Algorithm 1).

    It is not divided by the batch size. Precision: docs/explanation/kernels.md.

    Args:
        grads: (B, ...): axis 0 is the row, all else one gradient; or a sequence of these, one per parameter, clipped
            by their joint norm. NumPy, torch or DLPack; a floating type; never copied.
        max_grad_norm: C in (0, ∞).
        noise_multiplier: σ in [0, ∞); above 0 it needs `seed` or `noise`.
        runs: True: grads is (runs, B, ...), each run with its own sum and noise.
        seed: 64-bit seed of the noise, a function of (seed, step, run, column) (`standard_normal` with purpose
            "clip_noise"). For simulations: a model to be released needs secure `noise`.
        step: the training's step, in [0, 2²⁴).
        noise: standard normals, shaped like the sum.
        mask: bool, (B,) or (runs, B); False leaves a row out.
        out: where to put the sum.
        check_finite: True (default on the CPU) refuses non-finite rows before writing. On CUDA the default is False;
            True waits for the stream. Unchecked, such a row makes the sum NaN.
        first_run: index of the first run.

    Returns:
        A `Clipped` in the arrays' library, on their device; float64 from float64, else float32. An empty batch gives
        pure noise.

    Raises:
        ValueError: names the argument: range, shape, σ > 0 without noise, non-finite rows (with index).
        TypeError: for integers, mixed types, or tensors that require grad.

    Guarantees:
        The bits do not depend on threads or strides.

    Example:
        >>> import numpy as np
        >>> import leakcore
        >>> grads = np.array([[3.0, 4.0], [0.3, 0.4]])
        >>> clipped = leakcore.clip_and_noise(grads, 1.0)
        >>> clipped.sum.round(6).tolist(), clipped.norms.round(6).tolist()
        ([0.9, 1.2], [5.0, 0.5])
        >>> noisy = leakcore.clip_and_noise(grads, 1.0, 0.5, seed=0)
        >>> bool((noisy.sum == clipped.sum).any())
        False
    """
    kernel = "clip_and_noise"
    batched = validate.boolean(runs=runs)
    lead = 2 if batched else 1
    several = isinstance(grads, (list, tuple))
    params = _read_params(kernel, grads, lead) if several else [_read_rows(kernel, grads, lead)]
    first = params[0]
    dtype = first.result_dtype
    num_runs, rows = first.shape[:2] if batched else (1, first.shape[0])
    columns = sum(math.prod(p.shape[lead:]) for p in params)

    clip = validate.positive(max_grad_norm=max_grad_norm)
    sigma = validate.non_negative(noise_multiplier=noise_multiplier)
    if not math.isfinite(sigma * clip):
        raise ValueError(
            f"{kernel}: `noise_multiplier` times `max_grad_norm` must be within float64, got {sigma} and {clip}"
        )
    step = step_in_range(step=step)
    first_run = validate.integer(0, 2**63 - 1, first_run=first_run)
    key = None if seed is None else validate.seed(seed=seed)
    if seed is not None and noise is not None:
        raise ValueError(f"{kernel}: `seed` must be None with noise, got {seed}")
    if sigma > 0 and seed is None and noise is None:
        raise ValueError(
            f"{kernel}: `seed` is required with noise_multiplier={sigma}, or standard normals as `noise`: a default "
            "seed would give two calls the same noise"
        )
    if sigma > 0 and key is not None and columns > MAX_DRAWS:
        raise ValueError(
            f"{kernel}: `grads` must have at most 2**34 columns for noise from a seed, got {columns}: pass `noise`"
        )
    check_finite = validate.optional_boolean(check_finite=check_finite)

    shapes = [p.shape[: lead - 1] + p.shape[lead:] for p in params]
    library = first.library
    (flags, run_stride, row_stride), mask_array = _read_mask(kernel, mask, num_runs, rows, batched, first)
    noises = [] if noise is None else _read_matching(kernel, "noise", noise, several, shapes, first)
    if out is None:
        results = [library.empty(shape, dtype) for shape in shapes]
        name = arrays.dtype_name(dtype)
        sums = [arrays.Array("out", library.header(x), name, x, library) for x in results]
    else:
        sums = _read_matching(kernel, "out", out, several, shapes, first, writeable=dtype)
        for i, target in enumerate(sums):
            for source in [*params, *noises, *sums[:i]]:
                if np.may_share_memory(target.values, source.values):
                    raise ValueError(
                        f"{kernel}: `{target.name}` must be an array of its own, but overlaps `{source.name}` in memory"
                    )
    norms = library.empty((num_runs, rows), np.dtype(np.float64))

    bad = _C.clip_and_noise(
        grads=[arrays.rows_of(p, runs=batched, rows=True) for p in params],
        sums=[arrays.rows_of(s, runs=batched) for s in sums],
        num_runs=num_runs,
        num_rows=rows,
        norms=library.address(norms),
        mask=flags,
        mask_run_stride=run_stride,
        mask_row_stride=row_stride,
        max_grad_norm=clip,
        noise_scale=sigma * clip,
        noise=[arrays.rows_of(z, runs=batched) for z in noises],
        seed=key or 0,
        step=step,
        first_run=first_run,
        check_finite=check_finite is not False,
        place=library.place,
        schedule=threads.schedule_now(),
    )
    index = None if bad is None else bad[0]
    if bad is not None and bad[1] == "noise":
        run, column = divmod(bad[0], columns)
        where = f"column {column}" if not batched else f"run {run}, column {column}"
        raise ValueError(f"{kernel}: `noise` must be finite, which {where} is not {_PASSES}")
    if check_finite and library.place is not arrays.CPU:
        in_batch = None if mask_array is None else mask_array.library.to_host(mask_array.origin)
        index = _first_bad_row(library.to_host(norms), in_batch)
    if index is not None:
        run, row = divmod(index, rows)
        raise _bad_row(kernel, library.to_host(norms)[run, row], run if batched else None, row)
    wrapped = library.give(library.cast(norms if batched else norms[0], dtype))
    if out is None:
        result = [library.give(x) for x in results]
        return Clipped(sum=result if several else result[0], norms=wrapped)
    return Clipped(sum=out, norms=wrapped)


def _first_bad_row(norms: np.ndarray, in_batch: np.ndarray | None) -> int | None:
    """The first row that counts and has no finite norm, counted through all runs."""
    bad = ~np.isfinite(norms) if in_batch is None else ~np.isfinite(norms) & in_batch
    return int(np.argmax(bad)) if bad.any() else None


def _bad_row(kernel: str, norm: float, run: int | None, row: int) -> ValueError:
    where = f"row {row}" if run is None else f"run {run}, row {row}"
    return ValueError(f"{kernel}: `grads` must be finite, but {where} has norm {norm} {_PASSES}")


_WITH_ROWS = {1: "(B, ...), rows before their gradients", 2: "(runs, B, ...), as runs=True says"}


def _read_rows(kernel: str, grads: Any, lead: int) -> arrays.Array:
    """Gradients of one parameter: after the leading axes of rows there is at least one more."""
    array = arrays.read(kernel, "grads", grads)
    if array.values.ndim <= lead:
        remedy = {
            (1, 1): "; one row's gradient is given as grads[None], one number per row as grads[:, None]",
            (2, 2): "; pass runs=False for the rows of one run",
        }.get((lead, array.values.ndim), "")
        raise ValueError(f"{kernel}: `grads` must have shape {_WITH_ROWS[lead]}, got {array.shape}{remedy}")
    return array


def _read_params(kernel: str, grads: Sequence[Any], lead: int) -> list[arrays.Array]:
    """Gradients of several parameters: of a parameter that is a single number, no axis follows the rows."""
    if not grads:
        raise ValueError(f"{kernel}: `grads` must hold at least one (B, ...) array, got an empty sequence")
    params = [arrays.read(kernel, f"grads[{i}]", g) for i, g in enumerate(grads)]
    first = params[0]
    for p in params:
        arrays.same_library(kernel, first, p)
        if p.values.ndim < lead:
            raise ValueError(f"{kernel}: `{p.name}` must have shape {_WITH_ROWS[lead]}, got {p.shape}")
        if p.shape[:lead] != first.shape[:lead]:
            raise ValueError(
                f"{kernel}: `{p.name}` must have the {_leading(first.shape[:lead])} of grads[0], got "
                f"{_leading(p.shape[:lead])}"
            )
        if p.dtype != first.dtype:
            raise TypeError(f"{kernel}: `{p.name}` must be of type {first.dtype}, as grads[0] is, got {p.dtype}")
    return params


def _leading(sizes: tuple[int, ...]) -> str:
    return f"{sizes[0]} rows" if len(sizes) == 1 else f"{sizes[0]} runs and {sizes[1]} rows"


def _read_matching(
    kernel: str,
    name: str,
    values: Any,
    several: bool,
    shapes: list[tuple[int, ...]],
    first: arrays.Array,
    writeable: np.dtype[Any] | None = None,
) -> list[arrays.Array]:
    """noise or out: shaped like the sum, one array per parameter where grads is a sequence."""
    if several and (not isinstance(values, (list, tuple)) or len(values) != len(shapes)):
        raise ValueError(
            f"{kernel}: `{name}` must be a sequence of {len(shapes)} arrays, one per parameter, as grads is"
        )
    matching = []
    for i, (item, shape) in enumerate(zip(values if several else [values], shapes, strict=True)):
        label = f"{name}[{i}]" if several else name
        if writeable is not None:
            array = read_out(kernel, label, item, shape, writeable)
        else:
            array = arrays.read(kernel, label, item)
            if array.shape != shape:
                raise ValueError(f"{kernel}: `{label}` must have shape {shape}, got {array.shape}")
        arrays.same_library(kernel, first, array)
        matching.append(array)
    return matching


def _read_mask(
    kernel: str, mask: Any, runs: int, rows: int, batched: bool, first: arrays.Array
) -> tuple[tuple[int, int, int], arrays.Array | None]:
    """(address, strides of run and row in bytes), address 0 where every row counts; and the array itself."""
    if mask is None:
        return (0, 0, 0), None
    array = arrays.read_bool(kernel, "mask", mask)
    arrays.same_device(kernel, first, array)
    values = array.values
    if values.shape == (rows,):
        return (arrays.address(values), 0, values.strides[0]), array
    if batched and values.shape == (runs, rows):
        return (arrays.address(values), values.strides[0], values.strides[1]), array
    allowed = f"({rows},) or ({runs}, {rows})" if batched else f"({rows},)"
    raise ValueError(f"{kernel}: `mask` must have shape {allowed}, got {values.shape}")


def clip_scores(
    grads: Any,
    observed: Any,
    max_grad_norm: float,
    *,
    runs: bool = False,
    product_dtype: Any = "float64",
    check_finite: bool | None = None,
) -> Scores:
    """Inner products of clipped gradients with observations, from one read of the gradients.

    It computes ⟨clip_C(g_i), o_m⟩ and ‖clip_C(g_i)‖ with clip_C(v) = v·min(1, C/‖v‖). The prior-aware attacks of Hayes,
    Mahloujifar and Balle (2023, Algorithms 2 and 3 and Appendix G) are functions of these two arrays. Precision:
    docs/explanation/kernels.md.

    Args:
        grads: (n, ...): axis 0 is the candidate, all else one gradient. NumPy, torch or DLPack; float16, bfloat16,
            float32 or float64; any strides, never copied.
        observed: shaped like one gradient, or (M, ...), M such observations. From the same library.
        max_grad_norm: C in (0, ∞).
        runs: True: axis 0 of both is the run: grads (runs, n, ...), observed (runs, ...) or (runs, M, ...).
        product_dtype: "float64", or "float32" for speed with several observations (1.2 times with four, 1.6 times with
            16). "float32" needs arrays of at most 32 bits per element.
        check_finite: True (the default on the CPU) raises for a row of either array that is not finite. On CUDA the
            default is False; True waits for the stream.

    Returns:
        A `Scores` with `.dots` and `.clipped_norms`, in the arrays' library and on their device; float64 if either
        input is float64, else float32.

    Raises:
        ValueError: names the argument: C ≤ 0, wrong shapes, float32 products of a float64 array,
            non-finite rows (with their index).
        TypeError: for integers, mixed libraries, or tensors that require grad.

    Guarantees:
        Accumulated in float64 and rounded once. The bits do not depend on threads, nor on the other runs and rows.

    Example:
        >>> import numpy as np
        >>> import leakcore
        >>> grads = np.array([[3.0, 4.0], [0.3, 0.4]])
        >>> scores = leakcore.clip_scores(grads, np.array([1.0, 0.0]), 1.0)
        >>> scores.dots.round(6).tolist()
        [0.6, 0.3]
    """
    kernel = "clip_scores"
    batched = validate.boolean(runs=runs)
    lead = int(batched)
    g = _read_rows(kernel, grads, lead + 1)
    o = arrays.read(kernel, "observed", observed)
    arrays.same_library(kernel, g, o)
    of_run, gradient = g.shape[:lead], g.shape[lead + 1 :]
    single = o.shape == (*of_run, *gradient)
    if not single and (o.shape[:lead] != of_run or o.shape[lead + 1 :] != gradient or o.values.ndim != g.values.ndim):
        many = ", ".join(map(str, (*of_run, "M", *gradient)))
        raise ValueError(
            f"{kernel}: `observed` must have shape {(*of_run, *gradient)} or ({many}), for grads is {g.shape}, got "
            f"{o.shape}"
        )
    clip = validate.positive(max_grad_norm=max_grad_norm)
    float_products = float_dtype(kernel, product_dtype, PRODUCTS) == np.float32
    for array in (g, o) if float_products else ():
        if array.dtype == "float64":
            raise ValueError(f"{kernel}: `{PRODUCTS}` must be 'float64', as {array.name} is, got {product_dtype!r}")
    check_finite = validate.optional_boolean(check_finite=check_finite)
    num_runs, n = (g.shape[0] if batched else 1), g.shape[lead]
    m = 1 if single else o.shape[lead]
    library = g.library
    dots = library.empty((num_runs, m, n), np.dtype(np.float64))
    norms = library.empty((num_runs, n), np.dtype(np.float64))
    bad = _C.clip_scores(
        grads=arrays.rows_of(g, runs=batched, rows=True),
        observed=arrays.rows_of(o, runs=batched, rows=not single),
        num_runs=num_runs,
        num_rows=n,
        num_observed=m,
        dots=library.address(dots),
        norms=library.address(norms),
        max_grad_norm=clip,
        float_products=float_products,
        check_finite=check_finite is not False,
        place=library.place,
        schedule=threads.schedule_now(),
    )
    on_device = library.place is not arrays.CPU
    index = None if bad is None else bad[0]
    if check_finite and on_device:
        index = _first_bad_row(library.to_host(norms), None)
    if index is not None:
        run, row = divmod(index, n)
        raise _bad_row(kernel, library.to_host(norms)[run, row], run if batched else None, row)
    check_dots = bool(check_finite) if on_device else check_finite is not False
    if check_dots and n > 0 and not np.isfinite(library.to_host(dots)).all():
        run, row = (int(k) for k in np.argwhere(~np.isfinite(library.to_host(dots)).all(axis=2))[0])
        where = ", ".join(([f"run {run}"] if batched else []) + ([] if single else [f"row {row}"]))
        raise ValueError(
            f"{kernel}: `observed` must be finite, and its products with grads within float64, but {where or 'it'} "
            f"gives a score that is not finite {_PASSES}"
        )
    if single:
        dots = dots[:, 0]
    if not batched:
        dots, norms = dots[0], norms[0]
    dtype = max(g.result_dtype, o.result_dtype, key=lambda t: t.itemsize)
    clipped = library.cast(library.at_most(norms, clip), dtype)
    return Scores(dots=library.give(library.cast(dots, dtype)), clipped_norms=library.give(clipped))
