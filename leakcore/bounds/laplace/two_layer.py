"""How far one example can move the gradient of a two-layer network, in ℓ1: derived, beside what the lecture prints."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from leakcore._base import validate
from leakcore._base.one_thread import one_thread
from leakcore._base.results import Assumptions, Result, parse_adjacency
from leakcore.bounds.laplace.mechanism import LaplaceScale, noise_scale
from leakcore.numerics import Activation
from leakcore.numerics import activation as read_activation

SOURCE = "derived here for the network of Lecture 13 (Lei 2024), eqs. 4.3 to 4.6; errata: dropped factors, (4.8), E7"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TwoLayerSensitivity(Result):
    """value: upper bound of Δ₁ for the gradients asked for.

    output_part, hidden_part: of dL/da (m entries) and of dL/dW (m·d), each by itself; their sum is the bound for both.
    residual_bound: of |f(x) − y|. activation_sum: of Σ_j |σ(w_jᵀx)|. gradient_l2: of one example's gradient, in ℓ2.
    printed: what the lecture prints, with its open constant C set to 1: "(4.9)" Σ_j 2√d, "(4.10)" m√d. No bounds.
    num_neurons, num_inputs, num_parameters: m, d and the entries released. gradients, batch_size: as asked.
    """

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
        """‖G‖₂/√(E‖Y‖₂²) = ‖G‖₂/(b√(2k)) of a gradient of k entries, all of which get noise."""
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

    Args:
        input_norm: R in [0, ∞), largest ‖x‖₂ of an example.
        target_bound: Y in [0, ∞), largest |y|.
        gradients: what is released: "both", "output" (dL/da alone) or "hidden" (dL/dW alone).
        batch_size: None: the gradient of the sum. B ≥ 1: divided by B, a constant that does not depend on the data.
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
    adjacency: str = "replace",
) -> TwoLayerSensitivity:
    """Worst-case ℓ1-sensitivity of the gradient of f(x) = Σ_j a_j σ(w_jᵀx) under L = Σ_i (f(x_i) − y_i)².

    With r = f(x) − y, one example (x, y) adds to the gradient (eqs. 4.4 and 4.6 with the factors that they drop)

        g_{a_j} = 2r σ(w_jᵀx),    g_{w_j} = 2r a_j σ′(w_jᵀx) x.

    Let ‖x‖₂ ≤ R, |y| ≤ Y, σ have slope at most ℓ, |σ| at most S (∞ where there is none), s₀ = |σ(0)|. Then

    1. Σ_j |σ(w_jᵀx)| ≤ H := min(m s₀ + ℓR min(√m ‖W‖, Σ_j ‖w_j‖), mS): |σ(u)| ≤ s₀ + ℓ|u|, ‖Wx‖₁ ≤ √m ‖Wx‖₂;
    2. |f(x)| ≤ F := min(|Σ_j a_j σ(0)| + ℓR min(‖a‖₂ ‖W‖, Σ_j |a_j| ‖w_j‖), ‖a‖₁ S), hence |r| ≤ F + Y, whatever the
       example: unlike in (4.7) and (4.8) the residual is the example's own, before and after the change;
    3. ‖x‖₁ ≤ √d R, so Σ_j ‖g_{w_j}‖₁ ≤ 2|r| ℓ ‖a‖₁ √d R;
    4. ‖g‖₁ ≤ G := 2(F + Y)(H + ℓ ‖a‖₁ √d R), and replacing an example changes the sum by g − g′: Δ₁ ≤ 2G. Adding or
       removing one: Δ₁ ≤ G.

    ‖W‖ is the spectral norm. Printed beside it: (4.8), |r_i|(|σ(w_jᵀx_i)| + |σ(w_jᵀx′_i)|), is no bound (at r_i = 0 its
    right side is 0, and the replaced example has a residual of its own; `printed_change` shows it). (4.9) drops r and
    a_j; its C is the residual's bound times max_j |a_j|. (4.10) is O(m√d) for |a_j| = O(1) and |r| = O(1); for the
    lecture's own a_j = 1/m the bound above is O(m + √(md)), and for a_j = ±1 the residual alone may be of order m.
    Compare orders, not numbers.

    hidden_weights: W (m, d), output_weights: a (m,), finite, NumPy or CPU torch. activation: a name as in torch
        ("relu", "tanh", …) or an `Activation` with its constants. query: a `GradientQuery`: R, Y and what is released.
    adjacency: "replace" (the lecture's: differ in one element) or "add-remove".

    Returns a `TwoLayerSensitivity`: kind "upper", deterministic. Raises ValueError or TypeError that names the
    argument.
    """
    weights = validate.squarable(hidden_weights=validate.host_array(hidden_weights=hidden_weights)[0])
    output = validate.squarable(output_weights=validate.host_array(output_weights=output_weights)[0])
    if weights.ndim != 2 or 0 in weights.shape:
        raise ValueError(f"hidden_weights.shape={weights.shape}: must be (m, d), both at least 1")
    if output.shape != weights.shape[:1]:
        raise ValueError(f"output_weights.shape={output.shape}: must be ({weights.shape[0]},), one per neuron")
    sigma = read_activation(activation)
    lengths = np.linalg.norm(weights, axis=1)
    spectral = float(np.linalg.norm(weights, 2))
    m, d = weights.shape
    a_1, a_2 = float(np.abs(output).sum()), float(np.linalg.norm(output))
    return _bound(
        m=m, d=d, sigma=sigma, spectral=spectral, a_1=a_1, a_2=a_2,
        wx_1=min(math.sqrt(m) * spectral, float(lengths.sum())),
        f_slope=min(a_2 * spectral, float(np.abs(output) @ lengths)),
        f_zero=sigma.at_zero * abs(float(output.sum())),
        query=query, adjacency=adjacency,
        confidence=None, notes=("for these weights",),
    )  # fmt: skip


def two_layer_random(
    num_neurons: int,
    num_inputs: int,
    *,
    output_weight: float | None = None,
    activation: Activation | str = "relu",
    query: GradientQuery = SUM_OF_BOTH,
    adjacency: str = "replace",
    confidence: float = 0.999,
) -> TwoLayerSensitivity:
    """`two_layer` for the lecture's random network, w_j ~ N(0, I_d) independent, from its sizes alone.

    ‖W‖ ≤ √m + √d + t with probability 1 − e^{−t²/2} (Davidson and Szarek 2001, Theorem II.13), in place of the weights'
    own norm. For a_j = 1/m, ReLU, R = Y = 1: Δ₁ ≤ 4(1 + Λ/√m)(√m Λ + √d), Λ = √m + √d + t: O(m + √(md)).

    num_neurons: m, num_inputs: d. output_weight: |a_j|, in [0, ∞); None: 1/m. confidence: in (0, 1 − 1e-12], over the
    draw of W. Other arguments, result and errors as in `two_layer`.
    """
    m, d = validate.integer(1, num_neurons=num_neurons), validate.integer(1, num_inputs=num_inputs)
    a = 1.0 / m if output_weight is None else validate.non_negative(output_weight=output_weight)
    level = validate.confidence(confidence=confidence)
    sigma = read_activation(activation)
    spectral = math.sqrt(m) + math.sqrt(d) + math.sqrt(-2.0 * math.log1p(-level))
    return _bound(
        m=m, d=d, sigma=sigma, spectral=spectral, a_1=a * m, a_2=a * math.sqrt(m),
        wx_1=math.sqrt(m) * spectral, f_slope=a * math.sqrt(m) * spectral, f_zero=sigma.at_zero * a * m,
        query=query, adjacency=adjacency,
        confidence=level, notes=("over the draw of w_j ~ N(0, I)",),
    )  # fmt: skip


def _bound(
    *, m: int, d: int, sigma: Activation, spectral: float, a_1: float, a_2: float, wx_1: float, f_slope: float,
    f_zero: float, query: GradientQuery, adjacency: str,
    confidence: float | None, notes: tuple[str, ...],
) -> TwoLayerSensitivity:  # fmt: skip
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
    """The two sides of (4.8) for one replaced example, per neuron (m,), in the lecture's own scale (no factor 2).

    change: |G(a_j) − G(a′_j)|. printed: |r|(|σ(w_jᵀx)| + |σ(w_jᵀx′)|). holds: whether printed is no less, everywhere.
    residuals: (r, r′). l1_change: ‖g − g′‖₁ of the whole gradient (dL/da and dL/dW) with all factors, which
    `two_layer(...).value` bounds.
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
    """Both sides of Lecture 13 (4.8) when the example `first` = (x, y) becomes `second` = (x′, y′).

    hidden_weights, output_weights, activation: as in `two_layer`; the activation needs a function. x, x′: (d,) finite.
    The slope σ′ in l1_change is a central difference of σ, good to about 1e-9 where σ is smooth.
    Raises ValueError or TypeError that names the argument.
    """
    weights = validate.squarable(hidden_weights=validate.host_array(hidden_weights=hidden_weights)[0])
    output = validate.squarable(output_weights=validate.host_array(output_weights=output_weights)[0])
    if weights.ndim != 2 or 0 in weights.shape or output.shape != weights.shape[:1]:
        raise ValueError(
            f"hidden_weights.shape={weights.shape}, output_weights.shape={output.shape}: must be (m, d) and (m,)"
        )
    sigma = read_activation(activation)
    values, gradients, residuals = [], [], []
    for name, example in (("first", first), ("second", second)):
        if not isinstance(example, (tuple, list)) or len(example) != 2:
            raise TypeError(f"{name}={example!r}: must be a pair (x, y)")
        x, _ = validate.host_array(**{f"{name}[0]": example[0]})
        y = validate.real(**{f"{name}[1]": example[1]})
        if x.shape != weights.shape[1:]:
            raise ValueError(f"{name}[0].shape={x.shape}: must be ({weights.shape[1]},)")
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
