"""How a layer's gradient moves with its input: norms of its Jacobian, and the worst change in ℓ1 over candidates."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from leakcore import kernels
from leakcore._base import pictures, validate
from leakcore._base.process_wide import quiet_batching
from leakcore._base.results import Result, attack_guarantee, parse_adjacency
from leakcore.gradients import Functional, LayeredModel, lock_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NORMS = ("F", "1", "inf")
_FAILURES = (RuntimeError, NotImplementedError)
_BLOCK = 2**17
"""Doubles that are reduced at once."""
_COPIES = 6
"""Tangents of one column that are alive at once, in multiples of parameters plus activations: measured 3 to 5."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Sensitivity(Result):
    """Mean norms of ∂g_l/∂X over samples; kind "estimate": exact for these samples, an estimate for others.

    Attributes:
        value: (layers,) the mean of the first norm that was asked for.
        layers: their names, as in `model.named_modules()`.
        per_sample: {norm: (samples, layers)}.
        means: {norm: (layers,)}.
        standard_errors: {norm: (layers,)}, of the mean over samples (and of the probes, where the norm is estimated);
            NaN for one sample.
        parameters: (layers,) their sizes.
        probes: 0 where the norms are exact, else the number of random directions behind "F".
    """

    quantity: str = "sensitivity"
    layers: tuple[str, ...]
    per_sample: Mapping[str, np.ndarray]
    means: Mapping[str, np.ndarray]
    standard_errors: Mapping[str, np.ndarray]
    parameters: np.ndarray
    probes: int

    def per_parameter(self) -> np.ndarray:
        """(layers,) mean F-norm over the square root of the number of parameters, comparable between layers.

        ValueError where "F" was not among the norms.
        """
        if "F" not in self.means:
            raise ValueError(f"`norms` must include 'F' for per_parameter, got {tuple(self.means)}")
        return np.asarray(self.means["F"] / np.sqrt(self.parameters))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw each layer's mean, with one standard error to each side.

        Args:
            ax: where to draw; None: on a new figure of pyplot's.

        Returns:
            The axes.
        """
        norm = next(iter(self.means))
        mean, error = self.means[norm], np.nan_to_num(self.standard_errors[norm])
        return pictures.bars(ax, self.layers, mean, (mean - error, mean + error), label=f"{self.quantity} ({norm})")


@dataclasses.dataclass(frozen=True)
class JacobianBudget:
    """How much work goes into one sample's Jacobian.

    Attributes:
        probes: None: exact. A number k ≥ 2: only "F", by Hutchinson's estimator, ‖J‖_F² = E‖J v‖² over random signs v;
            k directions per sample cost k derivatives instead of one per input coordinate. Unbiased for ‖J‖_F²; its
            standard error is part of `standard_errors`.
        memory: bytes for the derivatives that are computed at once, without model and inputs; at least one column is.

    Example:
        >>> from leakcore import leakage
        >>> leakage.JacobianBudget(probes=16).probes
        16
    """

    probes: int | None = None
    memory: int = 128 * 2**20

    def __post_init__(self) -> None:
        if self.probes is not None:
            object.__setattr__(self, "probes", validate.integer(2, None, probes=self.probes))
        object.__setattr__(self, "memory", validate.integer(1, None, memory=self.memory))


def sensitivity(
    model: torch.nn.Module,
    inputs: Any,
    targets: Any,
    *,
    loss: Loss | None = None,
    norms: Sequence[str] = NORMS,
    budget: JacobianBudget | None = None,
    seed: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Sensitivity:
    """Norms of J_l = ∂g_l(X)/∂X, g_l = ∂ℓ/∂θ_l, for each layer l, averaged over samples (Mo et al. 2021, eqs. 10–11).

    "F" is the root of the sum of squares, "1" the largest column sum of |J|, "inf" the largest row sum. Column j of J
    is one forward-over-reverse derivative along input coordinate j; J is never stored. Derivatives are in the model's
    precision, sums in float64.

    Args:
        model: any module that `torch.func` can differentiate; it does not change. A layer is a submodule with
            parameters of its own (weight and bias together). Batch norm must be in eval mode, dropout off.
        inputs: (samples, ...), floating, in the model's dtype and on its device.
        targets: (samples, ...).
        loss: loss(outputs, targets) of a batch of one, a scalar; None: cross-entropy (of a logit, where there is one
            output).
        norms: which norms to compute, of "F", "1" and "inf".
        budget: exact or in random directions, and how much memory; None: the defaults of `JacobianBudget`.
        seed: 64-bit seed of the random directions, required with probes.
        progress: called as progress(samples done, samples).

    Returns:
        `Sensitivity`.

    Raises:
        ValueError: for a value or shape that is not allowed, and for a model that cannot be differentiated this way,
            naming the layer.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic for a machine, torch build and number of torch threads, up to the rounding of chunks.

    Example:
        >>> import torch
        >>> from leakcore import leakage
        >>> model = torch.nn.Linear(2, 2, bias=False)
        >>> _ = torch.nn.init.zeros_(model.weight)
        >>> measured = leakage.sensitivity(model, torch.ones(3, 2), torch.tensor([0, 1, 1]))
        >>> measured.layers, {norm: f"{mean[0]:.3f}" for norm, mean in measured.means.items()}
        (('Linear',), {'F': '1.000', '1': '1.000', 'inf': '0.500'})
    """
    how = validate.settings(JacobianBudget, budget=budget)
    wanted = _wanted(norms, how.probes)
    if how.probes and seed is None:
        raise ValueError("`seed` is required with probes")
    key = None if seed is None else validate.seed(seed=seed)
    validate.callback(progress=progress)
    return measure_sensitivity(LayeredModel.of(model, inputs, targets, loss=loss), wanted, how, key, progress)


def measure_sensitivity(
    model: LayeredModel,
    wanted: tuple[str, ...],
    budget: JacobianBudget,
    seed: int | None,
    progress: Callable[[int, int], object] | None,
) -> Sensitivity:
    """`sensitivity` of a model that is already checked."""
    x, y, names, draws = model.inputs, model.targets, model.names, budget.probes or 0
    measure = _JacobianColumns(model)
    chunk = max(1, budget.memory // (_COPIES * measure.bytes_per_column(x[:1], y[:1])))
    rng = kernels.generator(seed, kernels.Stream.SENSITIVITY_PROBES) if draws and seed is not None else None
    norms = {norm: np.empty((len(x), len(names))) for norm in wanted}
    variance = np.zeros((len(x), len(names)))
    for i in range(len(x)):
        if rng is None:
            columns = measure.exact(x[i : i + 1], y[i : i + 1], chunk, wanted)
            for norm in wanted:
                norms[norm][i] = columns[norm]
        else:
            norms["F"][i], variance[i] = measure.probed(x[i : i + 1], y[i : i + 1], chunk, draws, rng)
        if progress is not None:
            progress(i + 1, len(x))
    means = {norm: values.mean(axis=0) for norm, values in norms.items()}
    # The spread between samples includes the probes' own; a single sample has only the latter.
    spread = {
        norm: values.std(axis=0, ddof=1) / math.sqrt(len(x)) if len(x) > 1 else np.full(len(names), math.nan)
        for norm, values in norms.items()
    }
    if rng is not None and len(x) == 1:
        spread["F"] = np.sqrt(variance[0])
    return Sensitivity(
        value=means[wanted[0]],
        method="exact Jacobian norms, column by column"
        if rng is None
        else f"Hutchinson, {draws} directions per sample",
        **attack_guarantee(
            "sees the gradient of one sample, layer by layer",
            notes=("local: how the gradient moves for small changes of these inputs; not a bound on any attack",),
        ),
        seed=seed,
        provenance="Mo et al. (2021), eqs. 10 and 11",
        layers=names,
        per_sample=norms,
        means=means,
        standard_errors=spread,
        parameters=np.array(model.sizes),
        probes=draws,
    )


def _wanted(norms: Sequence[str], probes: int | None) -> tuple[str, ...]:
    if not isinstance(norms, Sequence):
        raise TypeError(f"`norms` must be a sequence of names, got {norms!r}")
    wanted = (norms,) if isinstance(norms, str) else tuple(norms)
    if not wanted or len(set(wanted)) != len(wanted):
        raise ValueError(f"`norms` must name at least one norm, each once, got {norms!r}")
    for norm in wanted:
        validate.one_of(*NORMS, norms=norm)
    if probes is not None and wanted != ("F",):
        if wanted != NORMS:
            raise ValueError(f"`norms` must be 'F' alone with probes, got {norms!r}")
        return ("F",)
    return wanted


class _JacobianColumns:
    """Columns of all layers' Jacobians at one sample."""

    def __init__(self, model: LayeredModel) -> None:
        self._model = model.module
        self._layers = model.layers
        function, loss = Functional(model.module, model.parameters()), model.criterion
        self._parameters = function.own

        def value(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = loss(function(parameters, x), y)
            return out

        self._gradient = torch.func.grad(value)

    def bytes_per_column(self, x: torch.Tensor, y: torch.Tensor) -> int:
        """Bytes of parameters, input and activations. A trial column is computed; an error names the failing layer."""
        with lock_of(self._model):
            calls = self._leaf_calls(x)
        try:
            self._columns(x, y, torch.ones((1, *x.shape), dtype=x.dtype, device=x.device))
        except _FAILURES as error:
            with _dual_levels(), lock_of(self._model):
                culprit = self._culprit(calls)
            raise ValueError(
                f"`model` must be one that torch.func can differentiate, but {culprit} fails ({error})"
            ) from error
        outputs = sum(output.numel() for _, _, _, output in calls if isinstance(output, torch.Tensor))
        numbers = sum(p.numel() for p in self._parameters.values()) + outputs + x.numel()
        return int(numbers * x.element_size())

    def _leaf_calls(self, x: torch.Tensor) -> list[tuple[str, torch.nn.Module, Any, Any]]:
        """(name, module, arguments, output) of every call of a module without submodules."""
        calls: list[tuple[str, torch.nn.Module, Any, Any]] = []
        entered = ["model"]
        with contextlib.ExitStack() as hooks, torch.no_grad():
            for name, module in self._model.named_modules():
                if list(module.children()):
                    continue
                label = f"layer {name} ({type(module).__name__})"
                for hook in (
                    module.register_forward_pre_hook(lambda *_, label=label: entered.append(label)),
                    module.register_forward_hook(lambda m, x, y, label=label: calls.append((label, m, x, y))),
                ):
                    hooks.enter_context(hook)
            try:
                self._model(x)
            except _FAILURES as error:
                raise ValueError(f"`model` must run on the inputs, but {entered[-1]} fails ({error})") from error
        return calls

    def _culprit(self, calls: list[tuple[str, torch.nn.Module, Any, Any]]) -> str:
        """The first module that cannot be differentiated this way by itself."""
        for label, module, inputs, _ in calls:
            if len(inputs) == 1 and isinstance(inputs[0], torch.Tensor) and inputs[0].is_floating_point():
                alone = torch.func.grad(lambda z, module=module: module(z).square().sum())
                try:
                    torch.func.vmap(lambda d, x=inputs[0], f=alone: torch.func.jvp(f, (x,), (d,)))(inputs[0][None])
                except _FAILURES:
                    return label
        return "the model or its loss"

    def _columns(self, x: torch.Tensor, y: torch.Tensor, directions: torch.Tensor) -> dict[str, torch.Tensor]:
        """(directions, ...) derivatives of every parameter's gradient."""

        def along(direction: torch.Tensor) -> dict[str, torch.Tensor]:
            pair: Any = torch.func.jvp(lambda z: self._gradient(self._parameters, z, y), (x,), (direction,))
            moved: dict[str, torch.Tensor] = pair[1]
            return moved

        with _dual_levels(), quiet_batching():
            moved: dict[str, torch.Tensor] = torch.func.vmap(along)(directions)
        return moved

    def _by_layer(self, moved: Mapping[str, torch.Tensor]) -> Iterator[list[torch.Tensor]]:
        for group in self._layers.values():
            yield [moved[key].reshape(len(moved[key]), -1) for key in group]

    def exact(
        self, x: torch.Tensor, y: torch.Tensor, chunk: int, wanted: Sequence[str] = NORMS
    ) -> dict[str, np.ndarray]:
        """Each wanted norm of each layer's Jacobian."""
        size = x.numel()
        number = len(self._layers)
        squares, largest = np.zeros(number), np.zeros(number)
        rows = [
            torch.zeros(sum(p.numel() for p in g.values()), dtype=torch.float64, device=x.device)
            for g in self._layers.values()
        ]
        for start in range(0, size, chunk):
            stop = min(start + chunk, size)
            directions = torch.zeros((stop - start, size), dtype=x.dtype, device=x.device)
            directions[torch.arange(stop - start), torch.arange(start, stop)] = 1
            moved = self._columns(x, y, directions.view(-1, *x.shape))
            for layer, parts in enumerate(self._by_layer(moved)):
                columns = torch.zeros(stop - start, dtype=torch.float64, device=x.device)
                at = 0
                for part in parts:
                    width = part.shape[1]
                    for few, absolute in _in_doubles(part):
                        if "1" in wanted:
                            columns[few] += absolute.sum(1)
                        if "inf" in wanted:
                            rows[layer][at : at + width] += absolute.sum(0)
                        if "F" in wanted:
                            flat = absolute.view(-1)
                            squares[layer] += float(torch.dot(flat, flat))
                    at += width
                largest[layer] = max(largest[layer], float(columns.max()))
        by_norm = {"F": np.sqrt(squares), "1": largest, "inf": np.array([float(r.max()) for r in rows])}
        return {norm: by_norm[norm] for norm in wanted}

    def probed(
        self, x: torch.Tensor, y: torch.Tensor, chunk: int, probes: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """The F-norms and the variances of their estimates (by the delta method)."""
        values = []
        for start in range(0, probes, chunk):
            number = min(chunk, probes - start)
            signs = torch.from_numpy(rng.integers(0, 2, (number, *x.shape)) * 2.0 - 1.0).to(x)
            moved = self._columns(x, y, signs)
            sums = torch.zeros((len(self._layers), number), dtype=torch.float64, device=x.device)
            for layer, parts in enumerate(self._by_layer(moved)):
                for part in parts:
                    for few, absolute in _in_doubles(part):
                        sums[layer, few] += absolute.square().sum(1)
            values.append(sums.cpu().numpy())
        squares = np.concatenate(values, axis=1)
        mean = squares.mean(axis=1)
        variance = squares.var(axis=1, ddof=1) / probes
        norms = np.sqrt(mean)
        with np.errstate(divide="ignore", invalid="ignore"):
            return norms, np.where(mean > 0, variance / (4 * mean), 0.0)


def _dual_levels() -> Any:
    """torch counts the levels of forward derivatives once per process: one thread at a time may open and close them."""
    return lock_of(torch.autograd.forward_ad)


def _in_doubles(part: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """Rows of |part| in float64, a few at a time: they sum fast next to each other and stay in the cache."""
    few = max(1, _BLOCK // part.shape[1])
    for k in range(0, len(part), few):
        yield slice(k, k + few), part[k : k + few].abs().double()


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
        b = float(self.value) / validate.positive(epsilon=epsilon)
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
        model: torch module, as in `sensitivity`.
        inputs: (candidates, ...), floating, at least two for "replace".
        targets: (candidates, ...), each one's own. To let the target change as well, repeat the input with every
            target.
        loss: loss(outputs, targets) of a batch of one, a scalar; None: cross-entropy.
        adjacency: "add-remove" or "replace".
        batch_size: B ≥ 1 divides the summed gradient by B; None leaves the sum.
        memory: bytes for the gradients in memory at once. All pairs are covered: candidates are taken by falling norm,
            and pairs whose norms add up to less than the worst so far are skipped, which the triangle inequality
            allows.
        progress: called as progress(candidates done, candidates).

    Returns:
        `L1Measured`, kind "lower".

    Guarantees:
        Deterministic up to the model's own rounding. ValueError or TypeError names an argument that does not fit.

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
    validate.callback(progress=progress)
    budget = validate.integer(1, None, memory=memory)
    size = 1 if batch_size is None else validate.integer(1, batch_size=batch_size)
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
        method="worst pair of the candidates" if relation == "replace" else "worst candidate",
        **attack_guarantee(
            "knows the model and all examples but one, sees the gradient",
            notes=(
                f"over {len(x)} candidates; a lower bound of the sensitivity over all examples",
                "every candidate, with its target, is an example that may occur",
                "of the gradient as the model's own arithmetic computes it; another arithmetic differs by its rounding",
                "the gradient of a sum of losses, each of one example" + ("" if size == 1 else f", divided by {size}"),
            ),
            adjacency=relation,
            kind="lower",
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
