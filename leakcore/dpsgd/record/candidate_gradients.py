"""Per-sample gradients of candidates at the parameters that an optimizer has just now."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from leakcore import kernels
from leakcore.dpsgd.fused.layer_kinds import Kind, kind_of
from leakcore.dpsgd.fused.row_gradients import Convolved, Dense, Outer, Use, blocks
from leakcore.dpsgd.record.candidates import CallForm
from leakcore.dpsgd.record.forward_passes import Autocast, ForwardPass
from leakcore.dpsgd.record.loss import require_of_rows, require_reduced
from leakcore.dpsgd.rows.distributed import behind_wrappers
from leakcore.dpsgd.rows.preserve_state import Randomness, preserve_state
from leakcore.dpsgd.rows.row_check import TOLERANCES
from leakcore.gradients import Criterion, Feed, Functional, RowByRow, RowError, State, first_line, lock_of

T = TypeVar("T")
Products = tuple[np.ndarray, np.ndarray, np.ndarray]
"""⟨c_j, noise⟩ and ‖c_j‖ of all candidates, (n,), and ⟨c_i, c_j⟩ for i in the batch, (m, n); float64."""
_log = logging.getLogger(__name__)
_ROWS_TO_TRY = 64
_ROWS_ALONE = 8
_ROWS_ASKED = 64
_DIFFERENCE = 1e-3
"""Largest relative difference in float32 between the two ways to a row's gradient that rounding explains."""


class UnknownLayerError(Exception):
    """The rows' gradients cannot be had from the layers' inputs; the text says why."""


