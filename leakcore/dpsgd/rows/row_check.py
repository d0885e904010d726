"""Check that the clipped rows are the rows of the batch, by plain autograd on a few of them."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn

from leakcore.dpsgd.rows.autograd_rows import AutogradRowGradients, CannotTellError, MixedError
from leakcore.dpsgd.rows.forward_log import ForwardLog
from leakcore.dpsgd.rows.preserve_state import pause_recording, preserve_state
from leakcore.gradients import State

_log = logging.getLogger(__name__)

ROWS = 4
"""Number of rows that a check compares, other ones each time."""
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-2, torch.float16: 0.2, torch.bfloat16: 0.2}
"""Largest error of a row's gradient in one parameter, as a share of the norm of its whole gradient."""


class RowsOfParameter(Protocol):
    """Per-sample gradients of one parameter."""

    rows: int

    def row(self, index: int) -> torch.Tensor | None:
        """One of the rows; None if only norms are known."""

    def squared_norms(self) -> torch.Tensor: ...


class Norms:
    """Norms of rows, (B,), all that ghost clipping computes."""

    def __init__(self, norms: torch.Tensor) -> None:
        self._norms, self.rows = norms, len(norms)

    def row(self, index: int) -> None:
        return None

    def squared_norms(self) -> torch.Tensor:
        return self._norms.double().square()


def _stop(watched: weakref.ref[ForwardLog]) -> None:
    if (calls := watched()) is not None:
        calls.stop()


