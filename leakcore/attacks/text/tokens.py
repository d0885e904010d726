"""The set of tokens, from the gradient of the input embedding."""

from __future__ import annotations

from typing import Any

import numpy as np

from leakcore._base import validate as check
from leakcore._base.results import Assumptions
from leakcore.attacks.labels import Noise
from leakcore.attacks.text.result import TokenSet


def tokens(embedding_gradient: Any, *, noise: Noise | None = None) -> TokenSet:
    """Which tokens a batch holds, from the gradient of the input embedding.

    Row v of the gradient is Σ over the positions of token v of the loss's gradient there: it differs from 0 only if v
    is in the batch (Melis, Song, De Cristofaro and Shmatikov 2019, Section 4.1).

    Args:
        embedding_gradient: (V, d), or the embedding's change in one or several steps without weight decay: then the
            tokens of all steps.
        noise: independent Gaussian noise in each number; None: none. With noise, a row counts if its norm exceeds the
            χ quantile at 1 − (1 − confidence)/V.

    Returns:
        `TokenSet`. A token of the batch can be missing: one at `padding_idx`, or one on which no loss depends, has a
        row of zeros.

    Raises:
        ValueError: for a shape or value that is not allowed; names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Kind "lower" proves each token that is present, with noise all of them at the noise's confidence. Where every
        row differs from 0 (the output layer shares the weights, weight decay, noise that was not stated), nothing is
        proved and none is named. Deterministic.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import text
        >>> gradient = np.zeros((6, 2))
        >>> gradient[[1, 4]] = [[0.5, -1.0], [0.0, 0.25]]
        >>> text.tokens(gradient).present.nonzero()[0].tolist()
        [1, 4]
    """
    from scipy.stats import chi

    check.instance(Noise, type(None), noise=noise)
    rows = check.squarable(embedding_gradient=embedding_gradient)
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(f"`embedding_gradient` must have shape (V, d), at least 1 each, got {rows.shape}")
    # Rows are scaled before they are squared: even a tiny row differs from 0.
    largest = np.abs(rows).max(axis=1)
    sizes = largest * np.sqrt(np.square(rows / np.where(largest > 0, largest, 1.0)[:, None]).sum(axis=1))
    notes = ["a token at padding_idx, or without influence on the loss, has a row of zeros and is not named"]
    threshold, confidence = 0.0, None
    if noise is not None and noise.std > 0 and noise.confidence is not None:
        confidence = noise.confidence
        threshold = noise.std * float(chi.isf((1.0 - confidence) / len(rows), rows.shape[1]))
    present = sizes > threshold
    dense = bool(threshold == 0.0 and len(rows) > 1 and present.all())
    if dense:
        present = np.zeros(len(rows), dtype=bool)
        notes.append(
            "every row differs from 0: the output layer shares the embedding's weights, or weights decayed, or noise "
            "was added; attacks.text.sequences needs no embedding gradient"
        )
    return TokenSet(
        value=float(present.sum()),
        kind="estimate" if dense else "lower",
        confidence=None if dense else confidence,
        interval=None,
        method="rows of the input embedding's gradient that differ from 0",
        assumptions=Assumptions(
            adjacency=None, attacker="sees the gradient of the input embedding", notes=tuple(notes)
        ),
        provenance="Melis, Song, De Cristofaro and Shmatikov (2019), Section 4.1",
        present=present,
        sizes=sizes,
        dense=dense,
    )
