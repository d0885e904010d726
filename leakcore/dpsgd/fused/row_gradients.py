"""Norms and weighted sums of a parameter's per-sample gradients, which are never built.

Book-keeping, Bu, Wang, Zha and Karypis (2022, "Differentially Private Optimization on Large Model at Small Cost",
sections 3 and 4): with inputs a and output gradients δ of a layer, g_i = Σ_t δ_it ⊗ a_it, the norms follow from a and δ
alone and the clipped sum Σ_i w_i·g_i is one product of w·δ and a.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional

_BLOCK = 1 << 20
"""Elements of scratch at a time: 4 MiB of float32."""


RowSelection = slice | torch.Tensor
"""A run of rows, or their indices."""


class Use(Protocol):
    """What one use of a parameter adds to its per-sample gradients g_i, i < rows, shaped like the parameter."""

    rows: int

    def squared_norms(self) -> torch.Tensor:
        """‖g_i‖², (rows,), float64."""

    def dense(self, rows: RowSelection) -> torch.Tensor:
        """(number of these rows, *shape)"""

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """Σ_i weights_i·g_i, in the wider of the two types."""


class Dense:
    """Rows that exist: (B, *shape)."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values, self.rows = values, len(values)

    def row(self, index: int) -> torch.Tensor:
        """One row, (*shape)."""
        return self.values[index]

    def squared_norms(self) -> torch.Tensor:
        return lengths_of(self.values.flatten(1)).double().square()

    def dense(self, rows: RowSelection) -> torch.Tensor:
        return self.values[rows]

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        wide = torch.promote_types(self.values.dtype, weights.dtype)
        return (weights.to(wide) @ self.values.flatten(1).to(wide)).view(self.values.shape[1:])


class Outer:
    """g_i = Σ_t δ_it ⊗ a_it: a (B, T, d), δ (B, T, p); the weight (p, d) of a linear layer."""

    def __init__(self, a: torch.Tensor, delta: torch.Tensor) -> None:
        self.a, self.delta, self.rows = a, delta, len(a)

    def squared_norms(self) -> torch.Tensor:
        """⟨aaᵀ, δδᵀ⟩ (Bu et al. 2022, equation 3), from T×T matrices; by the definition if that loses digits."""
        if self.a.shape[1] == 1:
            return (lengths_of(self.a[:, 0]).double() * lengths_of(self.delta[:, 0]).double()).square()
        return gram_norms(self.a, self.delta)

    def dense(self, rows: RowSelection) -> torch.Tensor:
        return self.delta[rows].transpose(1, 2) @ self.a[rows].to(self.delta.dtype)

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """The narrower of the two arrays is scaled, which is copied for it."""
        few = self.a.shape[2] < self.delta.shape[2]
        scaled = ((self.a if few else self.delta) * weights[:, None, None]).flatten(0, 1)
        other = (self.delta if few else self.a).flatten(0, 1).to(scaled.dtype)
        return other.T @ scaled if few else scaled.T @ other