class RowCheck:
    """Compares per-sample gradients with autograd's at steps 1, 2, 4, 8, ...

    Call `start` before the first forward pass. The model, `root` without wrappers, is called again on up to four rows
    of the step's last batch. The gradient that the loss sent back to its outputs is then taken through them by plain
    autograd, row by row: each parameter's part must agree to `TOLERANCES`. A model that draws random numbers is called
    on the whole batch, from the same numbers. If the model cannot be called again, or gives other outputs then, the
    check is skipped, and the log says so. Rows that are all in one other order pass. The state of the model and every
    random stream stay unchanged. Opacus's `hooks` know whether rows are the first dimension (`batch_first`).
    """

    def __init__(self, root: nn.Module, parameters: Sequence[torch.Tensor], hooks: Any = None) -> None:
        self._root = root
        self._second = not getattr(hooks, "batch_first", True)
        own = {id(p) for p in parameters}
        owners = [(name, m, key, p) for name, m in root.named_modules() for key, p in m._parameters.items()]
        self._layers = {
            id(p): (f"{name + '.' if name else ''}{key}", type(m).__name__)
            for name, m, key, p in reversed(owners)
            if p is not None and id(p) in own
        }
        self._watched = ForwardLog(root, own)
        # An optimizer that is deleted, often after its last step, leaves no hooks on a model that remains.
        weakref.finalize(self, _stop, weakref.ref(self._watched)).atexit = False
        self._steps, self._due = 0, 1
        self._said = ""

    def start(self, called: nn.Module | None = None, args: tuple[Any, ...] = ()) -> None:
        """Begin to watch. `called` is a module whose call is under way, with its arguments."""
        self._watched.start(called, args)

    def stop(self) -> None:
        self._watched.stop()

    def step(
        self, parameters: Sequence[torch.Tensor], rows: Sequence[RowsOfParameter], mean: bool, ghost: bool = False
    ) -> None:
        """A step ends. ValueError names the layers, if it would clip something other than the rows of the batch.

        `rows` are those of its last batch, for each parameter; `mean`: Opacus takes the loss for a mean; `ghost`: each
        batch goes back twice, first with its own loss.
        """
        self._steps += 1
        due = self._steps >= self._due
        counts = {r.rows for r in rows}
        if due and len(counts) == 1 and counts.pop() > 0:
            self._due = 2 * self._steps
            wrong = ""
            try:
                with pause_recording(), preserve_state(self._root) as state:
                    wrong = self._what_is_wrong(parameters, rows, mean, ghost, state)
            except CannotTellError as why:
                if str(why) != self._said:
                    self._said = str(why)
                    text = "The per-sample gradients of %s were not compared with autograd's in step %d: %s."
                    _log.warning(text, type(self._root).__name__, self._steps, why)
            finally:
                self._watched.stop()
            if wrong:
                raise ValueError(f"model: {wrong}")
        if self._steps + 1 >= self._due:
            self._watched.start()

    def _what_is_wrong(
        self, parameters: Sequence[torch.Tensor], rows: Sequence[RowsOfParameter], mean: bool, ghost: bool, state: State
    ) -> str:
        """What is wrong with the per-sample gradients; "" if nothing is."""
        calls, count = self._watched.last, rows[0].rows
        if not calls:
            raise CannotTellError("no observed call of it is one that the loss goes back through")
        if self._watched.is_around:
            raise CannotTellError("the loss also goes back to its layers around its outputs (a penalty on activations)")
        types = [*(call.precision() for call in calls), *(p.dtype for p in parameters)]
        tolerance = max(TOLERANCES.get(dtype, 0.2) for dtype in types)
        chosen = sorted({(self._steps - 1 + k * count // ROWS) % count for k in range(ROWS)})
        alone = []
        for call in calls:
            backward = (min if ghost else max)(call.gradients)
            try:
                alone.append(
                    AutogradRowGradients(
                        call, backward, chosen, count, mean, self._second, parameters, tolerance, state
                    )
                )
            except MixedError:
                return (
                    f"{type(call.module).__name__} gives a row another output when the row is alone: its output "
                    "depends on the other rows of the batch (a mean over the batch, a length of the longest), so that "
                    "no row has a gradient of its own, and clipping bounds no row's part"
                )
            size = alone[-1].size
            if size is not None and size != count:
                return (
                    f"{size} rows went in, and per-sample gradients are of {count}: {self._listed(parameters)} see "
                    "another first dimension than the batch's (flattened with steps, or steps first). What is clipped "
                    "would not be rows"
                )
        return self._differences(parameters, _Clipped(rows), alone, chosen, tolerance)

    def _differences(
        self,
        parameters: Sequence[torch.Tensor],
        clipped: _Clipped,
        alone: Sequence[AutogradRowGradients],
        chosen: Sequence[int],
        tolerance: float,
    ) -> str:
        """The parameters whose rows are not autograd's in any order; "" if there are none."""
        taken: set[int] = set()
        wanted: list[torch.Tensor] = []
        for row in chosen:
            if not all(row in one.rows for one in alone):
                continue
            wanted.clear()  # the last row's: two gradients at a time would be a model's size more
            for one in alone:
                own = one.gradient(row)
                wanted = [a + b for a, b in zip(wanted, own, strict=True)] if wanted else own
            del own
            lengths = torch.tensor([float(g.double().norm()) for g in wanted], dtype=torch.float64)
            scale = float(torch.maximum(lengths.norm(), clipped.norms[:, row].norm()))
            if not math.isfinite(scale) or scale == 0:
                continue
            for j in clipped.near(row, lengths, tolerance * scale):
                if j not in taken and float(clipped.errors(j, wanted, lengths).max()) <= tolerance * scale:
                    taken.add(j)
                    break
            else:
                errors = clipped.errors(row, wanted, lengths) / scale
                order = errors.argsort(descending=True).tolist()
                gives = any(one.gives_loss for one in alone)
                loss = ", or the model's loss is neither the mean nor the sum of its rows'" if gives else ""
                wrong = [parameters[k] for k in order if float(errors[k]) > tolerance]
                return (
                    f"the per-sample gradients of {self._listed(wrong)} are not the rows': that of row {row} differs "
                    f"from autograd's for this row alone by {float(errors.max()):.2g} of its norm (allowed: "
                    f"{tolerance:g}). The layer sees rows in another order or number than the batch's (sorted within "
                    f"the model, steps first), mixes them, or has a sampler that is wrong{loss}; or the loop changed "
                    "p.grad_sample after the backward pass. Clipping would not bound what one row adds"
                )
        return ""

    def _listed(self, parameters: Sequence[torch.Tensor]) -> str:
        names = [self._layers.get(id(p), ("a parameter", "?")) for p in parameters]
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        return ", ".join(f"{name} ({kind})" for name, kind in names[:4]) + more


class _Clipped:
    """What a step would clip. norms: (parameters, rows), float64."""

    def __init__(self, rows: Sequence[RowsOfParameter]) -> None:
        self._rows = rows
        self.norms = torch.stack([r.squared_norms().double().cpu() for r in rows]).sqrt()

    def near(self, row: int, lengths: torch.Tensor, error: float) -> list[int]:
        """Rows whose norms agree with these to within an error, in every parameter; this row first."""
        far = (self.norms - lengths[:, None]).abs().amax(0)
        matches = (far <= error).nonzero()[:, 0].tolist()
        return sorted(matches, key=lambda j: (j != row, float(far[j])))

    def errors(self, row: int, wanted: Sequence[torch.Tensor], lengths: torch.Tensor) -> torch.Tensor:
        """For each parameter, the distance of this row, or of its norm, from the expected one."""
        errors = (self.norms[:, row] - lengths).abs()
        for k, (g, r) in enumerate(zip(wanted, self._rows, strict=True)):
            own = r.row(row)
            if own is not None:
                distance = float((own.to(g.device, torch.float64) - g.double()).norm())
                errors[k] = max(float(errors[k]), distance)
        return errors
