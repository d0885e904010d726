"""Gradients of single rows of a batch by plain autograd: the model called again on a few rows, or on the batch.

With dL/d(output) known, the gradient of row i is the output gradient of row i, taken back through the model: the loss
need not be known.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from leakcore.dpsgd.rows.forward_log import Call, is_rows, output_leaves, values_of
from leakcore.dpsgd.rows.preserve_state import Randomness
from leakcore.gradients import State, vector_jacobian

_FORMS = 16
"""Most ways to take rows from arguments that have several dimensions as long as the batch."""


class CannotTellError(Exception):
    """The rows cannot be computed alone; the text says why."""


class MixedError(Exception):
    """An output for a row depends on the other rows of its batch."""


class AutogradRowGradients:
    """One call, repeated for the gradients of some rows of its batch, in which `count` rows have gradients.

    `backward` is the number of the backward pass that is repeated. `mean`: the loss is taken for a mean over the rows;
    `second`: rows are said to be an input's second dimension; `error`: the share of an output that rounding explains.
    `size` rows went in, None if unknown. `gives_loss`: a row is the whole batch of a call of its own, because the model
    returns a loss. CannotTellError if rows cannot be computed alone; MixedError if an output for a row depends on
    others.
    """

    def __init__(
        self,
        call: Call,
        backward: int,
        rows: Sequence[int],
        count: int,
        mean: bool,
        second: bool,
        parameters: Sequence[torch.Tensor],
        error: float,
        state: State,
    ) -> None:
        if not call.is_unchanged:
            raise CannotTellError("its inputs or outputs were changed in place after its forward pass")
        self._call, self._parameters, self._error, self._state = call, parameters, error, state
        self._given = {place: _padded(_like(call.outputs[place], g)) for place, g in call.gradients[backward].items()}
        self._before = {place: _padded(call.outputs[place]) for place in self._given}
        self._forms = list(itertools.islice(_forms(call, second), _FORMS))
        # Layers may have rows second, and the model still have them first.
        self._forms.sort(key=lambda form: form.size != count)
        self._form: _Form | None = None
        self._axes: dict[int, int] = {}
        self._factor = float(count) if mean else 1.0
        self.size: int | None = None
        self.rows = list(rows)
        outputs = self._of_few(count)
        self.gives_loss = outputs is not None and len(self._axes) < len(outputs)
        self._count = count if self.size is None else self.size
        if outputs is not None:
            self._here = {row: k for k, row in enumerate(self.rows)}
        else:
            outputs = self._of_all(count)
            self.rows = [row for row in rows if row < self._count]
            self._here = {row: row for row in range(self._count)}
        self._outputs = outputs

    def gradient(self, row: int) -> list[torch.Tensor]:
        """The gradient of one of the rows, for each parameter; if the loss is a mean, that of the row's own loss."""
        outputs, here = self._outputs, self._here
        if self.gives_loss:
            assert self._form is not None
            try:
                outputs, drew = self._again(self._form.take([row]))
            except Exception as why:
                raise CannotTellError(f"a call with one row fails ({_first_line(why)})") from why
            here = {row: 0}
            if drew:
                raise CannotTellError("it draws random numbers for some rows and not for others")
        arriving = {}
        for place, leaf in outputs.items():
            like, gradient = _padded(leaf), self._given[place]
            if place in self._axes:
                axis = self._axes[place]
                each = gradient.shape[axis] // self._count
                arriving[place] = torch.zeros_like(like)
                own = gradient[_block(axis, row, each)].to(like.dtype) * self._factor
                arriving[place][_block(axis, here[row], each)] = own
            else:  # the batch's loss is the mean, or the sum, of the losses of rows
                arriving[place] = gradient.reshape(like.shape)
        return self._back_to_parameters(outputs, arriving)

    def _back_to_parameters(self, outputs: dict[int, Any], arriving: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        pairs = _from_outside(outputs, arriving)
        every = [*self._parameters, *self._call.module.parameters()]
        try:
            gradients = vector_jacobian([t for t, _ in pairs], [g for _, g in pairs], every, again=True)
        except Exception as why:
            raise CannotTellError(
                f"its backward pass fails when it is repeated outside the loop ({_first_line(why)})"
            ) from why
        dense = (g if g is None or g.layout is torch.strided else g.to_dense() for g in gradients)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(self._parameters, dense, strict=False)]

    def _of_few(self, count: int) -> dict[int, Any] | None:
        """Outputs of a call with these rows alone; None if that is impossible, or draws random numbers. A dimension of
        another length than `count` counts as the rows' only if those were tried: a call that fails for another reason
        shows nothing.
        """
        mixed: tuple[dict[int, Any], dict[int, int], int, Sequence[int]] | None = None
        tried = not any(form.size == count for form in self._forms)
        for form in self._forms:
            size = form.size
            if size != count and not tried:
                break
            few = [row for row in self.rows if row < size][: max(1, size - 1)]
            try:
                outputs, drew = self._again(form.take(few))
            except Exception:  # the model refuses so few rows, or these are not its rows
                continue
            tried = True
            axes = self._axes_of(outputs, size, len(few))
            if axes is None or (not axes and not form.is_plain):
                continue
            if not drew and not self._equal(outputs, axes, size, few, self._before):
                mixed = mixed or (outputs, axes, size, few)
                continue
            self._form, self._axes, self.size = form, axes, size
            if drew:
                return None
            self.rows = few
            return outputs
        if mixed and self._forms[0].is_plain and (whole := self._repeated()) is not None:
            mixed_outputs, mixed_axes, mixed_size, mixed_rows = mixed
            wholes = {place: _padded(leaf) for place, leaf in whole.items()}
            if self._equal(mixed_outputs, mixed_axes, mixed_size, mixed_rows, wholes):
                raise CannotTellError("a second call with the same inputs gives other outputs")
            raise MixedError
        return None

    def _of_all(self, count: int) -> dict[int, Any]:
        """Outputs of a call with the whole batch, from the same random numbers."""
        outputs = self._repeated()
        if outputs is None:
            raise CannotTellError("a second call with the same inputs and random numbers gives other outputs")
        if not self._axes:
            axes = {place: _axis(_padded(leaf), count) for place, leaf in outputs.items()}
            self._axes = {place: axis for place, axis in axes.items() if axis is not None}
        of_rows = {place: leaf for place, leaf in outputs.items() if place in self._axes}
        if len(of_rows) < len(outputs) and not self._cover(of_rows, outputs):
            shapes = [tuple(_padded(leaf).shape) for leaf in outputs.values()]
            raise CannotTellError(f"some of its outputs, of shapes {shapes}, do not show which part belongs to a row")
        return of_rows

    def _cover(self, of_rows: dict[int, Any], outputs: dict[int, Any]) -> bool:
        """Whether all other outputs, such as a loss, derive from these, so that what came back to these is complete."""
        others = [outputs[place] for place in outputs if place not in of_rows]
        if not of_rows or not all(isinstance(leaf, torch.Tensor) for leaf in others):
            return False
        loss_gradients = [self._given[place].reshape(outputs[place].shape) for place in outputs if place not in of_rows]
        whole = _back(others, self._parameters, loss_gradients)
        through = _back(others, [values_of(leaf) for leaf in of_rows.values()], loss_gradients)
        arriving = {
            place: torch.zeros_like(_padded(leaf)) if g is None else _padded(_like(leaf, g))
            for (place, leaf), g in zip(of_rows.items(), through, strict=True)
        }
        parts = self._back_to_parameters(of_rows, arriving)
        return not any(_differ(a, b, self._error) for a, b in zip(whole, parts, strict=True) if a is not None)

    def _repeated(self) -> dict[int, Any] | None:
        """Outputs of the same call again; None where they differ."""
        try:
            outputs, _ = self._again((self._call.args, self._call.kwargs))
        except CannotTellError:
            raise
        except Exception as why:
            raise CannotTellError(f"a second call fails ({_first_line(why)})") from why
        for place, leaf in outputs.items():
            output, before = _padded(leaf), self._before[place]
            if output.shape != before.shape or _differ(output, before, self._error):
                return None
        return outputs

    def _again(self, arguments: tuple[Any, Any]) -> tuple[dict[int, Any], bool]:
        """The outputs that a gradient came back to, and whether random numbers were drawn."""
        args, kwargs = tree_map(_cut, arguments)
        self._state.restore(parameters=False)
        self._call.randomness.set()
        kind, on, dtype = self._call.autocast
        with torch.enable_grad(), torch.autocast(kind, dtype, on) if on else contextlib.nullcontext():
            leaves = output_leaves(self._call.module(*args, **kwargs))
        back = [leaves[place] for place in self._given] if len(leaves) == len(self._call.outputs) else [None]
        if not all(is_rows(leaf) and values_of(leaf).grad_fn is not None for leaf in back):
            raise CannotTellError("a second call gives another form of output")
        drew = Randomness.now() != self._call.randomness
        return dict(zip(self._given, back, strict=True)), drew

    def _axes_of(self, outputs: dict[int, Any], size: int, few: int) -> dict[int, int] | None:
        """The dimension of rows of each output that is not a single number; None if the rows cannot be seen."""
        axes = {}
        for place, leaf in outputs.items():
            output, whole = _padded(leaf), self._before[place]
            if whole.ndim == 0 or (whole.numel() == 1 and size > 1):
                if output.shape != whole.shape:
                    return None
                continue
            if whole.ndim != output.ndim:
                return None
            other = [d for d in range(whole.ndim) if whole.shape[d] != output.shape[d]] or ([0] if size == few else [])
            if len(other) != 1 or whole.shape[other[0]] * few != output.shape[other[0]] * size:
                return None
            if other[0] and whole.shape[other[0]] != size:
                return None
            axes[place] = other[0]
        return axes

    def _equal(
        self, outputs: dict[int, Any], axes: dict[int, int], size: int, few: Sequence[int], wholes: dict[int, Any]
    ) -> bool:
        for place, axis in axes.items():
            output, whole = _padded(outputs[place]), wholes[place]
            each = whole.shape[axis] // size
            for k, row in enumerate(few):
                if _differ(output[_block(axis, k, each)], whole[_block(axis, row, each)], self._error):
                    return False
        return True


