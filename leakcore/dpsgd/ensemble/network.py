"""What every run trains: a multilayer perceptron, or any torch module."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from leakcore import models
from leakcore._base import validate as check
from leakcore.dpsgd.ensemble.block.initial_parameters import Initialisation
from leakcore.gradients import lock_of, require_memory, unrest

_DTYPES = ("float32", "float64")


@dataclasses.dataclass(frozen=True)
class Network:
    """A multilayer perceptron.

    layers: (inputs, hidden..., outputs) as in `models.mlp`; two sizes give logistic regression. activation: one of
    `models.ACTIVATIONS`. initialisation: one of the names of `Initialisation`, or one. dtype: "float32" or "float64".
    """

    layers: Sequence[int]
    activation: str = "elu"
    initialisation: str | Initialisation = "per-run"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", models.layer_sizes(self.layers))
        check.one_of(*models.ACTIVATIONS, activation=self.activation)
        if not isinstance(self.initialisation, Initialisation):
            object.__setattr__(self, "initialisation", Initialisation(self.initialisation))
        check.one_of(*_DTYPES, dtype=self.dtype)

    @property
    def num_parameters(self) -> int:
        """Length of a run's flat parameter vector, in the order of `models.mlp(...).parameters()`."""
        return models.num_parameters(self.layers)

    def initial(self) -> np.ndarray | None:
        """Initial parameters of all runs, where they are not drawn: none."""
        return None


@dataclasses.dataclass(frozen=True, eq=False)
class ModuleNetwork:
    """Any `torch.nn.Module`: slower than `Network`, by per-sample gradients of torch.func, one run after the other.

    module: takes (rows, *input_shape) and returns (rows, outputs) logits; rows must not influence each other, so batch
        normalisation and active dropout are refused. It is copied. All runs start from its parameters;
        `initialisation_noise`, or `PerRun(initial=...)`, makes them differ. Biases, for `Fault` and for the noise of
        initial parameters, are the parameters with fewer than two axes.
    input_shape: of one row; features of `Ensemble.run` are flat, (rows, prod(input_shape)).
    initialisation_noise: s ≥ 0, as `Initialisation.noise`. dtype: "float32" or "float64".

    Per-sample gradients are held for one run and a few rows at a time (32 MB in float32). Raises ValueError or
    TypeError that names the argument.
    """

    module: torch.nn.Module
    input_shape: Sequence[int]
    initialisation_noise: float = 0.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if not isinstance(self.module, torch.nn.Module):
            raise TypeError(f"module={self.module!r}: must be a torch.nn.Module")
        check.one_of(*_DTYPES, dtype=self.dtype)
        require_memory(self.module, "module")
        object.__setattr__(self, "input_shape", check.sizes(input_shape=self.input_shape))
        noise = check.non_negative(initialisation_noise=self.initialisation_noise)
        object.__setattr__(self, "initialisation_noise", noise)
        with lock_of(self.module):
            object.__setattr__(self, "module", copy.deepcopy(self.module))
        outputs = _outputs(self.module, tuple(self.input_shape))
        object.__setattr__(self, "_layers", (math.prod(self.input_shape), outputs))

    @property
    def layers(self) -> tuple[int, int]:
        """(inputs, outputs) of a row."""
        layers: tuple[int, int] = self.__dict__["_layers"]
        return layers

    @property
    def activation(self) -> str:
        """ "identity": the module has its own."""
        return "identity"

    @property
    def initialisation(self) -> Initialisation:
        """The module's own parameters for all runs, with each run's noise."""
        return Initialisation("fixed", noise=self.initialisation_noise)

    @property
    def num_parameters(self) -> int:
        """Length of a run's flat parameter vector, in the order of `module.parameters()`."""
        return sum(p.numel() for p in self.module.parameters())

    def initial(self) -> np.ndarray:
        """The module's parameters."""
        with torch.no_grad():
            flat = torch.nn.utils.parameters_to_vector(self.module.parameters())
        out: np.ndarray = flat.cpu().numpy().astype(self.dtype)
        return out


def read_network(network: Any) -> Network | ModuleNetwork:
    """Sizes of layers stand for a `Network` of them."""
    if isinstance(network, torch.nn.Module):
        raise TypeError(f"network={type(network).__name__}: give dpsgd.ModuleNetwork(module, input_shape)")
    return network if isinstance(network, Network | ModuleNetwork) else Network(network)


def _outputs(module: torch.nn.Module, input_shape: tuple[int, ...]) -> int:
    """How many logits it gives for a row; ValueError where it cannot be trained sample by sample."""
    for part in module.modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            raise ValueError(f"module: {part} mixes the rows of a batch, whose gradients then cannot be clipped apart")
        off = isinstance(part, torch.nn.modules.dropout._DropoutNd) and part.p == 0
        if not off and (what := unrest(part)) is not None:
            raise ValueError(f"module: {part} {what}: call module.eval()")
    first = next(module.parameters(), None)
    if first is None:
        raise ValueError("module: has no parameters to train")
    frozen = [name for name, p in module.named_parameters() if not p.requires_grad]
    if frozen:
        raise ValueError(
            f"module: parameter {frozen[0]!r} does not require grad, and every parameter is trained: make it a buffer, "
            "or let it require grad"
        )
    try:
        with torch.no_grad():
            out = module(torch.zeros((2, *input_shape), dtype=first.dtype, device=first.device))
    except RuntimeError as why:
        raise ValueError(f"module: does not take rows of input_shape={input_shape} ({why})") from None
    if not isinstance(out, torch.Tensor) or out.ndim != 2 or len(out) != 2:
        shape = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
        raise ValueError(f"module: gave {shape} for two rows: must be (2, outputs) logits")
    return int(np.shape(out)[1])
