"""For trainings in JAX: what a recorder computes, as a function that runs under `jit`."""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.jax.scores import CandidateScores as CandidateScores
    from leakcore.jax.scores import scores as scores

_NAMES = {"CandidateScores": ".scores", "scores": ".scores"}
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES)
