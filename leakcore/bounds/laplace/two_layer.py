"""How far one example can move the gradient of a two-layer network, in ℓ1, and what the lecture prints."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from leakcore._base import validate
from leakcore._base.process_wide import one_thread
from leakcore._base.results import Assumptions, Result, parse_adjacency
from leakcore.bounds.laplace.mechanism import LaplaceScale, noise_scale
from leakcore.numerics import Activation as Activation
from leakcore.numerics import activation as read_activation

SOURCE = "derived here for the network of Lecture 13 (Lei 2024), eqs. 4.3 to 4.6; errata: dropped factors, (4.8), E7"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TwoLayerSensitivity(Result):
    """ℓ1-sensitivity of the gradient of a two-layer network, as `two_layer` returns it.

    Attributes:
        value: upper bound of Δ₁ for the gradients that were asked for.
        output_part: the bound for dL/da (m entries) alone; the parts add up to the bound for both.
        hidden_part: the bound for dL/dW (m·d entries) alone.
        residual_bound: bound of |f(x) − y|.
        activation_sum: bound of Σ_j |σ(w_jᵀx)|.
        gradient_l2: bound of one example's gradient in ℓ2.
        printed: what the lecture prints, with its open constant C set to 1: "(4.9)" Σ_j 2√d, "(4.10)" m√d. Not bounds.
        num_neurons: m.
        num_inputs: d.
        num_parameters: number of released entries.
        gradients: as asked.
        batch_size: as asked.
    """

    quantity: str = "L1 sensitivity"
    output_part: float
    hidden_part: float
    residual_bound: float
    activation_sum: float
    gradient_l2: float
    printed: dict[str, float]
    num_neurons: int
    num_inputs: int
    num_parameters: int
    gradients: str
    batch_size: int | None

    def noise(self, epsilon: float) -> LaplaceScale:
        """The scale b = Δ₁/ε that makes the released gradient ε-private."""
        return noise_scale(self, epsilon)

    def signal_to_noise(self, epsilon: float, *, gradient_norm: float) -> float:
        """‖G‖₂/√(E‖Y‖₂²) = ‖G‖₂/(b√(2k)) of a gradient of k entries, where every entry gets noise."""
        norm = validate.non_negative(gradient_norm=gradient_norm)
        b = float(self.noise(epsilon).value)
        return math.inf if b == 0.0 else norm / (b * math.sqrt(2.0 * self.num_parameters))

    def signal_to_noise_ceiling(self, epsilon: float, *, num_examples: int) -> float:
        """The same for the largest gradient that num_examples examples can have: no data do better."""
        n = validate.integer(1, num_examples=num_examples)
        return self.signal_to_noise(epsilon, gradient_norm=n * self.gradient_l2 / (self.batch_size or 1))


@dataclasses.dataclass(frozen=True)
class GradientQuery:
    """The query f(X) whose sensitivity is asked for: which gradient of a two-layer network, over which examples.

    Attributes:
        input_norm: R in [0, ∞), largest ‖x‖₂ of an example.
        target_bound: Y in [0, ∞), largest |y|.
        gradients: what is released: "both", "output" (dL/da alone) or "hidden" (dL/dW alone).
        batch_size: None: the gradient of the sum. B ≥ 1: divided by B, a constant that does not depend on the data.

    Example:
        >>> from leakcore.bounds import laplace
        >>> query = laplace.GradientQuery(gradients="output", batch_size=64)
        >>> bound = laplace.two_layer([[1.0, 0.0], [0.0, 1.0]], [0.5, -0.5], query=query)
        >>> bound.num_parameters, bound.value == bound.output_part
        (2, True)
    """

    input_norm: float = 1.0
    target_bound: float = 1.0
    gradients: str = "both"
    batch_size: int | None = None

    def __post_init__(self) -> None:
        size = None if self.batch_size is None else validate.integer(1, batch_size=self.batch_size)
        for name, value in (
            ("input_norm", validate.non_negative(input_norm=self.input_norm)),
            ("target_bound", validate.non_negative(target_bound=self.target_bound)),
            ("gradients", validate.one_of("both", "output", "hidden", gradients=self.gradients)),
            ("batch_size", size),
        ):
            object.__setattr__(self, name, value)


SUM_OF_BOTH = GradientQuery()
"""The whole gradient of the sum, over examples in the unit ball with targets in [−1, 1]."""


@one_thread()
def two_layer(
    hidden_weights: Any,
    output_weights: Any,
    *,
    activation: Activation | str = "relu",
    query: GradientQuery = SUM_OF_BOTH,
    adjacency: str = "add-remove",
) -> TwoLayerSensitivity:
    """Worst-case ℓ1-sensitivity of the gradient of f(x) = Σ_j a_j σ(w_jᵀx) under the loss Σ_i (f(x_i) − y_i)².

    For ‖x‖₂ ≤ R, |y| ≤ Y and an activation of slope at most ℓ, one example's gradient has ‖g‖₁ ≤ G = 2(F + Y)(H +
    ℓ‖a‖₁√d R), where F bounds |f(x)| and H bounds Σ_j |σ(w_jᵀx)|. So Δ₁ ≤ G under "add-remove" and Δ₁ ≤ 2G under
    "replace". docs/explanation/bounds.md derives it, says why the lecture's (4.8) is not a bound, and compares the
    orders of (4.9) and (4.10).

    Args:
        hidden_weights: W (m, d), finite, NumPy or CPU torch.
        output_weights: a (m,), finite, NumPy or CPU torch.
        activation: a name as in torch ("relu", "tanh", …), or an `Activation` with its constants.
        query: R, Y and what is released.
        adjacency: "add-remove" or "replace" (the lecture's).

    Returns:
        `TwoLayerSensitivity` of kind "upper", for these weights.

    Raises:
        ValueError, TypeError: for an argument or a shape that is not allowed, which the text names.

    Guarantees:
        Deterministic. Holds for every example within the query's limits; it is not tight.

    Example:
        >>> import numpy as np
        >>> from leakcore.bounds import laplace
        >>> bound = laplace.two_layer(np.eye(2), [0.5, -0.5])
        >>> f"{bound.value:.2f}", f"{bound.noise(epsilon=0.5).value:.2f}"
        ('9.66', '19.31')
    """
    weights, output = _parse_weights(hidden_weights, output_weights)
    sigma = read_activation(activation)
    lengths = np.linalg.norm(weights, axis=1)
    spectral = float(np.linalg.norm(weights, 2))
    m, d = weights.shape
    a_1, a_2 = float(np.abs(output).sum()), float(np.linalg.norm(output))
    norms = _Norms(
        m=m,
        d=d,
        spectral=spectral,
        a_1=a_1,
        a_2=a_2,
        wx_1=min(math.sqrt(m) * spectral, float(lengths.sum())),
        f_slope=min(a_2 * spectral, float(np.abs(output) @ lengths)),
        f_zero=sigma.at_zero * abs(float(output.sum())),
    )
    return _bound(norms, sigma, query, adjacency, confidence=None, notes=("for these weights",))


def two_layer_random(
    num_neurons: int,
    num_inputs: int,
    *,
    output_weight: float | None = None,
    activation: Activation | str = "relu",
    query: GradientQuery = SUM_OF_BOTH,
    adjacency: str = "add-remove",
    confidence: float = 0.999,
) -> TwoLayerSensitivity:
    """`two_layer` for the lecture's random network, w_j ~ N(0, I_d) independent, from its sizes alone.

    ‖W‖ ≤ √m + √d + t with probability 1 − e^{−t²/2} (Davidson and Szarek 2001, Theorem II.13) replaces the norm of the
    weights. For a_j = 1/m, ReLU and R = Y = 1: Δ₁ ≤ 2(1 + Λ/√m)(√m Λ + √d) under "add-remove" with Λ = √m + √d + t,
    which is O(m + √(md)); twice that under "replace".

    Args:
        num_neurons: m ≥ 1.
        num_inputs: d ≥ 1.
        output_weight: |a_j| in [0, ∞); None: 1/m.
        activation: as in `two_layer`.
        query: as in `two_layer`.
        adjacency: "add-remove" or "replace" (the lecture's).
        confidence: in (0, 1 − 1e-12], over the draw of W.

    Returns:
        `TwoLayerSensitivity` of kind "upper", at the confidence. Deterministic.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Example:
        >>> from leakcore.bounds import laplace
        >>> bound = laplace.two_layer_random(100, 784)
        >>> f"{bound.value:.0f}", bound.confidence
        ('4605', 0.999)
    """
    m, d = validate.integer(1, num_neurons=num_neurons), validate.integer(1, num_inputs=num_inputs)
    a = 1.0 / m if output_weight is None else validate.non_negative(output_weight=output_weight)
    level = validate.confidence(confidence=confidence)
    sigma = read_activation(activation)
    spectral = math.sqrt(m) + math.sqrt(d) + math.sqrt(-2.0 * math.log1p(-level))
    norms = _Norms(
        m=m,
        d=d,
        spectral=spectral,
        a_1=a * m,
        a_2=a * math.sqrt(m),
        wx_1=math.sqrt(m) * spectral,
        f_slope=a * math.sqrt(m) * spectral,
        f_zero=sigma.at_zero * a * m,
    )
    return _bound(norms, sigma, query, adjacency, confidence=level, notes=("over the draw of w_j ~ N(0, I)",))


def _parse_weights(hidden_weights: Any, output_weights: Any) -> tuple[np.ndarray, np.ndarray]:
    weights = validate.squarable(hidden_weights=validate.host_array(hidden_weights=hidden_weights)[0])
    output = validate.squarable(output_weights=validate.host_array(output_weights=output_weights)[0])
    if weights.ndim != 2 or 0 in weights.shape:
        raise ValueError(f"`hidden_weights` must have shape (m, d), both at least 1, got {weights.shape}")
    if output.shape != weights.shape[:1]:
        raise ValueError(f"`output_weights` must have shape ({weights.shape[0]},), one per neuron, got {output.shape}")
    return weights, output


class _Norms(NamedTuple):
    """What the bound needs of a network: sizes, norms of its weights, and how f grows with ‖x‖ from f(0)."""

    m: int
    d: int
    spectral: float
    a_1: float
    a_2: float
    wx_1: float
    f_slope: float
    f_zero: float


def _bound(
    norms: _Norms,
    sigma: Activation,
    query: GradientQuery,
    adjacency: str,
    *,
    confidence: float | None,
    notes: tuple[str, ...],
) -> TwoLayerSensitivity:
    m, d, spectral, a_1, a_2, wx_1, f_slope, f_zero = norms
    validate.instance(GradientQuery, query=query)
    reach, y, which, size = query.input_norm, query.target_bound, query.gradients, query.batch_size
    relation = parse_adjacency(adjacency)
    slope = sigma.lipschitz
    residual = min(f_zero + slope * reach * f_slope, a_1 * sigma.bound if a_1 else 0.0) + y
    activations = min(m * sigma.at_zero + slope * reach * wx_1, m * sigma.bound)
    # ‖σ(Wx)‖₂ for the ℓ2 norm of one gradient.
    activations_2 = min(
        math.sqrt(m) * sigma.at_zero + slope * reach * spectral, math.sqrt(m) * sigma.bound, activations
    )
    parts = {"output": 2.0 * residual * activations, "hidden": 2.0 * residual * slope * a_1 * math.sqrt(d) * reach}
    # Products: a power that overflows is an error, a product is inf, which is a valid upper bound.
    squares = {"output": activations_2 * activations_2, "hidden": (slope * a_2 * reach) * (slope * a_2 * reach)}
    entries = {"output": m, "hidden": m * d}
    used = ("output", "hidden") if which == "both" else (which,)
    factor = (2.0 if relation == "replace" else 1.0) / (size or 1)
    return TwoLayerSensitivity(
        value=factor * sum(parts[k] for k in used),
        kind="upper",
        confidence=confidence,
        interval=None,
        method=f"triangle inequality over one example's gradient, {sigma.name}",
        assumptions=Assumptions(
            adjacency=relation,
            attacker="knows the network and all examples but one, sees the noisy gradient",
            notes=(*notes, f"‖x‖₂ ≤ {reach:g}, |y| ≤ {y:g}; square loss, no bias terms"),
        ),
        provenance=SOURCE,
        output_part=factor * parts["output"],
        hidden_part=factor * parts["hidden"],
        residual_bound=residual,
        activation_sum=activations,
        gradient_l2=2.0 * residual * math.sqrt(sum(squares[k] for k in used)),
        printed={"(4.9)": 2.0 * m * math.sqrt(d), "(4.10)": m * math.sqrt(d)},
        num_neurons=m,
        num_inputs=d,
        num_parameters=sum(entries[k] for k in used),
        gradients=which,
        batch_size=size,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class PrintedChange:
    """The two sides of the lecture's (4.8) for one replaced example, in its own scale (without the factor 2).

    Attributes:
        change: |G(a_j) − G(a′_j)| per neuron, (m,).
        printed: |r|(|σ(w_jᵀx)| + |σ(w_jᵀx′)|) per neuron, (m,).
        holds: whether `printed` is at least `change` for every neuron.
        residuals: (r, r′).
        l1_change: ‖g − g′‖₁ of the whole gradient (dL/da and dL/dW) with all factors, which `two_layer(...).value`
            bounds.
    """

    change: np.ndarray
    printed: np.ndarray
    holds: bool
    residuals: tuple[float, float]
    l1_change: float


@one_thread()
def printed_change(
    hidden_weights: Any,
    output_weights: Any,
    first: tuple[Any, float],
    second: tuple[Any, float],
    *,
    activation: Activation | str = "relu",
) -> PrintedChange:
    """Both sides of Lecture 13 (4.8) when one example is replaced: a check of the printed inequality, which may fail.

    Args:
        hidden_weights: W (m, d), as in `two_layer`.
        output_weights: a (m,), as in `two_layer`.
        first: (x, y) with x (d,) finite, the example before.
        second: (x′, y′), the example after.
        activation: as in `two_layer`; an `Activation` needs its function.

    Returns:
        `PrintedChange`.

    Raises:
        ValueError, TypeError: for an argument or a shape that is not allowed, which the text names.

    Guarantees:
        Deterministic. The slope σ′ in `l1_change` is a central difference of σ, good to about 1e-9 where σ is smooth.

    Example:
        >>> from leakcore.bounds import laplace
        >>> fitted, missed = ([1.0], 1.0), ([1.0], -1.0)  # the first example has residual 0
        >>> laplace.printed_change([[1.0]], [1.0], fitted, missed).holds
        False
    """
    weights, output = _parse_weights(hidden_weights, output_weights)
    sigma = read_activation(activation)
    values, gradients, residuals = [], [], []
    for name, example in (("first", first), ("second", second)):
        if not isinstance(example, (tuple, list)) or len(example) != 2:
            raise TypeError(f"`{name}` must be a pair (x, y), got {example!r}")
        x, _ = validate.host_array(**{f"{name}[0]": example[0]})
        y = validate.real(**{f"{name}[1]": example[1]})
        if x.shape != weights.shape[1:]:
            raise ValueError(f"`{name}[0]` must have shape ({weights.shape[1]},), got {x.shape}")
        before = weights @ x
        act = sigma(before)
        residual = float(output @ act) - y
        step = 1e-6
        slopes = (sigma(before + step) - sigma(before - step)) / (2.0 * step)
        values.append(act)
        residuals.append(residual)
        gradients.append((2.0 * residual * act, np.outer(2.0 * residual * output * slopes, x)))
    change = np.abs(residuals[0] * values[0] - residuals[1] * values[1])
    printed = abs(residuals[0]) * (np.abs(values[0]) + np.abs(values[1]))
    return PrintedChange(
        change=change,
        printed=printed,
        holds=bool((change <= printed * (1.0 + 1e-12)).all()),
        residuals=(residuals[0], residuals[1]),
        l1_change=sum(float(np.abs(a - b).sum()) for a, b in zip(*gradients, strict=True)),
    )
