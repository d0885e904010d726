"""Gradients of all rows from one forward and one backward pass: from each layer's input and output gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from leakcore.dpsgd.fused.layer_kinds import Kind, kind_of
from leakcore.dpsgd.fused.row_gradients import Convolved, Dense, Outer, Use, blocks
from leakcore.dpsgd.opacus.row_check.left_alone import Randomness
from leakcore.gradients import Criterion, Feed


class UnknownLayerError(Exception):
    """The rows' gradients cannot be had from the layers' inputs; the text says why."""


class RowsByLayer:
    """Per-sample gradients of a module whose parameters all belong to layers of known types.

    With a layer's inputs a and the gradients δ of its outputs, g_i = Σ_t δ_it ⊗ a_it (Bu et al. 2022, section 3). One
    pass over all rows gives both, where vmap makes a convolution of its own for each row. That the module treats each
    row on its own is not checked here: the caller compares.

    Args:
        module: without hooks of Opacus.
        criterion: of one row, summed.
        parameters: whose gradients are wanted, in order.

    Raises:
        UnknownLayerError: if a parameter belongs to a layer of an unknown type.
    """

    def __init__(self, module: nn.Module, criterion: Criterion, parameters: Sequence[torch.Tensor]) -> None:
        self._module, self._criterion = module, criterion
        self._places: dict[int, tuple[int, int]] = {}
        self._columns = 0
        for p in parameters:
            self._places[id(p)] = (self._columns, self._columns + p.numel())
            self._columns += p.numel()
        self._layers: list[tuple[nn.Module, Kind]] = []
        covered: set[int] = set()
        for layer in module.modules():
            own = {id(p) for p in layer.parameters(recurse=False)} & self._places.keys()
            if not own:
                continue
            kind = kind_of(layer)
            if kind is None or not kind.suits(layer) or type(layer) is nn.EmbeddingBag:  # which `record` refuses
                raise UnknownLayerError(f"{type(layer).__name__} is not a layer of a known type")
            self._layers.append((layer, kind))
            covered |= own
        if covered != self._places.keys():
            raise UnknownLayerError("a parameter belongs to no layer")

    def gradients(self, leaves: list[torch.Tensor], feed: Feed) -> torch.Tensor:
        """(rows, D), parameters in order, at the module's present values.

        Raises:
            UnknownLayerError: if the model draws random numbers, or an output or a layer does not have the rows first.
        """
        uses, like = self._uses(leaves, feed), next(iter(self._module.parameters()))
        rows = torch.zeros(len(leaves[0]), self._columns, dtype=like.dtype, device=like.device)
        with torch.no_grad():
            for place, several in uses.items():
                rows[:, slice(*place)] = _summed(several).flatten(1)
        return rows

    def products(
        self, leaves: list[torch.Tensor], feed: Feed, noise: torch.Tensor, inside: np.ndarray, norm: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """⟨c_j, noise⟩ and ‖c_j‖, (rows,), and ⟨c_i, c_j⟩ for i in `inside`, of rows c_j clipped to `norm`; float64.

        No row's gradient is built as a whole.

        Raises:
            UnknownLayerError: as `gradients`.
        """
        uses, count = self._uses(leaves, feed), len(leaves[0])
        some = torch.from_numpy(inside).to(noise.device)
        with torch.no_grad():
            squares = torch.zeros(count, dtype=torch.float64, device=noise.device)
            dots = torch.zeros(count, 1 + len(some), dtype=torch.float64, device=noise.device)
            for place, several in uses.items():
                use = several[0]
                if len(several) > 1 or isinstance(use, Convolved):  # whose patches are then read once
                    use = Dense(_summed(several))
                squares += use.squared_norms()
                own = use.dense(some).flatten(1)
                targets = torch.cat([noise[None, slice(*place)].to(own.dtype), own])
                dots += _dots(use, targets).double()
            factors = norm / squares.sqrt().clamp(min=norm)
            dots *= factors[:, None]
            dots[:, 1:] *= factors[some]
            norms = squares.sqrt() * factors
        numbers = dots.T.cpu().numpy()
        return numbers[0].copy(), norms.cpu().numpy(), numbers[1:].copy()

    def _uses(self, leaves: list[torch.Tensor], feed: Feed) -> dict[tuple[int, int], list[Use]]:
        """By the columns of a parameter, what its rows are computed from, once for each use of it."""
        count = len(leaves[0])
        calls: list[tuple[nn.Module, Kind, Any, Any]] = []

        def heard(kind: Kind) -> Callable[..., None]:
            def hook(layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
                if not isinstance(output, torch.Tensor):
                    raise UnknownLayerError(f"{type(layer).__name__} returns {type(output).__name__}")
                if output.requires_grad:
                    # What follows may change the output in place: its edge in the graph stays that of this layer.
                    edge = torch.autograd.graph.get_gradient_edge(output)
                    calls.append((layer, kind, kind.read(layer, *args, **kwargs), edge))

            return hook

        handles = [layer.register_forward_hook(heard(kind), with_kwargs=True) for layer, kind in self._layers]
        before = Randomness.now()
        try:
            with torch.enable_grad():
                args, kwargs, _ = feed([leaf.clone() for leaf in leaves])
                outputs = self._module(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
        if before != Randomness.now():
            raise UnknownLayerError("the model draws random numbers")
        through, arriving = self._arriving(outputs, leaves, feed, count)
        deltas = torch.autograd.grad(through, [edge for *_, edge in calls], arriving, allow_unused=True)
        uses: dict[tuple[int, int], list[Use]] = {}
        with torch.no_grad():
            for (layer, kind, a, _), delta in zip(calls, deltas, strict=True):
                for name, use in () if delta is None else _uses_of(layer, kind, a, delta, count):
                    place = self._places.get(id(getattr(layer, name, None)))
                    if place is not None:
                        uses.setdefault(place, []).append(use)
        return uses

    def _arriving(
        self, outputs: Any, leaves: list[torch.Tensor], feed: Feed, count: int
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The outputs that carry a gradient, and each row's gradient of its own criterion at them."""
        parts, form = tree_flatten(outputs)
        through = [k for k, part in enumerate(parts) if isinstance(part, torch.Tensor) and part.requires_grad]
        if not through or any(parts[k].ndim == 0 or len(parts[k]) != count for k in through):
            raise UnknownLayerError("an output is not one value for each row")

        def loss(row: list[torch.Tensor], leaf_rows: list[torch.Tensor]) -> torch.Tensor:
            some = dict(zip(through, row, strict=True))
            whole = [some[k][None] if k in some else part for k, part in enumerate(parts)]
            return self._criterion(tree_unflatten(whole, form), feed([leaf[None] for leaf in leaf_rows])[2]).sum()

        cut = [parts[k].detach() for k in through]
        arriving = torch.func.vmap(torch.func.grad(loss))(cut, leaves)
        return [parts[k] for k in through], list(arriving)