class _Form:
    """One way to take rows from arguments: the dimension of rows of each leaf, None for what all rows share."""

    def __init__(self, call: Call, axes: Sequence[int | None], size: int, is_plain: bool) -> None:
        self._call, self._axes, self.size, self.is_plain = call, list(axes), size, is_plain

    def take(self, rows: Sequence[int]) -> tuple[Any, Any]:
        leaves, tree = tree_flatten((self._call.args, self._call.kwargs), is_leaf=_is_packed)
        pieces = [_some(leaf, axis, rows) for leaf, axis in zip(leaves, self._axes, strict=True)]
        args, kwargs = tree_unflatten(pieces, tree)
        return args, kwargs


def _forms(call: Call, second: bool) -> Iterator[_Form]:
    """The possible forms, the likeliest first: rows are the first tensor's first dimension, then its second."""
    leaves = tree_flatten((call.args, call.kwargs), is_leaf=_is_packed)[0]
    first = next((leaf for leaf in leaves if _is_packed(leaf) or (isinstance(leaf, torch.Tensor) and leaf.ndim)), None)
    if first is None:
        return
    sizes = [_size(first)] if _is_packed(first) else first.shape[:2]
    bags = any(isinstance(m, nn.EmbeddingBag) for m in call.module.modules())
    for main, size in sorted(enumerate(sizes), reverse=second):
        choices: list[list[int | None]] = []
        for leaf in leaves:
            if _is_packed(leaf):
                choices.append([0] if _size(leaf) == size else [None])
            elif not isinstance(leaf, torch.Tensor) or leaf.ndim == 0:
                choices.append([None])
            else:
                order = [main, *(d for d in range(min(leaf.ndim, 3)) if d != main)]
                fits: list[int | None] = [d for d in order if d < leaf.ndim and leaf.shape[d] == size]
                choices.append([main] if leaf is first else [*fits, None])
        plain = all(
            not isinstance(leaf, torch.Tensor)
            or leaf.ndim == 0
            or (leaf.shape[0] == size and not (bags and _may_be_offsets(leaf)))
            for leaf in leaves
            if not _is_packed(leaf)
        )
        for axes in itertools.product(*choices):
            yield _Form(call, axes, size, plain and main == 0 and not second)


