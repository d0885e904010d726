"""Sequences from the spans of two layers' gradients (DAGER)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from leakcore._base import memory_limit, validate
from leakcore._base.results import Result, attack_guarantee
from leakcore.attacks.arguments import gradient_by_name
from leakcore.attacks.text.projections import Projections, Span
from leakcore.attacks.text.search import Passed, SecondLayer, search_bidirectional, search_causal, tokens_by_position
from leakcore.gradients import tensor

END = -1
"""Fills the rows of an array of sequences after their last token."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SequenceRecovery(Result):
    """Sequences of tokens whose layer inputs lie in the gradient's spans.

    Attributes:
        value: share of the batch's sequences that are determined.
        kind: "estimate": a true sequence passes every test, and a false one may pass too. That the gradient is of one
            batch, with nothing added but stated noise, is taken for granted.
        sequences: (S, length) int64, tokens, −1 after the end; at most as many as the batch has.
        determined: (S,) bool: all sequences together make up the second layer's span, every position of this one is
            needed for that, no more sequences pass than the batch has, and every direction is 10 times above stated
            noise. Any other sequence is a guess.
        distances: (S,) the largest relative distance of the sequence's positions from the second layer's span.
        tolerances: (S,) the tolerance at that position.
        candidates: (length,) int64, how many tokens pass the first layer's test at each position.
        ranks: ranks of the two layers' gradients: how many positions each can hold at most.
        width: dimension of the space of the layers' inputs; a gradient whose rank reaches it excludes nothing.
        causal: whether a position depends on earlier ones only, as in a decoder.
        complete: whether the search tried every sequence that the first layer allows.
    """

    quantity: str = "share of sequences determined"
    sequences: np.ndarray
    determined: np.ndarray
    distances: np.ndarray
    tolerances: np.ndarray
    candidates: np.ndarray
    ranks: tuple[int, int]
    width: int
    causal: bool
    complete: bool

    def exact(self, originals: Sequence[Any]) -> np.ndarray:
        """Which of the true sequences were recovered, token by token: the attack's success, which it cannot see.

        Args:
            originals: the true sequences, one (length,) each, without padding. A sequence that occurs k times counts
                k times.

        Returns:
            (B,) bool.
        """
        rows = {tuple(int(t) for t in row if t != END) for row in self.sequences}
        return np.array([tuple(int(t) for t in row) in rows for row in originals], dtype=bool)


_RESTARTS = 8
"""Starts of an encoder's search, per sequence of the batch."""


def sequences(
    model: nn.Module,
    gradient: Any,
    *,
    batch_size: int,
    length: int,
    layers: Sequence[Sequence[str]] | None = None,
    vocabulary: Any = None,
    noise_std: float = 0.0,
    progress: Callable[[int, int], object] | None = None,
) -> SequenceRecovery:
    """The sequences of a batch, from the attention gradients of a transformer's first two layers.

    A projection's gradient is XᵀδY: its column space holds the layer's inputs, if they are fewer than its dimensions.
    Tokens are tested in the first layer, sequences in the second (DAGER: Petrov, Dimitrov, Baader, Müller and Vechev
    2024, Sections 4.1 and 4.2).

    Args:
        model: in eval mode, called as model(tokens) with (n, L) int64; a decoder (causal) or an encoder.
        gradient: gradient of the batch's loss: (D,), a list, a dict by name that may lack other parameters, or what
            `defenses.release` returned. Clipping changes no span.
        batch_size: B.
        length: the longest sequence considered.
        layers: for each of the two layers the names of its query, key and value modules; None: by their usual names.
        vocabulary: the tokens considered; None: all of the model's embedding.
        noise_std: standard deviation of the noise in each number of the gradient; for a change of weights, of rounding.
        progress: called as progress(done, total), of positions.

    Returns:
        `SequenceRecovery`. A position on which no loss depends (a language model's last label, padding) is not part of
        a sequence. Of equal sequences one is recovered, and of a sequence that begins another one the longer.

    Raises:
        ValueError: for a value or shape that is not allowed, dropout in train mode, a gradient of zeros.

    Guarantees:
        An estimate, tested in float64; deterministic for a machine and torch build. Nothing is determined where the
        gradient's rank reaches its width.

    Example:
        >>> import torch
        >>> from leakcore.attacks import text
        >>> class Decoder(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.embedding, self.position = torch.nn.Embedding(50, 32), torch.nn.Embedding(8, 32)
        ...         layers = (torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(2))
        ...         self.layers, self.head = torch.nn.ModuleList(layers), torch.nn.Linear(32, 50)
        ...
        ...     def forward(self, tokens):
        ...         x = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1]))
        ...         for layer in self.layers:
        ...             x = layer(x, src_mask=torch.full((tokens.shape[1],) * 2, -torch.inf).triu(1))
        ...         return self.head(x)
        >>> _ = torch.manual_seed(0)
        >>> model = Decoder().eval()
        >>> tokens = torch.tensor([[7, 3, 9, 3], [4, 4, 8, 1]])
        >>> labels = torch.tensor([[3, 9, 3, 0], [4, 8, 1, 0]])  # the next ones, 0 at the end
        >>> loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
        >>> released = torch.autograd.grad(loss, model.parameters())
        >>> text.sequences(model, released, batch_size=2, length=6).sequences.tolist()
        [[4, 4, 8, 1, -1, -1], [7, 3, 9, 3, -1, -1]]
    """
    validate.callback(progress=progress)
    batch = validate.integer(1, 1 << 20, batch_size=batch_size)
    longest = validate.integer(1, 1 << 20, length=length)
    memory_limit.require(64 * longest**2, length=longest)
    std = validate.non_negative(noise_std=noise_std)
    parts, unit = gradient_by_name(model, gradient, std)
    device = next(model.parameters()).device
    projections = Projections.of(model, layers)
    known, size = _vocabulary(model, vocabulary)
    widths = projections.widths(size, longest, device, unit)
    spans = [projections.span(layer, parts, unit, std, width) for layer, width in enumerate(widths)]
    causal = projections.causal(longest, device, unit)
    notes: list[str] = []
    own: list[np.ndarray] = []
    if spans[0].full or spans[1].full:
        notes.append(
            f"the gradient's rank reaches the width {min(widths)}: as many positions as dimensions, or more, "
            "so that the span excludes nothing"
        )
    elif 0 not in (spans[0].rank, spans[1].rank):
        own = tokens_by_position(projections, spans[0], known.to(device), longest)
    if spans[1].rank < spans[0].rank:
        notes.append(
            f"the second layer's gradient has rank {spans[1].rank}, the first one's {spans[0].rank}: it does not hold "
            "every position (in a classifier's last layer one position alone is read), and sequences are missed"
        )
    second = SecondLayer(projections, spans[1], device)
    if not own:
        passed = Passed([], [], [], True)
    elif causal:
        passed = search_causal(second, own, batch, progress)
    else:
        passed = search_bidirectional(second, own, batch, _RESTARTS * batch, progress)
    several = len(passed.sequences)
    if several > batch:
        notes.append(f"{several} sequences pass the tests, more than the batch has: the nearest are named, as a guess")
        passed = passed.nearest(batch)
    elif not all(passed.needed):
        notes.append(
            "not every position of these sequences is needed to make up the second layer's span, or they do not fill "
            "it: some sequences are missing, cut short, or false"
        )
    if not all(span.clear for span in spans):
        notes.append("some directions lie near the noise: others may be hidden in it, and sequences cut short")
    notes.append(PREMISE.format(std=std))
    return _result(passed, own, spans, causal, batch, longest, notes)


