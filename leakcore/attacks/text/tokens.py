"""The set of tokens, from the gradient of the input embedding."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Assumptions
from leakcore.attacks.labels import Noise
from leakcore.attacks.stored_precision import lost_below, stored_roundoff
from leakcore.attacks.text.result import TokenSet

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

    Raises:
        ValueError: for a shape or value that is not allowed; names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Kind "lower", which needs `tied=False` and an `update`, proves each token if both statements are true, with
        noise all of them at its confidence. Else they are an estimate. Where every row differs from 0, or
        `tied=True`, none is named. Deterministic.

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
        kind="lower" if proved else "estimate",
        confidence=confidence if proved else None,
        interval=None,
        method="rows of the input embedding's gradient that differ from 0",
        assumptions=Assumptions(
            adjacency=None,
            attacker="sees the gradient of the input embedding",
            notes=_notes(shared, stated, dense, noise),
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
