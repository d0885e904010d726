"""What every run trains, and from where: a multilayer perceptron or any torch module, and its initial parameters."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from leakcore import models
from leakcore._base import validate
from leakcore.dpsgd.ensemble.passes import FlatLayout, ParameterLayout
from leakcore.dpsgd.ensemble.sampling import Streams
from leakcore.gradients import lock_of, require_memory, unrest
from leakcore.kernels import Stream

NAMES = ("per-run", "fixed", "glorot", "fixed-glorot")
"""torch.nn.Linear's uniform or Glorot's normal; each run draws its own or, if "fixed", all have that of run 0."""


@dataclasses.dataclass(frozen=True)
class Initialisation:
    """Initial parameters θ₀ = scale·base + noise·(Glorot normal).

    Jagielski, Ullman and Oprea (2020), Table 2, use "fixed-glorot", and "glorot" with scale 0.5, 1 and 2.

    Args:
        name: distribution of the base. "per-run" and "fixed" are torch.nn.Linear's default, uniform in ±1/√fan_in for
            weights and biases; "glorot" and "fixed-glorot" have weights N(0, 2/(fan_in + fan_out)) and biases 0 (Glorot
            and Bengio 2010). With the "fixed" names all runs have the base of run 0, otherwise each run draws its own.
        scale: factor of the base, at least 0.
        noise: factor, at least 0, of a Glorot normal that each run draws for its weights. It is also added to
            ready-made parameters (`PerRun.initial`).

    Raises:
        ValueError: for another name, or a negative number.

    Example:
        >>> from leakcore import dpsgd
        >>> network = dpsgd.Network((30, 1), initialisation=dpsgd.Initialisation("glorot", scale=0.5))
        >>> network.initialisation.scale
        0.5
    """

    name: str = "per-run"
    scale: float = 1.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        validate.one_of(*NAMES, initialisation=self.name)
        object.__setattr__(self, "scale", validate.non_negative(scale=self.scale))
        object.__setattr__(self, "noise", validate.non_negative(noise=self.noise))

    def base(self, streams: Streams, layout: ParameterLayout, runs: int, *, first_run: int) -> np.ndarray:
        """(runs, parameters) float64."""
        fixed = self.name.startswith("fixed")
        count, first = (1, 0) if fixed else (runs, first_run)
        if self.name.endswith("glorot"):
            drawn = streams.initial_normal(count, layout.size, Stream.INIT_GLOROT, first_run=first) * layout.glorot()
        else:
            drawn = (2 * streams.initial(count, layout.size, first_run=first) - 1) * layout.bounds()
        scaled = drawn if self.scale == 1 else self.scale * drawn
        return np.repeat(scaled, runs, axis=0) if fixed else np.asarray(scaled)

    def around(
        self, streams: Streams, layout: ParameterLayout | FlatLayout, base: np.ndarray, *, first_run: int
    ) -> np.ndarray:
        """`base` (runs, parameters) with each run's own noise added."""
        if self.noise == 0:
            return base
        draws = streams.initial_normal(len(base), layout.size, Stream.INIT_NOISE, first_run=first_run)
        return np.asarray(base + self.noise * layout.glorot() * draws)


_DTYPES = ("float32", "float64")


@dataclasses.dataclass(frozen=True)
class Network:
    """A multilayer perceptron for an ensemble.

    Args:
        layers: (inputs, hidden..., outputs) as in `models.mlp`; two sizes give logistic regression.
        activation: one of `models.ACTIVATIONS`.
        initialisation: an `Initialisation`, or one of its names.
        dtype: "float32" or "float64".

    Raises:
        ValueError: for an unknown name, fewer than two sizes, or a size below 1.
        TypeError: for a size that is not an integer.

    Example:
        >>> from leakcore import dpsgd
        >>> dpsgd.Network((30, 64, 1), "relu", dtype="float64").num_parameters
        2049
    """

    layers: Sequence[int]
    activation: str = "elu"
    initialisation: str | Initialisation = "per-run"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", models.layer_sizes(self.layers))
        validate.one_of(*models.ACTIVATIONS, activation=self.activation)
        if not isinstance(self.initialisation, Initialisation):
            object.__setattr__(self, "initialisation", Initialisation(self.initialisation))
        validate.one_of(*_DTYPES, dtype=self.dtype)

    @property
    def num_parameters(self) -> int:
        """Length of a run's flat parameter vector, in the order of `models.mlp(...).parameters()`."""
        return models.num_parameters(self.layers)

    def initial(self) -> np.ndarray | None:
        """None: the initial parameters of a `Network` are drawn, not prescribed."""
        return None


