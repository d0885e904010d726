"""Small models, one for each layer that FusedDPOptimizer takes and way of using it, and those that it must refuse."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from opacus.grad_sample import register_grad_sampler
from opacus.layers import DPGRU, DPLSTM, DPRNN, DPMultiheadAttention
from opacus.layers.dp_multihead_attention import SequenceBias
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

WORDS = 12


@dataclasses.dataclass(frozen=True)
class Example:
    """A model and rows for it. refused: what the ValueError says, "" where the rows must be right."""

    model: Callable[[], nn.Module]
    rows: Callable[[int], torch.Tensor]
    refused: str = ""
    batch_first: bool = True


class Then(nn.Module):
    """What `function` makes of the rows with the layers, flattened, and a linear layer of four classes."""

    def __init__(self, function: Callable[..., torch.Tensor], features: int, *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers, self.head = function, nn.ModuleList(layers), nn.Linear(features, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(torch.tanh(self.function(x, *self.layers)).flatten(1))
        return output


def dense(*shape: int) -> Callable[[int], torch.Tensor]:
    return lambda rows: torch.randn(rows, *shape, dtype=torch.float64) * 2


def words(length: int, of: int = WORDS) -> Callable[[int], torch.Tensor]:
    return lambda rows: torch.randint(0, of, (rows, length))


def lengths_of(rows: int, longest: int, falling: bool = False) -> torch.Tensor:
    lengths = torch.randint(1, longest + 1, (rows,))
    return lengths.sort(descending=True).values if falling else lengths


def sequences(longest: int = 5, falling: bool = False) -> Callable[[int], torch.Tensor]:
    """(rows, longest, 4): three features, and in the last one the row's length."""

    def make(rows: int) -> torch.Tensor:
        x = dense(longest, 4)(rows)
        x[:, :, 3] = lengths_of(rows, longest, falling)[:, None].double()
        return x

    return make


def _packed(x: torch.Tensor, cells: Any, ordered: bool, first: bool) -> PackedSequence:
    values = x[..., :3] if first else x[..., :3].transpose(0, 1)
    return pack_padded_sequence(values, x[:, 0, 3].long(), batch_first=first, enforce_sorted=ordered)


def recurrent(kind: Any, packed: bool = True, ordered: bool = False, initial: bool = False, **settings: Any) -> Then:
    """Padded, or packed; the last state and the outputs' sum. initial: states made of the row."""
    first = settings.setdefault("batch_first", True)
    ways, layers = 2 if settings.get("bidirectional") else 1, settings.get("num_layers", 1)

    def outputs(x: torch.Tensor, cells: Any) -> torch.Tensor:
        sequence = _packed(x, cells, ordered, first) if packed else x[..., :3] if first else x[..., :3].transpose(0, 1)
        state = None
        if initial:
            h = x[:, 0, :1].expand(-1, 6).expand(ways * layers, -1, -1)
            state = (h, h.cos()) if kind is DPLSTM else h
        output = cells(sequence, state)[0]
        output = (
            pad_packed_sequence(output, batch_first=True)[0] if packed else output if first else output.transpose(0, 1)
        )
        return output.sum(1)  # type: ignore[no-any-return]

    return Then(outputs, 6 * ways, kind(3, 6, **settings))


def _two_packs(x: torch.Tensor, cells: Any) -> torch.Tensor:
    """One network reads a sequence and what begins with its second step, each in an order of its own."""
    one = cells(pack_padded_sequence(x[..., :3], x[:, 0, 3].long(), batch_first=True, enforce_sorted=False))[0]
    rest = 5 - x[:, 0, 3].long()
    two = cells(pack_padded_sequence(x[..., :3].flip(1), rest + 1, batch_first=True, enforce_sorted=False))[0]
    return sum(pad_packed_sequence(p, batch_first=True)[0].sum(1) for p in (one, two))  # type: ignore[return-value]


def _sorts_itself(x: torch.Tensor, cells: Any) -> torch.Tensor:
    lengths, order = x[:, 0, 3].long().sort(descending=True)
    out = cells(pack_padded_sequence(x[order][..., :3], lengths, batch_first=True))[0]
    return pad_packed_sequence(out, batch_first=True)[0].sum(1)[order.argsort()]


