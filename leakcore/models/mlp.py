"""Multilayer perceptrons. torch is imported at the first call, not with this module."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from leakcore._base import validate

if TYPE_CHECKING:
    import torch

ACTIVATIONS = ("elu", "relu", "leaky_relu", "tanh", "sigmoid", "softplus", "gelu", "silu", "identity")
"""Names that `mlp` and `dpsgd.Ensemble` accept: modules of torch.nn with their default parameters."""


def layer_sizes(layers: Sequence[int]) -> tuple[int, ...]:
    """Layer sizes as a tuple (inputs, hidden..., outputs) of integers.

    Args:
        layers: at least two integers, each at least 1.

    Returns:
        The same sizes as plain Python integers.

    Raises:
        ValueError: if there are fewer than two sizes, or one is below 1.
        TypeError: if a size is not an integer.

    Example:
        >>> from leakcore import models
        >>> models.layer_sizes([784, 10, 10])
        (784, 10, 10)
    """
    sizes = validate.sizes(layers=layers)
    if len(sizes) < 2:
        raise ValueError(f"`layers` must be (inputs, hidden..., outputs), at least two sizes, got {sizes}")
    return sizes


def num_parameters(layers: Sequence[int]) -> int:
    """The number of weights and biases of `mlp(layers)`.

    Args:
        layers: (inputs, hidden..., outputs).

    Returns:
        Σ (inputs + 1)·outputs over the linear layers.

    Raises:
        ValueError: if there are fewer than two sizes, or one is below 1.
        TypeError: if a size is not an integer.

    Example:
        >>> from leakcore import models
        >>> models.num_parameters((64, 10, 10))  # 65·10 + 11·10
        760
    """
    sizes = layer_sizes(layers)
    return sum((fan_in + 1) * fan_out for fan_in, fan_out in itertools.pairwise(sizes))


def activation_module(activation: str) -> torch.nn.Module:
    """The torch module of a named activation, with torch's default parameters.

    Args:
        activation: one of `ACTIVATIONS`.

    Returns:
        A new `torch.nn.Module`.

    Raises:
        ValueError: for another name.

    Example:
        >>> from leakcore import models
        >>> models.activation_module("elu")
        ELU(alpha=1.0)
    """
    name = validate.one_of(*ACTIVATIONS, activation=activation)
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
    """A multilayer perceptron: linear layers with an activation between them and none after the last.

    `parameters()` come in the order W1 (out, in), b1, W2, b2, ..., the flat order of `dpsgd.Ensemble`. The initial
    values are torch's own, from torch's global generator.

    Args:
        layers: (inputs, hidden..., outputs); two sizes give a linear model.
        activation: one of `ACTIVATIONS`.

    Returns:
        A torch module that maps (rows, inputs) to (rows, outputs).

    Raises:
        ValueError: if there are fewer than two sizes, if one is below 1, or for an unknown activation.
        TypeError: if a size is not an integer.

    Example:
        >>> from leakcore import models
        >>> models.mlp((30, 64, 1), "relu")
        Sequential(
          (0): Linear(in_features=30, out_features=64, bias=True)
          (1): ReLU()
          (2): Linear(in_features=64, out_features=1, bias=True)
        )
    """
    sizes = layer_sizes(layers)
    validate.one_of(*ACTIVATIONS, activation=activation)
    import torch

    modules: list[torch.nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        modules += [torch.nn.Linear(fan_in, fan_out), activation_module(activation)]
    return torch.nn.Sequential(*modules[:-1])


def digits_mlp() -> torch.nn.Sequential:
    """The MNIST model of Hayes et al. (2023), Appendix A, with inputs of 8×8 pixels: 64–10–10, ELU.

    Returns:
        `mlp((64, 10, 10), "elu")`, for `datasets.digits`.

    Example:
        >>> from leakcore import models
        >>> sum(p.numel() for p in models.digits_mlp().parameters())
        760
    """
    return mlp((64, 10, 10), "elu")


def mnist_mlp() -> torch.nn.Sequential:
    """The two-layer perceptron of Hayes et al. (2023), Appendix A: 784–10–10, ELU.

    Returns:
        `mlp((784, 10, 10), "elu")`, for `datasets.mnist` and `datasets.fashion_mnist`.

    Example:
        >>> from leakcore import models
        >>> sum(p.numel() for p in models.mnist_mlp().parameters())
        7960
    """
    return mlp((784, 10, 10), "elu")


def breast_cancer_mlp() -> torch.nn.Sequential:
    """A binary classifier on which the label attack is tried: 30–64–1, ReLU, one logit.

    Returns:
        `mlp((30, 64, 1), "relu")`, for `datasets.breast_cancer`.

    Example:
        >>> from leakcore import models
        >>> sum(p.numel() for p in models.breast_cancer_mlp().parameters())
        2049
    """
    return mlp((30, 64, 1), "relu")
