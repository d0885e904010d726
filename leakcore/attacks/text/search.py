"""The search for sequences whose every position passes the second layer's test."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from leakcore.attacks.text.projections import Projections, Span

CHUNK = 1 << 22
"""Numbers of one evaluation, about."""
EXHAUSTIVE = 4096
"""An encoder's sequences of one length are all tried where they are at most this many."""

_COMPARED = 4096
"""Positions that are compared with each other; with more, none is determined."""

CARRIED, TRIED = 16, 4096
"""Prefixes that a decoder's search carries on for each sequence, and about how many it tries at a position."""

Progress = Callable[[int, int], object]


@dataclasses.dataclass(frozen=True, eq=False)
class Passed:
    """Sequences that pass the second layer's test.

    sequences: tuples of tokens. worst: for each the distance and the tolerance where distance / tolerance is largest.
    needed: for each whether every one of its positions is needed to make up the gradient's span. complete: whether
    every sequence that the first layer allows was tried.
    """

    sequences: list[tuple[int, ...]]
    worst: list[tuple[float, float]]
    needed: list[bool]
    complete: bool

    def nearest(self, count: int) -> Passed:
        """The ones that lie nearest to the span, by distance over tolerance; none is needed for certain."""
        order = sorted(range(len(self.worst)), key=lambda i: self.worst[i][0] / max(self.worst[i][1], 1e-300))
        chosen = sorted(order[:count])
        return Passed(
            [self.sequences[i] for i in chosen], [self.worst[i] for i in chosen], [False] * count, self.complete
        )


