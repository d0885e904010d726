"""How often each token was a label, from the gradient of the output layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from leakcore._base import validate as check
from leakcore._base.results import Assumptions
from leakcore.attacks.text.result import TokenCounts


def next_tokens(
    gradient: Any, *, positions: int, layer_norm: tuple[Any, Any] | None = None, clipped: bool = False
) -> TokenCounts:  # fmt: skip
    """How often each token is a label in a batch (the bag of next words), from the output layer's gradient.

    The bias gradient of a mean cross-entropy over N positions is g_v = (Σ_i p_iv − n_v)/N, and probabilities are at
    least 0 and sum to 1. So −N·g_v ≤ n_v ≤ N − N·g_v − Σ_{u≠v} max(0, N·g_u), and n_v ≤ N − Σ_{u≠v} ⌈−N·g_u⌉₊. Where
    every p_iv is small both limits are n_v itself.

    Without a bias, a last layer norm with weight γ and bias β takes its place: its outputs h have Σ_i h_i/γ_i =
    Σ_i β_i/γ_i, so the weight gradient G has g = Gγ⁻¹/Σ_i β_i/γ_i, where that sum is not 0.

    Args:
        gradient: (V,) of the bias; with layer_norm (V, d) of the weights, not shared with the input embedding.
        positions: N, the labels that are averaged: without padding.
        layer_norm: (γ, β), each (d,), of the `nn.LayerNorm` whose outputs enter the output layer.
        clipped: whether the gradient, or each sequence's, was multiplied by an unknown factor of at most 1. The first
            of the upper limits is then left out.

    Returns:
        `TokenCounts`.

    Raises:
        ValueError: for a shape or value that is not allowed, and for a gradient that does not sum to 0 over v, as that
            of cross-entropy does; names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Limits are proved for an exact gradient, with rounding by the precision in which it was passed. Deterministic.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import text
        >>> probs, labels = np.full((3, 8), 1 / 8), [5, 2, 5]
        >>> counts = text.next_tokens((probs - np.eye(8)[labels]).mean(axis=0), positions=3)
        >>> counts.lows.tolist(), counts.value
        ([0, 0, 1, 0, 0, 2, 0, 0], 1.0)
    """
    count = check.integer(1, 1 << 40, positions=positions)
    scaled = check.boolean(clipped=clipped)
    values, unit = check.host_array(gradient=gradient)
    tolerance = 2.0 * count * (count + 8) * unit
    if layer_norm is None:
        if values.ndim != 1 or len(values) < 2:
            raise ValueError(f"`gradient` must have shape (V,), V at least 2, got {values.shape}")
        sums = count * values
    else:
        sums, factor = _through_layer_norm(count * values, layer_norm)
        tolerance *= factor
    if not (np.abs(sums) <= count + tolerance).all():
        at = int((~(np.abs(sums) <= count + tolerance)).argmax())
        raise ValueError(
            f"`gradient` must be a mean of p − y, within [-1, 1], got {sums[at] / count:.3g} for token {at}; a sum "
            "over positions is divided by their number first"
        )
    if abs(sums.sum()) > tolerance * len(sums):
        raise ValueError(
            f"`gradient` must sum to 0 over the tokens, as that of cross-entropy does, got {sums.sum() / count:.3g}"
        )
    lows = np.maximum(0, np.ceil(-sums - tolerance)).astype(np.int64)
    highs = count - (lows.sum() - lows)
    if not scaled:
        above = np.maximum(0.0, sums)
        room = count - (above.sum() - above) - sums + tolerance * len(sums)
        highs = np.minimum(highs, np.floor(room).astype(np.int64))
    if (lows > highs).any():
        at = int((lows > highs).argmax())
        raise ValueError(
            f"`positions` must be at least the number of labels, got {count}, which the gradient of token {at} excludes"
        )
    return TokenCounts(
        value=float(lows.sum() / count),
        kind="lower",
        confidence=None,
        interval=None,
        method="limits of the label counts by the output layer's " + ("bias" if layer_norm is None else "weights"),
        assumptions=Assumptions(
            adjacency=None,
            attacker="sees the gradient of the output layer and knows the number of positions",
            notes=("cross-entropy without label smoothing", *(("clipped: limits from below",) if scaled else ())),
        ),
        provenance="Wainakh et al. (2022), Section 3, with limits for every count",
        lows=lows,
        highs=highs,
        determined=lows == highs,
    )


def _through_layer_norm(sums: np.ndarray, layer_norm: Any) -> tuple[np.ndarray, float]:
    """The bias gradient behind a weight gradient (V, d), and how much larger its rounding is."""
    if not isinstance(layer_norm, tuple | list) or len(layer_norm) != 2:
        raise TypeError(f"`layer_norm` must be a pair (weight, bias), got {type(layer_norm).__name__}")
    weight, bias = (check.squarable(**{f"layer_norm[{i}]": part}) for i, part in enumerate(layer_norm))
    width = sums.shape[-1] if sums.ndim == 2 else 0
    if sums.ndim != 2 or len(sums) < 2 or weight.shape != (width,) or bias.shape != (width,):
        raise ValueError(
            f"`gradient` must have shape (V, d), V at least 2, and `layer_norm` two of (d,), got {sums.shape}, "
            f"{weight.shape} and {bias.shape}"
        )
    if not (weight != 0).all():
        raise ValueError("`layer_norm[0]` must not hold 0, got one")
    ratios = bias / weight
    total = float(ratios.sum())
    if total == 0.0:
        raise ValueError("`layer_norm[1]` must have Σ bias/weight other than 0: before training it says nothing")
    # The normalised inputs have norm √d, hence Σ_i |h_i/γ_i| ≤ d + Σ_i |β_i/γ_i|.
    with np.errstate(all="ignore"):  # whatever is not finite is refused by its size
        return sums @ (1 / weight) / total, (width + float(np.abs(ratios).sum())) / abs(total)