class SortsAll(nn.Module):
    """Every layer sees the rows by length, and the outputs go back into the batch's order."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = DPLSTM(3, 6, batch_first=True), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths, order = x[:, 0, 3].long().sort(descending=True)
        out = self.cells(pack_padded_sequence(x[order][..., :3], lengths, batch_first=True))[0]
        output: torch.Tensor = self.head(pad_packed_sequence(out, batch_first=True)[0].sum(1))[order.argsort()]
        return output


def bag(mode: str, form: str = "2-D", weights: str = "", **settings: Any) -> nn.Module:
    """form: how the layer gets its indices. weights: of each, "fixed", or "trained" by a layer."""
    table = nn.EmbeddingBag(WORDS, 5, mode=mode, include_last_offset=form == "last offset", **settings)
    scales = nn.Embedding(WORDS, 1)

    def looked_up(x: torch.Tensor, table: Any, *more: Any) -> torch.Tensor:
        row_weights = None
        if weights:
            row_weights = (
                more[0](x)[..., 0] if more else torch.linspace(0.5, 2, x.shape[1]).to(table.weight).expand(x.shape)
            )
        if form == "2-D":
            return table(x, per_sample_weights=row_weights)  # type: ignore[no-any-return]
        sizes = x[:, 0] % x.shape[1] if form == "ragged" else torch.full((len(x),), x.shape[1])
        inside = torch.arange(x.shape[1]) < sizes[:, None]
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
        offsets = offsets if form == "last offset" else offsets[:-1]
        more_given = () if row_weights is None else (row_weights[inside],)
        return table(x[inside], offsets, *more_given)  # type: ignore[no-any-return]

    return Then(looked_up, 5, table, *([scales] if weights == "trained" else []))


def attention(first: bool, transposed: bool, **settings: Any) -> nn.Module:
    """transposed: the model turns rows of (steps, 8) into (steps, rows, 8) around the layer."""

    def attend(x: torch.Tensor, layer: Any) -> torch.Tensor:
        x = x.transpose(0, 1) if transposed else x
        keys = x[..., : layer.kdim]
        out = layer(x, keys, x)[0]
        return out.mean(0 if transposed else 1)  # type: ignore[no-any-return]

    return Then(attend, 8, DPMultiheadAttention(8, 2, batch_first=first, **settings))


def ring(size: int, mode: str = "zeros", **settings: Any) -> nn.Module:
    kind: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[size - 1]
    layer = kind(4, 4, 3, padding=1, padding_mode=mode, **settings)
    return Then(lambda x, c: c(x).flatten(2).mean(2), 4, layer)


def transposed_ring(size: int) -> nn.Module:
    kind: Any = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[size - 1]
    return Then(lambda x, c: c(x).flatten(2).mean(2), 6, kind(4, 6, 2, stride=2, groups=2))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle, self.out = nn.Embedding(WORDS, 6), nn.Linear(6, 6), nn.Linear(6, WORDS, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.out(self.middle(self.table(x)).tanh()).mean(1)
        return output


class Direct(nn.Module):
    """Parameters of the module itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.randn(6)), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head((x * self.scale).tanh())
        return output


