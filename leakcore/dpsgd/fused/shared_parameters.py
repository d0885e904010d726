"""Several uses of one parameter by the same samples: a layer that is called twice, weights that layers share."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from leakcore.dpsgd.fused.row_gradients import (
    Dense,
    Gathered,
    Outer,
    RowSelection,
    Use,
    blocks,
    lengths_of,
    padded,
    shorter,
    wide_type,
)


class Several:
    """Uses of different kinds by the same samples. For the norms, rows are computed a block at a time."""

    def __init__(self, uses: Sequence[Use], shape: Sequence[int]) -> None:
        self.uses, self._shape, self.rows = list(uses), tuple(shape), max(use.rows for use in uses)

    def squared_norms(self) -> torch.Tensor:
        each = (self.dense(rows) for rows in blocks(self.rows, math.prod(self._shape)))
        return torch.cat([lengths_of(some.flatten(1)).double().square() for some in each])

    def dense(self, rows: RowSelection) -> torch.Tensor:
        return functools.reduce(torch.add, (use.dense(rows) for use in self.uses))

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        return functools.reduce(torch.add, (use.weighted_sum(weights) for use in self.uses))


class Tied(Several):
    """An embedding whose table is the weight of a linear layer too, as in language models.

    ‖e + h‖² = ‖e‖² + ‖h‖² + 2⟨e, h⟩ with e = Σ_t v_t ⊗ ε_t for the words v_t and h = Σ_s δ_s ⊗ a_s, so that ⟨e, h⟩ =
    Σ_st δ_s[v_t]·⟨a_s, ε_t⟩. RowSelection of the size of the table are computed only where these terms cancel.
    """

    def __init__(self, table: Gathered, head: Outer, shape: Sequence[int]) -> None:
        super().__init__([table, head], shape)
        self._table, self._head = table, head

    def squared_norms(self) -> torch.Tensor:
        index, steps = self._table.index, self._head.a.shape[1]
        wide = wide_type(self._head.delta)
        total = self._table.squared_norms() + self._head.squared_norms()
        for rows in blocks(self.rows, 3 * steps * max(index.shape[1], 1)):
            a, delta, words = self._head.a[rows].to(wide), self._head.delta[rows], self._table.delta[rows].to(wide)
            picked = delta.gather(2, index[rows, None, :].expand(-1, steps, -1)).to(wide)
            total[rows] += 2 * (a @ words.transpose(1, 2)).mul_(picked).sum((1, 2), dtype=torch.float64)
            parts = a.norm(dim=2) * delta.norm(dim=2, dtype=wide)
            reach = (parts.sum(1).double() + words.norm(dim=2).sum(1).double()).square()
            lost = (total[rows] < 1e4 * torch.finfo(wide).eps * reach).nonzero()[:, 0] + (rows.start or 0)
            for row in lost.tolist():
                total[row] = lengths_of(self.dense(slice(row, row + 1)).flatten(1)).double().square()[0]
        return total


def together(uses: Sequence[Use], shape: Sequence[int]) -> Use:
    """One use that stands for several by the same samples; rows missing at the end are zero."""
    if len(uses) == 1:
        return uses[0]
    rows = max(use.rows for use in uses)
    outers = [use for use in uses if isinstance(use, Outer)]
    gathered = [use for use in uses if isinstance(use, Gathered)]
    dense = [use for use in uses if isinstance(use, Dense)]
    merged = [use for use in uses if not isinstance(use, Outer | Gathered | Dense)]
    if any(use.rows != rows for use in merged):
        counts = sorted({use.rows for use in uses})
        raise ValueError(f"a parameter must be used with batches of one size in a backward pass, got {counts} rows")

    def joined(several: Sequence[Use], *names: str) -> list[torch.Tensor]:
        return [torch.cat([padded(getattr(use, name), rows) for use in several], 1) for name in names]

    if outers:
        merged.append(Outer(*joined(outers, "a", "delta")))
    if gathered:
        index, delta = joined(gathered, "index", "delta")
        merged.append(Gathered(index, delta, shape[0]))
    if dense:
        total = padded(dense[0].values, rows).clone()
        for use in dense[1:]:
            total[: use.rows] += use.values
        merged.append(Dense(total))
    if len(merged) == 1:
        return shorter(merged[0]) if isinstance(merged[0], Outer) else merged[0]
    if len(merged) == 2 and isinstance(merged[0], Outer) and isinstance(merged[1], Gathered):
        return Tied(merged[1], merged[0], shape)
    return Several(merged, shape)
