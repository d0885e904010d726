"""The bytes by which a row is recognised in a batch, whatever the batch was padded with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_MASK = "attention_mask"


class RowKeys:
    """Bytes that are equal for equal rows.

    Positions that the input named `attention_mask` masks do not count. Without one, what the candidates' collate_fn
    adds to shorter rows does not count.

    Args:
        names: of the leaves of a row.
        fills: what fills a leaf up, (value, whether at the end), or None.
    """

    def __init__(self, names: Sequence[object], fills: Sequence[tuple[float, bool] | None]) -> None:
        self._mask = next((k for k, name in enumerate(names) if name == _MASK), None)
        self._fills = fills

    def of(self, leaves: Sequence[torch.Tensor]) -> list[bytes]:
        """One key for each row of these leaves, (B, ...) each."""
        if self._mask is None and not any(self._fills):
            columns = [row_bytes(leaf) for leaf in leaves]
        elif self._mask is None:
            columns = [
                row_bytes(leaf) if fill is None else [one_row(_without(row, *fill)) for row in leaf]
                for leaf, fill in zip(leaves, self._fills, strict=True)
            ]
        else:
            mask = leaves[self._mask]
            columns = [
                row_bytes(leaf)
                if leaf.shape[:2] != mask.shape
                else [one_row(row[chosen]) for row, chosen in zip(leaf, mask != 0, strict=True)]
                for leaf in leaves
            ]
        if len(columns) == 1:
            return columns[0]
        return [b"".join(len(part).to_bytes(8, "little") + part for part in row) for row in zip(*columns, strict=True)]


def _without(row: torch.Tensor, value: float, at_end: bool) -> torch.Tensor:
    other = (row != value).flatten(1).any(1) if row.ndim > 1 else row != value
    places = other.nonzero()
    if not len(places):
        return row[:0]
    return row[: int(places[-1]) + 1] if at_end else row[int(places[0]) :]


def one_row(row: torch.Tensor) -> bytes:
    return row_bytes(row[None])[0]


def row_bytes(rows: torch.Tensor) -> list[bytes]:
    """The bytes of each row."""
    if rows.numel() == 0:
        return [b""] * len(rows)
    flat = rows.detach().cpu().resolve_neg().contiguous().reshape(len(rows), -1)
    return [row.tobytes() for row in flat.view(torch.uint8).numpy()]