def _may_be_offsets(leaf: torch.Tensor) -> bool:
    """Whether a model with bags may take a leaf for their starts: one row of it means nothing without its neighbours.
    Sorted numbers of rows look the same: such a leaf is first tried as rows, and only where that fails are rows not
    said to mix.
    """
    if leaf.ndim != 1 or leaf.is_floating_point() or leaf.dtype == torch.bool or len(leaf) < 2:
        return False
    return int(leaf[0]) == 0 and bool((leaf[1:] >= leaf[:-1]).all())


def _is_packed(leaf: Any) -> bool:
    return isinstance(leaf, PackedSequence)


def _size(packed: PackedSequence) -> int:
    return int(packed.batch_sizes[0])


def _some(leaf: Any, axis: int | None, rows: Sequence[int]) -> Any:
    if axis is None:
        return leaf
    if isinstance(leaf, PackedSequence):
        padded, lengths = rnn.pad_packed_sequence(leaf, batch_first=True)
        few = torch.tensor(rows)
        return rnn.pack_padded_sequence(
            padded[few.to(padded.device)], lengths[few], batch_first=True, enforce_sorted=leaf.unsorted_indices is None
        )
    some: torch.Tensor = leaf.detach().index_select(axis, torch.tensor(rows, device=leaf.device))
    return some.requires_grad_(leaf.requires_grad)


