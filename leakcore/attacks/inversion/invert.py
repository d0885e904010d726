"""Gradient inversion itself: settings checked, every restart searched, the best chosen by what the attacker can see."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base import memory_limit
from leakcore._base import validate as check
from leakcore._base.results import Assumptions
from leakcore.attacks.inversion.result import Inversion

if TYPE_CHECKING:
    import torch

    from leakcore.gradients import FlatModule

_SOURCES = {
    "l2": "Zhu, Liu and Han (2019), Algorithm 1; Lecture 13 (Lei 2024), eq. 5.1",
    "cosine": "Geiping, Bauermeister, Dröge and Moeller (2020), eq. 4; Lecture 13 (Lei 2024), eq. 5.1",
    "dp-sgd": "Hayes, Mahloujifar and Balle (2023), Equation 1",
}
# method: optimiser, iterations, learning rate, tolerance
_DEFAULTS = {
    "l2": ("lbfgs", 3000, 1.0, 1e-9),
    "cosine": ("signed-adam", 2000, 0.1, 1e-6),
    "dp-sgd": ("adam", 1000, 0.05, -math.inf),
}


def gradient(
    model: torch.nn.Module,
    inputs: Any,
    labels: Any,
    *,
    loss: Callable[[Any, Any], Any] | None = None,
    parameters: Sequence[str] | None = None,
) -> torch.Tensor:
    """(D,) gradient of the batch's loss at the model's present parameters, flat: what a client releases undefended.

    inputs: (B, ...), labels: (B,) or targets. loss: as in `invert`. Parameters in the order of `model.parameters()`
    that require grad, or those named. With a defence: `defenses.release`. Raises ValueError or TypeError that names the
    argument.
    """
    import torch

    from leakcore.gradients import FlatModule, require_classes

    check.callback(loss=loss)
    flat = FlatModule(model, loss, parameters)
    x, y = _pair(inputs, labels, flat.theta)
    flat.require_no_draws(x[:1])
    try:
        with torch.no_grad():
            if loss is None:
                require_classes(y, flat.outputs(flat.theta, x[:1]), "labels")
            return flat.gradient(flat.theta, x, y)
    except RuntimeError as why:
        raise ValueError(f"labels of shape {tuple(y.shape)}, {y.dtype}: do not fit the model's loss ({why})") from why


def _pair(inputs: Any, labels: Any, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from leakcore.gradients import tensor

    x, y = tensor(inputs, "inputs").to(like), tensor(labels, "labels").to(like.device)
    if x.ndim < 2 or len(x) == 0:
        raise ValueError(f"inputs.shape={tuple(x.shape)}: must be (B, ...), B ≥ 1: an empty batch has no gradient")
    if y.ndim == 0 or len(y) != len(x):
        raise ValueError(f"labels.shape={tuple(y.shape)}: must hold one label for each of {len(x)} inputs")
    for name, values in (("inputs", x), ("labels", y)):
        if not bool(values.isfinite().all()):
            raise ValueError(f"{name}: hold a number that is not finite")
    return x, y.to(like.dtype) if y.is_floating_point() else y.long()


def invert(
    model: torch.nn.Module,
    gradient: Any,
    shape: Sequence[int],
    *,
    labels: Any = None,
    batch_size: int | None = None,
    loss: Callable[[Any, Any], Any] | None = None,
    method: str = "l2",
    optimizer: str | None = None,
    iterations: int | None = None,
    learning_rate: float | None = None,
    restarts: int = 3,
    start: str = "uniform",
    low: float | None = None,
    high: float | None = None,
    total_variation: float | Sequence[float] = 0.0,
    tolerance: float | None = None,
    patience: int = 400,
    parameters: Sequence[str] | None = None,
    states: Any = None,
    max_grad_norm: float | None = None,
    known: tuple[Any, Any] | None = None,
    l1_weight: float | None = None,
    originals: Any = None,
    together: bool = True,
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> Inversion:
    """Inputs whose gradient is closest to the one that was released (Lecture 13, eq. 5.1), for any torch model.

    With G(x, y) the gradient of the mean loss of a guessed batch and g the released one, minimise over x (and y)

        "l2"      ‖G − g‖² / ‖g‖²                 by LBFGS with strong Wolfe line search (DLG: Zhu et al. 2019)
        "cosine"  1 − ⟨G, g⟩/(‖G‖‖g‖) + TV        by Adam on the signs of the derivative (Geiping et al. 2020)
        "dp-sgd"  Σ_t −⟨g_t, ḡ_t⟩/C² + λ‖g_t − ḡ_t‖₁/C,  by Adam (Hayes et al. 2023, eq. 1),
                  g_t = Σ_i clip_C(∇ℓ(θ_t, x_i))

    summed over `states`, several restarts each, and keep the restart with the least distance.

    Args:
        model: in eval mode (no batch norm or dropout at work); its float type and device are those of the search.
        gradient: (D,) or (T, D), a list of tensors (one per parameter, as `torch.autograd.grad` gives), a dict by name,
            or what `defenses.release` returned. "dp-sgd": ḡ_t, the noisy *sum* of clipped gradients.
        shape: of one input, (3, 32, 32) say. batch_size: B, where labels do not tell; 1.
        labels: (B,) known classes, −1 where unknown; None: all are optimised with the inputs, as softmax weights;
            "recover": by the signs of the last layer's gradient (`attacks.labels.idlg`, one row), and optimised where
            these do not tell (one or two logits without a bias); or a result of `attacks.labels`. With a loss of your
            own: targets as it takes them; None: real ones, of the outputs' shape.
        loss: loss(outputs, targets), mean over rows; None: cross-entropy (of a logit, where there is one output).
        optimizer: "lbfgs", "adam" or "signed-adam" instead of the method's own. iterations, learning_rate: of it.
            Adam's step falls to 0 along a cosine; its rate is in units of high − low.
        restarts: R. Adam searches all at once where together=True (`torch.func.vmap`); LBFGS one after the other.
        start: "uniform" in the box ([0, 1] without one) or "normal".
        low, high: box of the inputs, both or neither; every search stays in it (LBFGS: in x = low + (high − low)(1 +
            sin t)/2, Adam by clamping).
        total_variation: weight of the mean absolute difference of neighbouring pixels; of images in [0, 1], 1e-3 is a
            good one. Several, falling: one search for each, from where the last one ended, which share the iterations;
            for a batch (1e-2, 3e-3, 1e-3, 3e-4, 1e-4) finds what no single weight does.
        tolerance: distance at which a search ends. patience: iterations over which the objective must fall by 10⁻⁴ of
            itself. Early stop: all restarts that are searched together must agree.
        parameters: names of the parameters whose gradient was seen, in that order; None: all that require grad.
        states: (T, D) parameters, or state dicts, at which the T gradients were taken; None: the model's present ones.
        max_grad_norm: C, known: (inputs, labels) whose clipped gradients the attacker subtracts, l1_weight: λ, 1/C if
            None: for "dp-sgd" only. For an MLP and many runs `attacks.gradient` has the same loss and is faster.
        originals: (B, *shape): the truth, for `quality`; the search does not see it.
        seed: of the starts. progress: called as progress(done, total), of restarts, or of iterations for Adam.

    UserWarning where the model is not twice differentiable (ReLU, max-pooling, …): names what is not. The result tells
    how each restart ended; a restart that failed is among `every` and in `failed`. Deterministic by seed on a machine
    and torch build. Raises ValueError or TypeError that names the argument, before any work.
    """
    import torch

    from leakcore.attacks.inversion import optimizers as searches
    from leakcore.attacks.inversion.image_quality import compare
    from leakcore.attacks.inversion.objective import METHODS, read
    from leakcore.attacks.inversion.smoothness import warn_if_kinked

    check.callback(progress=progress)
    check.callback(loss=loss)
    how = check.one_of(*METHODS, method=method)
    chosen, steps, rate, enough = _DEFAULTS[how]
    if optimizer is not None:
        chosen = check.one_of(*searches.OPTIMIZERS, optimizer=optimizer)
        rate = 1.0 if chosen == "lbfgs" else 0.1 if chosen == "signed-adam" else 0.05
    if (low is None) != (high is None):
        raise ValueError("low and high: give both or neither")
    box = (-math.inf, math.inf) if low is None or high is None else (check.real(low=low), check.real(high=high))
    if box[1] <= box[0]:
        raise ValueError(f"low={low}, high={high}: low must be below high")
    # A search maps the whole box to the line, which half a line or an infinite width is not fit for.
    if math.isinf(box[1] - box[0]) and box != (-math.inf, math.inf):
        raise ValueError(f"low={low}, high={high}: must be both finite, high − low too, or both infinite")
    each = math.prod(check.sizes(shape=shape))
    memory_limit.require(64 * check.integer(1, None, restarts=restarts) * each, restarts=restarts)
    search = searches.Search(
        optimizer=chosen,
        iterations=steps if iterations is None else check.integer(1, None, iterations=iterations),
        learning_rate=rate if learning_rate is None else check.positive(learning_rate=learning_rate),
        restarts=check.integer(1, None, restarts=restarts),
        low=box[0],
        high=box[1],
        start=check.one_of("uniform", "normal", start=start),
        tolerance=enough if tolerance is None else check.real(tolerance=tolerance),
        patience=check.integer(1, None, patience=patience),
        seed=check.seed(seed=seed),
        together=check.boolean(together=together),
    )
    problem = read(
        model, gradient, shape, loss=loss, labels=labels, batch_size=batch_size, method=how, parameters=parameters,
        states=states, max_grad_norm=max_grad_norm, known=known, l1_weight=l1_weight, total_variation=total_variation,
    )  # fmt: skip
    problem.flat.require_no_draws(problem.states.new_zeros((1, *problem.shape)))
    truth = None if originals is None else _originals(originals, problem.batch, problem.shape, problem.flat.theta)
    # In the model's own mode and precision, at the point where the searches start.
    names = warn_if_kinked(model, searches.starts(problem, search)[0][0])
    found = searches.find(problem, search, progress)
    usable = np.where(
        np.isfinite(found.distances) & np.array([e != "diverged" for e in found.ends]), found.distances, np.inf
    )
    best = int(usable.argmin()) if np.isfinite(usable).any() else -1
    span = box if math.isfinite(box[1] - box[0]) else (0.0, 1.0) if truth is None else _span(truth)
    points, classes = found.points, [problem.labels_of(free) for free in found.free]
    quality = None
    if truth is not None:
        quality = tuple(compare(truth, each, span[1] - span[0]) for each in points)
        orders = [torch.as_tensor(q.order, device=points.device) for q in quality]
        points = torch.stack([each[order] for each, order in zip(points, orders, strict=True)])
        classes = [label[order] for label, order in zip(classes, orders, strict=True)]
    every = _host(points)
    weights = ", ".join(f"{weight:g}" for weight in problem.weights)
    prior = f", total variation {weights}" if any(problem.weights) else ""
    return Inversion(
        value=float(usable[best]) if best >= 0 else math.inf,
        kind="estimate",
        confidence=None,
        interval=None,
        method=f"gradient inversion, {how} by {chosen}, {search.restarts} restarts of at most {search.iterations} "
        f"iterations{prior}",
        assumptions=Assumptions(
            adjacency=None,
            attacker=f"knows the model and sees {len(problem.states)} gradient{'s' * (len(problem.states) > 1)} of "
            f"{problem.batch} row{'s' * (problem.batch > 1)}"
            + ("" if problem.free_labels else f"; {problem.labels_from}")
            + ("; knows the other rows" if known is not None else ""),
            notes=(
                "a better search may reconstruct more: no bound",
                *(f"{name} not twice differentiable" for name in names),
            ),
        ),
        seed=search.seed,
        provenance=_SOURCES[how],
        best=best,
        reconstructions=every[best] if best >= 0 else np.full_like(every[0], np.nan),
        labels=_host(classes[max(best, 0)]),
        every=every,
        distances=found.distances,
        ends=found.ends,
        iterations=found.iterations,
        originals=None if truth is None else _host(truth),
        quality=quality,
        value_range=span,
        kinked=names,
    )


def _host(values: torch.Tensor) -> np.ndarray:
    """As NumPy has it: bfloat16, which it does not know, as float32."""
    held = values.detach().cpu()
    out: np.ndarray = (held.float() if held.is_floating_point() and held.element_size() < 4 else held).numpy()
    return out


def _originals(originals: Any, batch: int, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    from leakcore.gradients import tensor

    truth = tensor(originals, "originals").to(like)
    if tuple(truth.shape) != (batch, *shape):
        raise ValueError(f"originals.shape={tuple(truth.shape)}: must be {(batch, *shape)}")
    return truth


def _span(truth: torch.Tensor) -> tuple[float, float]:
    """[0, 1] for what fits in it, as images do; else the least and largest value."""
    low, high = float(truth.min()), float(truth.max())
    return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)


def closed_form(model: torch.nn.Module, gradient: Any, shape: Sequence[int]) -> np.ndarray:
    """The input of a first linear layer with bias, without any search: (*shape) float64.

    For one row dL/dW = δxᵀ and dL/db = δ, so x = (dL/dW)ᵀδ/‖δ‖², which is exact up to rounding (Phong et al. 2018,
    Section 3); of a batch it is the mean of rows weighted by what they add to ‖Σδ‖², no row of its own (of a linear
    network the gradient holds nothing else: Lecture 13, Section 4.4).

    gradient: as in `invert`, of all parameters that require grad. The first module with parameters that the model calls
    must be nn.Linear with bias, be fed the flattened input as it is, and be called once. Raises ValueError otherwise (a
    random input is passed through the model to see), and where dL/db is 0 (a saturated row).
    """
    from leakcore.attacks.inversion.objective import _gradient
    from leakcore.gradients import FlatModule

    flat = FlatModule(model)
    sizes = check.sizes(shape=shape)
    memory_limit.require(16 * math.prod(sizes), shape=sizes)
    parts = flat.split(_gradient(flat, gradient, 1)[0])
    weight, bias = (parts[name].double() for name in _first_linear(flat, sizes))
    square = float(bias.square().sum())
    if square == 0.0:
        raise ValueError("gradient: the first layer's bias has gradient 0, so its input cannot be told")
    return np.asarray((weight.T @ bias / square).reshape(sizes).cpu().numpy())


def _first_linear(flat: FlatModule, shape: tuple[int, ...]) -> tuple[str, str]:
    """Names of weight and bias of the linear layer that the input enters first, flattened; ValueError without one."""
    import torch

    from leakcore.attacks.inversion.objective import input_probe

    x = input_probe(shape).to(flat.theta)
    flat.require_no_draws(x)
    try:
        calls = flat.calls(x)
    except (RuntimeError, ValueError) as why:
        raise ValueError(f"shape={shape}: does not fit the model ({why})") from why
    if not calls:
        raise ValueError("model: calls no module with parameters: its first layer must be nn.Linear with bias")
    first, fed = calls[0]
    name = next(name for name, module in flat.model.named_modules() if module is first)
    names = (f"{name}.weight", f"{name}.bias") if name else ("weight", "bias")
    if not isinstance(first, torch.nn.Linear) or not set(names) <= set(flat.names):
        raise ValueError(f"model: its first layer is {type(first).__name__}: must be nn.Linear with bias")
    if not torch.equal(fed.flatten(), x.flatten()) or first.in_features != x.numel():
        raise ValueError(f"model: its first layer, {name or 'Linear'}, must be fed the flattened input as it is")
    own = {id(p) for p in first.parameters(recurse=False)}
    uses = sum(any(id(p) in own for p in module.parameters(recurse=False)) for module, _ in calls)
    if uses > 1:
        raise ValueError(f"model: its first layer, {name or 'Linear'}, is used {uses} times: must be once")
    return names
