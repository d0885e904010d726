"""A malicious server's imprint: a module that writes single rows of a batch into the gradient (Fowl et al. 2022).

    planted = imprint.plant(model, samples, bins=256)   # what the server sends instead of the model
    recovery = imprint.read(planted, gradient, batch_size=32)
    recovery.rows        # (S, ...) inputs that fell alone into a bin

The module measures each row by a number, and unit j of a ReLU layer is active for rows above the threshold q_j. The
gradients of neighbouring units differ by the rows between their thresholds: by a single row, where one fell there.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from torch import nn

from leakcore._base import memory_limit, validate
from leakcore._base.results import Result
from leakcore._base.results import attack_guarantee as _attack_guarantee
from leakcore.attacks.arguments import gradient_by_name as _gradient_by_name
from leakcore.gradients import tensor as _tensor

_ROUNDING = 16.0
"""Unit roundoffs, times the largest number, by which sums of many rows may be off."""
_NOISE = 7.0
"""Standard deviations beyond which noise goes with a probability of 3e-12."""


class Imprint(nn.Module):
    """A model behind an imprint. `plant` makes one.

    Args:
        model: the module that is called with the imprint's outputs.
        shape: shape of one input.
        thresholds: (bins,) of the measurement, rising.
        centre: mean and standard deviation of the gate's measurement.
        scale: how much is added to the inputs.

    Attributes:
        first: (bins,) units that measure; its weights and biases carry the rows.
        second: the same units, behind a gate that weighs rows differently.

    Example:
        >>> import torch
        >>> from leakcore.attacks import imprint
        >>> planted = imprint.plant(torch.nn.Linear(4, 2), torch.rand(50, 4), bins=8)
        >>> planted(torch.rand(3, 4)).shape
        torch.Size([3, 2])
    """

    measure: torch.Tensor
    gate: torch.Tensor
    pattern: torch.Tensor

    def __init__(
        self, model: nn.Module, shape: tuple[int, ...], thresholds: Any, centre: tuple[float, float], scale: float
    ) -> None:
        super().__init__()
        _require_model(model)
        if not isinstance(centre, tuple | list) or len(centre) != 2:
            raise TypeError(f"`centre` must be a pair of numbers, got {centre!r:.60}")
        self.model, self.shape, self.scale = model, validate.sizes(shape=shape), validate.positive(scale=scale)
        self.centre = (validate.real(centre=centre[0]), validate.positive(centre=centre[1]))
        like = next(model.parameters())
        size, edges = math.prod(self.shape), _tensor(thresholds, "thresholds").to(like)
        if edges.ndim != 1 or len(edges) < 2 or not bool((edges.diff() > 0).all() and edges.isfinite().all()):
            raise ValueError(f"`thresholds` must be at least 2 finite, rising numbers, got shape {tuple(edges.shape)}")
        memory_limit.require(32 * size * len(edges), shape=self.shape)
        measure, gate, pattern = _directions(size)
        for name, value in (("measure", measure), ("gate", gate), ("pattern", pattern)):
            self.register_buffer(name, value.to(like))
        self.first, self.second = (nn.Linear(size, len(edges), device=like.device, dtype=like.dtype) for _ in range(2))
        with torch.no_grad():
            for layer in (self.first, self.second):
                layer.weight.copy_(self.measure.expand(len(edges), -1))
                layer.bias.copy_(-edges)

    @property
    def thresholds(self) -> torch.Tensor:
        """(bins,) of the measurement."""
        return -self.first.bias.detach()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The model's outputs for inputs that were moved along one pattern, by what the units say."""
        flat = inputs.flatten(1)
        gate = 0.5 + torch.sigmoid((flat @ self.gate - self.centre[0]) / self.centre[1])
        units = torch.relu(self.first(flat)).mean(1) + gate * torch.relu(self.second(flat)).mean(1)
        out: torch.Tensor = self.model(inputs + (self.scale * units[:, None] * self.pattern).view_as(inputs))
        return out


def _require_model(model: Any) -> None:
    if not isinstance(model, nn.Module) or next(model.parameters(), None) is None:
        raise TypeError(f"`model` must be a torch.nn.Module with parameters, got {type(model).__name__}")


