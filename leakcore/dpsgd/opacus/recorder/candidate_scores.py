"""What the steps of a run gave away about candidates, summed."""

from __future__ import annotations

from typing import Any

import numpy as np

from leakcore.numerics import step_log_ratio


class CandidateScores:
    """Sums over steps for n candidates; `Trace` says what they are.

    Attributes:
        times_seen: (n,) batches with the candidate.
    """

    def __init__(self, n: int) -> None:
        self.times_seen = np.zeros(n, dtype=np.int64)
        self._clipped = np.zeros(n)
        self._membership_sum, self._membership_likelihood = np.zeros(n), np.zeros(n)
        self._pair_sum, self._pair_likelihood = np.zeros((n, n)), np.zeros((n, n))

    def add(
        self,
        products: tuple[np.ndarray, np.ndarray, np.ndarray],
        inside: np.ndarray,
        sigma: float,
        norm: float,
        rate: float | None,
    ) -> None:
        """A step with the candidates `inside` in its batch.

        Args:
            products: ⟨c_j, noise⟩ and ‖c_j‖, (n,), and ⟨c_i, c_j⟩ for i in `inside`.
            inside: their numbers.
            sigma: σ of the step.
            norm: C of the step.
            rate: q by which the likelihood is weighed, or None.
        """
        noise_dots, norms, crossed = products
        together = noise_dots + crossed.sum(axis=0)
        alone = noise_dots + crossed
        self._membership_sum += together / norm**2
        self._pair_sum += noise_dots / norm**2
        self._pair_sum[inside] += crossed / norm**2
        if sigma > 0 and rate:
            base = step_log_ratio(noise_dots, norms, sigma * norm, rate)
            self._membership_likelihood += step_log_ratio(together, norms, sigma * norm, rate)
            self._pair_likelihood += base
            self._pair_likelihood[inside] += step_log_ratio(alone, norms, sigma * norm, rate) - base
        self._clipped += norms >= norm * (1 - 1e-6)
        self.times_seen[inside] += 1

    def arrays(self, steps: int, *, likelihood: bool) -> dict[str, Any]:
        """Copies, by the names of `Trace`. Without a known likelihood it is NaN."""
        return {
            "times_seen": self.times_seen.copy(),
            "clipped_share": self._clipped / steps,
            "membership_sum": self._membership_sum.copy(),
            "pair_sum": self._pair_sum.copy(),
            "membership_likelihood": np.where(likelihood, self._membership_likelihood, np.nan),
            "pair_likelihood": np.where(likelihood, self._pair_likelihood, np.nan),
        }
