"""The Laplace mechanism: noise for arrays, and what the noise does to them."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any, ClassVar

import numpy as np
from scipy import special

from leakcore import kernels
from leakcore._base import validate
from leakcore._base.results import Assumptions, Result, parse_adjacency
from leakcore.kernels import is_torch, wrap

SOURCE = "Dwork, McSherry, Nissim and Smith (2006); Lecture 13 (Lei 2024), Definition 2"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LaplaceScale(Result):
    """Scale of the Laplace noise that an ε needs, as `noise_scale` returns it.

    Attributes:
        value: b = Δ/ε, the scale of each coordinate's noise. Kind "upper": this much noise suffices.
        sensitivity: Δ that was asked for.
        epsilon: ε that was asked for.
        variance: 2b².
    """

    compared_at: ClassVar[tuple[str, ...]] = ("epsilon",)

    quantity: str = "Laplace scale"
    sensitivity: float
    epsilon: float
    variance: float


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LaplaceTail(Result):
    """Probability of large noise, as `tail` returns it.

    Attributes:
        value: P(max_i |Y_i| > threshold), exact.
        threshold: t that was asked for.
        scale: b that was asked for.
        dimensions: k that was asked for.
    """

    compared_at: ClassVar[tuple[str, ...]] = ("threshold",)

    quantity: str = "tail probability"
    threshold: float
    scale: float
    dimensions: int


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LaplaceError(Result):
    """Size of the noise at a confidence, as `error_bound` returns it.

    Attributes:
        value: t with P(max_i |Y_i| ≤ t) = confidence, exact; kind "upper".
        l1: the same quantile of ‖Y‖₁.
        mean_l1: E‖Y‖₁ = kb.
        root_mean_square: √(E‖Y‖₂²) = b√(2k), of the whole vector.
        scale: as asked.
        dimensions: as asked.
    """

    quantity: str = "error"
    l1: float
    mean_l1: float
    root_mean_square: float
    scale: float
    dimensions: int


def noise_scale(sensitivity: Any, epsilon: float, *, adjacency: str = "add-remove") -> LaplaceScale:
    """The scale b = Δ₁/ε with which the Laplace mechanism is ε-private.

    Lecture 13, Definition 2 and Theorem 5. The lecture closes with a magnitude of d√m/ε² for Δ₁ = O(m√d), which does
    not follow from Δ₁; b = Δ₁/ε does (E7).

    Args:
        sensitivity: Δ₁ in [0, ∞), a number, or a result of this module.
        epsilon: ε in (0, ∞).
        adjacency: the relation that a number is for, "add-remove" or "replace"; a result brings its own.

    Returns:
        `LaplaceScale` of kind "upper", at the confidence of the sensitivity where that has one. Deterministic.

    Raises:
        ValueError: for a value that is not allowed, and for a sensitivity that is not an upper bound, such as a
            measured one; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore.bounds import laplace
        >>> laplace.noise_scale(laplace.histogram_sensitivity(10), 0.5).value
        2.0
    """
    delta_1, relation = read_sensitivity(sensitivity, adjacency)
    level = validate.positive(epsilon=epsilon)
    b = delta_1 / level
    return LaplaceScale(
        value=b,
        kind="upper",
        confidence=sensitivity.confidence if isinstance(sensitivity, Result) else None,
        interval=None,
        method="b = Δ/ε",
        assumptions=Assumptions(
            adjacency=parse_adjacency(relation), attacker="sees the noisy vector, and knows all data but one row"
        ),
        provenance=SOURCE,
        sensitivity=delta_1,
        epsilon=level,
        variance=2.0 * b * b,
    )


def mechanism(
    values: Any,
    *,
    sensitivity: Any = None,
    epsilon: float | None = None,
    scale: float | None = None,
    seed: int | None = None,
    step: int = 0,
    secure: bool = False,
) -> Any:
    """Adds independent Laplace noise of scale b = Δ₁/ε to every entry, which is ε-private.

    Y_i has density exp(−|y|/b)/(2b) (Lecture 13, eq. 3.1). Give sensitivity and epsilon, or scale. Give a seed to
    measure, `secure=True` to release. Round a released result coarsely: the last bits of a floating-point sum leave
    traces of the exact noise (Mironov 2012), which this simulation does not hide.

    Args:
        values: floating array of any shape, NumPy or torch; also NumPy integers (returned as float64) and Python
            numbers (returned as float). Must be finite (checked on the CPU).
        sensitivity: Δ₁ in [0, ∞), a number or a result of this module.
        epsilon: ε in (0, ∞).
        scale: b in [0, ∞); 0 returns the values.
        seed: seed of the noise. Entry i (row-major) has the same noise for the same seed and step, whatever the shape.
        step: give two releases different steps or seeds: the same noise twice cancels in their difference.
        secure: draw from the operating system's entropy instead of a seed, whose generator is statistical, not
            cryptographic.

    Returns:
        The noisy values, in the input's library, device, shape and dtype. The sum is taken in float64 and rounded once.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Guarantees:
        Deterministic given seed and step, to rounding of the logarithm between devices. |Y| ≤ 44.4b (a grid of 2⁻⁶⁴),
        so k entries are (ε, k·2⁻⁶³)-private at best.

    Example:
        >>> import numpy as np
        >>> from leakcore.bounds import laplace
        >>> counts = np.zeros(10_000)
        >>> noisy = laplace.mechanism(counts, sensitivity=2, epsilon=0.5, seed=1)
        >>> f"{abs(noisy).mean():.0f}"  # the mean of |Y| is b = 4
        '4'
    """
    b = _read_scale(sensitivity, epsilon, scale)
    if secure and seed is not None:
        raise ValueError(f"`seed` must be None with secure=True, got {seed!r}")
    if not secure and seed is None:
        raise ValueError("`seed` must be given, or secure=True for the operating system's entropy")
    number = isinstance(values, (int, float, np.integer, np.floating)) and not isinstance(values, bool)
    array = _floating(np.asarray(values, dtype=np.float64) if number else values)
    if not is_torch(array):
        validate.real_array("finite", np.isfinite, values=array)
    elif array.device.type == "cpu" and not bool(array.isfinite().all()):
        raise ValueError("`values` must be finite")
    noise = _noise(array, seed, step, secure)
    if is_torch(array):
        return (array.double() + b * noise).to(array.dtype)
    noisy = (array.astype(np.float64) + b * noise).astype(array.dtype)
    return float(noisy) if number else noisy


def _noise(array: Any, seed: int | None, step: int, secure: bool) -> Any:
    """Unit Laplace variates of the array's shape, float64, in its library and on its device."""
    size = int(np.prod(tuple(array.shape)))
    if secure:
        words = np.frombuffer(os.urandom(8 * size), dtype=np.uint32).reshape(1, size, 2)
        draws = wrap((words.astype(np.float64) + 0.5) * 2.0**-32, array)
    else:
        key = validate.seed(seed=seed)
        draws = kernels.uniform((1, 2 * size), seed=key, purpose=kernels.Stream.LAPLACE, step=step, like=array)
        draws = draws.reshape(1, size, 2)
    first, second = draws[0, :, 0], draws[0, :, 1]
    # The leading bit is the sign; the other 31 and the second word are the magnitude's uniform in (0, 1), whose small
    # end keeps 52 significant bits, because there the coarse part is exactly 2⁻³² and cancels.
    upper = first >= 0.5
    coarse = 2.0 * first - 1.0 * upper
    uniform = coarse + (second - 0.5) * 2.0**-31
    log = uniform.log() if is_torch(uniform) else np.log(uniform)
    return ((1.0 - 2.0 * upper) * log).reshape(tuple(array.shape))


