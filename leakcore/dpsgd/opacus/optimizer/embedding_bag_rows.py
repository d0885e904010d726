"""Rows of `nn.EmbeddingBag`, one per bag, from the indices, their weights, and the gradients of the bags."""

from __future__ import annotations

import torch
from torch import nn

from leakcore.dpsgd.opacus.optimizer.row_gradients import Dense, Picked, Pooled, Use

_MODES = {"sum": 0, "mean": 1, "max": 2}


class Bags:
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
    ) -> Bags:
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
        """The layer's output (B, d) from this table."""
        layer = self._layer
        output, _, _, largest = torch.embedding_bag(
            table,
            self._index,
            self._offsets,
            False,
            _MODES[layer.mode],
            False,
            self._weights,
            False,
            layer.padding_idx,  # None: no padding; -1 would be the last entry
        )
        if layer.mode == "max":
            self._largest = largest.detach()
        return output

    def use(self, delta: torch.Tensor) -> Use:
        """The use of the table that gives its rows, from the output's gradient (B, d)."""
        layer, rows = self._layer, len(self._offsets)
        entries = layer.num_embeddings
        if not rows:
            return Dense(delta.new_zeros((0, entries, layer.embedding_dim)))
        index, offsets = self._index.long(), self._offsets.long()
        ends = torch.cat([offsets[1:], offsets.new_full((1,), len(index))])
        bag = torch.repeat_interleave(torch.arange(rows, device=index.device), ends - offsets)
        wide = torch.promote_types(delta.dtype, torch.float32)
        counted = torch.ones(len(index), dtype=wide, device=delta.device)
        if layer.padding_idx is not None:
            counted = (index != layer.padding_idx).to(wide)
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
