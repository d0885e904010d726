"""The law of a rounded sum on one part of the space, by powers of a transform under several tilts.

While the largest of b coordinates lies in (low, high], every coordinate is rounded to the multiples of h. With a the
transform of one coordinate's mass up to `low` and ψ that of the rest, the part has (a + ψ)^b − a^b, written
a^b·expm1(b·log1p(ψ/a)): nothing cancels, however rare the part is.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

import numpy as np
from scipy import fft

from leakcore.numerics.pairs.level_plan import OUTSIDE, LevelPlan, Tilt
from leakcore.numerics.privacy_loss.loss import AccuracyError

_UNIT = 2.0**-53
_LEAST_INNER = 16
_NOTHING = 1e-30
"""The part of a tilted mass that is less than rounding, whatever it is raised to."""
_ALLOWED = 10.0
"""How many times its usual size the rounding of a transform may have."""


@dataclasses.dataclass(frozen=True)
class LevelAtoms:
    """log of Q's masses, and P's mass over Q's: at least, and at most what rounding may make of it."""

    log_nu: np.ndarray
    ratio: np.ndarray
    most: np.ndarray


class SumLevel:
    """One part of the space and its grid, multiples of `spacing`: `low` is the one at `inner`, `high` at `outer`."""

    def __init__(self, plan: LevelPlan, size: int) -> None:
        self.plan, self._size, self._batches = plan, size, plan.batches
        usable = size - plan.batches - 4
        self.inner = int(plan.low * usable / plan.width)
        if plan.low > 0.0 and self.inner < _LEAST_INNER:
            raise AccuracyError(f"the sums of an epoch are too wide for a grid at batches={plan.batches}")
        self.spacing = plan.low / self.inner if self.inner else plan.width / usable
        self.outer = math.ceil(plan.high / self.spacing)
        self.high = self.outer * self.spacing
        self._down, self._up = plan.law.cells(self.spacing, self.outer)

    def dominating(self) -> LevelAtoms:
        """Each coordinate is split over its grid's neighbours and retains its mean, given itself. So the rounded sum
        exceeds the sum in the convex order, as do both directions' profiles, E_Q[(S/b − e^ε)₊] and E_Q[(1 − e^ε S/b)₊];
        and P's mass is s/b times Q's."""
        parts = []
        for tilt, first, last in self._shares():
            weights = np.zeros(self.outer + 1)
            grown = self._grown(tilt, self.outer + 1)
            weights[:-1] = self._down * grown[:-1]
            weights[1:] += self._up * grown[1:]
            # What a cell below `low` gives to its upper end belongs to the inner part.
            end = self.inner
            inner = weights[: end + 1].copy()
            if end:
                inner[-1] = self._up[end - 1] * grown[end]
                weights[end] = self._down[end] * grown[end]
            transform = _Transform(inner if end else weights, weights[end:] if end else None, end, self._size)
            mass, noise = transform.back(transform.power(self._batches))
            index = np.arange(first, last)
            value = mass[(index - transform.place * self._batches) % self._size]
            log_nu = np.log(np.maximum(value, 0.0) + noise) + self._batches * tilt.log_one
            parts.append((index * self.spacing, log_nu - tilt.power * self.spacing * index))
        sums, log_nu = (np.concatenate(part) for part in zip(*parts, strict=True))
        ratio = sums / self._batches
        return LevelAtoms(log_nu, ratio, ratio)

    def dominated(self) -> LevelAtoms:
        """All that is seen is the sum of the coordinates' lower neighbours: a function of the data. P over Q is that
        sum over b, and what the coordinates lost of their own."""
        b, parts = self._batches, []
        for tilt, first, last in self._low_shares():
            grown = self._grown(tilt, self.outer)
            cells, up = (self._down + self._up) * grown, self._up * grown
            end = self.inner
            transform = _Transform(cells[: end or None], cells[end:] if end else None, end, self._size)
            mass, noise = transform.back(transform.power(b))
            extra, extra_noise = transform.back(transform.times_power(up, b - 1))
            index = np.arange(first, last)
            at = (index - transform.place * b) % self._size
            mass, extra = mass[at], extra[at]
            used = mass > 4.0 * noise
            index, mass, extra = index[used], mass[used], extra[used]
            least = np.maximum(extra - extra_noise, 0.0) / (mass + noise)
            most = np.minimum((extra + extra_noise) / (mass - noise), 1.0)
            log_nu = np.log(mass - noise) + b * tilt.log_one
            sums = index * self.spacing
            parts.append((log_nu - tilt.power * sums, sums / b + self.spacing * least, sums / b + self.spacing * most))
        return LevelAtoms(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _grown(self, tilt: Tilt, count: int) -> np.ndarray:
        with np.errstate(under="ignore"):
            return np.asarray(np.exp(tilt.power * self.spacing * np.arange(count) - tilt.log_one))

    def _shares(self) -> list[tuple[Tilt, int, int]]:
        """The tilts with the indices [first, last) of the sums that each shows best; together they are all windows."""
        tilts = self.plan.tilts
        ends = [tilts[0].window[0]]
        for one, other in itertools.pairwise(tilts):
            ends.append((other.log_moment - one.log_moment) / (other.power - one.power))
        places = [math.floor(end / self.spacing) for end in ends]
        places.append(math.floor(tilts[-1].window[1] / self.spacing) + 2)
        return list(zip(tilts, places[:-1], places[1:], strict=True))

    def _low_shares(self) -> Iterator[tuple[Tilt, int, int]]:
        """The same for sums that are too small by up to a step for each coordinate, within each tilt's own window."""
        b, shares = self._batches, self._shares()
        for i, (tilt, first, last) in enumerate(shares):
            low, high = (math.floor(end / self.spacing) for end in tilt.window)
            first = first - b if i == 0 else first - b // 2
            last = last if i == len(shares) - 1 else last - b // 2
            first, last = max(first, low - b, 0), min(last, high + 2)
            if first < last:
                yield tilt, first, last


class _Transform:
    """a and ψ for one tilt; sums are counted from `place` for each coordinate, the heaviest point."""

    def __init__(self, inner: np.ndarray, outer: np.ndarray | None, end: int, size: int) -> None:
        self._size, self._end = size, end
        if outer is not None and float(inner.sum()) < _NOTHING * float(outer.sum()):
            together = np.append(np.zeros(end), outer)
            together[: len(inner)] += inner
            inner, outer = together, None
        self.place = int(np.argmax(inner))
        rest = inner.copy()
        rest[self.place] = 0.0
        total = float(rest.sum())
        scale = float(inner[self.place]) + total
        # Around the heaviest point: a = scale·(1 + t), where t's rounding is relative to what is not there.
        wrapped = self._wrapped(rest, 0)
        wrapped[0] -= total
        self._t = fft.rfft(wrapped) / scale
        self._log_scale, self._unit = math.log(scale), _UNIT * math.log2(size)
        self._error = self._unit * float(np.linalg.norm(rest)) / scale
        self._psi: np.ndarray | None = None
        self._psi_error = 0.0
        if outer is not None:
            self._psi = fft.rfft(self._wrapped(outer, end)) / scale
            self._psi_error = self._unit * float(np.linalg.norm(outer)) / scale
        with np.errstate(divide="ignore"):
            psi_size = np.zeros(1) if self._psi is None else np.abs(self._psi)
            self._log_psi = np.log(psi_size)
            self._log_most = np.maximum(np.log(np.abs(1.0 + self._t) + psi_size), -300.0)

    def _wrapped(self, weights: np.ndarray, first: int) -> np.ndarray:
        """The weights from index `first` on, on the cycle of indices less `place`."""
        out = np.zeros(self._size)
        start, done = (first - self.place) % self._size, 0
        while done < len(weights):
            part = min(self._size - start, len(weights) - done)
            out[start : start + part] += weights[done : done + part]
            start, done = 0, done + part
        return out

    def power(self, b: int) -> _Spectrum:
        """(a + ψ)^b − a^b, or a^b where there is no ψ."""
        if self._psi is None:
            bound = b * (self._log_most + self._log_scale)
        else:
            bound = math.log(b) + self._log_psi + (b - 1) * self._log_most + b * self._log_scale
        rows = self._rows(bound, float(self._powers(b, np.arange(1))[1][0].real))
        _, rise, wrong = self._powers(b, rows)
        return _Spectrum(rows, rise, wrong)

    def times_power(self, up: np.ndarray, b: int) -> _Spectrum:
        """One coordinate's weights `up` times the power of b others, such that the largest is where it must be."""
        end = self._end if self._psi is not None else len(up)
        inner, inner_error = fft.rfft(self._wrapped(up[:end], 0)), self._unit * float(np.linalg.norm(up[:end]))
        outer, outer_error = np.zeros(1), 0.0
        with np.errstate(divide="ignore"):
            others = b * (self._log_most + self._log_scale)
            bound = np.log(np.abs(inner)) + others
            if self._psi is not None:
                outer, outer_error = (
                    fft.rfft(self._wrapped(up[end:], end)),
                    self._unit * float(np.linalg.norm(up[end:])),
                )
                rises = self._log_psi + math.log(max(b, 1)) - self._log_most
                bound = np.logaddexp(bound + rises, np.log(np.abs(outer)) + others)
        first = self._powers(b, np.arange(1))
        rows = self._rows(bound, float((outer[0] * first[0][0] + inner[0] * first[1][0]).real))
        inner = inner[rows]
        whole, rise, wrong = self._powers(b, rows)
        if self._psi is None:
            return _Spectrum(rows, inner * rise, np.abs(inner) * wrong + inner_error * np.abs(rise))
        outer = outer[rows]
        size = np.abs(whole)
        wrong = wrong * (np.abs(inner) + np.abs(outer)) + inner_error * np.abs(rise)
        wrong += (outer_error + np.abs(outer) * (4.0 + b) * (_UNIT + self._error)) * size
        return _Spectrum(rows, outer * whole + inner * rise, wrong)

    def _rows(self, bound: np.ndarray, total: float) -> np.ndarray:
        """Where the transform, at most e^{bound}, matters compared with its `total` at 0."""
        if total <= 0.0:
            return np.arange(len(bound))
        return np.flatnonzero(bound > math.log(total) - OUTSIDE)

    def _powers(self, b: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(a + ψ)^b and (a + ψ)^b − a^b at these frequencies, and the usual size of what rounding does to the latter;
        without ψ, a^b for both."""
        log_one = _log1p(self._t[rows])
        log_inner = b * (log_one + self._log_scale)
        inner, own = np.exp(log_inner), _UNIT * (4.0 + np.abs(log_inner))
        # What a's rounding does to a^b.
        moved = b * self._error * np.exp(log_inner.real - log_one.real)
        if self._psi is None:
            return inner, inner, np.abs(inner) * own + moved
        psi = self._psi[rows]
        log_one_rise = _log1p(psi * np.exp(-log_one))
        log_rise = b * log_one_rise
        near = np.abs(log_rise) < 0.5
        whole = np.exp(log_inner + log_rise)
        near_rise = np.expm1(np.where(near, log_rise, 0.0))
        rise = np.where(near, inner * near_rise, whole - inner)
        grown = b * np.exp((b - 1) * (log_one + log_one_rise).real + b * self._log_scale)
        wrong = np.abs(rise) * own + grown * (self._psi_error + np.abs(psi) * _UNIT)
        wrong += np.where(near, moved * np.abs(near_rise), moved + grown * self._error)
        return whole, rise, wrong

    def back(self, spectrum: _Spectrum) -> tuple[np.ndarray, float]:
        """The masses, and what rounding may have added to or taken from each."""
        size = self._size
        values = np.zeros(size // 2 + 1, dtype=np.complex128)
        values[spectrum.rows] = spectrum.values
        mass = fft.irfft(values, size)
        squares = float(spectrum.wrong @ spectrum.wrong) + self._unit**2 * float(np.vdot(values, values).real)
        usual = 2.0 * math.sqrt(squares) / size
        left_out = 3.0 * math.exp(-OUTSIDE) * float(values[0].real)
        noise = max(_ALLOWED * usual, -2.0 * float(mass.min())) + left_out
        if not 0.0 < noise < math.inf:
            raise AccuracyError("an epoch's sums are out of a float's reach")
        return mass, noise


@dataclasses.dataclass(frozen=True)
class _Spectrum:
    """A transform where it matters, and the usual size of what rounding does to it."""

    rows: np.ndarray
    values: np.ndarray
    wrong: np.ndarray


def _log1p(z: np.ndarray) -> np.ndarray:
    """log(1 + z), accurate for small z, which NumPy's is not; its real part is at least −300."""
    out = np.empty_like(z)
    one = 1.0 + z.real
    square = z.imag**2
    with np.errstate(divide="ignore", invalid="ignore"):
        near = 0.5 * np.log1p(z.real * (2.0 + z.real) + square)
        out.real = np.where(one * one + square > 0.25, near, np.maximum(0.5 * np.log(one * one + square), -300.0))
    out.imag = np.arctan2(z.imag, one)
    return out