def _floating(values: Any) -> Any:
    if not is_torch(values):
        values = validate.even_array(values=values)
        if values.dtype.kind in "iu":
            return values.astype(np.float64)
    return validate.floating("values", values)


def _read_scale(sensitivity: Any, epsilon: float | None, scale: float | None) -> float:
    if (scale is None) == (epsilon is None) or (sensitivity is None) != (epsilon is None):
        raise ValueError(
            f"give `sensitivity` and `epsilon`, or `scale`, got sensitivity={_shown(sensitivity)}, "
            f"epsilon={epsilon!r}, scale={scale!r}"
        )
    if scale is not None:
        return validate.non_negative(scale=scale)
    assert epsilon is not None
    return float(noise_scale(sensitivity, epsilon).value)


def _shown(sensitivity: Any) -> str:
    return repr(sensitivity.value) if isinstance(sensitivity, Result) else repr(sensitivity)


def read_sensitivity(sensitivity: Any, adjacency: str) -> tuple[float, str]:
    """The number and the adjacency it is for; a result that is not an upper bound is refused."""
    if not isinstance(sensitivity, Result):
        return validate.non_negative(sensitivity=sensitivity), parse_adjacency(adjacency)
    if sensitivity.kind != "upper":
        raise ValueError(
            f"`sensitivity` must be an upper bound, got a result of kind {sensitivity.kind!r} ({sensitivity.method})"
        )
    if sensitivity.adjacency is None:
        raise ValueError("`sensitivity` must be an ℓ1-sensitivity, got a result without adjacency")
    return validate.non_negative(sensitivity=float(sensitivity.value)), sensitivity.adjacency


