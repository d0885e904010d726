"""The spans of attention layers' inputs, as their gradients show them, and the inputs that any tokens would give."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import betaln
from torch import nn

from leakcore.gradients import lock_of

NEW_DIRECTION = 2.0
"""Rounding gives directions outside the span singular values of about 0.7 unit roundoffs times the largest one."""
ROUNDING = 8.0
"""And turns the span as an error of about 8 unit roundoffs times the largest singular value would."""
CLEAR = 10.0
"""Times the noise above which every direction must lie for none to be taken as lost in it."""
FALSE_RATE = 1e-12
"""A random direction passes the test with at most this probability."""


@dataclasses.dataclass(frozen=True, eq=False)
class Span:
    """The column space of a gradient (d, n) = Σ_p x_p δ_pᵀ: of the inputs x_p, if their δ_p are independent.

    A direction counts if its singular value is above 2 unit roundoffs times the largest one, and above the largest
    singular value of noise, std·(√d + √n), 5% higher. A vector x lies in the span if its relative distance is at most
    its tolerance: error·‖S⁻¹Uᵀx‖/‖x‖, which is how far an error of 8 unit roundoffs, or of the noise, moves a vector
    of the span, and 32 unit roundoffs for the rounding of x itself. The tolerance is capped where a random direction
    would pass with probability 1e-12.

    basis: (d, k). scales: (k,) singular values. width: dimension of the space in which all inputs of the layer lie, at
    most d. error: as above. unit: the unit roundoff. cap: of the tolerance. clear: whether every direction is
    10 times above the noise, or no noise was stated: otherwise others may be hidden in it.
    """

    basis: torch.Tensor
    scales: torch.Tensor
    width: int
    error: float
    unit: float
    cap: float
    clear: bool

    @classmethod
    def of(cls, gradient: torch.Tensor, unit: float, noise_std: float, width: int) -> Span:
        """Of a float64 gradient (d, n) of a layer whose inputs lie in a space of `width` dimensions."""
        u, s, _ = torch.linalg.svd(gradient, full_matrices=False)
        rows, columns = gradient.shape
        largest = float(s[0])
        noise = 1.05 * noise_std * (math.sqrt(rows) + math.sqrt(columns))
        rounding = max(NEW_DIRECTION * unit, ROUNDING * 2.0**-53) * largest  # of the gradient; of the decomposition
        rank = int((s > max(rounding, noise)).sum())
        free = width - rank
        cap = 0.0 if free <= 0 else 1.0 if rank == 0 else math.sqrt(_false_share(free, rank))
        clear = noise == 0 or (rank > 0 and float(s[rank - 1]) > CLEAR * noise)
        return cls(u[:, :rank], s[:rank], width, max(ROUNDING * unit * largest, noise), unit, cap, clear)

    @property
    def rank(self) -> int:
        """Number of directions that count."""
        return len(self.scales)

    @property
    def full(self) -> bool:
        """Whether the span is the whole space, so that it excludes nothing."""
        return self.rank >= self.width

    def distances(self, vectors: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """(...) relative distances of (..., d) vectors, and their tolerances; 1 for zeros, which no gradient shows."""
        x = vectors.double()
        zero = x.norm(dim=-1) == 0
        length = torch.where(zero, 1.0, x.norm(dim=-1))
        inside = x @ self.basis
        away = torch.where(zero, 1.0, (x - inside @ self.basis.T).norm(dim=-1) / length)
        allowed = self.error * (inside / self.scales).norm(dim=-1) / length + 32 * self.unit
        return away.cpu().numpy(), np.minimum(allowed.cpu().numpy(), self.cap)


def _false_share(free: int, rank: int) -> float:
    """The share of a random direction's square outside the span that it falls below with probability FALSE_RATE."""
    from scipy.stats import beta

    if free == 1:  # SciPy's search fails so near to 0, where the distribution function is √x/(B/2)
        return math.exp(2.0 * (math.log(FALSE_RATE / 2) + float(betaln(0.5, rank / 2))))
    return float(beta.ppf(FALSE_RATE, free / 2, rank / 2))


_NAMES = "c_attn", "query key value", "q_proj k_proj v_proj", "q_lin k_lin v_lin", "query_key_value", "qkv_proj", "qkv"
FAMILIES = tuple(tuple(names.split()) for names in (*_NAMES, "Wqkv"))
"""How models name the projections: GPT-2, BERT, Llama and OPT, DistilBERT, GPT-NeoX, Phi-3, ViT, ModernBERT."""


class _Stop(Exception):
    """Ends a forward pass once every input that is wanted was captured."""


def find_projections(model: nn.Module) -> list[tuple[str, ...]]:
    """For each layer in order, the names of its projections: those of `FAMILIES`, or an nn.MultiheadAttention."""
    layers: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        parent, _, last = name.rpartition(".")
        if isinstance(module, nn.MultiheadAttention):
            layers[name] = [name]
        elif any(last in family for family in FAMILIES) and isinstance(getattr(module, "weight", None), nn.Parameter):
            layers.setdefault(parent, []).append(name)
    return [tuple(names) for names in layers.values()]