def _padded(leaf: Any) -> torch.Tensor:
    """Rows first; a packed sequence has them by step."""
    values: torch.Tensor = rnn.pad_packed_sequence(leaf, batch_first=True)[0] if _is_packed(leaf) else leaf
    return values


def _like(leaf: Any, gradient: torch.Tensor) -> Any:
    if _is_packed(leaf):
        return PackedSequence(gradient, leaf.batch_sizes, leaf.sorted_indices, leaf.unsorted_indices)
    return gradient


def _axis(output: torch.Tensor, count: int) -> int | None:
    """The dimension of the rows, if only their number shows it."""
    fits = [d for d in range(min(output.ndim, 2)) if output.shape[d] == count]
    if fits:
        return fits[0]
    return 0 if output.ndim and count and output.shape[0] % count == 0 else None


def _block(axis: int, row: int, each: int) -> tuple[slice, ...]:
    return (*[slice(None)] * axis, slice(row * each, (row + 1) * each))


def _differ(a: torch.Tensor, b: torch.Tensor, error: float) -> bool:
    """Whether they differ by more than this share of the larger one; what is not finite must be so in both."""
    a, b = a.detach().double().nan_to_num(0, 0, 0), b.detach().double().nan_to_num(0, 0, 0)
    if not a.numel():
        return False
    scale = float(torch.maximum(a.abs().max(), b.abs().max()))
    return float((a - b).abs().max()) > error * scale


def _cut(leaf: Any) -> Any:
    """The tensor without the graph that leads to it."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().requires_grad_() if leaf.requires_grad else leaf


def _from_outside(
    outputs: dict[int, Any], arriving: dict[int, torch.Tensor]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Outputs, and what the loss sends back to each directly, not through another output that derives from it."""
    last_first = sorted(outputs, key=lambda place: -values_of(outputs[place]).grad_fn._sequence_nr())  # type: ignore[union-attr]
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    for place in last_first:
        leaf, gradient = outputs[place], arriving[place]
        if pairs:
            (through,) = _back([t for t, _ in pairs], [values_of(leaf)], [g for _, g in pairs])
            if through is not None:
                gradient = gradient - _padded(_like(leaf, through))
        pairs.append((_padded(leaf), gradient))
    return pairs


def _back(
    outputs: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    try:
        return list(torch.autograd.grad(outputs, parameters, gradients, retain_graph=True, allow_unused=True))
    except Exception as why:
        raise CannotTellError(
            f"its backward pass fails when it is repeated outside the loop ({_first_line(why)})"
        ) from why


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
