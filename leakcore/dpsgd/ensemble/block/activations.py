"""Activations as pairs of in-place passes over preallocated buffers: φ(z), and g ← g·φ′(z).

Each is one pass of torch's vectorised code; torch.nn.functional would allocate, and autograd would keep a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

_aten = torch.ops.aten


class InPlaceActivation(NamedTuple):
    """forward(z, out) writes φ(z); backward(grad, z, value) multiplies grad by φ′(z) in place, with value = φ(z)."""

    forward: Callable[[torch.Tensor, torch.Tensor], object]
    backward: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]


ACTIVATIONS: dict[str, InPlaceActivation] = {
    "elu": InPlaceActivation(
        lambda z, out: _aten.elu.out(z, out=out),
        lambda grad, z, value: _aten.elu_backward.grad_input(grad, 1.0, 1.0, 1.0, True, value, grad_input=grad),
    ),
    "relu": InPlaceActivation(
        lambda z, out: torch.clamp(z, min=0, out=out),
        lambda grad, z, value: _aten.threshold_backward.grad_input(grad, value, 0.0, grad_input=grad),
    ),
    "leaky_relu": InPlaceActivation(
        lambda z, out: _aten.leaky_relu.out(z, 0.01, out=out),
        lambda grad, z, value: _aten.leaky_relu_backward.grad_input(grad, z, 0.01, False, grad_input=grad),
    ),
    "tanh": InPlaceActivation(
        lambda z, out: torch.tanh(z, out=out),
        lambda grad, z, value: _aten.tanh_backward.grad_input(grad, value, grad_input=grad),
    ),
    "sigmoid": InPlaceActivation(
        lambda z, out: torch.sigmoid(z, out=out),
        lambda grad, z, value: _aten.sigmoid_backward.grad_input(grad, value, grad_input=grad),
    ),
    "softplus": InPlaceActivation(
        lambda z, out: _aten.softplus.out(z, 1.0, 20.0, out=out),
        lambda grad, z, value: _aten.softplus_backward.grad_input(grad, z, 1.0, 20.0, grad_input=grad),
    ),
    "gelu": InPlaceActivation(
        # Not `_aten.gelu.out`: in float32 torch's oneDNN leaves a strided `out` as it was.
        lambda z, out: out.copy_(torch.nn.functional.gelu(z)),
        lambda grad, z, value: _aten.gelu_backward.grad_input(grad, z, approximate="none", grad_input=grad),
    ),
    "silu": InPlaceActivation(
        lambda z, out: _aten.silu.out(z, out=out),
        lambda grad, z, value: _aten.silu_backward.grad_input(grad, z, grad_input=grad),
    ),
    "identity": InPlaceActivation(lambda z, out: out.copy_(z), lambda grad, z, value: None),
}
