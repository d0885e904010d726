"""How far one example moves a model's gradient in ℓ1, measured: the worst pair of a candidate set."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from leakcore._base import validate as check
from leakcore._base.results import Assumptions, Result, parse_adjacency
from leakcore.gradients import LayeredModel

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class L1Measured(Result):
    """The largest change of the summed gradient that these candidates show.

    Attributes:
        value: that change, in ℓ1; kind "lower": the sensitivity over all examples is at least this and may be far more,
            so noise must not be scaled by it.
        worst: indices of the two candidates ("replace") or of the one ("add-remove").
        layers: {parameter: the same maximum for it alone}, each with its own worst pair.
        norms: (candidates,) ‖g_i‖₁.
        num_parameters: entries of the gradient.
        gradient_norm: ℓ2 norm of the gradient summed over all candidates: a signal to compare with the noise.
    """

    quantity: str = "L1 sensitivity"
    worst: tuple[int, ...]
    layers: Mapping[str, float]
    norms: np.ndarray
    num_parameters: int
    gradient_norm: float

    def signal_to_noise(self, epsilon: float) -> float:
        """gradient_norm/(b√(2k)) for b = value/ε: an upper limit, since the true sensitivity is at least `value`."""
        b = float(self.value) / check.positive(epsilon=epsilon)
        return math.inf if b == 0.0 else self.gradient_norm / (b * math.sqrt(2.0 * self.num_parameters))


def l1_sensitivity(
    model: torch.nn.Module,
    inputs: Any,
    targets: Any,
    *,
    loss: Loss | None = None,
    adjacency: str = "add-remove",
    batch_size: int | None = None,
    memory: int = 256 * 2**20,
    progress: Callable[[int, int], object] | None = None,
) -> L1Measured:
    """ℓ1-sensitivity of the gradient over candidates, from g = ∂ℓ/∂θ of one example (Lecture 13, eqs. 3.3 and 4.2).

    "add-remove": max ‖g(x, y)‖₁ over candidates. "replace" (the lecture's): max ‖g(x, y) − g(x′, y′)‖₁ over pairs of
    them. The gradient of the sum changes by exactly this when the worst example comes, goes or is replaced, so Δ₁ is at
    least this large. `bounds.laplace.two_layer` bounds it from above for two-layer networks.

    Args:
        model: as in `sensitivity`.
        inputs: (candidates, ...), floating, at least two for "replace".
        targets: (candidates, ...), each one's own. To let the target change as well, repeat the input with every
            target.
        loss: as in `sensitivity`.
        adjacency: "add-remove" or "replace".
        batch_size: None: of the summed gradient; B: divided by B.
        memory: bytes for the gradients in memory at once. All pairs are covered: candidates are taken by falling norm,
            and pairs whose norms add up to less than the worst so far are skipped, which the triangle inequality
            allows.
        progress: called as progress(candidates done, candidates).

    Returns:
        `L1Measured`, kind "lower".

    Raises:
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic up to the model's own rounding.

    Example:
        >>> import torch
        >>> from leakcore import leakage
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> squared = lambda outputs, targets: ((outputs - targets) ** 2).sum() / 2
        >>> _ = torch.nn.init.zeros_(model.weight)
        >>> inputs, targets = torch.tensor([[1.0, 1.0], [0.5, 0.0]]), torch.tensor([[1.0], [-1.0]])
        >>> measured = leakage.l1_sensitivity(model, inputs, targets, loss=squared)
        >>> measured.value, measured.kind  # gradients (-1, -1) and (0.5, 0)
        (2.0, 'lower')
        >>> leakage.l1_sensitivity(model, inputs, targets, loss=squared, adjacency="replace").value
        2.5
    """
    relation = parse_adjacency(adjacency)
    check.callback(progress=progress)
    budget = check.integer(1, None, memory=memory)
    size = 1 if batch_size is None else check.integer(1, batch_size=batch_size)
    data = LayeredModel.of(
        model, inputs, targets, loss=loss, rows="candidates", least=2 if relation == "replace" else 1
    )
    x, y = data.inputs, data.targets
    measure = _Gradients(data)
    block = max(1, min(len(x), budget // (4 * measure.bytes_each)))
    total: dict[str, torch.Tensor] = {}
    alone = {name: np.empty(len(x)) for name in measure.names}
    for start in range(0, len(x), block):
        for name, g in measure(x[start : start + block], y[start : start + block]).items():
            alone[name][start : start + block] = g.abs().sum(1, dtype=torch.float64).cpu().numpy()
            total[name] = total.get(name, 0) + g.sum(0, dtype=torch.float64)
        if progress is not None:
            progress(min(start + block, len(x)), len(x))
    norms = np.sum(list(alone.values()), axis=0)
    if not np.isfinite(norms).all():
        at = int(np.argmin(np.isfinite(norms)))
        raise ValueError(f"`inputs[{at}]` must have a finite gradient, got norm {norms[at]}")
    worst: tuple[int, ...]
    if relation == "replace":
        value, worst, layers = _worst_pairs(measure, x, y, norms, alone, block)
    else:
        value, worst = float(norms.max()), (int(norms.argmax()),)
        layers = {name: float(v.max()) for name, v in alone.items()}
    return L1Measured(
        value=value / size,
        kind="lower",
        confidence=None,
        interval=None,
        method="worst pair of the candidates" if relation == "replace" else "worst candidate",
        assumptions=Assumptions(
            adjacency=relation,
            attacker="knows the model and all examples but one, sees the gradient",
            notes=(
                f"over {len(x)} candidates; a lower bound of the sensitivity over all examples",
                "every candidate, with its target, is an example that may occur",
                "of the gradient as the model's own arithmetic computes it; another arithmetic differs by its rounding",
                "the gradient of a sum of losses, each of one example" + ("" if size == 1 else f", divided by {size}"),
            ),
        ),
        provenance="Lecture 13 (Lei 2024), Definition 4 (eq. 3.3) and eq. 4.2",
        worst=worst,
        layers={name: v / size for name, v in layers.items()},
        norms=norms / size,
        num_parameters=sum(t.numel() for t in total.values()),
        gradient_norm=math.sqrt(sum(float(t.double().square().sum()) for t in total.values())) / size,
    )


class _Gradients:
    """Per-example gradients of a block of candidates, each parameter's flattened: name -> (candidates, parameters)."""

    def __init__(self, model: LayeredModel) -> None:
        value, self._parameters = model.loss_of_row(model.parameters())
        self.names = tuple(self._parameters)
        self.bytes_each = sum(p.numel() * p.element_size() for p in self._parameters.values())
        self._gradient = torch.func.vmap(torch.func.grad(value), in_dims=(None, 0, 0))

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        try:
            gradients: dict[str, torch.Tensor] = self._gradient(self._parameters, x, y)
        except (RuntimeError, NotImplementedError) as error:
            raise ValueError(f"`model` and `loss` must be ones that torch.func can differentiate ({error})") from error
        return {name: g.detach().reshape(len(g), -1) for name, g in gradients.items()}


def _worst_pairs(
    measure: _Gradients,
    x: torch.Tensor,
    y: torch.Tensor,
    norms: np.ndarray,
    alone: Mapping[str, np.ndarray],
    block: int,
) -> tuple[float, tuple[int, int], dict[str, float]]:
    """The worst pair of all, and each parameter's own maximum."""
    order = np.argsort(-norms, kind="stable")
    pieces = [order[i : i + block] for i in range(0, len(order), block)]
    best, worst = -1.0, (0, 0)
    layers = dict.fromkeys(measure.names, 0.0)
    for i, rows in enumerate(pieces):
        own: dict[str, torch.Tensor] | None = None
        for j, columns in enumerate(pieces[: i + 1]):
            hopeless = all(
                alone[name][rows].max() + alone[name][columns].max() <= layers[name] for name in measure.names
            )
            if hopeless and norms[rows].max() + norms[columns].max() <= best:
                continue
            if own is None:
                at = torch.from_numpy(rows).to(x.device)
                own = measure(x[at], y[at])
            other = own
            if j != i:
                at = torch.from_numpy(columns).to(x.device)
                other = measure(x[at], y[at])
            distance = torch.zeros((len(rows), len(columns)), dtype=torch.float64, device=x.device)
            for name in measure.names:
                part = torch.cdist(own[name].double(), other[name].double(), p=1)
                layers[name] = max(layers[name], float(part.max()))
                distance += part
            if float(distance.max()) > best:
                best = float(distance.max())
                at_row, at_column = divmod(int(distance.argmax()), len(columns))
                worst = (int(rows[at_row]), int(columns[at_column]))
    return best, worst, layers
