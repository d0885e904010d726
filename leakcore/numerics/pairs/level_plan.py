"""Where the sum of b coordinates lies while the largest is in (low, high], and the tilts that show all of it.

The transform's rounding is even over the grid, so that far from a tilted law's centre it is all there is to see.
Several tilts share the range, each where it is the best.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from leakcore.numerics.pairs.log_normal import LogNormal

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
