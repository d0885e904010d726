"""A privacy loss as step laws for the lattice.

Schedules of many different steps are brought to a few: less noise and a larger sample for the upper limit, the contrary
for the lower one. Who sees a step of less noise, or of a larger rate, can make one of the other from it.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from leakcore.numerics.lattice.cells import StepLaw
from leakcore.numerics.lattice.lattice_profile import Sides
from leakcore.numerics.lattice.steps import SampledStep
from leakcore.numerics.privacy_loss.loss import PrivacyLoss, StepGroup

_MOST_GROUPS = 24


def sides_of(loss: PrivacyLoss) -> Sides:
    """The loss's groups, the full batches as one more; of many groups at most a few that leak at least or at most as
    much."""
    groups = list(loss.groups)
    if loss.gaussian_variance > 0.0:
        groups.append(StepGroup(1.0 / math.sqrt(loss.gaussian_variance), 1.0, 1))
    if len(groups) <= _MOST_GROUPS:
        laws = tuple(SampledStep(group) for group in groups)
        return Sides(laws, laws)
    upper, lower = (tuple(SampledStep(group) for group in _merged(groups, up)) for up in (True, False))
    return Sides(upper, lower)


def repeated(law: StepLaw, times: int) -> StepLaw:
    """The law, so many times as often in a composition."""
    if times == 1:
        return law
    if isinstance(law, SampledStep):
        return SampledStep(dataclasses.replace(law.group, count=times * law.count))
    out: StepLaw = dataclasses.replace(law, count=times * law.count)  # type: ignore[type-var]
    return out


def _merged(groups: list[StepGroup], up: bool) -> list[StepGroup]:
    sigma, rate = np.array([g.sigma for g in groups]), np.array([g.rate for g in groups])
    count = np.array([g.count for g in groups])
    bins = 1 if np.ptp(rate) == 0.0 else (_MOST_GROUPS if np.ptp(sigma) == 0.0 else math.isqrt(_MOST_GROUPS))
    places = _bins(np.log(rate), bins) * _MOST_GROUPS + _bins(np.log(sigma), _MOST_GROUPS // bins)
    quiet, loud = (np.min, np.max) if up else (np.max, np.min)
    return [
        StepGroup(float(quiet(sigma[places == k])), float(loud(rate[places == k])), int(count[places == k].sum()))
        for k in np.unique(places)
    ]


def _bins(values: np.ndarray, bins: int) -> np.ndarray:
    """Which of `bins` equal parts of the range each value lies in."""
    width = float(np.ptp(values))
    if width == 0.0:
        return np.zeros(len(values), dtype=np.intp)
    return np.asarray(np.minimum(((values - values.min()) / width * bins).astype(np.intp), bins - 1))
