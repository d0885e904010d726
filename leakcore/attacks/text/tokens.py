"""The set of tokens in a batch (input embedding), and how often each token was a label (output layer)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Result, attack_guarantee
from leakcore.attacks.arguments import lost_below, stored_roundoff
from leakcore.attacks.labels import Noise
from leakcore.attacks.labels.observation import Precision, read_precision


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TokenSet(Result):
    """The tokens of a batch, without their order.

    Attributes:
        value: how many different tokens are proved (kind "lower") or likely (kind "estimate") to be in the batch.
        kind: "lower" where it was stated that no other layer shares the weights, and that nothing but the batch moved
            them: a row of the gradient then differs from 0 only for a token of the batch. Else "estimate".
        present: (V,) bool, which tokens.
        sizes: (V,) float64, ℓ2 norms of the rows.
        dense: whether every row differs from 0, so that rows say nothing (the output layer shares the weights, or
            noise was added); the value is then 0.
    """

    quantity: str = "tokens in the batch"
    present: np.ndarray
    sizes: np.ndarray
    dense: bool


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TokenCounts(Result):
    """How often each token, or each class, was a label in the batch.

    Attributes:
        value: share of the positions whose label the lower limits count: Σ lows / positions.
        kind: "lower" where the limits are proved for the gradient that was stated, else "estimate".
        lows: (V,) int64, each count is at least this.
        highs: (V,) int64, and at most this.
        determined: (V,) bool, where both agree: proved as the limits are.
    """

    quantity: str = "share of labels counted"
    lows: np.ndarray
    highs: np.ndarray
    determined: np.ndarray


UPDATES = {
    "gradient": "stated: the array is the gradient of the loss over the batch, and nothing was added to it: no penalty "
    "or decay of weights, no momentum, no noise beyond what is stated; rounding and pruning leave a row of zeros alone",
    "steps": "stated: the array is the embedding's change in some steps, by an optimizer that held nothing of earlier "
    "batches and leaves alone what has no gradient (no decay of weights), and nothing was added to it but stated "
    "noise; no other forward pass renormalised rows (max_norm); the tokens belong to any of these steps",
}
"""What each word for `update` states."""


def tokens(
    embedding_gradient: Any,
    *,
    tied: bool | None = None,
    update: Literal["gradient", "steps"] | None = None,
    noise: Noise | None = None,
) -> TokenSet:
    """Which tokens a batch holds, from the gradient of the input embedding.

    Row v of the gradient is Σ over the positions of token v of the loss's gradient there: it differs from 0 only if v
    is in the batch (Melis, Song, De Cristofaro and Shmatikov 2019, Section 4.1), where the weights are used nowhere
    else and nothing but the batch moved a row. Zeros elsewhere do not show that: float16 and pruning make them too.

    Args:
        embedding_gradient: (V, d), or the embedding's change in one or several steps.
        tied: whether another layer, as the output layer, shares the weights. None: not known.
        update: "gradient": of the loss over the batch, with nothing added. "steps": a change without weight decay, by
            an optimizer without a history of other batches. None: not known.
        noise: independent Gaussian noise in each number; None: none. With noise, a row counts if its norm exceeds the
            χ quantile at 1 − (1 − confidence)/V.

    Returns:
        `TokenSet`. A token of the batch can be missing: one at `padding_idx`, or one on which no loss depends, has a
        row of zeros.

    Guarantees:
        Kind "lower", which needs `tied=False` and an `update`, proves each token if both statements are true, with
        noise all of them at its confidence. Else they are an estimate. Where every row differs from 0, or
        `tied=True`, none is named. Deterministic. ValueError or TypeError names an argument that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import text
        >>> gradient = np.zeros((6, 2))
        >>> gradient[[1, 4]] = [[0.5, -1.0], [0.0, 0.25]]
        >>> known = text.tokens(gradient, tied=False, update="gradient")
        >>> known.present.nonzero()[0].tolist(), known.kind
        ([1, 4], 'lower')
        >>> text.tokens(gradient).kind
        'estimate'
    """
    from scipy.stats import chi

    validate.instance(Noise, type(None), noise=noise)
    shared = validate.optional_boolean(tied=tied)
    stated = None if update is None else validate.one_of(*UPDATES, update=update)
    own, unit = validate.host_array(embedding_gradient=embedding_gradient)
    rows = validate.squarable(embedding_gradient=own)
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"`embedding_gradient` must have shape (V, d), at least 1 each, got {rows.shape}")
    # Rows are scaled before they are squared: even a tiny row differs from 0.
    largest = np.abs(rows).max(axis=1)
    sizes = largest * np.sqrt(np.square(rows / np.where(largest > 0, largest, 1.0)[:, None]).sum(axis=1))
    threshold, confidence = 0.0, None
    if noise is not None and noise.std > 0 and noise.confidence is not None:
        confidence = noise.confidence
        threshold = noise.std * float(chi.isf((1.0 - confidence) / len(rows), rows.shape[1]))
        # A number that was rounded after the noise may have grown.
        rough = stored_roundoff(rows, unit)
        threshold = threshold * (1.0 + 2.0 * rough) + math.sqrt(rows.shape[1]) * lost_below(rough)
    present = sizes > threshold
    dense = bool(threshold == 0.0 and len(rows) > 1 and present.all())
    named = not dense and shared is not True
    proved = named and shared is False and stated is not None
    if not named:
        present = np.zeros(len(rows), dtype=bool)
    return TokenSet(
        value=float(present.sum()),
        method="rows of the input embedding's gradient that differ from 0",
        **attack_guarantee(
            "sees the gradient of the input embedding",
            notes=_notes(shared, stated, dense, noise),
            kind="lower" if proved else "estimate",
            confidence=confidence if proved else None,
        ),
        provenance="Melis, Song, De Cristofaro and Shmatikov (2019), Section 4.1",
        present=present,
        sizes=sizes,
        dense=dense,
    )


def _notes(tied: bool | None, update: str | None, dense: bool, noise: Noise | None) -> tuple[str, ...]:
    notes = ["a token at padding_idx, or without influence on the loss, has a row of zeros and is not named"]
    if dense:
        notes.append(
            "every row differs from 0: the output layer shares the embedding's weights, or weights decayed, or noise "
            "was added; attacks.text.sequences needs no embedding gradient"
        )
    if tied is None:
        notes.append(
            "not stated whether another layer shares the embedding's weights: then rows of absent tokens differ from 0 "
            "as well, and where rounding or pruning left zeros, nothing shows it (tied=False states that none does)"
        )
    else:
        notes.append(
            "another layer shares the embedding's weights: a row says nothing about the batch, and no token is named"
            if tied
            else "stated: the embedding's weights are used by no other layer and in no other term of the loss"
        )
    notes.append(
        "not stated what the array is: a decay of weights, momentum or a penalty moves rows of absent tokens (update=)"
        if update is None
        else UPDATES[update]
    )
    if noise is not None and noise.std > 0:
        notes.append(f"stated: independent Gaussian noise of standard deviation {noise.std:g} in each number")
    return tuple(notes)


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
        precision: the arithmetic, where the numbers do not show it.

    Returns:
        `TokenCounts`.

    Raises:
        ValueError: for a shape or value that is not allowed; a cross-entropy's gradient sums to 0.

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
        method="limits of the label counts by the output layer's " + ("bias" if layer_norm is None else "weights"),
        **attack_guarantee(
            "sees the gradient of the output layer and knows the number of positions",
            notes=_count_notes(label_smoothing, stated, shared, layer_norm is not None, scaled, unit),
            kind="lower" if proved else "estimate",
        ),
        provenance="Wainakh et al. (2022), Section 3, with limits for every count",
        lows=lows,
        highs=highs,
        determined=lows == highs,
    )


def _count_notes(
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
