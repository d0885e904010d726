"""What every figure of the layer-wise paper shares: notes, curves with intervals, correlations with intervals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.leakage import study
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Series
from leakcore.experiments.verdict import Check

CONFIDENCE = 0.95
"""Confidence of the intervals of correlations."""
_NOTES = (
    (
        "LFW, CelebA, PubFig and CSI are not here: plain features of CIFAR-100 images, IMDB and Bank Marketing stand "
        "for their attributes"
    ),
    "estimates on single samples of networks trained here; no bound on any attack",
)


def report(
    experiment: Experiment, context: Context, findings: Findings, *, data: list[str], **settings: Any
) -> ExperimentResult:
    """The result with the notes that all of them share."""
    return experiment.result(
        context, findings.with_notes(*_NOTES), data=data, settings=settings, provenance=study.SOURCE
    )


def curve(name: str, role: str, values: Any, low: Any = None, high: Any = None, x: Any = None) -> Series:
    """Values over layers 1, 2, …, or over x."""
    y = np.asarray(values, float)
    return Series(
        name=name, role=role, x=np.arange(1, len(y) + 1) if x is None else np.asarray(x), y=y, low=low, high=high
    )


def images(count: int) -> str:
    """A number of images, in words."""
    return f"{count} image{'s' * (count != 1)}"


def correlation(first: Any, second: Any) -> tuple[float, tuple[float, float]]:
    """Pearson's R with Fisher's 95% interval, the points taken as independent; NaN for fewer than four."""
    a, b = np.ravel(first), np.ravel(second)
    if len(a) < 4 or a.std() == 0 or b.std() == 0:
        return math.nan, (math.nan, math.nan)
    r = float(np.clip(np.corrcoef(a, b)[0, 1], -0.999999, 0.999999))
    reach = 1.959964 / math.sqrt(len(a) - 3)
    return r, (math.tanh(math.atanh(r) - reach), math.tanh(math.atanh(r) + reach))


@dataclasses.dataclass(frozen=True, eq=False)
class Order:
    """A measure of every layer of one network, and the same over the root of the layer's number of parameters."""

    values: np.ndarray
    per_parameter: np.ndarray

    @property
    def largest(self) -> int:
        """The layer with the largest value, from 1."""
        return int(np.argmax(self.values)) + 1

    @property
    def largest_per_parameter(self) -> int:
        """The layer with the largest value over the root of its number of parameters, from 1."""
        return int(np.argmax(self.per_parameter)) + 1

    @property
    def ratio(self) -> float:
        """The mean over the first half of the layers over that over the second; a middle layer is in neither."""
        half = len(self.values) // 2
        return float(self.values[:half].mean() / max(float(self.values[-half:].mean()), 1e-30))

    @property
    def falls(self) -> bool:
        """Whether the first half of the layers has the larger mean."""
        return self.ratio > 1


def first_half(orders: Sequence[Order]) -> Check:
    """The paper's sentence on sensitivity, "gradients of the first layers are more sensitive compared to latter
    layers", asked of every network: a coin would say so of half of them."""
    return Check(
        says="the first half of the layers is more sensitive than the second, by network and set",
        holds=sum(o.falls for o in orders),
        cases=len(orders),
        chance=0.5,
    )


def meets(interval: tuple[float, float]) -> bool:
    """Whether an interval of R meets what the paper prints, 0.686 to 0.707."""
    return interval[0] <= 0.707 and interval[1] >= 0.686


def relative(values: Any) -> np.ndarray:
    """Over the largest, as the paper's figures are."""
    numbers = np.asarray(values, float)
    return numbers / max(float(np.nanmax(numbers)), 1e-30)
