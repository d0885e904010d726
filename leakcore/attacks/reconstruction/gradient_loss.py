"""The losses of `attacks.gradient` for an MLP, differentiable in the reconstructed point, with little memory.

A per-sample gradient of a linear layer is the outer product δ ⊗ (a, 1), so the clipped one is u ⊗ h with u = f·δ, f =
min{1, C/‖∇ℓ‖}. The loss of one layer, −⟨u ⊗ h, G⟩ + λ‖u ⊗ h − G‖₁, has derivatives Mh and Mᵀu with the single matrix M
= λ·sign(u ⊗ h − G) − G: two small products instead of a graph through every entry.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import torch

from leakcore import models


@dataclasses.dataclass(frozen=True)
class ReleasedSteps:
    """One run as the attacker sees it, in units of C: per layer, weights and observed gradients.

    weights: (steps, out, in + 1), bias last. observed: likewise, ḡ_t/C.
    """

    weights: list[torch.Tensor]
    observed: list[torch.Tensor]

    @classmethod
    def of(cls, thetas: Any, observed: Any, layers: tuple[int, ...], max_grad_norm: float) -> ReleasedSteps:
        """Read flat (steps, parameters) arrays in the order of `models.mlp(...).parameters()`."""
        flat = [torch.as_tensor(thetas), torch.as_tensor(observed) / max_grad_norm]
        return cls(*(_by_layer(values, layers) for values in flat))


def _by_layer(flat: torch.Tensor, layers: tuple[int, ...]) -> list[torch.Tensor]:
    out, start = [], 0
    for fan_in, fan_out in itertools.pairwise(layers):
        middle = start + fan_in * fan_out
        weight = flat[:, start:middle].view(-1, fan_out, fan_in)
        bias = flat[:, middle : middle + fan_out, None]
        out.append(torch.cat([weight, bias], 2).contiguous())
        start = middle + fan_out
    return out


def losses(
    points: torch.Tensor,
    targets: torch.Tensor,
    trace: ReleasedSteps,
    activation: str,
    max_grad_norm: float,
    weight: float | None,
) -> torch.Tensor:
    """(points,): Σ_t −⟨g, ḡ_t⟩ + ½‖g‖², or + weight·‖g − ḡ_t‖₁, with g = clip_C(∇ℓ(θ_t, z))/C and ḡ_t in units of C.

    points: (K, inputs), may require grad. targets: (K, outputs) one-hot, or (K, 1) of 0 and 1 for one logit.
    """
    inputs, deltas = _passes(points, targets, trace, activation)
    square = sum(((h * h).sum(-1) * (d * d).sum(-1) for h, d in zip(inputs, deltas, strict=True)), torch.zeros(()))
    # Below C nothing is clipped; the clamp keeps a zero gradient's derivative finite.
    factor = square.clamp(min=max_grad_norm**2).rsqrt()
    total = torch.zeros(len(points), dtype=points.dtype)
    if weight is None:
        total = total + 0.5 * (square * factor.square()).sum(1)
    for layer, (h, d) in enumerate(zip(inputs, deltas, strict=True)):
        observed = trace.observed[layer]
        u = d * factor[..., None]
        if layer == 0:
            # All steps have the same point as input: their units side by side form one matrix.
            u, observed = u.flatten(1).unsqueeze(1), observed.flatten(0, 1).unsqueeze(0)
        if weight:
            total = total + _LayerLoss.apply(u, h, observed, weight).sum(1)  # type: ignore[no-untyped-call]
        else:
            total = total - (u * torch.einsum("toi,kti->kto", observed, h)).sum((1, 2))
    return total


def _passes(
    points: torch.Tensor, targets: torch.Tensor, trace: ReleasedSteps, activation: str
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Each layer's inputs with a final one appended, (K, 1 or steps, in + 1), and δ, (K, steps, out)."""
    apply = models.activation_module(activation)
    inputs = [_with_one(points.unsqueeze(1))]
    pre: list[torch.Tensor] = []
    for layer, weight in enumerate(trace.weights):
        if layer > 0:
            inputs.append(_with_one(apply(pre[-1])))
        pre.append(torch.einsum("toi,kti->kto", weight, inputs[-1].expand(-1, len(weight), -1)))
    last = pre[-1].sigmoid() if pre[-1].shape[-1] == 1 else pre[-1].softmax(-1)
    deltas = [last - targets.unsqueeze(1)]
    for layer in range(len(trace.weights) - 1, 0, -1):
        below = torch.einsum("toi,kto->kti", trace.weights[layer][:, :, :-1], deltas[0])
        # Autograd computes φ′ for any activation, and it stays differentiable.
        (slope,) = torch.autograd.grad(apply(pre[layer - 1]).sum(), pre[layer - 1], create_graph=True)
        deltas.insert(0, below * slope)
    return inputs, deltas


def _with_one(values: torch.Tensor) -> torch.Tensor:
    return torch.cat([values, torch.ones_like(values[..., :1])], -1)


class _LayerLoss(torch.autograd.Function):
    """u (K, t, out), h (K, t, in), observed (t, out, in) → (K, t)."""

    @staticmethod
    def forward(ctx: Any, u: torch.Tensor, h: torch.Tensor, observed: torch.Tensor, weight: float) -> torch.Tensor:
        gap = u.unsqueeze(-1) * h.unsqueeze(-2)
        product = (u * torch.einsum("toi,kti->kto", observed, h)).sum(-1)
        gap -= observed
        value = gap.abs().sum((-1, -2)) * weight - product
        ctx.save_for_backward(u, h, gap.sign_().mul_(weight).sub_(observed))
        return value

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        u, h, slope = ctx.saved_tensors
        g = grad.unsqueeze(-1)
        to_u = torch.matmul(slope, h.unsqueeze(-1)).squeeze(-1) * g
        to_h = torch.matmul(u.unsqueeze(-2), slope).squeeze(-2) * g
        return to_u, to_h, None, None