def _uses_of(layer: nn.Module, kind: Kind, a: Any, delta: torch.Tensor, count: int) -> list[tuple[str, Use]]:
    """What the rows of the layer's parameters are computed from, by their names."""
    second = kind.second(layer)
    if isinstance(a, torch.Tensor) and len(a) != count and second is not None and a.ndim >= second:
        a, delta = a.transpose(0, 1), delta.transpose(0, 1)
    uses = kind.uses(layer, a, delta)
    if any(use.rows != count for _, use in uses):
        raise UnknownLayerError(f"the rows are not a dimension of {type(layer).__name__}'s input")
    return uses


def _summed(several: list[Use]) -> torch.Tensor:
    total, *others = (use.all_dense() if isinstance(use, Convolved) else use.dense(slice(None)) for use in several)
    for other in others:
        total = total + other
    return total


def _dots(use: Use, targets: torch.Tensor) -> torch.Tensor:
    """⟨g_i, target_k⟩, (rows, k), of targets (k, numbers of the parameter)."""
    if isinstance(use, Outer):  # ⟨Σ_t δ_t ⊗ a_t, R⟩ = Σ_t ⟨δ_t, R a_t⟩
        d, p = use.a.shape[2], use.delta.shape[2]
        out = use.delta.new_empty((use.rows, len(targets)))
        for rows in blocks(use.rows, use.a.shape[1] * p * len(targets)):
            reached = use.a[rows].to(targets.dtype) @ targets.reshape(-1, d).T
            out[rows] = (reached.view(*reached.shape[:2], len(targets), p) * use.delta[rows][:, :, None]).sum((1, 3))
        return out
    if isinstance(use, Dense):
        return use.values.flatten(1).to(targets.dtype) @ targets.T
    out = targets.new_empty((use.rows, len(targets)))
    for rows in blocks(use.rows, targets.shape[1]):
        out[rows] = use.dense(rows).flatten(1).to(targets.dtype) @ targets.T
    return out
