"""The prior-aware attacks: which of n candidates was the training point, judged by their scores in every step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from leakcore._base import validate
from leakcore._base.array_record import ArrayRecord
from leakcore.numerics import step_log_ratio


@dataclasses.dataclass(frozen=True)
class Sum:
    """Hayes et al. 2023, Algorithm 2: Σ_t s_{t,i} / C²."""

    max_grad_norm: float

    def start(self, shape: tuple[int, ...]) -> _RunningTotal:
        return _RunningTotal(shape, lambda dots, _: dots, self.max_grad_norm**2)


@dataclasses.dataclass(frozen=True)
class Top:
    """Hayes et al. 2023, Algorithm 3: the `count` largest s_{t,i} of each candidate, summed, / C²."""

    max_grad_norm: float
    count: int

    def start(self, shape: tuple[int, ...]) -> _RunningTop:
        return _RunningTop(shape, self.max_grad_norm, self.count)


@dataclasses.dataclass(frozen=True)
class Likelihood:
    """Hayes et al. 2023, Appendix G: Σ_t log(1 − q + q·exp((2 s_{t,i} − n²_{t,i})/(2σ²C²)))."""

    max_grad_norm: float
    noise_multiplier: float
    sample_rate: float

    def start(self, shape: tuple[int, ...]) -> _RunningTotal:
        noise = self.noise_multiplier * self.max_grad_norm
        return _RunningTotal(shape, lambda dots, norms: step_log_ratio(dots, norms, noise, self.sample_rate))


@dataclasses.dataclass(frozen=True)
class Allocated:
    """Σ_epochs log (1/b) Σ_t exp((2 s_{t,i} − n²_{t,i})/(2σ²C²)), the target in one of an epoch's b batches."""

    max_grad_norm: float
    noise_multiplier: float
    batches: int

    def start(self, shape: tuple[int, ...]) -> _RunningAllocated:
        return _RunningAllocated(shape, self)


class _RunningTotal:
    def __init__(
        self, shape: tuple[int, ...], term: Callable[[np.ndarray, np.ndarray], np.ndarray], unit: float = 1.0
    ) -> None:
        self._total, self._term, self._unit = np.zeros(shape), term, unit

    def add(self, dots: np.ndarray, clipped_norms: np.ndarray) -> None:
        self._total += self._term(dots, clipped_norms)

    def scores(self) -> np.ndarray:
        return self._total / self._unit


class _RunningTop:
    def __init__(self, shape: tuple[int, ...], max_grad_norm: float, count: int) -> None:
        self._best = np.full((count, *shape), -np.inf)
        self._unit = max_grad_norm**2

    def add(self, dots: np.ndarray, clipped_norms: np.ndarray) -> None:
        least = self._best.argmin(axis=0)[None]
        larger = np.maximum(np.take_along_axis(self._best, least, axis=0), dots[None])
        np.put_along_axis(self._best, least, larger, axis=0)

    def scores(self) -> np.ndarray:
        # Sorted, so that the order of summation, and with it the rounding, depends on the values alone.
        total = np.zeros(self._best.shape[1:])
        for values in np.sort(self._best, axis=0):
            total += values
        return total / self._unit


class _RunningAllocated:
    def __init__(self, shape: tuple[int, ...], rule: Allocated) -> None:
        self._total, self._epoch = np.zeros(shape), np.full(shape, -np.inf)
        self._steps, self._batches = 0, rule.batches
        self._variance = (rule.noise_multiplier * rule.max_grad_norm) ** 2

    def add(self, dots: np.ndarray, clipped_norms: np.ndarray) -> None:
        self._epoch = np.logaddexp(self._epoch, (dots - clipped_norms**2 / 2) / self._variance)
        self._steps += 1
        if self._steps == self._batches:
            self._total = self.scores()
            self._epoch[...], self._steps = -np.inf, 0

    def scores(self) -> np.ndarray:
        if self._steps == 0:
            return self._total
        left = self._batches - self._steps  # an epoch that is not over: the target may be in a batch to come
        epoch = self._epoch if left == 0 else np.logaddexp(self._epoch, math.log(left))
        return np.asarray(self._total + epoch - math.log(self._batches))


Rule = Sum | Top | Likelihood | Allocated
METHODS = ("sum", "top", "likelihood")


