"""Labels from an aggregated gradient, by batched pseudo-inverse."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from leakcore import _C
from leakcore._base import validate
from leakcore.kernels import threads
from leakcore.kernels.arrays import arrays

_BAD_INPUT = {-1: "jacobian", -2: "gradient"}
"""What a negative rank says of a problem on a CUDA device."""

_Call = tuple[tuple[int, ...], int, _C.Rows, _C.Rows]
_WORK_PER_CALL = 500_000_000  # multiply-adds, some tenths of a second: how long Ctrl-C may have to wait


@dataclasses.dataclass(frozen=True, eq=False)
class LabelSolution:
    """residual: estimates of p − y, `(..., N)` or `(..., N, K)`. leverage: diag((CᵀC)⁺), `(..., N)`.

    identifiable: bool, `(..., N)`. error: a bound on each residual's rounding error, shaped like it, infinite where not
    identifiable. rank: `(...)`, int64.
    """

    residual: Any
    leverage: Any
    identifiable: Any
    error: Any
    rank: Any


def solve_labels(
    jacobian: Any, gradient: Any, *, rcond: float | None = None, check_finite: bool | None = None
) -> LabelSolution:
    """e = N·C⁺·(dL/dW): the residuals p − y behind an averaged gradient (Yuan et al., Algorithms 1, 3 and 4).

    dL/dW = (1/N)·C·e, where column r of C is dZ_r/dW. A label is 1 where its residual is negative (binary), or the
    class whose residual is the most negative (K classes).

    jacobian: `(..., N, d)`, row r = dZ_r/dW, that is Cᵀ. gradient: `(..., d)`, or `(..., d, K)` for K right-hand sides;
        the same leading dimensions. NumPy, torch or DLPack; float16, bfloat16, float32 or float64; any strides,
        never copied.
    rcond: singular values of C up to rcond·(largest) count as zero. Default, with ε the spacing of the Jacobian's type
        at 1: ε·max(N, d) for float64, whose entries and arithmetic both round; max(ε, 2⁻⁵²·max(N, d)) for narrower
        types, where the arithmetic is float64 and rounded entries move C by about 0.3·ε·‖C‖ if they round
        independently.
    check_finite: input that is not finite raises on the CPU, always. On a CUDA device it raises only if this is True,
        which waits for the stream; otherwise such a problem has NaN residuals, infinite errors, nothing identifiable
        and a negative rank (−1: the Jacobian is to blame, −2: the gradient).

    Returns arrays of the caller's kind, float64 from float64, otherwise float32:
    `.residual`: the minimum-norm least-squares solution, the 1/N undone.
    `.leverage`: diag((CᵀC)⁺). Gradient noise of variance s² gives a residual the variance N²·s²·leverage. Its relative
        error in float64 is below 2⁻¹⁹ where normal equations solve, and in practice below 1e-8. Its size is that of
        1/‖C‖²: rounded to float32 it is 0 or infinite where the entries of C are beyond 1e22 or below 1e-19.
    `.identifiable`: row r's label is determined by this system, (C⁺C)_rr = 1. False for a zero row, a repeated one, or
        any that takes part in a linear dependence, as happens when N > d. Judged by the row's weight in the null
        space, which must be at most rcond·‖C‖·‖C⁺‖ (Frobenius norms) and at most 1e-3. Where it is False the label is
        undetermined: never guess it.
    `.error`: residual ± error holds the exact solution. It covers the rounding of C and of the gradient, whose entries
        may each be off by (20 + 2√N)·u times the sum of the magnitudes that made them (u: unit roundoff of the input
        type; √N: growth of rounding in sums of N) and by what underflow in that type takes, the float64 arithmetic
        here, and what the null space could move, given |e| ≤ 1. First order in u. It does not cover noise added to the
        gradient. Infinite where not identifiable, and where the result's type does not hold the residual. A residual
        smaller than its error has no sign.
    `.rank`: the number of singular values above the cut.

    Two routes, chosen per problem. Well-conditioned systems: normal equations, corrected from the residual in float64
    (corrected semi-normal equations: Björck, 1987), as long as the inverse of the Cholesky factor proves that every
    singular value is above the cut and that (d + 5N + 10)·2⁻⁵³·N·Σ_r ‖c_r‖²·leverage_r is at most 2⁻²⁰. All others:
    QR with column pivoting, and a singular value decomposition where the cut falls among the singular values. Rank and
    `.identifiable` mean the same on both, and `.error` is derived for each.

    N = 0 and d = 0 are allowed (rank 0, nothing identifiable). The bits do not depend on threads, nor on the other
    problems; they are the same on AVX2 and AVX-512 (LEAKCORE_ISA), and within `.error` of them on other processors.

    Raises ValueError or TypeError, naming the argument, for wrong or differing shapes, integer types, mixed libraries,
    tensors that require grad, arrays on a CUDA device in a CPU-only build, rcond outside [0, 1), non-finite input
    (with the problem's index).
    """
    kernel = "solve_labels"
    check_finite = validate.optional_boolean(check_finite=check_finite)
    jac = arrays.read(kernel, "jacobian", jacobian)
    grad = arrays.read(kernel, "gradient", gradient)
    arrays.same_library(kernel, jac, grad)
    if jac.values.ndim < 2:
        raise ValueError(f"{kernel}: jacobian has shape {jac.shape}: must be (..., N, d)")
    *lead, n, d = jac.shape
    batch = tuple(lead)
    if grad.shape == (*batch, d):
        several, outputs = False, 1
    elif grad.values.ndim == jac.values.ndim and grad.shape[:-1] == (*batch, d):
        several, outputs = True, grad.shape[-1]
    else:
        raise ValueError(
            f"{kernel}: gradient has shape {grad.shape}: must be {(*batch, d)} or {(*batch, d, 'K')} for a jacobian of "
            f"shape {jac.shape}"
        )
    epsilon = max(jac.epsilon, grad.epsilon)
    cut = _default_cut(jac.epsilon, max(n, d)) if rcond is None else validate.below_one(rcond=rcond)

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
        found = library.to_host(rank)
        if (found < 0).any():
            first = np.unravel_index(int(np.argmax(found < 0)), found.shape)
            raise _not_finite(kernel, _BAD_INPUT[int(found[first])], batch, tuple(map(int, first)))

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
    return ValueError(f"{kernel}: {what}{where} has a NaN or an infinity: must be finite")


def _default_cut(epsilon: float, size: int) -> float:
    arithmetic = float(np.finfo(np.float64).eps) * size
    return min(max(epsilon, arithmetic), 0.5)


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
