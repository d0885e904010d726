"""One level of random allocation: the law of the sum S of b coordinates while the largest is in (low, high].

`LogNormal` is one coordinate X = exp((x − ½)/σ²), x ~ N(0, σ²), of mean 1; under N(1, σ²) its law is weighted by X.
`LevelPlan` chooses the tilts. A transform's rounding is even over the grid, so far from a tilted law's centre nothing
else is left; several tilts share the range, each where it is the best.
`SumLevel` rounds every coordinate to the multiples of h. With a the transform of one coordinate's mass up to `low` and
ψ that of the rest, the level has (a + ψ)^b − a^b, written a^b·expm1(b·log1p(ψ/a)): nothing cancels, however rare it is.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

import numpy as np
from scipy import fft, special

from leakcore.numerics.arithmetic import AccuracyError, log_masses

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(3)
_NARROW = 32.0
"""A cell [kh, (k+1)h] with k above this many times the density's power of x is integrated by three nodes: to 1e-15."""
_PANELS = 48
_PANEL_NODES, _PANEL_WEIGHTS = np.polynomial.legendre.leggauss(8)


@dataclasses.dataclass(frozen=True)
class LogNormal:
    """The law of X for one σ; `reach`: how many standard deviations of x matter."""

    sigma: float
    reach: float

    def z(self, x: np.ndarray | float) -> np.ndarray:
        """The standard normal variate at which X = x."""
        with np.errstate(divide="ignore"):
            return np.asarray(self.sigma * np.log(x) + 0.5 / self.sigma)

    def x(self, z: np.ndarray | float) -> np.ndarray:
        """X at a standard normal variate."""
        return np.asarray(np.exp((z - 0.5 / self.sigma) / self.sigma))

    def log_above(self, x: float) -> tuple[float, float]:
        """log P(X > x) under N(0, σ²) and under N(1, σ²)."""
        z = float(self.z(x))
        return float(special.log_ndtr(-z)), float(special.log_ndtr(1.0 / self.sigma - z))

    def usual(self, count: int) -> float:
        """What the largest of so many exceeds once in a thousand times."""
        return float(self.x(-special.ndtri(1e-3 / count)))

    def cells(self, spacing: float, count: int) -> tuple[np.ndarray, np.ndarray]:
        """How much of the mass of each cell [kh, (k+1)h], k < count, belongs to its lower and to its upper end, so that
        the ends have the cell's mean."""
        wide = min(count, int(_NARROW * (1.0 + self.sigma * self.reach)))
        down, up = np.empty(count), np.empty(count)
        ends = self.z(spacing * np.arange(wide + 1))
        mass = np.exp(log_masses(ends[:-1], ends[1:]))
        moment = np.exp(log_masses(ends[:-1] - 1.0 / self.sigma, ends[1:] - 1.0 / self.sigma))
        up[:wide] = np.clip(moment / spacing - np.arange(wide) * mass, 0.0, mass)
        down[:wide] = mass - up[:wide]
        low = np.arange(wide, count, dtype=np.float64)
        down[wide:], up[wide:] = 0.0, 0.0
        for node, weight in zip(0.5 + 0.5 * _NODES, 0.5 * _WEIGHTS, strict=True):
            x = low + node
            density = self._density(x, spacing)
            down[wide:] += (weight * (1.0 - node)) * density
            up[wide:] += (weight * node) * density
        return down, up

    def _density(self, index: np.ndarray, spacing: float) -> np.ndarray:
        """Density of X/h."""
        z = self.z(index)
        z += self.sigma * np.log(spacing)
        z *= z
        z *= -0.5
        out = np.exp(z, out=z)
        out /= index
        out *= self.sigma / np.sqrt(2.0 * np.pi)
        return np.asarray(out)

    def nodes(self, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
        """(x, mass) of a quadrature over low < X ≤ high."""
        first, last = max(float(self.z(low)), -self.reach), float(self.z(high))
        first = min(first, last - 1e-6)
        edges = np.linspace(first, last, _PANELS + 1)
        half = 0.5 * (edges[1] - edges[0])
        z = (0.5 * (edges[1:] + edges[:-1])[:, None] + half * _PANEL_NODES).ravel()
        mass = np.exp(-0.5 * z * z) * np.tile(half * _PANEL_WEIGHTS, _PANELS) / np.sqrt(2.0 * np.pi)
        return self.x(z), mass


_DROP = 9.0
"""How many nats a tilted law may fall from its centre to the end of its share."""
OUTSIDE = 57.0
"""−log of the tilted mass that may lie on either side of a window."""
_WIDEST = 1.5
"""A tilt under which several of the largest coordinates come at once makes a window too wide: at most this many times
the law's own."""
_TILTS = 160
_PAD = 0.01
_GENTLE = 4.0
"""Power times largest coordinate up to which a tilt does not favour several large ones."""
_HAZY = 8.0
"""log of how much larger a mass than what may be left out need not rise above the rounding."""


@dataclasses.dataclass(frozen=True)
class Tilt:
    """A tilt e^{power·S}, the log of its moment, log E e^{power·X} with X ≤ high, and its window for S."""

    power: float
    log_moment: float
    log_one: float
    window: tuple[float, float]


class LevelPlan:
    """The part of Q where the largest of b coordinates lies in (low, high]; `log_lost`: of the mass to be left out."""

    def __init__(self, law: LogNormal, batches: int, low: float, high: float, log_lost: float) -> None:
        self.law, self.batches, self.low, self.high = law, batches, low, high
        below = law.nodes(0.0, low) if low > 0.0 else (np.zeros(0), np.zeros(0))
        above = law.nodes(low, high)
        self.x, self.mass = (np.concatenate(pair) for pair in zip(below, above, strict=True))
        self._inner = len(below[0])
        most = high + float(self.mass @ self.x) * batches
        least = max(low, float(law.x(-law.reach)))
        self.powers = np.concatenate(
            (-np.geomspace(1e3 / least, 1e-3 / most, _TILTS), [0.0], np.geomspace(1e-3 / most, 650.0 / high, _TILTS))
        )
        self._set_moments()
        self.bottom = self.quantile(log_lost)
        most = np.fmax(self.log_nu, self.log_mu) - log_lost
        self.top = float(np.nanmin(most[_TILTS + 1 :] / self.powers[_TILTS + 1 :]))
        self.tilts = self._cover(log_lost) if most[_TILTS] > 0.0 else []

    @property
    def width(self) -> float:
        """The widest window."""
        return max(tilt.window[1] - tilt.window[0] for tilt in self.tilts)

    def _set_moments(self) -> None:
        """log E_Q and log E_P of e^{tS} on this part, for all powers t; and of one coordinate."""
        b = self.batches
        exponent = np.multiply.outer(self.powers, self.x)
        peak = exponent.max(axis=1)
        exponent -= peak[:, None]
        columns = np.zeros((len(self.x), 4))
        for part, rows in enumerate((slice(0, self._inner), slice(self._inner, None))):
            columns[rows, 2 * part] = self.mass[rows]
            columns[rows, 2 * part + 1] = self.mass[rows] * self.x[rows]
        with np.errstate(divide="ignore", over="ignore", invalid="ignore", under="ignore"):
            inner, inner_hit, outer, outer_hit = (np.exp(exponent, out=exponent) @ columns).T
            self.log_one = peak + np.log(inner + outer)
            if self.low == 0.0:
                self.log_nu = b * self.log_one
                self.log_mu = peak + np.log(outer_hit) + (b - 1) * self.log_one
            else:
                rise = np.log1p(outer / inner)
                under = np.log(inner)
                big = np.where(b * rise > 700.0, b * (under + rise), b * under + np.log(np.expm1(b * rise)))
                self.log_nu = b * peak + big
                rest = np.where((b - 1) * rise > 700.0, (b - 1) * rise, np.log(np.expm1((b - 1) * rise)))
                self.log_mu = b * peak + np.logaddexp(
                    np.log(outer_hit) + (b - 1) * (under + rise), np.log(inner_hit) + (b - 1) * under + rest
                )
        usable = np.isfinite(self.log_nu) & np.isfinite(self.log_mu)
        self.log_nu[~usable] = self.log_mu[~usable] = np.nan
        self.means = np.exp(self.log_mu - self.log_nu) * b

    def quantile(self, log_mass: float) -> float:
        """A sum below which lies at most e^{log_mass} of Q."""
        if self.log_nu[_TILTS] <= log_mass:
            return self.low
        return max(self.low, float(np.nanmax((self.log_nu[:_TILTS] - log_mass) / self.powers[:_TILTS])))

    def largest(self, log_mass: float) -> float:
        """About the largest coordinate that matters where the sum is `quantile(log_mass)`."""
        row = int(np.nanargmin(np.abs(self.means - self.quantile(log_mass))))
        weights = self.mass * np.exp(self.powers[row] * self.x - self.log_one[row])
        more = np.cumsum(weights[::-1])[::-1] * self.batches
        return float(self.x[min(int(np.count_nonzero(more > 0.1)), len(more) - 1)])

    def lost(self, spacing: float) -> tuple[float, float]:
        """log of the rounded sum's mass beyond the windows of all tilts, of Q and of P, at most."""
        if not self.tilts:
            return float(self.log_nu[_TILTS]), float(self.log_mu[_TILTS])
        t, rounding = self.powers, self.batches * (self.powers * spacing) ** 2 / 8.0
        low, high = self.tilts[0].window[0], self.tilts[-1].window[1]
        out = []
        for moments in (self.log_nu, self.log_mu):
            bounds = moments + rounding
            below = np.nanmin((bounds - t * low)[:_TILTS]) if low > self.low else -np.inf
            above = np.nanmin((bounds - t * high)[_TILTS + 1 :]) if high < self.batches * self.high else -np.inf
            out.append(float(np.logaddexp(below, above)))
        return out[0], out[1]

    def _cover(self, log_lost: float) -> list[Tilt]:
        """Tilts from the range's low end to its high end."""
        t, k, mean = self.powers, self.log_nu, self.means
        bottom = self.quantile(min(log_lost + _HAZY, float(self.log_nu[_TILTS]) - _DROP))
        low, high = self._windows()
        used = np.flatnonzero((mean > 0.0) & (high - low <= _WIDEST * (high - low)[_TILTS]) | (t == 0.0))
        t, k, mean = t[used], k[used], mean[used]
        # Beyond one large coordinate and the mean of all, the part above has more, unless many small ones do it.
        single = mean <= min(self.top, self.high + float(self.means[_TILTS]))
        many = (mean <= self.top) & (t * self.high <= _GENTLE)
        at = min(int(np.searchsorted(mean, bottom)), len(used) - 1)
        last = max(at, *np.flatnonzero(single | many)[-1:].tolist())
        centres = []
        while at <= last:
            # By how much the law under each tilt has fallen at the mean of tilt `at`, and the contrary.
            fallen = (k - k[at] - (t - t[at]) * mean[at])[at : last + 1]
            centre = at + int(np.flatnonzero(fallen <= _DROP)[-1])
            fallen = (k[centre] - k - (t[centre] - t) * mean)[centre : last + 1]
            reached = centre + int(np.flatnonzero(fallen <= _DROP)[-1])
            centres.append(int(used[centre]))
            if reached >= last:
                break
            at = max(reached, centre + 1)
        # Rounding grows on the far side of a tilt; without one it does not.
        if centres[-1] < _TILTS and high[centres[-1]] < self.top:
            centres.append(_TILTS)
        if centres[0] > _TILTS and low[centres[0]] > self.bottom:
            centres.insert(0, _TILTS)
        # The windows at the ends hold all that may not be left out.
        low[centres[0]] = min(low[centres[0]], self.bottom)
        high[centres[-1]] = max(high[centres[-1]], min(self.top, self.batches * self.high))
        return [
            Tilt(float(self.powers[i]), float(self.log_nu[i]), float(self.log_one[i]), (float(low[i]), float(high[i])))
            for i in centres
        ]

    def _windows(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the law under each tilt has all but e^{−57} of its mass on either side."""
        t, k, most = self.powers, self.log_nu, self.batches * self.high
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = (k - k[:, None] + OUTSIDE) / (t - t[:, None])
        lower = t < t[:, None]
        low = np.fmax.reduce(np.where(lower, ends, self.low), axis=1, initial=self.low)
        high = np.fmin.reduce(np.where(lower, most, ends), axis=1, initial=most)
        pad = _PAD * (high - low)
        return np.maximum(low - pad, self.low), np.minimum(high + pad, most)


def split_variance(plan: LevelPlan, spacing: np.ndarray) -> np.ndarray:
    """What rounding to a grid may add to the variance of the sum: min(h²/6, hX) a coordinate."""
    one = np.minimum(spacing[:, None] ** 2 / 6.0, spacing[:, None] * plan.x) @ plan.mass
    return np.asarray(plan.batches * one + spacing**2 / 6.0)


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