class RowsByLayer:
    """Per-sample gradients of a module, without hooks of Opacus, whose parameters all belong to layers of known types.

    With a layer's inputs a and the gradients δ of its outputs, g_i = Σ_t δ_it ⊗ a_it (Bu et al. 2022, section 3). One
    pass over all rows gives both, where vmap makes a convolution of its own for each row. That the module treats each
    row on its own is not checked here: the caller compares. The criterion's value for one row is summed.
    UnknownLayerError if a parameter belongs to a layer of an unknown type.
    """

    def __init__(self, module: nn.Module, criterion: Criterion, parameters: Sequence[torch.Tensor]) -> None:
        self._module, self._criterion = module, criterion
        ends = list(itertools.accumulate((p.numel() for p in parameters), initial=0))
        self._places = {id(p): place for p, place in zip(parameters, itertools.pairwise(ends), strict=True)}
        self._columns = ends[-1]
        self._layers: list[tuple[nn.Module, Kind]] = []
        covered: set[int] = set()
        for layer in module.modules():
            own = {id(p) for p in layer.parameters(recurse=False)} & self._places.keys()
            if not own:
                continue
            kind = kind_of(layer)
            if kind is None or not kind.suits(layer) or type(layer) is nn.EmbeddingBag:  # which `record` refuses
                raise UnknownLayerError(f"{type(layer).__name__} is not a layer of a known type")
            self._layers.append((layer, kind))
            covered |= own
        if covered != self._places.keys():
            raise UnknownLayerError("a parameter belongs to no layer")

    def gradients(self, leaves: list[torch.Tensor], feed: Feed) -> torch.Tensor:
        """(rows, D), parameters in order, at the module's present values.

        UnknownLayerError if the model draws random numbers, or an output or a layer does not have the rows first.
        """
        uses, like = self._uses(leaves, feed), next(iter(self._module.parameters()))
        rows = torch.zeros(len(leaves[0]), self._columns, dtype=like.dtype, device=like.device)
        with torch.no_grad():
            for place, several in uses.items():
                rows[:, slice(*place)] = _summed(several).flatten(1)
        return rows

    def products(
        self, leaves: list[torch.Tensor], feed: Feed, noise: torch.Tensor, inside: np.ndarray, norm: float
    ) -> Products:
        """The products of rows, clipped to `norm`; none is built as a whole. Raises what `gradients` raises."""
        uses, count = self._uses(leaves, feed), len(leaves[0])
        some = torch.from_numpy(inside).to(noise.device)
        with torch.no_grad():
            squares = torch.zeros(count, dtype=torch.float64, device=noise.device)
            dots = torch.zeros(count, 1 + len(some), dtype=torch.float64, device=noise.device)
            for place, several in uses.items():
                use = several[0]
                if len(several) > 1 or isinstance(use, Convolved):  # whose patches are then read once
                    use = Dense(_summed(several))
                squares += use.squared_norms()
                own = use.dense(some).flatten(1)
                targets = torch.cat([noise[None, slice(*place)].to(own.dtype), own])
                dots += _dots(use, targets).double()
            factors = norm / squares.sqrt().clamp(min=norm)
            dots *= factors[:, None]
            dots[:, 1:] *= factors[some]
            norms = squares.sqrt() * factors
        numbers = dots.T.cpu().numpy()
        return numbers[0].copy(), norms.cpu().numpy(), numbers[1:].copy()

    def _uses(self, leaves: list[torch.Tensor], feed: Feed) -> dict[tuple[int, int], list[Use]]:
        """By the columns of a parameter, what its rows are computed from, once for each use of it."""
        count = len(leaves[0])
        calls: list[tuple[nn.Module, Kind, Any, Any]] = []

        def heard(kind: Kind) -> Callable[..., None]:
            def hook(layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
                if not isinstance(output, torch.Tensor):
                    raise UnknownLayerError(f"{type(layer).__name__} returns {type(output).__name__}")
                if output.requires_grad:
                    # What follows may change the output in place: its edge in the graph stays that of this layer.
                    edge = torch.autograd.graph.get_gradient_edge(output)
                    calls.append((layer, kind, kind.read(layer, *args, **kwargs), edge))

            return hook

        handles = [layer.register_forward_hook(heard(kind), with_kwargs=True) for layer, kind in self._layers]
        before = Randomness.now()
        try:
            with torch.enable_grad():
                args, kwargs, _ = feed([leaf.clone() for leaf in leaves])
                outputs = self._module(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
        if before != Randomness.now():
            raise UnknownLayerError("the model draws random numbers")
        through, arriving = self._arriving(outputs, leaves, feed, count)
        deltas = torch.autograd.grad(through, [edge for *_, edge in calls], arriving, allow_unused=True)
        uses: dict[tuple[int, int], list[Use]] = {}
        with torch.no_grad():
            for (layer, kind, a, _), delta in zip(calls, deltas, strict=True):
                for name, use in () if delta is None else _uses_of(layer, kind, a, delta, count):
                    place = self._places.get(id(getattr(layer, name, None)))
                    if place is not None:
                        uses.setdefault(place, []).append(use)
        return uses

    def _arriving(
        self, outputs: Any, leaves: list[torch.Tensor], feed: Feed, count: int
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The outputs that carry a gradient, and each row's gradient of its own criterion at them."""
        parts, form = tree_flatten(outputs)
        through = [k for k, part in enumerate(parts) if isinstance(part, torch.Tensor) and part.requires_grad]
        if not through or any(parts[k].ndim == 0 or len(parts[k]) != count for k in through):
            raise UnknownLayerError("an output is not one value for each row")

        def loss(row: list[torch.Tensor], leaf_rows: list[torch.Tensor]) -> torch.Tensor:
            some = dict(zip(through, row, strict=True))
            whole = [some[k][None] if k in some else part for k, part in enumerate(parts)]
            return self._criterion(tree_unflatten(whole, form), feed([leaf[None] for leaf in leaf_rows])[2]).sum()

        cut = [parts[k].detach() for k in through]
        arriving = torch.func.vmap(torch.func.grad(loss))(cut, leaves)
        return [parts[k] for k in through], list(arriving)


def _uses_of(layer: nn.Module, kind: Kind, a: Any, delta: torch.Tensor, count: int) -> list[tuple[str, Use]]:
    """What the rows of the layer's parameters are computed from, by their names."""
    second = kind.second(layer)
    if isinstance(a, torch.Tensor) and len(a) != count and second is not None and a.ndim >= second:
        a, delta = a.transpose(0, 1), delta.transpose(0, 1)
    uses = kind.uses(layer, a, delta)
    if any(use.rows != count for _, use in uses):
        raise UnknownLayerError(f"the rows are not a dimension of {type(layer).__name__}'s input")
    return uses


def _summed(several: list[Use]) -> torch.Tensor:
    every = (use.all_dense() if isinstance(use, Convolved) else use.dense(slice(None)) for use in several)
    return functools.reduce(torch.add, every)


def _dots(use: Use, targets: torch.Tensor) -> torch.Tensor:
    """⟨g_i, target_k⟩, (rows, k), of targets (k, numbers of the parameter)."""
    if isinstance(use, Outer):  # ⟨Σ_t δ_t ⊗ a_t, R⟩ = Σ_t ⟨δ_t, R a_t⟩
        d, p = use.a.shape[2], use.delta.shape[2]
        out = use.delta.new_empty((use.rows, len(targets)))
        for rows in blocks(use.rows, use.a.shape[1] * p * len(targets)):
            reached = use.a[rows].to(targets.dtype) @ targets.reshape(-1, d).T
            out[rows] = (reached.view(*reached.shape[:2], len(targets), p) * use.delta[rows][:, :, None]).sum((1, 3))
        return out
    if isinstance(use, Dense):
        return use.values.flatten(1).to(targets.dtype) @ targets.T
    out = targets.new_empty((use.rows, len(targets)))
    for rows in blocks(use.rows, targets.shape[1]):
        out[rows] = use.dense(rows).flatten(1).to(targets.dtype) @ targets.T
    return out


@dataclasses.dataclass
class Route:
    """How the candidates' gradients are computed: `one_by_one` if vmap does not accept the model; `checked` once vmap
    agrees with that; `by_layer` if layers' inputs give what vmap gives, None as long as nobody knows; `compared` once a
    candidate was compared with its own row in a batch.
    """

    one_by_one: bool = False
    checked: bool = False
    by_layer: bool | None = None
    compared: bool = False


class CandidateGradients:
    """Per-sample gradients of the candidates at the optimizer's present parameters.

    They come from the layers' inputs and output gradients, in one pass over all candidates, as long as torch's vmap
    gives the same: it is asked about all of them in step 1, about some 64 in steps 2, 4, 8, …, and about all in every
    step for models with other layers. If vmap fails, or differs from plain autograd, they are computed one by one from
    then on. The model and all generators are left unchanged: a candidate's draws depend on its number and the step
    alone.
    """

    def __init__(
        self,
        optimizer: Any,
        model: nn.Module | None,
        criterion: Criterion | None,
        form: CallForm,
        memory: int,
        route: Route | None = None,
        step: int = 0,
        autocast: Autocast | None = None,
    ) -> None:
        if model is None:
            raise ValueError("model: no module that holds the optimizer's parameters was called: pass model=")
        if criterion is None:
            raise ValueError(
                "criterion: no loss of torch.nn was called in the loop: pass criterion=, a function (outputs, targets)"
            )
        self._module = behind_wrappers(model)
        self._criterion = criterion
        with lock_of(self._module):
            names = {id(p): name for name, p in self._module.named_parameters()}
        self._parameters = list(optimizer.params)
        missing = [i for i, p in enumerate(self._parameters) if id(p) not in names]
        if missing:
            raise ValueError(f"model: does not hold {len(missing)} of the optimizer's parameters")
        self._names = [names[id(p)] for p in self._parameters]
        self._candidates, self._form = form.candidates, form
        self._autocast = autocast or ("cpu", False, torch.bfloat16)
        columns = sum(p.numel() for p in self._parameters)
        self._portion = max(1, memory // (columns * self._parameters[0].element_size()))
        self._route, self._step = route or Route(), step
        self._short = float(optimizer.max_grad_norm) / 100
        self._alone = RowByRow(self._module, criterion, self._parameters, optimizer.loss_reduction == "mean")

    def require_of_rows(self, loss_reduction: str) -> None:
        """ValueError unless the criterion over candidates is the mean or the sum of its values for each."""
        try:
            self._require_of_rows(loss_reduction)
        except ValueError as error:
            numbers = ", ".join(self._form.numbers)
            raise ValueError(
                f"{error}. The loop also passes the model {numbers}, which it may divide by" if numbers else str(error)
            ) from error

    def _require_of_rows(self, loss_reduction: str) -> None:
        stack = max(self._candidates.stacks, key=lambda stack: len(stack.numbers))
        rows = self._fed([leaf[:_ROWS_TO_TRY] for leaf in stack.leaves])
        args, kwargs, y = self._form.feed(rows)
        with self._evaluating() as state:
            state.seed(self._step)
            try:
                outputs = self._module(*args, **kwargs)
                self._criterion(outputs, tree_map(_copied, y))
            except Exception as error:  # of the model: its rows may still go one by one
                _log.warning(
                    "record: whether the criterion mixes rows is unknown, because it does not accept several "
                    "candidates at once (%s)",
                    first_line(error),
                )
                return
            if require_of_rows(self._criterion, outputs, y, loss_reduction):
                return
            values = self._values(rows, len(stack.numbers[:_ROWS_ALONE]), state)
            if values is not None:
                require_reduced(self._criterion, *values, loss_reduction)

    def _values(self, rows: list[torch.Tensor], count: int, state: State) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The criterion for these rows together and for each alone; None if they cannot be compared."""

        def value(start: int, end: int) -> torch.Tensor:
            state.restore()
            state.seed(self._step)
            args, kwargs, y = self._form.feed([leaf[start:end].clone() for leaf in rows])
            return self._criterion(self._module(*args, **kwargs), y).sum()

        try:
            together = value(0, count)
            if not torch.equal(together, value(0, count)):
                return None
            return together, torch.stack([value(k, k + 1) for k in range(count)])
        except Exception:  # the rows go one by one later, with an error that says why they cannot
            return None

    def products(self, noise: torch.Tensor, inside: np.ndarray, norm: float) -> Products:
        """The products of the candidates' gradients, clipped to `norm`, of which those `inside` are in the batch."""
        n = len(self._candidates)
        if self._due and self._step and self._route.by_layer and self._route.checked and n <= self._portion:
            self._gradients(self._asked())
        if self._step and (quick := self._quick_products(noise, inside, norm)) is not None:
            return quick
        whole = self._gradients(np.arange(n)) if n <= self._portion else None
        # Steps that asked are scored as the others are, so that a run in parts has the bits of one in one part.
        if self._due and whole is not None and (quick := self._quick_products(noise, inside, norm)) is not None:
            return quick
        observed = [noise[None].to(self._parameters[0].dtype)]
        for start in range(0, len(inside), self._portion):
            some = inside[start : start + self._portion]
            rows = self._gradients(some) if whole is None else whole[torch.from_numpy(some)]
            lengths = torch.linalg.vector_norm(rows.double(), dim=1, keepdim=True)
            observed.append(rows * (norm / lengths.clamp(min=norm)).to(rows.dtype))
        targets = torch.cat(observed) if len(observed) > 1 else observed[0]
        dots, norms = np.empty((len(targets), n)), np.empty(n)
        for start in range(0, n, self._portion):
            chosen = slice(start, min(n, start + self._portion))
            rows = self._gradients(np.arange(n)[chosen]) if whole is None else whole
            scores = kernels.clip_scores(rows, targets, norm)
            dots[:, chosen] = scores.dots.cpu().numpy()
            norms[chosen] = scores.clipped_norms.cpu().numpy()
        return dots[0], norms, dots[1:]

    def products_of_batch(
        self, noise: torch.Tensor, inside: np.ndarray, norm: float, batch: Sequence[ForwardPass]
    ) -> Products:
        """`products`, for a step of these forward passes. ValueError if the candidates do not fit.

        RuntimeError if the model or the criterion cannot be evaluated for a single row.
        """
        try:
            return self.products(noise, inside, norm)
        except Exception as error:
            if misfit := self.misfit(error, batch):
                raise ValueError(misfit) from error
            if not bool(torch.stack([p.isfinite().all() for p in self._parameters]).all()):
                raise RuntimeError("candidates: the parameters are not finite since an earlier step") from error
            if (bad := self._not_finite()) is not None:
                raise ValueError(
                    f"candidates: the gradient of candidate {bad} is not finite: look for NaN and infinity in its "
                    "inputs and targets, and leave it out"
                ) from error
            if isinstance(error, RowError):
                raise RuntimeError(
                    f"model: candidate {error.row} alone fails with {first_line(error)}. Recording evaluates the model "
                    "in evaluation mode for one row, or for one row twice, and the criterion on its output"
                ) from error
            raise RuntimeError(f"candidates: their gradients cannot be computed ({first_line(error)})") from error

    def _not_finite(self) -> int | None:
        """The first candidate whose gradient is not finite, if gradients can be computed."""
        try:
            for start in range(0, len(self._candidates), self._portion):
                numbers = np.arange(start, min(len(self._candidates), start + self._portion))
                bad = ~self._gradients(numbers).isfinite().all(dim=1)
                if bool(bad.any()):
                    return int(numbers[int(bad.nonzero()[0])])
        except Exception:  # what fails for another reason is told as that
            return None
        return None

    def require_norm(self, i: int, norm: float) -> None:
        """ValueError unless candidate i has this norm, that of its row in the batch, up to rounding."""
        own = float(self._gradients(np.array([i])).double().norm())
        kinds = [self._parameters[0].dtype, *([self._autocast[2]] if self._autocast[1] else [])]
        tolerance = max(TOLERANCES.get(kind, 0.2) for kind in kinds)
        if abs(own - norm) > tolerance * max(own, norm, self._short):
            raise ValueError(
                f"criterion: the gradient of candidate {i} has another norm ({own:.4g}) than that of its row in the "
                f"batch ({norm:.4g}): the loop multiplies its loss or has another one, the candidate's target differs "
                "from the loop's, or the model computes something else in training"
            )

    def misfit(self, error: Exception, passes: Sequence[ForwardPass]) -> str:
        """Which part of the candidates the model or the criterion refuses; "" if a row of the batch is refused, too."""
        i = error.row if isinstance(error, RowError) else 0
        ((_, row),) = self._candidates.groups(np.array([i]))
        args, kwargs, y = self._form.feed(self._fed(row))
        what, why = self._refused(args, kwargs, y)
        if not what:
            return ""
        batch = next((p for p in passes if p.rows is not None and len(p.rows)), None)
        if batch is not None and batch.rows is not None:
            known = batch.targets is not None and len(batch.targets) == len(batch.rows)
            theirs = batch.targets[:1] if known and batch.targets is not None else y
            args, kwargs = self._form.first(batch.args, batch.kwargs)
            if self._refused(args, kwargs, theirs)[0] == what and (known or what == "inputs"):
                return ""
        passed, taker = self._form.listed(what), "model" if what == "inputs" else "criterion"
        return f"candidates: {what} {passed} do not fit the {taker} ({why})"

    def _refused(self, args: tuple[Any, ...], kwargs: dict[str, Any], y: Any) -> tuple[str, str]:
        """Which of a row's "inputs" and "targets" is refused, alone and twice, and why; ("", "") if neither is."""
        first = ("", "")
        for times in (_copied, _twice):
            rows, settings, targets = tree_map(times, (args, kwargs, y))
            what = "inputs"
            with self._evaluating(), torch.no_grad():
                try:
                    outputs = self._module(*rows, **settings)
                    what = "targets"
                    self._criterion(outputs, targets)
                    return "", ""
                except Exception as error:
                    first = first if first[0] else (what, first_line(error))
        return first

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[State]:
        """The module in evaluation mode, under the loop's autocast; everything is as before afterwards."""
        kind, on, dtype = self._autocast
        with (
            preserve_state(self._module, self._criterion, evaluating=True) as state,
            torch.autocast(kind, dtype=dtype, enabled=on, cache_enabled=False) if on else contextlib.nullcontext(),
        ):
            yield state

    @property
    def _due(self) -> bool:
        """Whether this step, one of 1, 2, 4, 8, …, asks again whether the ways agree."""
        return (self._step + 1) & self._step == 0

    def _asked(self) -> np.ndarray:
        """The candidates that a due step after the first asks about: every few, others each time."""
        stride = -(-len(self._candidates) // _ROWS_ASKED)
        return np.arange(self._step.bit_length() % stride, len(self._candidates), stride)

    def _quick_products(self, noise: torch.Tensor, inside: np.ndarray, norm: float) -> Products | None:
        """`products` from the layers' inputs; None where vmap has not agreed, or rows do not fit into one pass."""
        n = len(self._candidates)
        if not (self._route.by_layer and self._route.checked) or n > self._portion:
            return None
        groups = list(self._candidates.groups(np.arange(n)))
        if len(groups) > 1:
            return None
        with self._evaluating():
            return self._try_by_layer(
                lambda rows: rows.products(self._fed(groups[0][1]), self._form.feed, noise, inside, norm)
            )

    def _try_by_layer(self, compute: Callable[[RowsByLayer], T]) -> T | None:
        """What all rows give from the layers' inputs; None, now and from then on, if that fails."""
        try:
            return compute(RowsByLayer(self._module, self._criterion, self._parameters))
        except Exception as error:
            _log.debug("record: no gradients from the layers' inputs (%s)", first_line(error))
            self._route.by_layer = False
            return None

    def _gradients(self, indices: np.ndarray) -> torch.Tensor:
        """(len(indices), D), parameters in the optimizer's order. Raises RowError, with the candidate's number."""
        like = self._parameters[0]
        out = torch.empty(len(indices), sum(p.numel() for p in self._parameters), dtype=like.dtype, device=like.device)
        for places, leaves in self._candidates.groups(indices):
            out[torch.from_numpy(places).to(like.device)] = self._of_group(indices[places], self._fed(leaves))
        return out

    def _of_group(self, numbers: np.ndarray, leaves: list[torch.Tensor]) -> torch.Tensor:
        """The gradients of candidates of these numbers, whose leaves have equal shapes."""
        with self._evaluating() as state:
            why = ""
            if not self._route.one_by_one:
                try:
                    if self._route.by_layer and self._route.checked and not self._due:
                        quick = self._by_layer(leaves)
                        if quick is not None:
                            return quick
                        state.restore()
                    rows = self._together(leaves)
                    if self._due and self._route.by_layer is not False:
                        rows = self._compared(rows, leaves, state)
                    if (self._route.checked and not self._due) or self._is_autograd(rows, numbers, leaves, state):
                        return rows
                    why = "its gradients differ from plain autograd's"
                except Exception as error:
                    why = first_line(error)
                self._route.one_by_one = True
                state.restore()
            start = time.perf_counter()
            rows = self._one_by_one(numbers, leaves, state)
            if why:
                n = len(self._candidates)
                _log.warning(
                    "record: torch's vmap does not accept this model or criterion (%s). The candidates' gradients are "
                    "computed one by one, which takes about %.2g s in each step for %d candidates. Fewer candidates, "
                    "or every=, cost less; so does a model without what torch names",
                    why,
                    (time.perf_counter() - start) / len(numbers) * n,
                    n,
                )
            return rows

    def _together(self, leaves: list[torch.Tensor]) -> torch.Tensor:
        function = Functional(self._module, self._names)

        def loss(parameters: dict[str, torch.Tensor], row: list[torch.Tensor]) -> torch.Tensor:
            args, kwargs, y = self._form.feed([leaf[None] for leaf in row])
            return self._criterion(function(parameters, *args, **kwargs), y).sum()

        copies = [leaf.clone() for leaf in leaves]
        rows = torch.func.vmap(torch.func.grad(loss), (None, 0))(function.own, copies)
        return torch.cat([rows[name].reshape(len(leaves[0]), -1) for name in self._names], dim=1)

    def _by_layer(self, leaves: list[torch.Tensor]) -> torch.Tensor | None:
        return self._try_by_layer(lambda rows: rows.gradients(leaves, self._form.feed))

    def _compared(self, rows: torch.Tensor, leaves: list[torch.Tensor], state: State) -> torch.Tensor:
        """The rows from the layers' inputs if these give each of `rows`, and else `rows`."""
        state.restore()
        quick = self._by_layer(leaves)
        if quick is not None:
            self._route.by_layer = self._near(quick, rows)
        return quick if quick is not None and self._route.by_layer else rows

    def _near(self, rows: torch.Tensor, truth: torch.Tensor) -> bool:
        """Whether these gradients differ by rounding alone."""
        eps = max(torch.finfo(rows.dtype).eps, torch.finfo(self._autocast[2]).eps if self._autocast[1] else 0.0)
        for some, true in zip(torch.split(rows, _ROWS_ALONE), torch.split(truth, _ROWS_ALONE), strict=True):
            scale = torch.linalg.vector_norm(true, dim=1, dtype=torch.float64).clamp(min=self._short)
            far = torch.linalg.vector_norm(some - true, dim=1, dtype=torch.float64)
            if not bool((far <= max(_DIFFERENCE, 16 * eps) * scale).all()):
                return False
        return True

    def _one_by_one(self, numbers: np.ndarray, leaves: list[torch.Tensor], state: State) -> torch.Tensor:
        try:
            return self._alone.gradients(leaves, self._form.feed, [(self._step, int(i)) for i in numbers], state)
        except RowError as error:
            error.row = int(numbers[error.row])
            raise

    def _is_autograd(self, rows: torch.Tensor, numbers: np.ndarray, leaves: list[torch.Tensor], state: State) -> bool:
        """Whether the first and the last of these rows agree with plain autograd."""
        some = sorted({0, len(numbers) - 1}) if len(numbers) else []
        state.restore()
        alone = self._one_by_one(numbers[some], [leaf[some] for leaf in leaves], state)
        self._route.checked = self._near(rows[some], alone)
        return self._route.checked

    def _fed(self, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
        """Leaves on the model's device."""
        return [leaf.to(self._parameters[0].device) for leaf in leaves]


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _twice(value: Any) -> Any:
    return torch.cat([value, value]) if isinstance(value, torch.Tensor) and value.ndim else value
