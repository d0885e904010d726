"""The result of an ensemble: final parameters of every run, and the attacker's scores of the candidates."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from leakcore import models
from leakcore._base import validate
from leakcore._base.array_record import ArrayRecord

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class EnsembleRun(ArrayRecord):
    """Finished runs of an ensemble; row i of every array belongs to run `first_run + i`.

    Below, clip_C(∇ℓ(θ_t, z_i)) is the clipped gradient of candidate i in step t, and ḡ_t is what the observer has of
    the released sum (see `Observer`).

    Attributes:
        layers: (inputs, hidden..., outputs); (inputs, outputs) for a `ModuleNetwork`.
        activation: name of the activation of the hidden layers.
        max_grad_norm: C.
        first_run: number of the first run.
        parameters: (runs, parameters) after the last step, flat in the order of `models.mlp(...).parameters()`; (runs,
            0) with `keep_parameters=False`.
        dots: (runs, steps, candidates), ⟨clip_C(∇ℓ(θ_t, z_i)), ḡ_t⟩; None without candidates or with
            `keep_steps=False`.
        clipped_norms: (runs, steps, candidates), ‖clip_C(∇ℓ(θ_t, z_i))‖, exactly C where clipped; None as `dots`.
        cosine: (runs,) float64, the cosine between a candidate's gradient and the most similar other one, mean over
            candidates and steps; None unless requested.
        clipped: (runs,) int64, how many of the steps × candidates gradients were longer than C; None without
            candidates.
        scores: (runs, candidates) float64 of each scorer, by its name.
        thetas: (runs, steps, parameters), θ_t before step t; None unless recorded.
        observed: (runs, steps, parameters), ḡ_t; None unless recorded.
        probe_logits: (runs, probes, outputs) of the final models; None without probes.
        probe_losses: (runs, probes) float64; None without labels of the probes.
        template: the module of a `ModuleNetwork`, else None.

    Example:
        >>> from leakcore import datasets, dpsgd
        >>> data = datasets.breast_cancer()
        >>> target = dpsgd.Rows(data.features[:1], data.labels[:1])
        >>> result = dpsgd.Ensemble(
        ...     (30, 1), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=1.0, steps=5, seed=0
        ... ).run(data.features[1:], data.labels[1:], runs=3, probes=target)
        >>> result.probe_losses.shape
        (3, 1)
    """

    layers: tuple[int, ...]
    activation: str
    max_grad_norm: float
    first_run: int
    parameters: np.ndarray
    dots: np.ndarray | None = None
    clipped_norms: np.ndarray | None = None
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
        """One run as a torch module in the ensemble's dtype.

        Args:
            run: absolute number of the run, at least `first_run`.

        Returns:
            A new torch module with the run's final parameters.

        Raises:
            ValueError: if the run is not one of these, or the parameters were dropped.
        """
        import torch

        run = validate.integer(self.first_run, self.first_run + len(self) - 1, run=run)
        if self.parameters.shape[1] == 0:
            raise ValueError("`keep_parameters` must be True for runs that have parameters, got False")
        flat = torch.from_numpy(self.parameters[run - self.first_run].copy())
        if self.template is None:
            module: torch.nn.Module = models.mlp(self.layers, self.activation).to(flat.dtype)
        else:
            module = copy.deepcopy(self.template).to(flat.dtype)
        torch.nn.utils.vector_to_parameters(flat, module.parameters())
        return module

    def accuracy(self, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The accuracy of each run.

        Args:
            features: (rows, inputs).
            labels: (rows,) class numbers.

        Returns:
            (runs,) float64, the share of rows whose most likely class is the label.
        """
        import torch

        labels = validate.plain_array(labels=labels)
        # A copy: data sets are read-only, and torch warns of memory that it must not write.
        rows = torch.from_numpy(np.array(validate.plain_array(features=features), dtype=self.parameters.dtype))
        out = np.empty(len(self))
        for i in range(len(self)):
            module = self.module(self.first_run + i)
            with torch.no_grad():
                logits = module(rows).numpy()
            guess = logits[:, 0] > 0 if logits.shape[1] == 1 else logits.argmax(1)
            out[i] = (guess == labels).mean()
        return out