class Scaled(nn.Module):
    """A layer with a sampler of its own; `right`: whether it is."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class WronglyScaled(Scaled):
    pass


class Shifted(Scaled):
    pass


@register_grad_sampler(Scaled)
def _scaled(layer: Scaled, activations: Any, backprops: torch.Tensor) -> dict[Any, torch.Tensor]:
    return {layer.scale: activations[0] * backprops}


@register_grad_sampler(WronglyScaled)
def _wrongly_scaled(layer: WronglyScaled, activations: Any, backprops: torch.Tensor) -> dict[Any, torch.Tensor]:
    return {layer.scale: activations[0] * backprops * 0.9}


@register_grad_sampler(Shifted)
def _shifted(layer: Shifted, activations: Any, backprops: torch.Tensor) -> dict[Any, torch.Tensor]:
    return {layer.scale: (activations[0] * backprops).roll(1, 0)}


def _frozen() -> nn.Module:
    network = Then(lambda x, a, b: b(a(x).tanh()), 6, nn.Linear(6, 6), nn.Linear(6, 6))
    network.layers[0].requires_grad_(False)
    network.layers[1].weight.requires_grad = False  # type: ignore[union-attr]
    return network


def _functional_use(x: torch.Tensor, layer: Any) -> torch.Tensor:
    return functional.linear(torch.tanh(layer(x)), layer.weight)


def _position(x: torch.Tensor, layer: Any) -> torch.Tensor:
    """What the layer adds is the same for every row."""
    return (x + layer(torch.eye(x.shape[1], 6, dtype=x.dtype))).sum(1)


def _halves(x: torch.Tensor, layer: Any) -> torch.Tensor:
    """The second pass over the layer sees half of the rows."""
    out = layer(x)
    half = layer(out[: len(out) // 2]).tanh()
    return torch.cat([half, out[len(half) :]])


def _others(x: torch.Tensor, layer: Any) -> torch.Tensor:
    return layer(x) - layer(x).mean(0)  # type: ignore[no-any-return]


def _picked(x: torch.Tensor, layer: Any) -> torch.Tensor:
    """Rows in another order through one layer alone."""
    order = x[:, 0].argsort()
    return layer(x[order])[order.argsort()]  # type: ignore[no-any-return]


def _steps_first(x: torch.Tensor, layer: Any) -> torch.Tensor:
    return layer(x.transpose(0, 1)).tanh().mean(0)  # type: ignore[no-any-return]


def _flattened(x: torch.Tensor, layer: Any) -> torch.Tensor:
    return layer(x.reshape(-1, x.shape[2])).view(len(x), x.shape[1], -1).tanh().sum(1)  # type: ignore[no-any-return]


class AllFlattened(nn.Module):
    def __init__(self, turned: bool = False) -> None:
        super().__init__()
        self.layer, self.turned = nn.Linear(6, 4), turned

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.turned:
            return self.layer(x.transpose(0, 1)).tanh().mean(0)  # type: ignore[no-any-return]
        return self.layer(x.reshape(-1, 6)).tanh().view(len(x), -1, 4).sum(1)  # type: ignore[no-any-return]


_L = nn.Linear
_NOT_ROWS = "are not the rows'"
_NUMBER = "rows went in, and per-sample gradients are of|must have per-sample gradients of the rows of the batch"
_MIXED = "depends on the other rows"

EXAMPLES: dict[str, Example] = {
    "linear": Example(lambda: Then(lambda x, a: a(x), 5, _L(6, 5)), dense(6)),
    "linear, 3-D": Example(lambda: Then(lambda x, a: a(x), 15, _L(6, 5)), dense(3, 6)),
    "linear, 4-D, no bias": Example(lambda: Then(lambda x, a: a(x).mean(2), 10, _L(6, 5, False)), dense(2, 3, 6)),
    "conv 1": Example(lambda: ring(1, stride=2), dense(4, 6)),
    "conv 2, groups": Example(lambda: ring(2, groups=2, dilation=2), dense(4, 5, 6)),
    "conv 3": Example(lambda: ring(3), dense(4, 3, 4, 3)),
    "conv 2, reflect": Example(lambda: ring(2, "reflect", groups=4), dense(4, 5, 4)),
    "conv 1, replicate": Example(lambda: ring(1, "replicate"), dense(4, 6)),
    "conv 2, circular": Example(lambda: ring(2, "circular", stride=2), dense(4, 5, 4)),
    "conv 2, channels last": Example(
        lambda: ring(2), lambda n: dense(4, 5, 4)(n).to(memory_format=torch.channels_last)
    ),
    "transposed conv 1": Example(lambda: transposed_ring(1), dense(4, 3)),
    "transposed conv 2": Example(lambda: transposed_ring(2), dense(4, 3, 2)),
    "transposed conv 3": Example(lambda: transposed_ring(3), dense(4, 2, 3, 2)),
    "layer norm": Example(lambda: Then(lambda x, a: a(x), 18, nn.LayerNorm((3, 6))), dense(3, 6)),
    "layer norm of steps": Example(lambda: Then(lambda x, a: a(x), 18, nn.LayerNorm(6)), dense(3, 6)),
    "RMS norm": Example(lambda: Then(lambda x, a: a(x), 18, nn.RMSNorm(6)), dense(3, 6)),
    "group norm": Example(lambda: Then(lambda x, a: a(x), 24, nn.GroupNorm(2, 4)), dense(4, 6)),
    "instance norm 1": Example(lambda: Then(lambda x, a: a(x), 24, nn.InstanceNorm1d(4, affine=True)), dense(4, 6)),
    "instance norm 2": Example(lambda: Then(lambda x, a: a(x), 24, nn.InstanceNorm2d(4, affine=True)), dense(4, 3, 2)),
    "instance norm 3": Example(
        lambda: Then(lambda x, a: a(x), 48, nn.InstanceNorm3d(4, affine=True)), dense(4, 3, 2, 2)
    ),
    "PReLU": Example(lambda: Then(lambda x, a: a(x), 6, nn.PReLU(6)), dense(6)),
    "embedding": Example(lambda: Then(lambda x, a: a(x).mean(1), 6, nn.Embedding(WORDS, 6)), words(7)),
    "embedding, padding": Example(
        lambda: Then(lambda x, a: a(x).mean(1), 6, nn.Embedding(WORDS, 6, padding_idx=1)), words(7, 4)
    ),
    "embedding, sparse": Example(
        lambda: Then(lambda x, a: a(x).mean(1), 6, nn.Embedding(WORDS, 6, sparse=True)), words(7, 4)
    ),
    "embedding, by frequency": Example(
        lambda: Then(lambda x, a: a(x).mean(1), 6, nn.Embedding(WORDS, 6, scale_grad_by_freq=True)), words(7),
        "scale_grad_by_freq=True",
    ),
    "embedding, norm": Example(
        lambda: Then(lambda x, a: a(x).mean(1), 6, nn.Embedding(WORDS, 6, max_norm=1.0)), words(7), "max_norm=1.0"
    ),
    "tied": Example(Tied, words(5)),
    "reused": Example(lambda: Then(lambda x, a: a(a(x).tanh()), 6, _L(6, 6)), dense(6)),
    "reused, steps": Example(lambda: Then(lambda x, a: a(a(x).tanh().mean(1)), 6, _L(6, 6)), dense(3, 6)),
    "frozen": Example(_frozen, dense(6)),
    "own parameters": Example(Direct, dense(6)),
    "own sampler": Example(lambda: Then(lambda x, a: a(x), 6, Scaled()), dense(6)),
    "wrong sampler": Example(lambda: Then(lambda x, a: a(x), 6, WronglyScaled()), dense(6), _NOT_ROWS),
    "sampler of other rows": Example(lambda: Then(lambda x, a: a(x), 6, Shifted()), dense(6), _NOT_ROWS),
    "functional use": Example(lambda: Then(_functional_use, 6, _L(6, 6)), dense(6), _NOT_ROWS),
    "no rows, as many": Example(lambda: Then(_position, 6, _L(6, 6)), dense(5, 6), _NOT_ROWS),
    "no rows": Example(lambda: Then(_position, 6, _L(6, 6)), dense(3, 6), _NUMBER),
    "half of the rows": Example(
        lambda: Then(_halves, 6, _L(6, 6)), dense(6), "must be used with batches of one size .*, got .2, 5. rows"
    ),
    "mean of the batch": Example(lambda: Then(_others, 6, _L(6, 6)), dense(6), _MIXED),
    "one layer in another order": Example(lambda: Then(_picked, 6, _L(6, 6)), dense(6), _NOT_ROWS),
    "steps first": Example(lambda: Then(_steps_first, 6, _L(6, 6)), dense(3, 6), _NUMBER),
    "steps first, as many": Example(lambda: Then(_steps_first, 6, _L(6, 6)), dense(5, 6), _NOT_ROWS),
    "all steps first": Example(lambda: AllFlattened(turned=True), dense(3, 6), _NUMBER),
    "all steps first, as many": Example(lambda: AllFlattened(turned=True), dense(5, 6), _NOT_ROWS),
    "all steps first, told": Example(lambda: AllFlattened(turned=True), dense(5, 6), batch_first=False),
    "all steps first, told, others": Example(lambda: AllFlattened(turned=True), dense(3, 6), batch_first=False),
    "flattened": Example(lambda: Then(_flattened, 6, _L(6, 6)), dense(3, 6), _NUMBER),
    "all flattened": Example(AllFlattened, dense(3, 6), _NUMBER),
    "sequence bias": Example(lambda: Then(lambda x, a: a(x), 24, SequenceBias(6, batch_first=True)), dense(3, 6)),
    "sequence bias, rows second": Example(
        lambda: Then(lambda x, a: a(x.transpose(0, 1)).transpose(0, 1), 36, SequenceBias(6)), dense(5, 6)
    ),
    **{
        f"attention, {'rows' if first else 'steps'} first, {steps} steps, {list(more)}": Example(
            lambda first=first, more=more: attention(first, not first, **more), dense(steps, 8)
        )
        for first in (True, False)
        for steps in (3, 5)
        for more in ({}, {"add_bias_kv": True, "add_zero_attn": True, "kdim": 6})
        if not more or not first or steps == 5
    },
    "attention over persons": Example(lambda: attention(False, False), dense(5, 8), _MIXED),
    "attention over persons, 3 steps": Example(lambda: attention(False, False), dense(3, 8), _NUMBER),
    **{
        f"bag, {mode}, {form}, {list(more.values())}": Example(
            lambda mode=mode, form=form, more=more: bag(mode, form, **more), words(6, 5)
        )
        for mode in ("sum", "mean", "max")
        for form in ("2-D", "ragged", "last offset")
        for more in ({}, {"padding_idx": 1})
    },
    "bag, fixed weights": Example(lambda: bag("sum", "ragged", "fixed", padding_idx=2), words(6, 5)),
    "bag, trained weights": Example(lambda: bag("sum", "ragged", "trained"), words(6, 5)),
    "bag, trained weights, 2-D": Example(lambda: bag("sum", "2-D", "trained"), words(6, 5)),
    "bag, sparse": Example(lambda: bag("mean", "ragged", sparse=True), words(6, 5)),
    "bag, by frequency": Example(lambda: bag("sum", scale_grad_by_freq=True), words(6), "scale_grad_by_freq=True"),
    "bag, norm": Example(lambda: bag("sum", max_norm=1.0), words(6), "max_norm=1.0"),
    **{
        f"{kind.__name__}, {'padded' if not packed else 'sorted' if ordered else 'unsorted'}": Example(
            lambda kind=kind, packed=packed, ordered=ordered: recurrent(kind, packed, ordered),
            sequences(falling=ordered),
        )
        for kind in (DPRNN, DPGRU, DPLSTM)
        for packed, ordered in ((False, False), (True, True), (True, False))
    },
    "DPLSTM, two layers, both ways, steps first": Example(
        lambda: recurrent(DPLSTM, num_layers=2, bidirectional=True, batch_first=False), sequences()
    ),
    "DPGRU, two layers, both ways, state": Example(
        lambda: recurrent(DPGRU, num_layers=2, bidirectional=True, initial=True), sequences()
    ),
    "DPLSTM, padded, steps first, state": Example(
        lambda: recurrent(DPLSTM, packed=False, batch_first=False, initial=True, bias=False), sequences()
    ),
    "DPRNN, both ways, sorted": Example(
        lambda: recurrent(DPRNN, ordered=True, bidirectional=True, nonlinearity="relu"), sequences(falling=True)
    ),
    "DPLSTM, two packs": Example(lambda: Then(_two_packs, 6, DPLSTM(3, 6, batch_first=True)), sequences()),
    "DPLSTM, sorted within": Example(
        lambda: Then(_sorts_itself, 6, DPLSTM(3, 6, batch_first=True)), sequences(), _NOT_ROWS
    ),
    "DPLSTM, all sorted within": Example(SortsAll, sequences()),
}  # fmt: skip
