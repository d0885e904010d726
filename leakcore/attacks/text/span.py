"""The span of a layer's inputs, as its weights' gradient shows it, and the test whether a vector lies in it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch

NEW_DIRECTION = 2.0
"""Rounding gives directions outside the span singular values of about 0.7 unit roundoffs times the largest one."""
ROUNDING = 8.0
"""And turns the span as an error of about 8 unit roundoffs times the largest singular value would."""
CLEAR = 10.0
"""Times the noise above which every direction must lie for none to be taken as lost in it."""
FALSE_RATE = 1e-12
"""A random direction passes the test with at most this probability."""


@dataclasses.dataclass(frozen=True, eq=False)
class Span:
    """The column space of a gradient (d, n) = Σ_p x_p δ_pᵀ: of the inputs x_p, if their δ_p are independent.

    A direction counts if its singular value is above 2 unit roundoffs times the largest one, and above the largest
    singular value of noise, std·(√d + √n), 5% higher. A vector x lies in the span if its relative distance is at most
    its tolerance: error·‖S⁻¹Uᵀx‖/‖x‖, which is how far an error of 8 unit roundoffs, or of the noise, moves a vector
    of the span, and 32 unit roundoffs for the rounding of x itself. The tolerance is capped where a random direction
    would pass with probability 1e-12.

    basis: (d, k). scales: (k,) singular values. width: dimension of the space in which all inputs of the layer lie, at
    most d. error: as above. unit: the unit roundoff. cap: of the tolerance. clear: whether every direction is
    10 times above the noise, or no noise was stated: otherwise others may be hidden in it.
    """

    basis: torch.Tensor
    scales: torch.Tensor
    width: int
    error: float
    unit: float
    cap: float
    clear: bool

    @classmethod
    def of(cls, gradient: torch.Tensor, unit: float, noise_std: float, width: int) -> Span:
        """Of a float64 gradient (d, n) of a layer whose inputs lie in a space of `width` dimensions."""
        u, s, _ = torch.linalg.svd(gradient, full_matrices=False)
        rows, columns = gradient.shape
        largest = float(s[0])
        noise = 1.05 * noise_std * (math.sqrt(rows) + math.sqrt(columns))
        rounding = max(NEW_DIRECTION * unit, ROUNDING * 2.0**-53) * largest  # of the gradient; of the decomposition
        rank = int((s > max(rounding, noise)).sum())
        free = width - rank
        cap = 0.0 if free <= 0 else 1.0 if rank == 0 else math.sqrt(_false_share(free, rank))
        clear = noise == 0 or (rank > 0 and float(s[rank - 1]) > CLEAR * noise)
        return cls(u[:, :rank], s[:rank], width, max(ROUNDING * unit * largest, noise), unit, cap, clear)

    @property
    def rank(self) -> int:
        """Number of directions that count."""
        return len(self.scales)

    @property
    def full(self) -> bool:
        """Whether the span is the whole space, so that it excludes nothing."""
        return self.rank >= self.width

    def distances(self, vectors: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """(...) relative distances of (..., d) vectors, and their tolerances; 1 for zeros, which no gradient shows."""
        x = vectors.double()
        zero = x.norm(dim=-1) == 0
        length = torch.where(zero, 1.0, x.norm(dim=-1))
        inside = x @ self.basis
        away = torch.where(zero, 1.0, (x - inside @ self.basis.T).norm(dim=-1) / length)
        allowed = self.error * (inside / self.scales).norm(dim=-1) / length + 32 * self.unit
        return away.cpu().numpy(), np.minimum(allowed.cpu().numpy(), self.cap)


def _false_share(free: int, rank: int) -> float:
    """The share of a random direction's square outside the span that it falls below with probability FALSE_RATE."""
    from scipy.special import betaln
    from scipy.stats import beta

    if free == 1:  # SciPy's search fails so near to 0, where the distribution function is √x/(B/2)
        return math.exp(2.0 * (math.log(FALSE_RATE / 2) + float(betaln(0.5, rank / 2))))
    return float(beta.ppf(FALSE_RATE, free / 2, rank / 2))