class Convolved:
    """The weight (p, c/groups, *kernel) of a convolution: a (B, c, *size) padded, δ (B, p, *positions)."""

    def __init__(
        self,
        a: torch.Tensor,
        delta: torch.Tensor,
        weight: torch.Tensor,
        stride: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> None:
        self.a, self.delta, self.shape = a, delta, weight.shape
        self._stride, self._dilation, self._groups = tuple(stride), tuple(dilation), groups
        self.rows, self.positions = len(a), math.prod(delta.shape[2:])
        self.inputs = math.prod(self.shape[1:])  # d, that one output sees

    def squared_norms(self) -> torch.Tensor:
        groups = self._groups
        total = torch.zeros(self.rows, dtype=torch.float64, device=self.a.device)
        for rows in blocks(self.rows, groups * self.positions * (self.inputs + 2 * self.positions)):
            a, delta = (x.flatten(0, 1).transpose(1, 2) for x in (self._patches(rows), self._grouped(rows)))
            total[rows] = gram_norms(a, delta).view(-1, groups).sum(1)
        return total

    def dense(self, rows: RowSelection) -> torch.Tensor:
        products = self._grouped(rows) @ self._patches(rows).transpose(2, 3)
        return products.reshape(-1, *self.shape)

    def all_dense(self) -> torch.Tensor:
        """`dense` of all rows, in blocks."""
        out = self.delta.new_empty((self.rows, *self.shape))
        for rows in blocks(self.rows, self._groups * self.inputs * self.positions):
            out[rows] = self.dense(rows)
        return out

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        scaled = self.delta * weights.view(-1, *[1] * (self.delta.ndim - 1))
        none, wanted, weight = [0] * len(self._stride), (False, True, False), scaled.new_empty(self.shape)
        settings = (None, self._stride, none, self._dilation, False, none, self._groups, wanted)
        total: torch.Tensor = torch.ops.aten.convolution_backward(scaled, self.a.to(scaled.dtype), weight, *settings)[1]
        return total

    def _grouped(self, rows: RowSelection) -> torch.Tensor:
        """(b, groups, p/groups, positions)"""
        delta = self.delta[rows]
        return delta.reshape(len(delta), self._groups, self.shape[0] // self._groups, self.positions)

    def _patches(self, rows: RowSelection) -> torch.Tensor:
        """(b, groups, d, positions)"""
        a = self.a[rows].to(self.delta.dtype)
        kernel, steps = self.shape[2:], a.stride()[2:]
        inner, outer = ([s * k for s, k in zip(steps, by, strict=True)] for by in (self._dilation, self._stride))
        view = a.as_strided((*a.shape[:2], *kernel, *self.delta.shape[2:]), (*a.stride()[:2], *inner, *outer))
        return view.reshape(len(a), self._groups, self.inputs, self.positions)


class Gathered:
    """The table (V, d) of an embedding: indices (B, T), δ (B, T, d)."""

    def __init__(self, index: torch.Tensor, delta: torch.Tensor, entries: int) -> None:
        self.index, self.delta, self._entries, self.rows = index, delta, entries, len(index)

    def squared_norms(self) -> torch.Tensor:
        """Entries that a sample looked up more than once are added up first."""
        sample = torch.arange(self.rows, device=self.index.device)
        keys = (sample[:, None] * self._entries + self.index).flatten()
        places, place = torch.unique(keys, return_inverse=True)
        table = _table(self.delta.flatten(0, 1).to(wide_type(self.delta)), place, len(places))
        lengths = lengths_of(table).double().square()
        return lengths.new_zeros(self.rows).index_add_(0, places // self._entries, lengths)

    def dense(self, rows: RowSelection) -> torch.Tensor:
        index, delta = self.index[rows, :, None], self.delta[rows]
        table = delta.new_zeros((len(delta), self._entries, delta.shape[2]))
        return table.scatter_add_(1, index.expand(-1, -1, delta.shape[2]), delta)

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        scaled = (self.delta * weights[:, None, None]).flatten(0, 1)
        return _table(scaled, self.index.flatten(), self._entries)


class Pooled:
    """The table (V, d) of a bag layer: g_i = Σ_w weight_w·e(index_w) ⊗ δ_i over the words w of bag i.

    index, bag and weight are (W,), δ is (B, d).
    """

    def __init__(
        self, index: torch.Tensor, bag: torch.Tensor, weight: torch.Tensor, delta: torch.Tensor, entries: int
    ) -> None:
        self._index, self._bag, self._weight, self._delta, self._entries = index, bag, weight, delta, entries
        self.rows = len(delta)

    def squared_norms(self) -> torch.Tensor:
        """‖δ_i‖²·Σ_v c_iv², where c_iv is the sum of the weights of entry v in bag i."""
        keys, place = torch.unique(self._bag * self._entries + self._index, return_inverse=True)
        weights = torch.zeros(len(keys), dtype=torch.float64, device=keys.device)
        weights.index_add_(0, place, self._weight.double())
        squares = weights.new_zeros(self.rows).index_add_(0, keys // self._entries, weights.square())
        return squares * lengths_of(self._delta).double().square()

    def dense(self, rows: RowSelection) -> torch.Tensor:
        chosen = torch.arange(self.rows, device=self._bag.device)[rows]
        position = torch.full((self.rows,), -1, device=self._bag.device)
        position[chosen] = torch.arange(len(chosen), device=self._bag.device)
        here = position[self._bag] >= 0
        index, bag = self._index[here], self._bag[here]
        table = self._delta.new_zeros((len(chosen) * self._entries, self._delta.shape[1]))
        table.index_add_(
            0, position[bag] * self._entries + index, (self._delta[bag] * self._weight[here, None]).to(table.dtype)
        )
        return table.view(len(chosen), self._entries, -1)

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        scaled = (self._delta * weights[:, None])[self._bag]
        return _table(scaled * self._weight[:, None].to(scaled.dtype), self._index, self._entries)


class Picked:
    """The table (V, d) of a bag layer that takes the maximum: g_i[index_ik, k] = δ_ik, with index and δ (B, d)."""

    def __init__(self, index: torch.Tensor, delta: torch.Tensor, entries: int) -> None:
        self._index, self._delta, self._entries, self.rows = index, delta, entries, len(delta)

    def squared_norms(self) -> torch.Tensor:
        return lengths_of(self._delta).double().square()

    def dense(self, rows: RowSelection) -> torch.Tensor:
        index, delta = self._index[rows], self._delta[rows]
        table = delta.new_zeros((len(delta), self._entries, delta.shape[1]))
        return table.scatter_(1, index[:, None], delta[:, None])

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        scaled = self._delta * weights[:, None]
        return scaled.new_zeros((self._entries, scaled.shape[1])).scatter_add_(0, self._index, scaled)


def shorter(use: Outer | Convolved) -> Use:
    """The rows themselves if they are smaller than what they are computed from; computing them is then also faster.

    It compares T(p + d) with p·d: the rule of Bu et al. (2022, section 4.2), with memory for time.
    """
    if isinstance(use, Outer):
        t, d, p = use.a.shape[1], use.a.shape[2], use.delta.shape[2]
        if t > 1 and t * (p + d) > p * d:
            return Dense(use.dense(slice(None)))
        return use
    out = use.shape[0] // use._groups
    return Dense(use.all_dense()) if use.positions * (out + use.inputs) > out * use.inputs else use


def gram_norms(a: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Σ_st ⟨a_s, a_t⟩⟨δ_s, δ_t⟩ for each row.

    The rounding error is a share of S² = (Σ_t ‖a_t‖‖δ_t‖)², and not of the result. A row whose terms cancel to less
    than 10⁴ ulp of S² is therefore computed and measured, so that no norm is wrong by more than about 1e-4 of itself.
    """
    total = torch.empty(len(a), dtype=torch.float64, device=a.device)
    wide = wide_type(delta)
    for rows in blocks(len(a), 2 * a.shape[1] ** 2):
        x, y = a[rows].to(wide), delta[rows].to(wide)
        left, right = x @ x.transpose(1, 2), y @ y.transpose(1, 2)
        reach = (left.diagonal(dim1=1, dim2=2) * right.diagonal(dim1=1, dim2=2)).sqrt().sum(1).double().square()
        squares = left.mul_(right).sum((1, 2), dtype=torch.float64)
        lost = (squares < 1e4 * torch.finfo(wide).eps * reach).nonzero()[:, 0]
        for few in torch.split(lost, max(1, _BLOCK // (a.shape[2] * delta.shape[2]))):
            squares[few] = lengths_of((y[few].transpose(1, 2) @ x[few]).flatten(1)).double().square()
        total[rows] = squares
    return total


def wide_type(values: torch.Tensor) -> torch.dtype:
    """The type in which sums of these are computed: float32 or wider."""
    return torch.promote_types(values.dtype, torch.float32)


def lengths_of(rows: torch.Tensor) -> torch.Tensor:
    """‖row‖, in `wide_type`."""
    lengths: torch.Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=wide_type(rows))
    return lengths


def _table(rows: torch.Tensor, index: torch.Tensor, entries: int) -> torch.Tensor:
    """(entries, d): rows added up by index, by an embedding's backward, many times faster than index_add on the CPU."""
    table: torch.Tensor = torch.ops.aten.embedding_dense_backward(rows.contiguous(), index, entries, -1, False)
    return table


def padded(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Rows, followed by rows of zeros, `count` in all."""
    return functional.pad(rows, [0, 0] * (rows.ndim - 1) + [0, count - len(rows)]) if len(rows) < count else rows


def blocks(rows: int, each: int) -> list[slice]:
    """Ranges of rows whose scratch is at most `_BLOCK` elements, at least one row each."""
    some = max(1, _BLOCK // max(each, 1))
    return [slice(start, start + some) for start in range(0, rows, some)]


_MODES = {"sum": 0, "mean": 1, "max": 2}


class EmbeddingBagRows:
    """One call of a bag layer: indices (W,), the bag of each (W,), and, for mode "sum", a weight of each (W,) or None.

    Every form that the layer accepts is converted to this one: (B, N) indices, offsets with or without a last one,
    nested tensors.
    """

    def __init__(
        self, layer: nn.EmbeddingBag, index: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None
    ) -> None:
        self._layer, self._index, self._offsets, self._weights = layer, index, offsets, weights
        self._largest: torch.Tensor | None = None

    @classmethod
    def of(
        cls,
        layer: nn.EmbeddingBag,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> EmbeddingBagRows:
        """Read the arguments of the layer's forward pass, with the same checks. ValueError for what it refuses."""
        weights = per_sample_weights
        if weights is not None and layer.mode != "sum":
            raise ValueError(f"`mode` must be 'sum' with per_sample_weights, got {layer.mode!r}")
        if weights is not None and weights.shape != input.shape:
            raise ValueError(
                f"`per_sample_weights` must have the input's shape, {tuple(input.shape)}, got {tuple(weights.shape)}"
            )
        if input.is_nested:
            flat = None if weights is None else weights.values().reshape(-1)
            return cls(layer, input.values().reshape(-1), input.offsets()[:-1], flat)  # type: ignore[attr-defined]
        if (input.ndim == 2) == (offsets is not None) or input.ndim not in (1, 2):
            shape = None if offsets is None else tuple(offsets.shape)
            raise ValueError(
                f"`input` must have shape (B, N) without offsets, or (W,) with offsets (B,), got {tuple(input.shape)} "
                f"and {shape}"
            )
        if offsets is None:
            rows, size = input.shape
            offsets = torch.arange(rows, dtype=input.dtype, device=input.device) * size
        elif offsets.ndim != 1:
            raise ValueError(f"`offsets` must have shape (B,), got {tuple(offsets.shape)}")
        elif layer.include_last_offset:
            if len(offsets) == 0 or int(offsets[-1]) != len(input):
                raise ValueError(f"`offsets` must end with the {len(input)} indices where include_last_offset=True")
            offsets = offsets[:-1]
        return cls(layer, input.reshape(-1), offsets, None if weights is None else weights.reshape(-1))

    @property
    def tensors(self) -> list[torch.Tensor]:
        """What must not change between the passes."""
        return [self._index, self._offsets, *([] if self._weights is None else [self._weights])]

    def looked_up(self, table: torch.Tensor) -> torch.Tensor:
        """The layer's output (B, d) from this table. A `padding_idx` of None means no padding, -1 the last entry."""
        layer = self._layer
        rows, how = (table, self._index, self._offsets, False), (_MODES[layer.mode], False, self._weights, False)
        output, _, _, largest = torch.embedding_bag(*rows, *how, layer.padding_idx)
        if layer.mode == "max":
            self._largest = largest.detach()
        return output

    def use(self, delta: torch.Tensor) -> Use:
        """The use of the table that gives its rows, from the output's gradient (B, d)."""
        layer, rows, entries = self._layer, len(self._offsets), self._layer.num_embeddings
        if not rows:
            return Dense(delta.new_zeros((0, entries, layer.embedding_dim)))
        index, offsets = self._index.long(), self._offsets.long()
        ends = torch.cat([offsets[1:], offsets.new_full((1,), len(index))])
        bag = torch.repeat_interleave(torch.arange(rows, device=index.device), ends - offsets)
        wide = wide_type(delta)
        counted = (torch.ones_like(index) if layer.padding_idx is None else index != layer.padding_idx).to(wide)
        sizes = delta.new_zeros(rows, dtype=torch.float64).index_add_(0, bag, counted.double())
        if layer.mode == "max":
            assert self._largest is not None
            filled = (sizes > 0)[:, None]
            return Picked(self._largest.long().clamp(min=0), torch.where(filled, delta, 0), entries)
        if layer.mode == "mean":
            counted = (counted / sizes.clamp(min=1)[bag]).to(wide)
        elif self._weights is not None:
            counted = counted * self._weights.detach().to(wide)
        return Pooled(index, bag, counted, delta, entries)