@dataclasses.dataclass(frozen=True, eq=False)
class Projections:
    """The projections of a model's first two layers: for each the names of the modules that read its one input."""

    model: nn.Module
    layers: tuple[tuple[str, ...], tuple[str, ...]]

    @classmethod
    def of(cls, model: nn.Module, layers: Sequence[Sequence[str]] | None) -> Projections:
        """Checked; found by their names where the caller names none."""
        if layers is None:
            every = find_projections(model)
            if len(every) < 2:
                raise ValueError(
                    "`layers` must name the attention projections of the first two layers, because the model has "
                    f"{len(every)} with the usual names (c_attn; query, key, value; q_proj, k_proj, v_proj; "
                    "nn.MultiheadAttention)"
                )
            return cls(model, (every[0], every[1]))
        chosen = [(layer,) if isinstance(layer, str) else tuple(layer) for layer in layers]
        modules = dict(model.named_modules())
        for name in (name for layer in chosen for name in layer):
            module = modules.get(name)
            if not isinstance(getattr(module, "weight", None), nn.Parameter) and not isinstance(
                module, nn.MultiheadAttention
            ):
                raise ValueError(f"`layers` must name modules of the model that have a weight, got {name!r}")
        if len(chosen) != 2 or not all(chosen):
            raise ValueError(f"`layers` must name modules of two layers, got {len(chosen)}")
        return cls(model, (chosen[0], chosen[1]))

    def widths(self, vocabulary: int, length: int, device: torch.device, unit: float) -> list[int]:
        """For each layer the dimension of the space of its inputs: a layer norm's outputs may all sum to 0."""
        size = min(length, 4)
        wide = self.inputs(torch.zeros((1, 1), dtype=torch.long, device=device), 1)[0].shape[-1]
        rows = torch.arange(-(-2 * wide // size), device=device)
        # Every sequence has other tokens, at other distances.
        tokens = (rows[:, None] * (1 + torch.arange(size, device=device)) + rows[:, None] // vocabulary) % vocabulary
        out = []
        for value in self.inputs(tokens):
            scales = torch.linalg.svdvals(value.double().flatten(0, 1))
            out.append(int((scales > 64 * unit * scales[0]).sum()))
        return out

    def span(self, layer: int, parts: dict[str, torch.Tensor], unit: float, noise_std: float, width: int) -> Span:
        """Of one layer's inputs; a projection whose gradient is not in `parts` is left out."""
        modules = dict(self.model.named_modules())
        gradients = []
        for name in self.layers[layer]:
            module = modules[name]
            key = f"{name}.in_proj_weight" if isinstance(module, nn.MultiheadAttention) else f"{name}.weight"
            if key in parts:
                # Rows are outputs in nn.Linear; columns are in the Conv1D of transformers.
                gradients.append(parts[key] if type(module).__name__ == "Conv1D" else parts[key].T)
        if not gradients:
            raise ValueError(f"`gradient` must hold the weight of one of {', '.join(self.layers[layer])}")
        joined = torch.cat(gradients, dim=1)
        if not bool((joined != 0).any()):
            raise ValueError(
                f"`gradient` must not be zero throughout for {', '.join(self.layers[layer])}: it says nothing"
            )
        return Span.of(joined, unit, noise_std, width)

    def inputs(self, tokens: torch.Tensor, layers: int = 2) -> list[torch.Tensor]:
        """For each of the first layers (n, L, d), what its projections receive for (n, L) tokens."""
        captured: dict[int, torch.Tensor] = {}

        def capture(layer: int) -> Any:
            def hook(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
                value = (args[0] if args else next(iter(kwargs.values()))).detach()
                turned = isinstance(module, nn.MultiheadAttention) and not module.batch_first
                captured[layer] = value.transpose(0, 1) if turned else value
                if len(captured) == layers:
                    raise _Stop

            return hook

        with contextlib.ExitStack() as stack, torch.no_grad():
            stack.enter_context(lock_of(self.model))
            modules = dict(self.model.named_modules())
            for layer in range(layers):
                first = modules[self.layers[layer][0]]
                stack.enter_context(first.register_forward_pre_hook(capture(layer), with_kwargs=True))
            try:
                self.model(tokens)
            except _Stop:
                pass
            except (RuntimeError, IndexError) as why:
                raise ValueError(
                    f"`length` and `vocabulary` must fit the model, which fails on tokens of shape "
                    f"{tuple(tokens.shape)} up to {int(tokens.max())} ({why})"
                ) from why
        if len(captured) < layers or any(
            value.ndim != 3 or value.shape[:2] != tokens.shape for value in captured.values()
        ):
            raise ValueError("`model` must take (n, L) tokens and give the projections inputs of shape (n, L, d)")
        return [captured[layer] for layer in range(layers)]

    def causal(self, length: int, device: torch.device, unit: float) -> bool:
        """Whether the second layer's inputs depend on earlier positions only; ValueError if the first one's on any."""
        size = max(2, min(length, 4))
        tokens = torch.zeros((2, size), dtype=torch.long, device=device)
        tokens[1, -1] = 1
        first, second = (value.double() for value in self.inputs(tokens))

        def moved(value: torch.Tensor) -> bool:
            return bool((value[0, :-1] - value[1, :-1]).norm() > 64 * unit * value[0, :-1].norm())

        tokens[1, -1], tokens[1, 0] = 0, 1
        other = self.inputs(tokens, 1)[0].double()
        if moved(first) or bool((other[0, 1:] - other[1, 1:]).norm() > 64 * unit * other[0, 1:].norm()):
            raise ValueError(
                f"`layers[0]` must be of the first layer, whose input at a position depends on that token only; the "
                f"input of {self.layers[0][0]} depends on others"
            )
        return not moved(second)
