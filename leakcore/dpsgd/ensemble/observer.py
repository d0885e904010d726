"""What an attacker sees of the runs while they train, and what an ensemble computes for attacks meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, Protocol, get_args

import numpy as np

from leakcore._base import validate
from leakcore.dpsgd.ensemble.arguments import Rows

BatchesKnown = Literal["common", "all", "none"]
"""Whose batches an attacker knows: the common rows', the extra rows' as well, or nobody's."""


class Running(Protocol):
    """The running scores of one attack, for a block of runs. A `Scorer` creates it."""

    def add(self, dots: np.ndarray, clipped_norms: np.ndarray) -> None:
        """Take the scores of one step.

        Args:
            dots: (..., candidates) float64, ⟨clip_C(∇ℓ(θ_t, z_i)), ḡ_t⟩.
            clipped_norms: (..., candidates) float64, ‖clip_C(∇ℓ(θ_t, z_i))‖.
        """

    def scores(self) -> np.ndarray:
        """The scores after the last step, (..., candidates) float64."""


class Scorer(Protocol):
    """A rule that turns the scores of all steps into one score per candidate.

    It must be possible to pickle it, because runs may be trained in other processes. Memory does not grow with the
    steps.

    Example:
        >>> import numpy as np
        >>> from leakcore import dpsgd
        >>> class LastStep:  # a Running, created by itself
        ...     def start(self, shape):
        ...         return LastStep()
        ...     def add(self, dots, clipped_norms):
        ...         self.dots = dots
        ...     def scores(self):
        ...         return self.dots
        >>> rows = dpsgd.Rows(np.eye(4)[None].repeat(2, 0), [[0, 1, 0, 1]] * 2)
        >>> watcher = dpsgd.Observer(rows, scorers={"last": LastStep()})
        >>> ensemble = dpsgd.Ensemble(
        ...     (4, 2), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.1, steps=3, seed=0
        ... )
        >>> ensemble.run(np.ones((5, 4)), [0, 1, 0, 1, 0], runs=2, observer=watcher).scores["last"].shape
        (2, 4)
    """

    def start(self, shape: tuple[int, ...]) -> Running:
        """Begin the scores of a block of runs.

        Args:
            shape: the shape of the scores; the last axis is the candidates. Rows must not influence each other.

        Returns:
            A `Running` of that shape.
        """


@dataclasses.dataclass(frozen=True)
class Watch:
    """What the steps yield in addition to the final parameters.

    `keep_steps` keeps the dots and clipped norms of every step.
    """

    subtract_known: bool
    batches: BatchesKnown
    keep_steps: bool
    cosines: bool
    record: bool
    scorers: Mapping[str, Scorer]


@dataclasses.dataclass(frozen=True, eq=False)
class Observer:
    """An attacker who sees every released sum g_t (hence every θ_t) and scores the candidates.

    The result then has s_{t,i} = ⟨clip_C(∇ℓ(θ_t, z_i)), ḡ_t⟩ as `dots` and ‖clip_C(∇ℓ(θ_t, z_i))‖ as `clipped_norms`,
    with ḡ_t = g_t − Σ_{known z in B_t} clip_C(∇ℓ(θ_t, z)).

    Args:
        candidates: the rows that are scored in every step. They are not trained on, unless they are extra rows as well.
        subtract_known: the threat model of Hayes et al. (2023), Section 3.4: the attacker knows the common rows and
            which of *them* are in B_t, and subtracts their clipped gradients; ḡ_t is the rest, due to the extra rows
            and the noise, and is computed without cancellation. False: ḡ_t = g_t, the weaker attacker of their Appendix
            E.
        batches: rows whose places in batches the attacker knows. "common": the common rows. "all": the extra rows as
            well; steps without any of them score 0. "none": ḡ_t is then g_t minus the common rows' average in a batch.
        scorers: attacks by name. Each sees the scores of every step; the result's `scores` hold what they end with.
        cosines: also report how similar each candidate's gradient is to the nearest other one.
        keep_steps: False drops `dots` and `clipped_norms`, so that memory does not grow with the steps.
        record: keep θ_t and ḡ_t of every step (`thetas`, `observed`): 2·steps·parameters numbers per run.

    Raises:
        ValueError: for options that need candidates where there are none.
        TypeError: for an argument of another type, or a scorer without `start`.

    Example:
        >>> from leakcore import datasets, dpsgd
        >>> data = datasets.breast_cancer()
        >>> watcher = dpsgd.Observer(dpsgd.Rows(data.features[:2], data.labels[:2], index=[[0, 1]] * 3))
        >>> result = dpsgd.Ensemble(
        ...     (30, 1), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=1.0, steps=5, seed=0
        ... ).run(data.features[2:], data.labels[2:], runs=3, observer=watcher)
        >>> result.dots.shape, bool((result.clipped_norms <= 1.0).all())
        ((3, 5, 2), True)
    """

    candidates: Rows | None = None
    subtract_known: bool = True
    batches: BatchesKnown = "common"
    scorers: Mapping[str, Scorer] | None = None
    cosines: bool = False
    keep_steps: bool = True
    record: bool = False

    def __post_init__(self) -> None:
        if self.candidates is not None:
            validate.instance(Rows, candidates=self.candidates)
        for name in ("subtract_known", "cosines", "keep_steps", "record"):
            object.__setattr__(self, name, validate.boolean(**{name: getattr(self, name)}))
        validate.one_of(*get_args(BatchesKnown), batches=self.batches)
        if self.candidates is None and (self.cosines or self.scorers or not (self.subtract_known or self.record)):
            raise ValueError("`candidates` must be given for cosines, scorers and subtract_known, got None")
        if self.scorers is not None:
            validate.instance(Mapping, scorers=self.scorers)
            for name, scorer in self.scorers.items():
                if not callable(getattr(scorer, "start", None)):
                    raise TypeError(
                        f"`scorers[{name!r}]` must have a start(shape) method, see dpsgd.Scorer, got {scorer!r}"
                    )

    def watch(self) -> Watch:
        """The part of these options that the training loop needs."""
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(Watch)}
        return Watch(**options | {"scorers": dict(self.scorers or {})})
