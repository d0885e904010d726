"""How an ensemble carries an attack along: one step's scores at a time, so that nothing grows with the steps."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Running(Protocol):
    """One attack's running scores of a block of runs."""

    def add(self, dots: np.ndarray, norms: np.ndarray) -> None:
        """Take one step: dots (..., candidates) float64, ⟨clip_C(∇ℓ(θ_t, z_i)), ḡ_t⟩; norms likewise,
        ‖clip_C(∇ℓ(θ_t, z_i))‖."""

    def scores(self) -> np.ndarray:
        """(..., candidates) float64 after the last step."""


class Scorer(Protocol):
    """A rule that turns the steps' scores into one score per candidate. Must pickle, for runs in other processes."""

    def start(self, shape: tuple[int, ...]) -> Running:
        """Running scores of that shape, whose last axis is the candidates; rows must not influence each other."""
