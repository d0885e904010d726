"""Multilayer perceptrons. torch is imported at the first call, not with this module."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from leakcore._base import validate as check

if TYPE_CHECKING:
    import torch

ACTIVATIONS = ("elu", "relu", "leaky_relu", "tanh", "sigmoid", "softplus", "gelu", "silu", "identity")
"""Names that `mlp` and `dpsgd.Ensemble` accept: torch.nn's modules of those names with their default parameters."""


def layer_sizes(layers: Sequence[int]) -> tuple[int, ...]:
    """`layers` as (inputs, hidden..., outputs); ValueError unless it holds at least two positive integers."""
    sizes = check.sizes(layers=layers)
    if len(sizes) < 2:
        raise ValueError(f"layers={sizes}: must be (inputs, hidden..., outputs), at least two sizes")
    return sizes


def num_parameters(layers: Sequence[int]) -> int:
    """Weights and biases of `mlp(layers)`."""
    sizes = layer_sizes(layers)
    return sum((fan_in + 1) * fan_out for fan_in, fan_out in itertools.pairwise(sizes))


def activation_module(activation: str) -> torch.nn.Module:
    """The torch module of one of `ACTIVATIONS`, with default parameters."""
    name = check.one_of(*ACTIVATIONS, activation=activation)
    import torch

    kinds: dict[str, type[torch.nn.Module]] = {
        "elu": torch.nn.ELU,
        "relu": torch.nn.ReLU,
        "leaky_relu": torch.nn.LeakyReLU,
        "tanh": torch.nn.Tanh,
        "sigmoid": torch.nn.Sigmoid,
        "softplus": torch.nn.Softplus,
        "gelu": torch.nn.GELU,
        "silu": torch.nn.SiLU,
        "identity": torch.nn.Identity,
    }
    return kinds[name]()


def mlp(layers: Sequence[int], activation: str = "elu") -> torch.nn.Sequential:
    """Linear layers of the given sizes with `activation` between them and none after the last.

    layers: (inputs, hidden..., outputs); two sizes give a linear model. activation: one of `ACTIVATIONS`.
    `parameters()` come in the order W1 (out, in), b1, W2, b2, ...: the flat order of `dpsgd.Ensemble`. Initial values
    are torch's own, from torch's global generator. Raises ValueError or TypeError for sizes or names outside these.
    """
    sizes = layer_sizes(layers)
    check.one_of(*ACTIVATIONS, activation=activation)
    import torch

    modules: list[torch.nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        modules += [torch.nn.Linear(fan_in, fan_out), activation_module(activation)]
    return torch.nn.Sequential(*modules[:-1])


def digits_mlp() -> torch.nn.Sequential:
    """64–10–10 ELU: the reconstruction paper's MNIST model (Hayes et al. 2023, Appendix A) for 8×8 digits."""
    return mlp((64, 10, 10), "elu")


def mnist_mlp() -> torch.nn.Sequential:
    """784–10–10 ELU: the two-layer MLP of Hayes et al. 2023, Appendix A."""
    return mlp((784, 10, 10), "elu")


def breast_cancer_mlp() -> torch.nn.Sequential:
    """30–64–1 ReLU, one logit: the binary companion model of the label attack."""
    return mlp((30, 64, 1), "relu")
