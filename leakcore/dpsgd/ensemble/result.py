"""What an ensemble hands back: final parameters of every run, and the attacker's scores where candidates were given."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from leakcore import models
from leakcore._base import validate as check

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class EnsembleRun:
    """Finished runs first_run, first_run + 1, ...; row i of every array is run first_run + i.

    layers, activation: the architecture; of a `ModuleNetwork` (inputs, outputs), and `template` is the module.
    max_grad_norm: C.
    parameters: (runs, parameters), flat in the order of `models.mlp(...).parameters()`; (runs, 0) where they were not
        kept.
    dots: (runs, steps, candidates), ⟨clip_C(∇ℓ(θ_t, z_i)), ḡ_t⟩; None without candidates or with keep_steps=False.
    norms: (runs, steps, candidates), ‖clip_C(∇ℓ(θ_t, z_i))‖; exactly C where clipped.
    cosine: (runs,) float64, cosine between a candidate's gradient and the most similar other candidate's, mean over
        candidates and steps; None unless asked for.
    clipped: (runs,) int64, how many of the steps × candidates gradients clipping shortened to C; None without
        candidates.
    scores: each scorer's (runs, candidates) float64, by name.
    probe_logits: (runs, probes, outputs), what the final models say of the probes; None without probes.
    probe_losses: (runs, probes) float64, their loss; None without probe labels.
    thetas: (runs, steps, parameters), θ_t before step t. observed: likewise, ḡ_t. None unless recorded.
    """

    layers: tuple[int, ...]
    activation: str
    max_grad_norm: float
    first_run: int
    parameters: np.ndarray
    dots: np.ndarray | None = None
    norms: np.ndarray | None = None
    cosine: np.ndarray | None = None
    clipped: np.ndarray | None = None
    scores: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    thetas: np.ndarray | None = None
    observed: np.ndarray | None = None
    probe_logits: np.ndarray | None = None
    probe_losses: np.ndarray | None = None
    template: torch.nn.Module | None = None

    def __len__(self) -> int:
        return len(self.parameters)

    def module(self, run: int) -> torch.nn.Module:
        """Run `run` (its absolute number) as a torch module in the ensemble's dtype."""
        import torch

        run = check.integer(self.first_run, self.first_run + len(self) - 1, run=run)
        if self.parameters.shape[1] == 0:
            raise ValueError("keep_parameters=False: these runs' parameters were not kept")
        flat = torch.from_numpy(self.parameters[run - self.first_run].copy())
        if self.template is None:
            module: torch.nn.Module = models.mlp(self.layers, self.activation).to(flat.dtype)
        else:
            module = copy.deepcopy(self.template).to(flat.dtype)
        torch.nn.utils.vector_to_parameters(flat, module.parameters())
        return module

    def accuracy(self, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """(runs,) float64: each run's share of rows whose most likely class is the label."""
        import torch

        labels = check.plain_array(labels=labels)
        # A copy: data sets are read-only, and torch warns of memory that it must not write.
        rows = torch.from_numpy(np.array(check.plain_array(features=features), dtype=self.parameters.dtype))
        out = np.empty(len(self))
        for i in range(len(self)):
            module = self.module(self.first_run + i)
            with torch.no_grad():
                logits = module(rows).numpy()
            guess = logits[:, 0] > 0 if logits.shape[1] == 1 else logits.argmax(1)
            out[i] = (guess == labels).mean()
        return out