def rule(
    method: str,
    *,
    max_grad_norm: float,
    sample_rate: float,
    steps: int,
    noise_multiplier: float | None,
    batches: int | None = None,
) -> Rule:
    """The rule of that name; "top" sums max{1, ⌊qT + ½⌋} values, at most T. batches: of an epoch, where each row draws
    one of them."""
    if method == "sum":
        return Sum(max_grad_norm)
    if method == "top":
        return Top(max_grad_norm, min(steps, max(1, math.floor(sample_rate * steps + 0.5))))
    if noise_multiplier is None or noise_multiplier == 0:
        raise ValueError(
            f"`noise_multiplier` must be above 0 and finite for method='likelihood', got {noise_multiplier}"
        )
    if batches is not None:
        return Allocated(max_grad_norm, noise_multiplier, batches)
    return Likelihood(max_grad_norm, noise_multiplier, sample_rate)


def decide(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(index, undecided) of scores (..., candidates): the largest, −1 where two share it."""
    undecided = (scores == scores.max(axis=-1, keepdims=True)).sum(axis=-1) > 1
    return np.where(undecided, -1, scores.argmax(axis=-1)).astype(np.int64), np.asarray(undecided)


_SUMS_TO_ONE = 1e-9
"""How far a prior's sum may be from one: many times the rounding of a million probabilities in float64."""
_CLIPPED = 1e-6
"""By what share of C rounding may leave a clipped norm above it, in float32."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PriorAware(ArrayRecord):
    """The attacker's guesses; `...` stands for the axes in front of (steps, candidates).

    Attributes:
        index: (...) int64, the guessed candidate; −1 where the attack is undecided.
        undecided: (...) bool, whether two or more candidates share the best score.
        scores: (..., candidates) float64. "sum" and "top": each candidate's score in units of C²: about T for a clipped
            target, 0 for an orthogonal candidate. "likelihood": its log likelihood ratio to "no candidate", in nats,
            plus the log of its prior probability where there is a prior.
        method: "sum" (Algorithm 2), "top" (Algorithm 3) or "likelihood" (Appendix G).
        top: how many steps were summed.

    Example:
        >>> import numpy as np
        >>> from leakcore import attacks
        >>> dots = np.array([[1.0, 0.1], [0.9, 0.0]])  # two steps, two candidates
        >>> guess = attacks.prior_aware(dots, max_grad_norm=1.0, method="sum")
        >>> int(guess.index), bool(guess.undecided), np.round(guess.scores, 6).tolist()
        (0, False, [1.9, 0.1])
    """

    index: np.ndarray
    undecided: np.ndarray
    scores: np.ndarray
    method: str
    top: int


def prior_aware(
    dots: Any,
    clipped_norms: Any = None,
    *,
    max_grad_norm: float,
    sample_rate: float = 1.0,
    noise_multiplier: float | None = None,
    prior: Any = None,
    method: str = "auto",
) -> PriorAware:
    """Guess the target from s_{t,i} = ⟨clip_C(∇ℓ(θ_t, z_i)), ḡ_t⟩ and n_{t,i} = ‖clip_C(∇ℓ(θ_t, z_i))‖.

    Both come from `clip_scores` or `dpsgd.Ensemble.run`; ḡ_t is the released gradient, minus the known rows' clipped
    gradients where the attacker subtracts them (Hayes et al. 2023, Section 3.4).

    Args:
        dots: (..., steps, candidates) real, finite; summed in float64.
        clipped_norms: likewise, in [0, C]; required by "likelihood".
        max_grad_norm: C > 0.
        sample_rate: q in (0, 1].
        noise_multiplier: σ > 0; required by "likelihood".
        prior: None (uniform), or (candidates,) or (..., candidates) probabilities that sum to one; "likelihood" only.
        method: "sum": argmax_i Σ_t s_{t,i}/C² (Algorithm 2), right for full batches. "top": the max{1, ⌊qT + ½⌋}
            largest values of each candidate (Algorithm 3), as the target is in about qT batches. "likelihood": argmax_i
            of Σ_t log(1 − q + q·exp((2s_{t,i} − n²_{t,i})/(2σ²C²))) + log p_i (Appendix G). "auto": "likelihood" with a
            prior, else "sum" if q = 1, else "top".

    Returns:
        `PriorAware`. A best score that candidates share exactly is not a guess: index −1, undecided True. A single
        candidate is always guessed. Without steps scores are zero, or log p.

    Guarantees:
        With subtraction "likelihood" is the best possible guess on average. Deterministic. ValueError or TypeError
        names an argument that does not fit.

    Example:
        >>> from leakcore import attacks
        >>> dots = [[0.9, 0.1, -0.2], [1.1, 0.3, 0.0]]  # two steps, three candidates, C = 1
        >>> guess = attacks.prior_aware(dots, max_grad_norm=1.0)
        >>> int(guess.index), guess.scores.round(1).tolist(), guess.method
        (0, [2.0, 0.4, -0.2], 'sum')
    """
    norm = validate.positive(max_grad_norm=max_grad_norm)
    rate = validate.probability(sample_rate=sample_rate)
    if rate == 0:
        raise ValueError("`sample_rate` must be in (0, 1], got 0")
    sigma = None if noise_multiplier is None else validate.non_negative(noise_multiplier=noise_multiplier)
    which = resolve(validate.one_of("auto", *METHODS, method=method), rate, prior)
    if prior is not None and which != "likelihood":
        raise ValueError(
            f"`prior` must be None with method={which!r}, which takes all candidates as equally likely; use "
            "'likelihood'"
        )
    values, _ = _steps("dots", dots)
    lengths = values
    if which == "likelihood":
        if clipped_norms is None:
            raise ValueError("`clipped_norms` is required with method='likelihood'")
        lengths, roundoff = _steps("clipped_norms", clipped_norms)
        if lengths.shape != values.shape:
            raise ValueError(f"`clipped_norms` must have the shape of `dots`, {values.shape}, got {lengths.shape}")
        most = norm * (1 + max(_CLIPPED, 4 * roundoff))
        if lengths.size and not (lengths.min() >= 0 and lengths.max() <= most):
            raise ValueError(
                f"`clipped_norms` must lie in [0, max_grad_norm={norm}], as gradients are clipped, got values in "
                f"[{lengths.min()}, {lengths.max()}]"
            )
    steps = values.shape[-2]
    shape = (*values.shape[:-2], values.shape[-1])
    weights = np.zeros(1) if prior is None else log_prior(prior, values.shape[-1])
    if weights.ndim > len(shape) or any(
        mine not in (1, whole) for mine, whole in zip(weights.shape[::-1], shape[::-1], strict=False)
    ):
        raise ValueError(
            f"`prior` must have shape ({shape[-1]},), or one that broadcasts to {shape}, got {weights.shape}"
        )
    scoring = rule(which, max_grad_norm=norm, sample_rate=rate, steps=steps, noise_multiplier=sigma)
    running = scoring.start(shape)
    for step in range(steps):
        running.add(values[..., step, :].astype(np.float64), lengths[..., step, :].astype(np.float64))
    scores = running.scores()
    if prior is not None:
        scores = scores + weights
    index, undecided = decide(scores)
    top = scoring.count if isinstance(scoring, Top) else steps
    return PriorAware(index=index, undecided=undecided, scores=scores, method=which, top=top)


def resolve(method: str, sample_rate: float, prior: Any) -> str:
    """The method that "auto" stands for."""
    auto = "likelihood" if prior is not None else "sum" if sample_rate == 1 else "top"
    return auto if method == "auto" else method


def log_prior(prior: Any, candidates: int) -> np.ndarray:
    """log of the checked prior (..., candidates); −inf where it is zero."""
    weights = validate.real_array("in [0, 1]", lambda p: (p >= 0) & (p <= 1), prior=prior)
    if weights.ndim == 0 or weights.shape[-1] != candidates:
        raise ValueError(
            f"`prior` must give one probability to each of {candidates} candidates, got shape {weights.shape}"
        )
    total = weights.sum(axis=-1)
    if (abs(total - 1) > _SUMS_TO_ONE).any():
        raise ValueError(f"`prior` must sum to 1, got {float(np.ravel(total)[np.argmax(abs(np.ravel(total) - 1))])}")
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(weights))


def _steps(name: str, array: Any) -> tuple[np.ndarray, float]:
    """(..., steps, candidates), finite, and the unit roundoff of the caller's dtype."""
    values = validate.even_array(**{name: array})
    roundoff = validate.roundoff(array) if values.dtype.kind == "f" else 0.0
    if values.dtype.kind not in "fiu":
        raise TypeError(f"`{name}` must be of a real floating or integer type, got {values.dtype}")
    if values.ndim < 2 or values.shape[-1] == 0:
        raise ValueError(
            f"`{name}` must have shape (..., steps, candidates) with at least one candidate, got {values.shape}"
        )
    if not np.isfinite(values).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise ValueError(f"`{name}{list(where)}` must be finite, got {values[where]}")
    return values, roundoff
