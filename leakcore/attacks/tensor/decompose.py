"""From moments to directions and weights: a decomposition in the span, a joint fit, a fit of the gradient itself."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from scipy import optimize

from leakcore.attacks.tensor.moments import Moments, unique_entries, with_identity
from leakcore.attacks.tensor.weights import Weights

_FIT_STEPS = 300


@dataclasses.dataclass(frozen=True, eq=False)
class JointFit:
    """Σ_p ‖M_p − c_p Σ_i r_i x_i^{⊗p}‖²/(2 p! error_p²), ‖x_i‖ = 1, over what is known of the M_p: orders 1 and 2 in
    all coordinates, order 3 with one index in all and two in the span, order 4 in the span."""

    moments: Moments
    coefficients: tuple[float, ...]

    def __call__(self, z: np.ndarray, k: int) -> tuple[float, np.ndarray]:
        """(value, slope) at k rows of free length, then k weights."""
        known, c, basis = self.moments, self.coefficients, self.moments.basis
        free, r = z[:-k].reshape(k, -1), z[-k:]
        lengths = np.linalg.norm(free, axis=1, keepdims=True)
        x = free / lengths
        value, at_x, at_r = 0.0, np.zeros_like(x), np.zeros(k)
        if abs(c[1]) > 1e-6:
            rest, unit = known.linear - c[1] * (r @ x), known.across[1] ** 2
            value += float(rest @ rest) / (2.0 * unit)
            at_x -= c[1] * r[:, None] * rest / unit
            at_r -= c[1] * (x @ rest) / unit
        if known.second is not None:
            square, unit = known.second - c[2] * (x.T * r) @ x, known.across[2] ** 2
            moved = x @ square
            value += float(np.square(square).sum()) / (4.0 * unit)
            at_x -= c[2] * r[:, None] * moved / unit
            at_r -= c[2] * (moved * x).sum(axis=1) / (2.0 * unit)
        u = x @ basis
        last = max(known.tensors)
        unit, scale = known.errors[last] ** 2, c[last]
        tensor = known.tensors[last].copy()
        power = np.asarray(scale * r)
        for p in range(last):
            power = np.einsum("i...,ia->i...a", power, u) if p else power[:, None] * u
        tensor -= power.sum(axis=0)
        value += float(np.square(tensor).sum()) / (2.0 * math.factorial(last) * unit)
        reduced = np.stack([_contract(tensor, row, 1) for row in u])
        at_x -= scale * r[:, None] * (reduced @ basis.T) / (math.factorial(last - 1) * unit)
        at_r -= scale * (reduced * u).sum(axis=1) / (math.factorial(last) * unit)
        if known.outside is not None:
            away = x - u @ basis.T
            third = known.outside - scale * np.einsum("i,ia,ib,ic->abc", r, away, u, u)
            value += float(np.square(third).sum()) / (4.0 * known.across[3] ** 2)
            towards = np.einsum("abc,ib,ic->ia", third, u, u)
            unit = known.across[3] ** 2
            along = np.einsum("abc,ia,ic->ib", third, away, u)
            at_x -= scale * r[:, None] * (towards / 2.0 + along @ basis.T) / unit
            at_r -= scale * (towards * away).sum(axis=1) / (2.0 * unit)
        at_x = (at_x - (at_x * x).sum(axis=1, keepdims=True) * x) / lengths
        return value, np.concatenate([at_x.ravel(), at_r])


def _contract(tensor: np.ndarray, v: np.ndarray, left: int) -> np.ndarray:
    """All but `left` indices contracted with v."""
    while tensor.ndim > left:
        tensor = tensor @ v
    return tensor


def fit(
    inputs: np.ndarray, weights: np.ndarray, moments: Moments, coefficients: tuple[float, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """(inputs, residuals) at the minimum that the start leads to."""
    k, d = inputs.shape
    scale = float(np.abs(weights).max())
    start = np.concatenate([inputs.ravel(), weights / scale])
    through = JointFit(moments, coefficients)

    def scaled(z: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = through(np.concatenate([z[:-k], z[-k:] * scale]), k)
        return value, np.concatenate([slope[:-k], slope[-k:] * scale])

    solution = optimize.minimize(
        scaled, start, jac=True, method="L-BFGS-B", options={"maxiter": _FIT_STEPS, "ftol": 1e-14, "gtol": 1e-9}
    )
    if not np.isfinite(solution.x).all():
        return inputs, weights
    x = solution.x[:-k].reshape(k, d)
    return x / np.linalg.norm(x, axis=1, keepdims=True), solution.x[-k:] * scale


_PENCILS = 12
_POWER_STARTS = 12
_POWER_STEPS = 60
_POLISHED = 4
"""How many of the best starts are polished."""


@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """directions: (k, k), unit rows in the span's basis. weights: (k,) r_i. misfit: χ² per degree of freedom against
    the moments. odd_only: signs of (r_i, v_i) are known only together."""

    directions: np.ndarray
    weights: np.ndarray
    misfit: float
    method: str


def decompose(
    moments: Moments, coefficients: tuple[float, ...], used: tuple[int, ...], method: str, rng: np.random.Generator
) -> Parts | None:
    """The best fit of k components, or None where no start led anywhere."""
    k = moments.basis.shape[1]
    last = used[-1]
    system = _System(moments, coefficients, last)
    same_sign = 2 in moments.tensors and np.ptp(np.sign(np.diag(moments.tensors[2]))) == 0
    if method == "power" and not same_sign:
        raise ValueError(
            "`method='power'` needs residuals of one sign and order 2, for whitening: use 'diagonal' or 'auto'"
        )
    starts: list[tuple[str, np.ndarray]] = []
    if method != "power":
        starts += [("simultaneous diagonalisation", v) for v in _pencils(moments, last, rng)]
    if same_sign and method != "diagonal":
        by_power = _power(moments, last, rng)
        if by_power is not None:
            starts.append(("power iteration", by_power))
    tried: list[tuple[float, str, np.ndarray, np.ndarray]] = []
    for name, directions in starts:
        if np.isfinite(directions).all() and np.linalg.cond(directions) < 1e6:
            signed, weights = system.weights(directions)
            tried.append((system.misfit(signed, weights), name, signed, weights))
    tried.sort(key=lambda item: item[0])
    best: Parts | None = None
    for misfit, name, directions, weights in tried[:_POLISHED]:
        if method != "power":
            directions, weights, misfit = system.polish(directions, weights)
            name += ", least-squares polish"
        if best is None or misfit < best.misfit:
            best = Parts(directions, weights, misfit, name)
    if best is None:
        return None
    return dataclasses.replace(best, misfit=best.misfit / max(1, system.freedom(k)))


def _pencils(moments: Moments, last: int, rng: np.random.Generator) -> list[np.ndarray]:
    tensor = moments.tensors[last]
    k = moments.basis.shape[1]
    if k == 1:
        return [np.ones((1, 1))]
    out = []
    for _ in range(_PENCILS):
        left = _contract(tensor, rng.standard_normal((k,)), 2)
        right = moments.tensors[2] if 2 in moments.tensors else _contract(tensor, rng.standard_normal((k,)), 2)
        try:
            values, vectors = np.linalg.eig(left @ np.linalg.inv(right))
        except np.linalg.LinAlgError:
            continue
        # Noise turns two close real eigenvectors into a complex pair: take its real and imaginary part.
        real = np.where(values.imag < 0, vectors.imag, vectors.real).T
        lengths = np.linalg.norm(real, axis=1, keepdims=True)
        if (lengths > 0).all():
            out.append(real / lengths)
    return out


def _power(moments: Moments, last: int, rng: np.random.Generator) -> np.ndarray | None:
    values = np.diag(moments.tensors[2])
    sign = float(np.sign(values[0]))
    k = len(values)
    whiten = np.diag(1.0 / np.sqrt(np.abs(values)))
    tensor = sign * moments.tensors[last]
    for _ in range(last):
        tensor = np.tensordot(tensor, whiten, axes=(0, 0))
    components = []
    for _ in range(k):
        best, strongest = None, 0.0
        for _ in range(_POWER_STARTS):
            v = rng.standard_normal(k)
            v /= np.linalg.norm(v)
            for _ in range(_POWER_STEPS):
                moved = _contract(tensor, v, 1)
                length = np.linalg.norm(moved)
                if length == 0.0:
                    return None
                v = moved / length
            strength = float(_contract(tensor, v, 0))
            if abs(strength) > strongest:
                best, strongest = (v, strength), abs(strength)
        if best is None:
            return None
        components.append(best[0])
        rank_one = np.asarray(best[1])
        for _ in range(last):
            rank_one = np.multiply.outer(rank_one, best[0])
        tensor = tensor - rank_one
    directions = np.array(components) * np.sqrt(np.abs(values))
    return np.asarray(directions / np.linalg.norm(directions, axis=1, keepdims=True))


class _System:
    """All moments as one weighted least-squares problem in directions and weights."""

    def __init__(self, moments: Moments, coefficients: tuple[float, ...], last: int) -> None:
        k = moments.basis.shape[1]
        self._k = k
        self._rows: list[tuple[np.ndarray, float, np.ndarray]] = []
        targets = []
        for p, tensor in sorted(moments.tensors.items()):
            if p == 1 and abs(coefficients[1]) < 1e-6:
                continue
            index, deviation = unique_entries(k, p)
            unit = 1.0 / np.maximum(moments.errors[p] * deviation, 1e-300)
            self._rows.append((index, coefficients[p], unit))
            targets.append(tensor[tuple(index)] * unit)
        self._target = np.concatenate(targets)
        self._last = last

    def freedom(self, k: int) -> int:
        return len(self._target) - k * k

    def _design(self, directions: np.ndarray) -> np.ndarray:
        """(entries, k): what a unit weight of each direction adds."""
        return np.concatenate(
            [c * unit[:, None] * np.prod(directions.T[index], axis=0) for index, c, unit in self._rows]
        )

    def weights(self, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Signs of the directions, and weights, that fit best: all weights first, then each sign by itself."""
        weights = np.linalg.lstsq(self._design(directions), self._target, rcond=None)[0]
        best = self.misfit(directions, weights)
        for _ in range(2):
            for i in range(self._k):
                trial = directions.copy()
                trial[i] = -trial[i]
                fitted = np.linalg.lstsq(self._design(trial), self._target, rcond=None)[0]
                misfit = self.misfit(trial, fitted)
                if misfit < best:
                    directions, weights, best = trial, fitted, misfit
        return directions, weights

    @np.errstate(over="ignore", invalid="ignore")
    def misfit(self, directions: np.ndarray, weights: np.ndarray) -> float:
        return float(np.square(self._design(directions) @ weights - self._target).sum())

    @np.errstate(over="ignore", invalid="ignore")  # what overflows certifies nothing
    def polish(self, directions: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        k = self._k

        def unpack(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            free = z[: k * k].reshape(k, k)
            lengths = np.linalg.norm(free, axis=1)
            return free / lengths[:, None], z[k * k :], lengths

        def residual(z: np.ndarray) -> np.ndarray:
            v, r, _ = unpack(z)
            return np.asarray(self._design(v) @ r - self._target)

        def jacobian(z: np.ndarray) -> np.ndarray:
            v, r, lengths = unpack(z)
            parts = []
            for index, c, unit in self._rows:
                entries = v.T[index]  # (p, n, k)
                slope = np.zeros((len(unit), k, k))
                for place in range(len(index)):
                    others = np.prod(np.delete(entries, place, axis=0), axis=0)
                    slope[np.arange(len(unit)), :, index[place]] += c * unit[:, None] * others * r
                parts.append(slope)
            slope = np.concatenate(parts)
            # Along the sphere only.
            slope = (slope - np.einsum("nic,ic->ni", slope, v)[:, :, None] * v) / lengths[:, None]
            return np.hstack([slope.reshape(len(slope), -1), self._design(v)])

        solution = optimize.least_squares(
            residual,
            np.concatenate([directions.ravel(), weights]),
            jac=jacobian,
            method="trf",
            max_nfev=60,
            x_scale="jac",
        )
        v, r, _ = unpack(solution.x)
        return v, r, float(2.0 * solution.cost)


_STEPS = 20
_SLOPE_STEP = 1e-6
_ROWS = 20_000
_ROWS_PER_UNKNOWN = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Refined:
    """inputs (k, d) unit rows, residuals (k,), and the rms of the part of g that they leave, per degree of freedom.

    errors: (k,) root mean square error of each input if that remainder is noise, from the last step's normal equations,
    and the length of that step. structure: rms of the part of the remainder that still depends on w (linear, quadratic,
    and cubic in the inputs' span) beyond what noise would show: noise on the gradient leaves none, a wrong answer does.
    """

    inputs: np.ndarray
    residuals: np.ndarray
    errors: np.ndarray
    remainder: float
    structure: float


def refine(
    inputs: np.ndarray,
    residuals: np.ndarray,
    gradient: np.ndarray,
    weights: Weights,
    sigma: Callable[[np.ndarray], np.ndarray],
    *,
    all_rows: bool,
    others: bool,
) -> Refined:
    """Levenberg–Marquardt with ‖x_i‖ = 1. others: there are samples besides these, whose constant and linear part are
    fitted as well. all_rows: use all of g, else as many entries as determine the unknowns many times over."""
    k, d = inputs.shape
    extra = d + 1 if others else 0
    unknowns = k * (d + 1) + extra
    limit = None if all_rows else max(_ROWS, _ROWS_PER_UNKNOWN * unknowns)
    rows = weights.num_neurons if limit is None else min(limit, weights.num_neurons)
    x, r, nuisance = inputs.copy(), residuals.copy(), np.zeros(extra)

    def misfit(x: np.ndarray, r: np.ndarray, nuisance: np.ndarray) -> float:
        total = 0.0
        for part, w in weights.blocks(max(k, d), limit):
            rest = gradient[part] - sigma(w @ x.T) @ r
            if others:
                rest -= nuisance[0] + w @ nuisance[1:]
            total += float(rest @ rest)
        return total

    if others:
        nuisance = _linear_part(x, r, gradient, weights, sigma, limit)
    best = misfit(x, r, nuisance)
    damping = 1e-6
    gram, last = np.eye(unknowns), np.zeros(k)
    for _ in range(_STEPS):
        gram, slope = np.zeros((unknowns, unknowns)), np.zeros(unknowns)
        for part, w in weights.blocks(unknowns, limit):
            u = w @ x.T
            values = sigma(u)
            slopes = (sigma(u + _SLOPE_STEP) - sigma(u - _SLOPE_STEP)) / (2.0 * _SLOPE_STEP) * r
            columns = [values, (slopes[:, :, None] * w[:, None, :]).reshape(len(w), -1)]
            rest = gradient[part] - values @ r
            if others:
                columns += [np.ones((len(w), 1)), w]
                rest -= nuisance[0] + w @ nuisance[1:]
            design = np.hstack(columns)
            gram += design.T @ design
            slope += design.T @ rest
        # Lengths are fixed, so a step along x_i is penalised; for ReLU it would equal a step in r_i.
        scale = float(np.trace(gram)) / unknowns
        for i in range(k):
            at = slice(k + i * d, k + (i + 1) * d)
            gram[at, at] += scale * np.outer(x[i], x[i])
        better = False
        for _ in range(6):
            step = np.linalg.lstsq(gram + damping * scale * np.eye(unknowns), slope, rcond=None)[0]
            moved = x + step[k : k + k * d].reshape(k, d)
            moved /= np.linalg.norm(moved, axis=1, keepdims=True)
            trial = (moved, r + step[:k], nuisance + step[k + k * d :])
            squares = misfit(*trial)
            if squares < best:
                better, damping = True, damping / 10.0
                break
            damping = max(damping, 1e-9) * 30.0
        if not better:
            break
        gained, best = (best - squares) / best, squares
        last = np.linalg.norm(trial[0] - x, axis=1)
        x, r, nuisance = trial
        if gained < 1e-6 or best == 0.0:
            break
    rest = np.empty(rows)
    for part, w in weights.blocks(max(k, d), limit):
        rest[part] = gradient[part] - sigma(w @ x.T) @ r
        if others:
            rest[part] -= nuisance[0] + w @ nuisance[1:]
    remainder = math.sqrt(best / max(1, rows - unknowns))
    inverse = np.linalg.pinv(gram, hermitian=True)
    blocks = [inverse[at : at + d, at : at + d] for at in range(k, k + k * d, d)]
    spread = [max(0.0, float(np.trace(b) - x[i] @ b @ x[i])) for i, b in enumerate(blocks)]
    errors = np.hypot(remainder * np.sqrt(spread), last) + d * 2.0**-51
    return Refined(x, r, errors, remainder, _structure(rest, weights, x, limit))


def _structure(rest: np.ndarray, weights: Weights, x: np.ndarray, limit: int | None) -> float:
    """√(Σ (M_α² − expected for noise)/α!) over the Hermite moments of the remainder, by Parseval a part of its rms."""
    n, d = len(rest), x.shape[1]
    basis = np.linalg.qr(x.T)[0]
    linear, square = np.zeros(d), np.zeros((d, d))
    first, cube = np.zeros(basis.shape[1]), np.zeros((basis.shape[1],) * 3)
    for part, w in weights.blocks(d + basis.shape[1] ** 2, limit):
        weighted = w * rest[part, None]
        linear += weighted.sum(axis=0)
        square += weighted.T @ w
        u = w @ basis
        cube += np.einsum("na,nb,nc->abc", u * rest[part, None], u, u, optimize=True)
        first += u.T @ rest[part]
    square = square / n - rest.mean() * np.eye(d)
    cube = (cube - with_identity(first)) / n
    energy = np.square(linear / n).sum() + np.square(square).sum() / 2.0 + np.square(cube).sum() / 6.0
    k = basis.shape[1]
    entries = d + d * (d + 1) / 2.0 + k * (k + 1) * (k + 2) / 6.0
    noise = float(rest @ rest) / n**2
    return math.sqrt(max(0.0, float(energy) - noise * (entries + 4.0 * math.sqrt(2.0 * entries))))


def _linear_part(
    x: np.ndarray,
    r: np.ndarray,
    gradient: np.ndarray,
    weights: Weights,
    sigma: Callable[[np.ndarray], np.ndarray],
    limit: int | None,
) -> np.ndarray:
    d = x.shape[1]
    gram, slope = np.zeros((d + 1, d + 1)), np.zeros(d + 1)
    for part, w in weights.blocks(d + 1, limit):
        design = np.hstack([np.ones((len(w), 1)), w])
        gram += design.T @ design
        slope += design.T @ (gradient[part] - sigma(w @ x.T) @ r)
    return np.asarray(np.linalg.lstsq(gram, slope, rcond=None)[0])