def _directions(size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What is measured (the mean), what sets the gate, and along which the outputs move the inputs."""
    place = (torch.arange(size, dtype=torch.float64) + 0.5) * (math.pi / size)
    return torch.full((size,), 1.0 / size, dtype=torch.float64), torch.cos(3 * place), torch.cos(5 * place) + 0.5


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ImprintRecovery(Result):
    """Rows that fell alone into a bin.

    Attributes:
        value: share of the batch's rows that were read: S over the batch size.
        kind: "estimate": two rows of one bin that weigh the same behind the gate would pass as one, and so may what
            something other than the batch added to the gradient.
        rows: (S, ...) float64, the rows.
        errors: (S,) how far rounding and noise may have moved a number of the row.
        bins: (S,) int64, where each was read.
        occupied: bins that hold a row.
        mixed: occupied bins whose two readings contradict each other, or that noise or rounding hide.
    """

    quantity: str = "share of rows read"
    rows: np.ndarray
    errors: np.ndarray
    bins: np.ndarray
    occupied: int
    mixed: int


def plant(model: nn.Module, samples: Any, *, bins: int, scale: float = 1.0) -> Imprint:
    """Place an imprint in front of a model (Fowl, Geiping, Czaja, Goldblum and Goldstein 2022, Section 4).

    Args:
        model: a torch module of inputs (B, ...).
        samples: (n, ...), n ≥ 2, rows like the victim's that the attacker owns: thresholds lie at
            quantiles of their means, and one below them all.
        bins: units of each of two layers, at least 2; fewer where samples have equal means. Of B rows about
            B(1 − 1/bins)^(B − 1) fall alone.
        scale: how far the imprint moves the inputs along its pattern.

    Returns:
        `Imprint`: a module that takes the model's inputs and holds it as `model`.

    Raises:
        ValueError: for a value or shape that is not allowed, and for samples whose means are all equal.

    Guarantees:
        Deterministic.

    Example:
        >>> import torch
        >>> from leakcore.attacks import imprint
        >>> planted = imprint.plant(torch.nn.Linear(4, 2), torch.rand(50, 4), bins=8)
        >>> planted.first.weight.shape
        torch.Size([8, 4])
    """
    _require_model(model)
    count = validate.integer(2, 1 << 20, bins=bins)
    own = _tensor(samples, "samples").double().cpu()
    if own.ndim < 2 or len(own) < 2 or own.numel() == 0 or not bool(own.isfinite().all()):
        raise ValueError(f"`samples` must be (n, ...), n at least 2, finite, got shape {tuple(own.shape)}")
    measure, gate, _ = _directions(own[0].numel())
    means, gates = own.flatten(1) @ measure, own.flatten(1) @ gate
    spread = float(means.max() - means.min())
    if not 0 < spread < math.inf:
        raise ValueError("`samples` must have rows of different means")
    # Halfway between samples of different means, so that no row of such a mean lies on a threshold.
    rising = means.sort().values
    chosen = rising[torch.linspace(0, len(rising) - 1, count).round().long()]
    after = torch.searchsorted(rising, chosen, right=True)
    halfway = (chosen + rising[after.clamp(max=len(rising) - 1)]) / 2
    kind = next(model.parameters()).dtype
    edges = torch.unique(torch.cat([rising[:1] - spread, halfway[after < len(rising)]]).to(kind))
    return Imprint(model, tuple(own.shape[1:]), edges, (float(gates.mean()), float(gates.std()) or 1.0), scale)


def read(
    planted: Imprint, gradient: Any, *, batch_size: int, accuracy: float = 0.01, noise_std: float = 0.0
) -> ImprintRecovery:
    """The rows that fell alone into a bin, from the gradient of a planted model.

    Unit j's weight gradient is Σ δ_i x_i over rows i above q_j, its bias gradient Σ δ_i. Differences of neighbouring
    units hold the rows between two thresholds; their ratio is the row, if it is one. The second layer's rows weigh
    δ_i times a gate: two rows in a bin give another ratio there, and the bin counts as mixed.

    Args:
        planted: what `plant` returned, unchanged since the victim computed the gradient.
        gradient: gradient of the loss: (D,), a list, a dict by name that holds the four of `first` and `second`, or
            what `defenses.release` returned. Clipped gradients, also row by row, give the same rows.
        batch_size: B.
        accuracy: the largest error of a number of a row.
        noise_std: standard deviation of the noise in each number of the gradient.

    Returns:
        `ImprintRecovery`. Equal rows are recovered once. Rows on whose loss the imprint has no influence are not seen.

    Guarantees:
        An estimate; computed in float64, deterministic. No false bin from noise, with a probability of 1e-11 per
        number.

    Example:
        >>> import torch
        >>> from leakcore.attacks import imprint
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()
        >>> planted = imprint.plant(model, torch.rand(200, 4), bins=32)
        >>> secret = torch.tensor([[0.1, 0.9, 0.4, 0.6], [0.3, 0.1, 0.2, 0.4]]).double()
        >>> loss = torch.nn.functional.cross_entropy(planted(secret), torch.tensor([1, 0]))
        >>> released = torch.autograd.grad(loss, planted.parameters())
        >>> imprint.read(planted, released, batch_size=2).rows.round(3).tolist()
        [[0.3, 0.1, 0.2, 0.4], [0.1, 0.9, 0.4, 0.6]]
    """
    validate.instance(Imprint, planted=planted)
    batch = validate.integer(1, 1 << 40, batch_size=batch_size)
    most, std = validate.positive(accuracy=accuracy), validate.non_negative(noise_std=noise_std)
    parts, unit = _gradient_by_name(planted, gradient, std)
    names = [f"{layer}.{kind}" for layer in ("first", "second") for kind in ("weight", "bias")]
    if missing := [name for name in names if name not in parts]:
        raise ValueError(f"`gradient` must hold {', '.join(names)}, and lacks {missing[0]}")
    readings = [_differences(parts[f"{name}.weight"], parts[f"{name}.bias"], unit, std) for name in ("first", "second")]
    occupied = readings[0].occupied | readings[1].occupied
    apart = np.abs(readings[0].rows - readings[1].rows).max(axis=1)
    errors = np.minimum(readings[0].errors, readings[1].errors)
    rows = np.where((readings[0].errors <= readings[1].errors)[:, None], readings[0].rows, readings[1].rows)
    edges = planted.thresholds.double().cpu().numpy()
    means, slack = rows @ planted.measure.double().cpu().numpy(), errors + 8 * unit * np.abs(edges).max()
    inside = (means >= edges - slack) & (means <= np.append(edges[1:], np.inf) + slack)
    alone = occupied & inside & (apart <= readings[0].errors + readings[1].errors) & (errors <= most)
    at = alone.nonzero()[0]
    return ImprintRecovery(
        value=min(1.0, len(at) / batch),
        method=f"differences of {len(edges)} imprinted units",
        **_attack_guarantee(
            f"sends the model, and sees one gradient of {batch} row{'s' * (batch > 1)}",
            notes=(
                "rows that share a bin are not recovered",
                f"taken for granted: nothing was added but noise of standard deviation {std:g} in each number",
                "neither decay or penalty of the weights nor momentum; not pruned or quantised",
            ),
        ),
        provenance="Fowl, Geiping, Czaja, Goldblum and Goldstein (2022), Section 4",
        rows=rows[at].reshape((len(at), *planted.shape)),
        errors=errors[at],
        bins=at.astype(np.int64),
        occupied=int(occupied.sum()),
        mixed=int(occupied.sum()) - len(at),
    )


@dataclasses.dataclass(frozen=True)
class _Reading:
    """One layer's: (bins, d) rows, (bins,) errors and whether anything is there."""

    rows: np.ndarray
    errors: np.ndarray
    occupied: np.ndarray


def _differences(weight: torch.Tensor, bias: torch.Tensor, unit: float, std: float) -> _Reading:
    """The weight gradient (bins, d) and bias gradient (bins,) of one layer, bin by bin."""
    w, b = weight.cpu().numpy(), bias.cpu().numpy()
    noise = _NOISE * math.sqrt(2.0) * std
    rounding = _ROUNDING * unit * max(float(np.abs(w).max()), float(np.abs(b).max())) + noise
    sums = np.diff(w, axis=0, append=0.0) * -1.0
    weights = np.diff(b, append=0.0) * -1.0
    occupied = (np.abs(weights) > rounding) | (np.abs(sums) > rounding).any(axis=1)
    known = np.abs(weights) > 2 * rounding
    divisor = np.where(known, weights, 1.0)
    rows = sums / divisor[:, None]
    largest = 1.0 + np.abs(rows).max(axis=1)
    errors = np.where(known, 2 * rounding * largest / np.abs(divisor), np.inf)
    return _Reading(rows, errors, occupied)
