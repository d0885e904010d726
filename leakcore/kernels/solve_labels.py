"""Labels from an aggregated gradient, by batched pseudo-inverse."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from leakcore import _C
from leakcore._base import validate
from leakcore._base.array_record import ArrayRecord
from leakcore.kernels import arrays, threads

_BAD_INPUT = {-1: "jacobian", -2: "gradient"}
"""What a negative rank says of a problem on a CUDA device."""

_Call = tuple[tuple[int, ...], int, _C.Rows, _C.Rows]
_WORK_PER_CALL = 500_000_000  # multiply-adds, some tenths of a second: how long Ctrl-C may have to wait


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LabelSolution(ArrayRecord):
    """What `solve_labels` returns.

    Attributes:
        residual: estimates of p − y, (..., N) or (..., N, K).
        leverage: diag((CᵀC)⁺), (..., N). Gradient noise of variance s² gives a residual the variance N²·s²·leverage.
        identifiable: bool, (..., N). Where it is False the system does not determine the label: do not guess it.
        error: bound on the rounding error of each residual, shaped like it; infinite where not identifiable.
        rank: (...), int64, the number of singular values above the cut.

    Example:
        >>> import numpy as np
        >>> import leakcore
        >>> hidden = np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])  # one row a sample; the third shows nothing
        >>> solution = leakcore.solve_labels(hidden, hidden.T @ np.array([0.5, -0.5, 0.5]) / 3)
        >>> solution.identifiable.tolist(), int(solution.rank)
        ([True, True, False], 2)
    """

    residual: Any
    leverage: Any
    identifiable: Any
    error: Any
    rank: Any


def solve_labels(
    jacobian: Any, gradient: Any, *, rcond: float | None = None, check_finite: bool | None = None
) -> LabelSolution:
    """The residuals e = p − y behind an averaged gradient: e = N·C⁺·(dL/dW) (Yuan et al. 2022, Algorithms 1, 3 and 4).

    The averaged gradient is dL/dW = (1/N)·C·e, where column r of C is dZ_r/dW. The label of sample r is 1 where its
    residual is negative (binary), or the class with the most negative residual. Methods and precision:
    docs/explanation/kernels.md.

    Args:
        jacobian: (..., N, d), row r = dZ_r/dW, that is Cᵀ. NumPy, torch or DLPack; float16, bfloat16, float32 or
            float64; never copied. N and d may be 0.
        gradient: (..., d), or (..., d, K) for K classes, with the same leading dimensions.
        rcond: singular values of C up to rcond·(largest one) count as zero. None: ε·max(N, d) for float64 and max(ε,
            2⁻⁵²·max(N, d)) for narrower types, with ε the spacing of the Jacobian's type at 1.
        check_finite: on the CPU non-finite input always raises. On CUDA it raises only with True, which waits for the
            stream; otherwise such a problem has NaN residuals and rank −1 (Jacobian) or −2 (gradient).

    Returns:
        A `LabelSolution`, in the arrays' library and on their device; float64 from float64, else float32.

    Raises:
        ValueError: names the argument: wrong shapes, rcond outside [0, 1), non-finite input (with the problem's index).
        TypeError: for integers, mixed libraries, or tensors that require grad.

    Guarantees:
        residual ± error holds the exact solution, to first order, unless noise was added to the gradient. The bits do
        not depend on threads, nor on the other problems.

    Example:
        >>> import numpy as np
        >>> import leakcore
        >>> jacobian = np.array([[1.0, 0.0, 1.0], [0.0, 2.0, 1.0]])  # two samples, three parameters
        >>> residual = np.array([-0.3, 0.4])  # of labels 1 and 0
        >>> solution = leakcore.solve_labels(jacobian, jacobian.T @ residual / 2)
        >>> solution.residual.round(6).tolist(), solution.identifiable.tolist()
        ([-0.3, 0.4], [True, True])
    """
    kernel = "solve_labels"
    check_finite = validate.optional_boolean(check_finite=check_finite)
    jac = arrays.read(kernel, "jacobian", jacobian)
    grad = arrays.read(kernel, "gradient", gradient)
    arrays.same_library(kernel, jac, grad)
    if jac.values.ndim < 2:
        raise ValueError(f"{kernel}: `jacobian` must have shape (..., N, d), got {jac.shape}")
    *lead, n, d = jac.shape
    batch = tuple(lead)
    if grad.shape == (*batch, d):
        several, outputs = False, 1
    elif grad.values.ndim == jac.values.ndim and grad.shape[:-1] == (*batch, d):
        several, outputs = True, grad.shape[-1]
    else:
        raise ValueError(
            f"{kernel}: `gradient` must have shape {(*batch, d)} or {(*batch, d, 'K')} for a jacobian of shape "
            f"{jac.shape}, got {grad.shape}"
        )
    epsilon = max(jac.epsilon, grad.epsilon)
    arithmetic = float(np.finfo(np.float64).eps) * max(n, d)
    cut = min(max(jac.epsilon, arithmetic), 0.5) if rcond is None else validate.below_one(rcond=rcond)

    # N products, their mean and N entries of the Jacobian (|e| <= 1) in each of d columns.
    lost = n * (n + 2) * math.sqrt(d) * max(jac.vanishing, grad.vanishing)

    dtype = np.result_type(jac.result_dtype, grad.result_dtype)
    largest = float(np.finfo(dtype).max)
    outer = batch or (1,)
    library = jac.library
    real = np.dtype(np.float64)
    residual, error = (library.empty((*outer, n, outputs), real) for _ in range(2))
    leverage = library.empty((*outer, n), real)
    identifiable = library.empty((*outer, n), np.dtype(np.bool_))
    rank = library.empty(outer, np.dtype(np.int64))
    targets = [library.header(x) for x in (residual, error, leverage, identifiable, rank)]
    on_cpu = library.place is arrays.CPU
    for at, problems, jac_rows, grad_rows in _calls(jac, grad, batch, several):
        most = max(1, _WORK_PER_CALL // max(n * n * d, 1)) if on_cpu else max(problems, 1)
        for offset in range(0, problems, most):
            to_residual, to_error, to_leverage, to_identifiable, to_rank = (
                arrays.address(x[at]) + offset * (x[at].nbytes // problems) for x in targets
            )
            bad = _C.solve_labels(
                jacobian=jac_rows if offset == 0 else jac_rows.after(offset),
                gradient=grad_rows if offset == 0 else grad_rows.after(offset),
                num_problems=min(most, problems - offset),
                num_samples=n,
                num_outputs=outputs,
                rcond=cut,
                unit=0.5 * epsilon,
                lost=lost,
                largest=largest,
                residual=to_residual,
                error=to_error,
                leverage=to_leverage,
                identifiable=to_identifiable,
                rank=to_rank,
                place=library.place,
                schedule=threads.schedule_now(),
            )
            if bad is not None:
                index, what = bad
                raise _not_finite(kernel, what, batch, _position(batch, at, offset + index))
    if check_finite and library.place is not arrays.CPU:
        ranks = library.to_host(rank)
        if (ranks < 0).any():
            first = np.unravel_index(int(np.argmax(ranks < 0)), ranks.shape)
            raise _not_finite(kernel, _BAD_INPUT[int(ranks[first])], batch, tuple(map(int, first)))

    def shown(values: Any, *inner: int) -> Any:
        return library.give(values.reshape((*batch, *inner)))

    def real_shown(values: Any, *inner: int) -> Any:
        return shown(library.cast(values, dtype), *inner)

    inner = (n, outputs) if several else (n,)
    return LabelSolution(
        residual=real_shown(residual, *inner),
        leverage=real_shown(leverage, n),
        identifiable=shown(identifiable, n),
        error=real_shown(error, *inner),
        rank=shown(rank),
    )


def _not_finite(kernel: str, what: str, batch: tuple[int, ...], position: tuple[int, ...]) -> ValueError:
    where = "" if not batch else f"[{', '.join(map(str, position))}]"
    return ValueError(f"{kernel}: `{what}{where}` must be finite, but has a NaN or an infinity")


def _position(batch: tuple[int, ...], at: tuple[int, ...], index: int) -> tuple[int, ...]:
    inner = batch[len(at) :]
    return (*at, *(int(i) for i in np.unravel_index(index, inner)))


def _calls(jac: arrays.Array, grad: arrays.Array, batch: tuple[int, ...], several: bool) -> list[_Call]:
    """(where in the batch, number of problems, rows) per native call: one, if the leading dimensions lie in line."""
    k = len(batch)
    first, second = arrays.lead_stride(jac.values, k), arrays.lead_stride(grad.values, k)
    if first is not None and second is not None:
        return [((), first[0], _jacobian_rows(jac, first[1]), _gradient_rows(grad, second[1], several))]
    calls: list[_Call] = []
    for i in range(batch[0]):
        inner = [dataclasses.replace(a, values=a.values[i]) for a in (jac, grad)]
        for at, problems, jac_rows, grad_rows in _calls(inner[0], inner[1], batch[1:], several):
            calls.append(((i, *at), problems, jac_rows, grad_rows))
    return calls


def _jacobian_rows(jac: arrays.Array, run: int) -> _C.Rows:
    row, column = (s // jac.values.itemsize for s in jac.values.strides[-2:])
    return arrays.rows_by_stride(jac, run=run, row=row, columns=jac.shape[-1], column=column)


def _gradient_rows(grad: arrays.Array, run: int, several: bool) -> _C.Rows:
    """Right-hand sides as rows: for `(..., d, K)` the inner dimension is the last but one."""
    strides = [s // grad.values.itemsize for s in grad.values.strides]
    if not several:
        return arrays.rows_by_stride(grad, run=run, row=0, columns=grad.shape[-1], column=strides[-1])
    return arrays.rows_by_stride(grad, run=run, row=strides[-1], columns=grad.shape[-2], column=strides[-2])
