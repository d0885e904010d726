"""How often each token was a label, from the gradient of the output layer."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Assumptions
from leakcore.attacks.labels.conditions import Precision, read_precision
from leakcore.attacks.stored_precision import stored_roundoff
from leakcore.attacks.text.result import TokenCounts


def next_tokens(
    gradient: Any,
    *,
    positions: int,
    update: Literal["gradient"] | None = None,
    label_smoothing: float | None = None,
    layer_norm: tuple[Any, Any] | None = None,
    tied: bool | None = None,
    clipped: bool = False,
    precision: Precision | None = None,
) -> TokenCounts:
    """How often each token is a label in a batch, from the output layer's gradient.

    The bias gradient of a mean cross-entropy over N positions is g_v = (Σ_i p_iv − n_v)/N. So −N·g_v ≤ n_v ≤ N − N·g_v
    − Σ_{u≠v} max(0, N·g_u), and n_v ≤ N − Σ_{u≠v} ⌈−N·g_u⌉₊: n_v itself where every p_iv is small. Smoothing by s puts
    (1 − s)·n_v + N·s/V in place of n_v.

    Without a bias, a last layer norm with weight γ and bias β serves: its outputs h have Σ_i h_i/γ_i =
    Σ_i β_i/γ_i, so the weight gradient G has g = Gγ⁻¹/Σ_i β_i/γ_i.

    Args:
        gradient: (V,) of the bias; with layer_norm (V, d) of the weights.
        positions: N, the labels averaged, without padding.
        update: "gradient": of a mean cross-entropy, with nothing added or pruned. None: not known.
        label_smoothing: s in [0, 1). None: not known, taken as 0.
        layer_norm: (γ, β), each (d,), of the `nn.LayerNorm` before the output layer.
        tied: with layer_norm: whether the input embedding shares the weights. None: not known.
        clipped: whether the gradient, or each sequence's, was multiplied by an unknown factor of at most 1.
        precision: of the arithmetic, where the numbers do not show it.

    Returns:
        `TokenCounts`.

    Raises:
        ValueError: for a shape or value that is not allowed; a cross-entropy's gradient sums to 0.
        TypeError: for an argument of another type.

    Guarantees:
        Kind "lower", which needs `update`, `label_smoothing` and, with layer_norm, `tied=False`, proves the limits if
        these statements are true. Deterministic.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import text
        >>> probs, labels = np.full((3, 8), 1 / 8), [5, 2, 5]
        >>> gradient = (probs - np.eye(8)[labels]).mean(axis=0)
        >>> counts = text.next_tokens(gradient, positions=3, update="gradient", label_smoothing=0.0)
        >>> counts.lows.tolist(), counts.value, counts.kind
        ([0, 0, 1, 0, 0, 2, 0, 0], 1.0, 'lower')
    """
    count = validate.integer(1, 1 << 40, positions=positions)
    scaled = validate.boolean(clipped=clipped)
    shared = validate.optional_boolean(tied=tied)
    if layer_norm is None and shared is not None:
        raise ValueError("`tied` is allowed only with layer_norm: a bias is shared with no embedding")
    stated = None if update is None else validate.one_of("gradient", update=update)
    smoothing = 0.0 if label_smoothing is None else validate.below_one(label_smoothing=label_smoothing)
    own = read_precision(precision)
    values, unit = validate.host_array(gradient=gradient)
    unit = stored_roundoff(values, unit) if own.unit_roundoff is None else max(own.unit_roundoff, 2.0**-53)
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
            f"`gradient` must sum to 0 over the tokens, as that of cross-entropy does, got {sums.sum() / count:.3g}; "
            "where it was rounded more coarsely than its numbers show, give `precision`"
        )
    share = smoothing * count / len(sums)  # of every token, in each sum
    lows = np.maximum(0, np.ceil((-sums - share - tolerance) / (1.0 - smoothing))).astype(np.int64)
    highs = count - (lows.sum() - lows)
    if not scaled:
        above = np.maximum(0.0, sums + share)
        room = (count - (above.sum() - above) - sums - share + tolerance * len(sums)) / (1.0 - smoothing)
        highs = np.minimum(highs, np.floor(room).astype(np.int64))
    if (lows > highs).any():
        at = int((lows > highs).argmax())
        raise ValueError(
            f"`positions` must be at least the number of labels, got {count}, which the gradient of token {at} "
            f"excludes at label_smoothing={smoothing:g}: give `label_smoothing` as in the loss; with weights of "
            "classes, noise or a decay of weights there are no limits"
        )
    proved = stated is not None and label_smoothing is not None and (layer_norm is None or shared is False)
    return TokenCounts(
        value=float(lows.sum() / count),
        kind="lower" if proved else "estimate",
        confidence=None,
        interval=None,
        method="limits of the label counts by the output layer's " + ("bias" if layer_norm is None else "weights"),
        assumptions=Assumptions(
            adjacency=None,
            attacker="sees the gradient of the output layer and knows the number of positions",
            notes=_notes(label_smoothing, stated, shared, layer_norm is not None, scaled, unit),
        ),
        provenance="Wainakh et al. (2022), Section 3, with limits for every count",
        lows=lows,
        highs=highs,
        determined=lows == highs,
    )


def _notes(
    smoothing: float | None, update: str | None, tied: bool | None, norm: bool, clipped: bool, unit: float
) -> tuple[str, ...]:
    notes = [
        "not stated how labels were smoothed: taken as not at all, while smoothing adds to every count "
        "(label_smoothing=)"
        if smoothing is None
        else f"stated: labels smoothed by {smoothing:g}, each of one token",
        "not stated what the array is: weights of classes, a decay of weights, momentum, noise and pruning move the "
        "limits (update=)"
        if update is None
        else "stated: the gradient of a cross-entropy averaged over this many positions with one weight, and nothing "
        "else: no weights of classes, no penalty or decay of weights, no momentum, no noise, not pruned or quantised; "
        "its logits are the layer's outputs, not scaled by more than 1",
        f"computed and rounded with an error of at most {unit:.3g} of each number (precision= states another)",
    ]
    if norm:
        notes.append(
            "not stated whether the input embedding shares the weights (tied=False states that it does not)"
            if tied is None
            else "the input embedding shares the weights, and moves the limits"
            if tied
            else "stated: the weights are used by the output layer alone"
        )
    if clipped:
        notes.append("clipped: limits from below")
    return tuple(notes)


def _through_layer_norm(sums: np.ndarray, layer_norm: Any) -> tuple[np.ndarray, float]:
    """The bias gradient behind a weight gradient (V, d), and how much larger its rounding is."""
    if not isinstance(layer_norm, tuple | list) or len(layer_norm) != 2:
        raise TypeError(f"`layer_norm` must be a pair (weight, bias), got {type(layer_norm).__name__}")
    weight, bias = (validate.squarable(**{f"layer_norm[{i}]": part}) for i, part in enumerate(layer_norm))
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
