"""Labels from an aggregated gradient: least squares with leverages, batched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench import limits
from bench.case import Case, Contender
from leakcore import kernels

SAMPLES, WEIGHTS = 50, 200
REPEATED = 8.0  # times the multiply-adds of a case, so that starting threads does not count
CONDITIONS = (1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7)


def cases(quick: bool) -> list[Case]:
    if quick:
        return [_solve(32, 50, 200, "float64", ())]
    return [
        _solve(256, SAMPLES, WEIGHTS, "float64", CONDITIONS),
        _solve(1024, SAMPLES, WEIGHTS, "float64", ()),
        _solve(256, SAMPLES, WEIGHTS, "float32", CONDITIONS),
    ]


def problems(count: int, n: int, d: int, dtype: Any, condition: float, seed: int = 0) -> tuple[Any, Any, Any]:
    """Jacobians `(count, n, d)` of a condition number, averaged gradients, and the residuals that made them."""
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.standard_normal((count, n, n)))[0]
    right = np.linalg.qr(rng.standard_normal((count, d, n)))[0]
    singular = np.geomspace(1, 1 / condition, n)
    jacobian = ((left * singular) @ right.swapaxes(1, 2)).astype(dtype)
    residual = rng.uniform(-1, 1, (count, n))
    gradient = (np.einsum("bnd,bn->bd", jacobian.astype(np.float64), residual) / n).astype(dtype)
    return jacobian, gradient, residual


def _solve(count: int, n: int, d: int, dtype: str, conditions: tuple[float, ...]) -> Case:
    def data() -> Any:
        rng = np.random.default_rng(0)
        jacobian = rng.standard_normal((count, n, d)).astype(dtype)
        gradient = (np.einsum("bnd,bn->bd", jacobian, rng.uniform(-1, 1, (count, n))) / n).astype(dtype)
        return jacobian, gradient

    def ours(arrays: Any) -> Callable[[], Any]:
        return lambda: kernels.solve_labels(*arrays)

    def torch_of(method: Callable[[Any, Any], Any]) -> Callable[[Any], Callable[[], Any]]:
        def build(arrays: Any) -> Callable[[], Any]:
            import torch

            system, side = torch.from_numpy(arrays[0]).mT, torch.from_numpy(arrays[1])[..., None]
            return lambda: method(system, side)

        return build

    def numpy_pinv(arrays: Any) -> Callable[[], Any]:
        jacobian, gradient = arrays
        return lambda: n * np.linalg.pinv(jacobian.swapaxes(1, 2)) @ gradient[..., None]

    multiply_adds = count * (d * n**2 / 2 + n**3 / 3)
    contenders = []
    for threads in (1, 2):
        more = "" if threads == 1 else ", 2 threads"
        reference = f"leakcore{more}"
        contenders += [
            Contender(f"leakcore{more}", ours, threads),
            Contender(
                f"multiply-adds alone{more}",
                lambda _, threads=threads: limits.multiplying(int(REPEATED * multiply_adds), threads),
                threads,
                share=REPEATED,
                least=True,
            ),
            Contender(f"torch pinv{more}", torch_of(pinv), threads, against=reference),
            Contender(f"torch lstsq gelsy (no leverages){more}", torch_of(_gelsy), threads, against=reference),
            Contender(f"torch Cholesky of CᵀC (no leverages){more}", torch_of(_normal), threads, against=reference),
            Contender(f"torch Cholesky of CᵀC, leverages{more}", torch_of(normal_inverse), threads, against=reference),
            Contender(f"NumPy pinv{more}", numpy_pinv, threads, against=reference),
        ]
    return Case(
        "solve_labels",
        f"{count} of {d}×{n} {dtype}",
        data,
        tuple(contenders),
        count,
        "problem",
        limit=f"Gram dN²/2, Cholesky N³/6 and inverse N³/6 multiply-adds in float64, N={n}, d={d}, and nothing else",
        least=1,
        seconds=12,
        extra=(lambda: accuracy(dtype, conditions, n, d)) if conditions else None,
    )


def pinv(system: Any, side: Any) -> Any:
    import torch

    return system.shape[-1] * torch.linalg.pinv(system) @ side


def _gelsy(system: Any, side: Any) -> Any:
    import torch

    return system.shape[-1] * torch.linalg.lstsq(system, side, driver="gelsy").solution


def _normal(system: Any, side: Any) -> Any:
    import torch

    factor = torch.linalg.cholesky(system.mT @ system)
    return system.shape[-1] * torch.cholesky_solve(system.mT @ side, factor)


def normal_inverse(system: Any, side: Any) -> Any:
    import torch

    inverse = torch.cholesky_inverse(torch.linalg.cholesky(system.mT @ system))
    return system.shape[-1] * inverse @ (system.mT @ side), inverse.diagonal(dim1=-2, dim2=-1)


def accuracy(dtype: str, conditions: tuple[float, ...], n: int, d: int) -> list[list[str]]:
    """Largest error over the largest residual of a problem, the median over 32 problems, per condition number."""
    import torch

    table = [["condition", "leakcore", "gelsy", "pinv", "Cholesky of CᵀC", "leakcore / gelsy", "identifiable"]]
    for condition in conditions:
        jacobian, gradient, residual = problems(32, n, d, dtype, condition)
        # The rounding of C and of the gradient to the input type moves the solution itself; what is compared is each
        # method's distance from the solution of the system as given, in extended precision.
        exact = _reference(jacobian, gradient, n)
        system, side = torch.from_numpy(jacobian).mT, torch.from_numpy(gradient)[..., None]
        solved = kernels.solve_labels(jacobian, gradient)
        errors = [_error(solved.residual, exact)]
        for method in (_gelsy, pinv, _normal):
            try:
                errors.append(_error(method(system, side)[..., 0].numpy(), exact))
            except RuntimeError:  # CᵀC is not positive definite in this precision
                errors.append(float("nan"))
        del residual
        cells = [f"{e:.1e}" if np.isfinite(e) else "fails" for e in errors]
        known = float(np.mean(solved.identifiable))
        table.append([f"{condition:.0e}".replace("e+0", "e"), *cells, f"{errors[0] / errors[1]:.2f}", f"{known:.0%}"])
    return table


def _reference(jacobian: Any, gradient: Any, n: int) -> Any:
    """Least squares in extended precision: QR by modified Gram–Schmidt, twice, of `np.longdouble`."""
    c = jacobian.swapaxes(1, 2).astype(np.longdouble)
    q, r = c.copy(), np.zeros((len(c), n, n), dtype=np.longdouble)
    for j in range(n):
        for _ in range(2):  # sums, since over no columns einsum of longdouble gives what was in memory (NumPy 2.4)
            along = (q[:, :, :j] * q[:, :, j, None]).sum(axis=1)
            q[:, :, j] -= (q[:, :, :j] * along[:, None]).sum(axis=2)
            r[:, :j, j] += along
        r[:, j, j] = np.sqrt((q[:, :, j] ** 2).sum(axis=1))
        q[:, :, j] /= r[:, j, j][:, None]
    rest = n * gradient.astype(np.longdouble)
    solution = (q * rest[:, :, None]).sum(axis=1)
    for j in range(n - 1, -1, -1):
        known = (r[:, j, j + 1 :] * solution[:, j + 1 :]).sum(axis=1)
        solution[:, j] = (solution[:, j] - known) / r[:, j, j]
    return solution


def _error(residual: Any, exact: Any) -> float:
    worst = np.abs(residual - exact).max(axis=1) / np.abs(exact).max(axis=1)
    return float(np.median(worst))
