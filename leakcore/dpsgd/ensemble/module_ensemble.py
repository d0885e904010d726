"""Independent DP-SGD runs of any torch module: slower than the MLPs of `Ensemble`, same mechanism, same result."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from leakcore._base import validate as check
from leakcore.dpsgd.ensemble.block.block import Plan
from leakcore.dpsgd.ensemble.ensemble import Ensemble
from leakcore.dpsgd.ensemble.result import EnsembleRun
from leakcore.gradients import lock_of, require_memory, unrest


class ModuleEnsemble(Ensemble):
    """`Ensemble` for any `torch.nn.Module`, by per-sample gradients of torch.func, one run after the other.

    Args:
        module: takes (rows, *input_shape) and returns (rows, outputs) logits; rows must not influence each other, so
            batch normalisation and active dropout are refused. It is copied. All runs start from its parameters;
            `initialisation_noise`, or `initial=` of `run`, makes them differ.
        input_shape: of one row; features of `run` are flat, (rows, prod(input_shape)).
        Everything else as in `Ensemble`, `run` included. Biases, for `Fault` and for the noise of initial parameters,
        are the parameters with fewer than two axes.

    Per-sample gradients are held for one run and a few rows at a time (32 MB in float32). Raises ValueError or
    TypeError that names the argument.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        input_shape: Sequence[int],
        *,
        noise_multiplier: float,
        max_grad_norm: float,
        learning_rate: float,
        steps: int,
        seed: int,
        **more: Any,
    ) -> None:
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"module={module!r}: must be a torch.nn.Module")
        allowed = {
            "sample_rate", "batch_size", "expected_batch_size", "initialisation_noise", "clip_slack", "fault", "dtype",
        }  # fmt: skip
        if unknown := sorted(more.keys() - allowed):
            raise TypeError(f"{unknown[0]}: is no argument of ModuleEnsemble")
        require_memory(module, "module")
        self.input_shape = check.sizes(input_shape=input_shape)
        with lock_of(module):
            self._module = copy.deepcopy(module)
        super().__init__(
            (math.prod(self.input_shape), _outputs(self._module, self.input_shape)),
            "identity",
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            learning_rate=learning_rate,
            steps=steps,
            seed=seed,
            initialisation="fixed",
            **more,
        )

    @property
    def num_parameters(self) -> int:
        """Length of a run's flat parameter vector, in the order of `module.parameters()`."""
        return sum(p.numel() for p in self._module.parameters())

    def settings(self) -> dict[str, Any]:
        """Every argument of the constructor, as plain values; the module by its class."""
        out = super().settings()
        for name in ("_module", "layers", "activation", "initialisation", "initialisation_scale"):
            del out[name]
        return {"module": type(self._module).__qualname__, **out}

    def run(self, features: Any, labels: Any, **how: Any) -> EnsembleRun:
        """As `Ensemble.run`; `initial` is the module's own parameters where it is not given."""
        if how.get("initial") is None:
            with torch.no_grad():
                flat = torch.nn.utils.parameters_to_vector(self._module.parameters())
            how["initial"] = flat.cpu().numpy().astype(self.dtype)
        found = super().run(features, labels, **how)
        return dataclasses.replace(found, template=copy.deepcopy(self._module))

    def _plan(self, num_rows: int) -> Plan:
        return dataclasses.replace(super()._plan(num_rows), module=self._module, input_shape=self.input_shape)


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
