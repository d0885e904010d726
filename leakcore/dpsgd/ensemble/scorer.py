"""The interface of an attack that an ensemble runs during training, step by step, in constant memory."""

from __future__ import annotations

from typing import Protocol

import numpy as np


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
            shape: of the scores; the last axis is the candidates. Rows must not influence each other.

        Returns:
            A `Running` of that shape.
        """