def tokens_by_position(projections: Projections, span: Span, vocabulary: torch.Tensor, length: int) -> list[np.ndarray]:
    """For each position the tokens whose first-layer input lies in the span; it ends with the first empty position."""
    passing: list[list[np.ndarray]] = [[] for _ in range(length)]
    size = max(1, CHUNK // (length * len(span.basis)))
    for start in range(0, len(vocabulary), size):
        own = vocabulary[start : start + size]
        # The input at a position depends on its own token only: a constant sequence shows the token at each of them.
        away, allowed = span.distances(projections.inputs(own[:, None].expand(-1, length).contiguous(), 1)[0])
        for position in range(length):
            passing[position].append(own.cpu().numpy()[(away <= allowed)[:, position]])
    out = [np.concatenate(parts) for parts in passing]
    empty = next((i for i, part in enumerate(out) if len(part) == 0), length)
    return out[:empty]


class SecondLayer:
    """The second layer's test of whole sequences."""

    def __init__(self, projections: Projections, span: Span, device: torch.device) -> None:
        self._projections, self._span, self._device = projections, span, device

    def tested(self, rows: np.ndarray, last_only: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Distances and tolerances (n, L), or (n,) of the last position, of (n, L) sequences."""
        size = max(1, CHUNK // (rows.shape[1] * len(self._span.basis)))
        out = []
        for start in range(0, len(rows), size):
            tokens = torch.from_numpy(rows[start : start + size]).to(self._device)
            inputs = self._projections.inputs(tokens)[1]
            out.append(self._span.distances(inputs[:, -1] if last_only else inputs))
        away, allowed = (np.concatenate(parts) for parts in zip(*out, strict=True))
        return away, allowed

    def trimmed(self, sequence: tuple[int, ...]) -> tuple[int, ...]:
        """The sequence without last positions whose inputs equal that of an earlier position."""
        value = self._projections.inputs(torch.tensor([sequence], device=self._device))[1][0].double()
        apart = torch.cdist(value[None], value[None])[0] > 64 * self._span.unit * value.norm(dim=1)
        end = len(sequence)
        while end > 1 and not bool(apart[end - 1, : end - 1].all()):
            end -= 1
        return sequence[:end]

    def passed(self, sequences: Sequence[tuple[int, ...]]) -> Passed:
        """These sequences of any lengths, with their worst positions, and whether the span needs them."""
        worst, inputs = [], []
        for sequence in sequences:
            inputs.append(self._projections.inputs(torch.tensor([sequence], device=self._device))[1][0].double())
            away, allowed = self._span.distances(inputs[-1])
            at = int((away / np.maximum(allowed, 1e-300)).argmax())
            worst.append((float(away[at]), float(allowed[at])))
        return Passed(list(sequences), worst, self._needed(inputs), True)

    def _needed(self, inputs: list[torch.Tensor]) -> list[bool]:
        """Whether no position of a sequence is a combination of all others, where together they fill the span. A false
        position that passes lies in the span of the true ones: it is a combination, and so are these with it."""
        if not inputs:
            return []
        vectors = torch.nn.functional.normalize(torch.cat(inputs), dim=1)
        if len(vectors) > _COMPARED:
            return [False] * len(inputs)
        same = torch.cdist(vectors, vectors) <= 64 * self._span.unit  # a common beginning is one position
        first = same.int().argmax(dim=1)
        distinct, place = torch.unique(first, return_inverse=True)
        u, s, _ = torch.linalg.svd(vectors[distinct], full_matrices=False)
        rank = int((s > 64 * self._span.unit * s[0]).sum())
        leverage = u[:, :rank].square().sum(dim=1)
        alone = (leverage > 1 - 1e-6) & (rank == self._span.rank)
        parts = torch.split(alone[place], [len(part) for part in inputs])
        return [bool(part.all()) for part in parts]


def search_causal(second: SecondLayer, tokens: list[np.ndarray], batch_size: int, progress: Progress | None) -> Passed:
    """Extend prefixes while the new position passes (Petrov et al. 2024, Algorithm 1, without its beam).

    The 16 nearest prefixes for each sequence of the batch are carried on, or fewer, so that at most 4,096 sequences are
    tried at the next position; but at least one for each sequence.
    """
    prefixes = np.zeros((1, 0), dtype=np.int64)
    ended: list[tuple[int, ...]] = []
    complete = True
    for position, own in enumerate(tokens):
        following = len(tokens[position + 1]) if position + 1 < len(tokens) else 1
        most = max(batch_size, min(CARRIED * batch_size, TRIED // following))
        if progress is not None:
            progress(position, len(tokens))
        grown = np.concatenate(
            [np.repeat(prefixes, len(own), axis=0), np.tile(own, len(prefixes))[:, None]], axis=1
        ).astype(np.int64)
        away, allowed = second.tested(grown, last_only=True)
        good = away <= allowed
        if int(good.sum()) > most:
            complete = False
            good &= away <= np.sort(away[good])[most - 1]
        extended = {tuple(row[:-1]) for row in grown[good]}
        ended += [tuple(map(int, row)) for row in prefixes if position and tuple(row) not in extended]
        prefixes = grown[good]
        if len(prefixes) == 0:
            break
    ended += [tuple(map(int, row)) for row in prefixes if len(row)]
    # Without encoded positions A, A has no other inputs than A, and A, B, A, B no others than A, B, A: such an end
    # is in the span whether or not it is in the batch.
    shortened = {sequence: second.trimmed(sequence) for sequence in ended}
    beginnings = {row[:i] for row in shortened.values() for i in range(1, len(row))}
    left = {row for sequence, row in shortened.items() if row == sequence or row not in beginnings}
    passed = second.passed(sorted(left))
    return dataclasses.replace(passed, complete=complete)


def search_bidirectional(
    second: SecondLayer, tokens: list[np.ndarray], batch_size: int, restarts: int, progress: Progress | None
) -> Passed:
    """Sequences of every length that pass as wholes, the longest first. Where few combinations exist all are tried.
    Otherwise each position in turn takes the token that brings the whole sequence closest to the span, from several
    starts (a coordinate descent; the text's heuristic mixes the candidates by their first-layer distance)."""
    accepted: list[tuple[int, ...]] = []
    complete = True
    for length in range(len(tokens), 0, -1):
        if len(accepted) >= batch_size:
            break
        if progress is not None:
            progress(len(tokens) - length, len(tokens))
        own = tokens[:length]
        if math.prod(len(part) for part in own) <= EXHAUSTIVE:
            rows = np.stack(np.meshgrid(*own, indexing="ij"), axis=-1).reshape(-1, length).astype(np.int64)
            away, allowed = second.tested(rows)
            accepted += [tuple(map(int, row)) for row in rows[(away <= allowed).all(axis=1)]]
            continue
        complete = False
        for start in range(restarts):
            if len(accepted) >= batch_size:
                break
            row, good = _descend(second, _start(own, accepted, start), own)
            if good and tuple(row) not in accepted:
                accepted.append(tuple(map(int, row)))
    passed = second.passed(accepted)
    return dataclasses.replace(passed, complete=complete)


def _start(tokens: list[np.ndarray], accepted: list[tuple[int, ...]], start: int) -> np.ndarray:
    """A sequence to start from: of tokens that no accepted sequence has at their position, where there are any."""
    row = np.empty(len(tokens), dtype=np.int64)
    for i, own in enumerate(tokens):
        used = {sequence[i] for sequence in accepted if i < len(sequence)}
        left = [token for token in own if token not in used] or list(own)
        row[i] = left[(start * (2 * i + 1) + i) % len(left)]
    return row


def _descend(second: SecondLayer, row: np.ndarray, tokens: list[np.ndarray]) -> tuple[np.ndarray, bool]:
    """The sequence to which single changes of tokens lead, and whether it passes."""
    best = math.inf
    while True:
        before = best
        for position, own in enumerate(tokens):
            if len(own) == 1 and best < math.inf:
                continue
            tried = np.repeat(row[None], len(own), axis=0)
            tried[:, position] = own
            away, allowed = second.tested(tried)
            total = np.square(away).sum(axis=1)
            at = int(total.argmin())
            if total[at] < best:
                best, row = float(total[at]), tried[at]
            if (away[at] <= allowed[at]).all():
                return tried[at], True
        if best >= before * (1 - 1e-9):
            return row, False