def tail(threshold: float, *, scale: float, dimensions: int = 1) -> LaplaceTail:
    """Probability that the largest of k independent Laplace variates exceeds t, in absolute value.

    P(max_i |Y_i| > t) = 1 − (1 − e^{−t/b})^k.

    Args:
        threshold: t in [0, ∞).
        scale: b in [0, ∞); the answer is 0 at b = 0.
        dimensions: k ≥ 1.

    Returns:
        `LaplaceTail` of kind "upper".

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Guarantees:
        Exact, and accurate in relative terms also where the probability is tiny.

    Example:
        >>> from leakcore.bounds import laplace
        >>> f"{laplace.tail(20.0, scale=4.0, dimensions=10).value:.3f}"
        '0.065'
    """
    t, b = validate.non_negative(threshold=threshold), validate.non_negative(scale=scale)
    k = validate.integer(1, dimensions=dimensions)
    beyond = 0.0 if b == 0.0 else math.exp(-t / b)
    return LaplaceTail(
        value=1.0 if beyond == 1.0 else -math.expm1(k * math.log1p(-beyond)),
        kind="upper",
        confidence=None,
        interval=None,
        method="closed form",
        assumptions=_NOISE_ONLY,
        provenance=SOURCE,
        threshold=t,
        scale=b,
        dimensions=k,
    )


def error_bound(*, scale: float, dimensions: int = 1, confidence: float = 0.99) -> LaplaceError:
    """How far the Laplace mechanism moves a vector of k entries, with probability β = `confidence`.

    The largest entry moves by at most t = −b log(1 − β^{1/k}); ‖Y‖₁ is Gamma(k, b), and its β-quantile is `l1`.

    Args:
        scale: b in [0, ∞).
        dimensions: k ≥ 1.
        confidence: β in (0, 1 − 1e-12].

    Returns:
        `LaplaceError` of kind "upper", at the confidence. Exact, deterministic.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.

    Example:
        >>> from leakcore.bounds import laplace
        >>> error = laplace.error_bound(scale=4.0, dimensions=10, confidence=0.95)
        >>> f"largest {error.value:.1f}, total {error.l1:.1f}, total on average {error.mean_l1:.0f}"
        'largest 21.1, total 62.8, total on average 40'
    """
    b, k = validate.non_negative(scale=scale), validate.integer(1, dimensions=dimensions)
    level = validate.confidence(confidence=confidence)
    return LaplaceError(
        value=-b * math.log(-math.expm1(math.log(level) / k)),
        kind="upper",
        confidence=level,
        interval=None,
        method="closed form",
        assumptions=_NOISE_ONLY,
        provenance=SOURCE,
        l1=b * float(special.gammaincinv(k, level)),
        mean_l1=k * b,
        root_mean_square=b * math.sqrt(2.0 * k),
        scale=b,
        dimensions=k,
    )


_NOISE_ONLY = Assumptions(
    adjacency=None, attacker="none: this is the error that the noise costs", notes=("independent coordinates",)
)