PREMISE = (
    "taken for granted: the gradient is of one batch of this size at these weights, and nothing was added to it but "
    "noise of standard deviation {std:g} in each number: no decay of weights, no momentum; not pruned or quantised"
)


def _vocabulary(model: nn.Module, vocabulary: Any) -> tuple[torch.Tensor, int]:
    """(V,) int64 tokens to consider, and how many tokens the model knows."""
    sizes = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)]
    if vocabulary is None:
        if not sizes:
            raise ValueError("`vocabulary` must be given, because the model has no nn.Embedding")
        return torch.arange(sizes[0]), sizes[0]
    own = tensor(vocabulary, "vocabulary")
    if own.ndim != 1 or len(own) == 0 or own.is_floating_point() or own.dtype == torch.bool:
        raise ValueError(f"`vocabulary` must be (V,) integers, V at least 1, got shape {tuple(own.shape)}, {own.dtype}")
    if int(own.min()) < 0 or (sizes and int(own.max()) >= sizes[0]):
        raise ValueError(
            f"`vocabulary` must lie in the model's embedding, got values in [{int(own.min())}, {int(own.max())}]"
        )
    return torch.unique(own.long()), sizes[0] if sizes else int(own.max()) + 1


def _result(
    passed: Passed, tokens: list[np.ndarray], spans: list[Span], causal: bool, batch: int, length: int, notes: list[str]
) -> SequenceRecovery:
    count = len(passed.sequences)
    rows = np.full((count, length), END, dtype=np.int64)
    for row, sequence in zip(rows, passed.sequences, strict=True):
        row[: len(sequence)] = sequence
    worst = np.array(passed.worst, dtype=np.float64).reshape(count, 2)
    determined = np.array(passed.needed, dtype=bool) & all(span.clear for span in spans)
    return SequenceRecovery(
        value=float(determined.sum() / batch),
        method=f"span tests of two layers, {'prefix search' if causal else 'search of whole sequences'}",
        **attack_guarantee(f"knows the model and sees one gradient of {batch} sequence{'s' * (batch > 1)}", notes),
        provenance="Petrov, Dimitrov, Baader, Müller and Vechev (2024), Sections 4.1 and 4.2",
        sequences=rows,
        determined=determined,
        distances=worst[:, 0],
        tolerances=worst[:, 1],
        candidates=np.array([len(own) for own in tokens] + [0] * (length - len(tokens)), dtype=np.int64),
        ranks=(spans[0].rank, spans[1].rank),
        width=min(span.width for span in spans),
        causal=causal,
        complete=passed.complete,
    )
