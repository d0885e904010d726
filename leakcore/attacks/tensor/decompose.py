"""Directions v_i and weights r_i from the moments c_p Σ_i r_i v_i^{⊗p} in the span: two starts, one polish.

- Simultaneous diagonalisation (Leurgans, Ross and Abel 1993): contractions of the tensor are V diag(·) Vᵀ with one V,
  so V are eigenvectors of T(a)·T(b)⁻¹; any signs of the residuals.
- Robust power iteration with deflation (Anandkumar, Ge, Hsu, Kakade and Telgarsky 2014, Algorithm 1) after whitening by
  the second moment, which needs residuals of one sign: otherwise there is no real square root.
- Least squares over (v_i, r_i), ‖v_i‖ = 1, against all moments at once, each entry in units of its error.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import optimize

from leakcore.attacks.tensor.moments import Moments, unique_entries

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
            best = Parts(directions, weights, misfit / max(1, system.freedom(k)), name)
            best = dataclasses.replace(best, misfit=misfit)
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
        left = _contract(tensor, rng.standard_normal((k,)))
        right = moments.tensors[2] if 2 in moments.tensors else _contract(tensor, rng.standard_normal((k,)))
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


def _contract(tensor: np.ndarray, a: np.ndarray) -> np.ndarray:
    """(k, k): all but two indices contracted with a."""
    while tensor.ndim > 2:
        tensor = tensor @ a
    return tensor


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
                moved = _apply(tensor, v, 1)
                length = np.linalg.norm(moved)
                if length == 0.0:
                    return None
                v = moved / length
            strength = float(_apply(tensor, v, 0))
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


def _apply(tensor: np.ndarray, v: np.ndarray, left: int) -> np.ndarray:
    while tensor.ndim > left:
        tensor = tensor @ v
    return tensor


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
        """Signs of the directions, and weights, that fit best: the last order's weights first, then each sign by
        itself.
        """
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
