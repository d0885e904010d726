"""What an attacker on one layer of the paper's network sees of a batch: dZ/dW, probabilities and joint norms."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from scipy import special

HIDDEN = 200
"""Neurons in each of the two hidden ReLU layers."""


@dataclasses.dataclass(frozen=True, eq=False)
class Observed:
    """A network of two hidden ReLU layers and one logit Z, on batches of N samples; float64.

    probs: (batches, N), sigmoid(Z). last: (batches, N, HIDDEN), inputs of the last layer, which are dZ/dW for it.
    before: (batches, N, HIDDEN), inputs of the second last layer; slopes: its ReLUs' derivatives, 0 or 1. top:
    (HIDDEN,), weights of the last layer. joint: (batches, N), ‖dZ/dθ‖ over all weights and biases.
    """

    probs: np.ndarray
    last: np.ndarray
    before: np.ndarray
    slopes: np.ndarray
    top: np.ndarray
    joint: np.ndarray

    def second_last(self, neurons: Sequence[int] | np.ndarray) -> np.ndarray:
        """(neurons, batches, N, HIDDEN): dZ/dW for the weights into each of these neurons of the last hidden layer.

        Yuan et al. (2022), Equation 4: W_J^L·X^{L−1}[r]·U[r].
        """
        weight = np.moveaxis(self.slopes[..., neurons] * self.top[neurons], -1, 0)
        return np.asarray(weight[..., None] * self.before)

    def grad_norms(self, labels: np.ndarray) -> np.ndarray:
        """(batches, 2, N): joint norms of each sample's gradient under its own and the flipped label."""
        e = np.abs(self.probs - labels)
        return np.stack([e * self.joint, (1.0 - e) * self.joint], axis=-2)


def observe(parameters: np.ndarray, features: np.ndarray) -> Observed:
    """Run `models.mlp((inputs, HIDDEN, HIDDEN, 1))`, from its flat parameter vector, on (batches, N, inputs)."""
    sizes = (features.shape[-1], HIDDEN, HIDDEN, 1)
    (w1, b1), (w2, b2), (w3, b3) = _layers(np.asarray(parameters, dtype=np.float64), sizes)
    x = np.asarray(features, dtype=np.float64)
    z1 = x @ w1.T + b1
    before = np.maximum(z1, 0.0)
    z2 = before @ w2.T + b2
    last = np.maximum(z2, 0.0)
    slopes = (z2 > 0).astype(np.float64)
    second = slopes * w3[0]
    first = (second @ w2) * (z1 > 0)
    # ‖dZ/dθ‖² = Σ_layers (‖a‖² + 1)·‖δ‖² (Goodfellow 2015), the 1 for the bias.
    squares = [
        (np.square(a).sum(axis=-1) + 1.0) * (1.0 if d is None else np.square(d).sum(axis=-1))
        for a, d in ((x, first), (before, second), (last, None))
    ]
    return Observed(
        probs=special.expit((last @ w3.T + b3)[..., 0]),
        last=last,
        before=before,
        slopes=slopes,
        top=w3[0],
        joint=np.sqrt(sum(squares)),
    )


def _layers(flat: np.ndarray, sizes: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    pairs = list(itertools.pairwise(sizes))
    wanted = sum((fan_in + 1) * fan_out for fan_in, fan_out in pairs)
    if flat.shape != (wanted,):
        raise ValueError(f"`parameters` must have shape ({wanted},) for layers {tuple(sizes)}, got {flat.shape}")
    out, at = [], 0
    for fan_in, fan_out in pairs:
        weight = flat[at : at + fan_in * fan_out].reshape(fan_out, fan_in)
        at += fan_in * fan_out
        out.append((weight, flat[at : at + fan_out]))
        at += fan_out
    return out