@dataclasses.dataclass(frozen=True, eq=False)
class ModuleNetwork:
    """Any torch module for an ensemble.

    It is slower than `Network`: per-sample gradients come from `torch.func`, one run after the other, in parts of 32 MB
    (float32). Biases, for `Fault` and for the noise of initial parameters, are the parameters with fewer than two axes.

    Args:
        module: maps (rows, *input_shape) to (rows, outputs) logits. Rows must not influence each other, so batch
            normalisation and active dropout are refused. The module is copied. All runs start from its parameters,
            unless `initialisation_noise` or `PerRun(initial=...)` makes them differ.
        input_shape: shape of one row. The features of `Ensemble.run` are flat, (rows, prod(input_shape)).
        initialisation_noise: s, at least 0, as `Initialisation.noise`.
        dtype: "float32" or "float64".

    Raises:
        ValueError: for a module that mixes rows, has nothing to train, has frozen parameters, or does not give (rows,
            outputs) for rows of `input_shape`.
        TypeError: if `module` is not a torch module.

    Example:
        >>> from leakcore import dpsgd, models
        >>> network = dpsgd.ModuleNetwork(models.lenet(10, shape=(1, 28, 28)), (1, 28, 28))
        >>> network.layers
        (784, 10)
    """

    module: torch.nn.Module
    input_shape: Sequence[int]
    initialisation_noise: float = 0.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if not isinstance(self.module, torch.nn.Module):
            raise TypeError(f"`module` must be a torch.nn.Module, got {self.module!r}")
        validate.one_of(*_DTYPES, dtype=self.dtype)
        require_memory(self.module, "module")
        object.__setattr__(self, "input_shape", validate.sizes(input_shape=self.input_shape))
        noise = validate.non_negative(initialisation_noise=self.initialisation_noise)
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
        """Always "identity", because the module has its own activations."""
        return "identity"

    @property
    def initialisation(self) -> Initialisation:
        """All runs start from the module's own parameters, plus noise of their own."""
        return Initialisation("fixed", noise=self.initialisation_noise)

    @property
    def num_parameters(self) -> int:
        """Length of a run's flat parameter vector, in the order of `module.parameters()`."""
        return sum(p.numel() for p in self.module.parameters())

    def initial(self) -> np.ndarray:
        """The module's parameters, flat, in the ensemble's dtype."""
        with torch.no_grad():
            flat = torch.nn.utils.parameters_to_vector(self.module.parameters())
        out: np.ndarray = flat.cpu().numpy().astype(self.dtype)
        return out


def read_network(network: Any) -> Network | ModuleNetwork:
    """The network; a sequence of layer sizes stands for a `Network` of them."""
    if isinstance(network, torch.nn.Module):
        raise TypeError(
            f"`network` must be sizes of layers or a dpsgd.ModuleNetwork(module, input_shape), got "
            f"{type(network).__name__}"
        )
    return network if isinstance(network, Network | ModuleNetwork) else Network(network)


def _outputs(module: torch.nn.Module, input_shape: tuple[int, ...]) -> int:
    """The number of logits for a row; ValueError if the module cannot be trained sample by sample."""
    for part in module.modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                f"`module` must compute each row by itself, but {part} mixes the rows of a batch, whose gradients then "
                "cannot be clipped one by one"
            )
        off = isinstance(part, torch.nn.modules.dropout._DropoutNd) and part.p == 0
        if not off and (what := unrest(part)) is not None:
            raise ValueError(f"module: {part} {what}: call module.eval()")
    first = next(module.parameters(), None)
    if first is None:
        raise ValueError("`module` must have parameters to train")
    frozen = [name for name, p in module.named_parameters() if not p.requires_grad]
    if frozen:
        raise ValueError(
            f"`module` must have parameters that require grad, for all are trained, but {frozen[0]!r} does not: make "
            "it a buffer, or let it require grad"
        )
    try:
        with torch.no_grad():
            out = module(torch.zeros((2, *input_shape), dtype=first.dtype, device=first.device))
    except RuntimeError as why:
        raise ValueError(f"`module` must take rows of input_shape={input_shape} ({why})") from None
    if not isinstance(out, torch.Tensor) or out.ndim != 2 or len(out) != 2:
        shape = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
        raise ValueError(f"`module` must return (2, outputs) logits for two rows, got {shape}")
    return int(np.shape(out)[1])
