"""What gradient inversion minimises, and how it searches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol

import torch

from leakcore._base import validate
from leakcore.attacks.arguments import read_box
from leakcore.gradients import FlatModule


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Optimizer:
    iterations: int
    learning_rate: float
    restarts: int = 3
    start: Literal["uniform", "normal"] = "uniform"
    patience: int = 400

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for field in ("iterations", "restarts", "patience"):
            object.__setattr__(self, field, validate.integer(1, None, **{field: getattr(self, field)}))
        object.__setattr__(self, "learning_rate", validate.positive(learning_rate=self.learning_rate))
        validate.one_of("uniform", "normal", start=self.start)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LBFGS(_Optimizer):
    """LBFGS with strong Wolfe line search, one restart after the other, for smooth networks and one row or few.

    In a box it searches t in x = low + (high − low)(1 + sin t)/2.

    Args:
        iterations: number of iterations of each search, at least 1.
        learning_rate: length of its steps, > 0.
        restarts: R ≥ 1, from different starts.
        start: "uniform" in the box ([0, 1] without one) or "normal".
        patience: iterations over which the objective must fall by 10⁻⁴ of itself, or the search has stalled.
    """

    iterations: int = 3000
    learning_rate: float = 1.0
    name: ClassVar[str] = "lbfgs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam(_Optimizer):
    """Adam, whose step falls to 0 along a cosine; in a box it clamps.

    Args:
        iterations: number of iterations of each search, at least 1. Searches that run together end when all of them
            have ended.
        learning_rate: > 0, in units of high − low where there is a box.
        restarts: as in `LBFGS`.
        start: as in `LBFGS`.
        patience: as in `LBFGS`.
        together: search all restarts at once (`torch.func.vmap`), or one after the other.
    """

    iterations: int = 1000
    learning_rate: float = 0.05
    together: bool = True
    name: ClassVar[str] = "adam"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "together", validate.boolean(together=self.together))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SignedAdam(Adam):
    """Adam on the signs of the derivative, for deep networks and batches (Geiping et al. 2020).

    Args:
        iterations: as in `Adam`.
        learning_rate: as in `Adam`.
        restarts: as in `LBFGS`.
        start: as in `LBFGS`.
        patience: as in `LBFGS`.
        together: as in `Adam`.
    """

    iterations: int = 2000
    learning_rate: float = 0.1
    name: ClassVar[str] = "signed-adam"


class Released(Protocol):
    """What a guess is compared with: the model as a function, its states (T, D), and their gradients (T, D)."""

    @property
    def flat(self) -> FlatModule: ...
    @property
    def states(self) -> torch.Tensor: ...
    @property
    def released(self) -> torch.Tensor: ...


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Objective:
    box: tuple[float, float] | None = None
    total_variation: float | Sequence[float] = 0.0
    tolerance: float = -math.inf

    name: ClassVar[str]
    source: ClassVar[str]
    default_optimizer: ClassVar[LBFGS | Adam]
    """What searches where the caller names nothing else."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tolerance", validate.real(tolerance=self.tolerance))
        several = self.total_variation if isinstance(self.total_variation, list | tuple) else (self.total_variation,)
        weights = tuple(validate.non_negative(total_variation=weight) for weight in several)
        if not weights:
            raise ValueError("`total_variation` must hold at least one weight, got ()")
        object.__setattr__(self, "total_variation", weights)
        if self.box is not None:
            object.__setattr__(self, "box", _box(self.box))

    @property
    def weights(self) -> tuple[float, ...]:
        """Weights of the total variation, through which a search goes one by one."""
        return tuple(self.total_variation)  # type: ignore[arg-type]

    @property
    def limits(self) -> tuple[float, float]:
        """The box, ±∞ without one."""
        return (-math.inf, math.inf) if self.box is None else self.box

    def distance(self, problem: Released, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Distance (a scalar) of one guess x (B, *shape) with targets y, without the prior on images."""
        raise NotImplementedError


def _box(box: Any) -> tuple[float, float] | None:
    low, high = read_box(box)
    if low == -math.inf and high == math.inf:
        return None
    # A search maps the whole box to the line, which works neither for half a line nor for an infinite width.
    if math.isinf(high - low):
        raise ValueError(
            f"`box` must have two finite ends, with high − low finite, or two infinite ones, got ({low}, {high})"
        )
    return low, high


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _WithStatistics(_Objective):
    statistics_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        weight = validate.non_negative(statistics_weight=self.statistics_weight)
        object.__setattr__(self, "statistics_weight", weight)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class L2(_WithStatistics):
    """‖G − g‖²/‖g‖², with G the gradient of a guess and g the released one (DLG: Zhu, Liu and Han 2019, Algorithm 1).

    Good for smooth networks and one row or few. Searched by `LBFGS` unless the caller names another optimizer.

    Args:
        box: (low, high), the range of an input's numbers; every search stays in it. None: no limits.
        total_variation: weight of the mean absolute difference of neighbouring pixels; 1e-3 suits images in [0, 1].
            Several, falling: one search for each, started where the last one ended; they share the iterations. For a
            batch (1e-2, 3e-3, 1e-3, 3e-4, 1e-4) reconstructs what no single weight does.
        statistics_weight: weight of the batch norm statistics in a `ReleasedGradient`, where it has them: its
            docstring has the formula. The distance includes them.
        tolerance: distance at which a search ends.
    """

    tolerance: float = 1e-9
    name: ClassVar[str] = "l2"
    source: ClassVar[str] = "Zhu, Liu and Han (2019), Algorithm 1; Lecture 13 (Lei 2024), eq. 5.1"
    default_optimizer: ClassVar[LBFGS | Adam] = LBFGS()

    def distance(self, problem: Released, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The distance in the class's first line."""
        return (_gradients(problem, x, y) - problem.released).square().sum() / problem.released.square().sum()


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Cosine(_WithStatistics):
    """1 − ⟨G, g⟩/(‖G‖‖g‖), with G the gradient of a guess and g the released one (Geiping et al. 2020, equation 4).

    Good for deep networks, batches, and gradients of unknown scale. Searched by `SignedAdam` unless the caller names
    another optimizer.

    Args:
        box: as in `L2`.
        total_variation: as in `L2`.
        statistics_weight: as in `L2`.
        tolerance: as in `L2`.
    """

    tolerance: float = 1e-6
    name: ClassVar[str] = "cosine"
    source: ClassVar[str] = "Geiping, Bauermeister, Dröge and Moeller (2020), eq. 4; Lecture 13 (Lei 2024), eq. 5.1"
    default_optimizer: ClassVar[LBFGS | Adam] = SignedAdam()

    def distance(self, problem: Released, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The distance in the class's first line."""
        gradients, released = _gradients(problem, x, y), problem.released
        # A gradient of zeros has no direction; the tiny number keeps its derivative finite and its cosine 0.
        tiny = torch.finfo(x.dtype).tiny
        norms = (gradients.square().sum() * released.square().sum() + tiny).sqrt()
        return 1 - (gradients * released).sum() / norms


@dataclasses.dataclass(frozen=True, eq=False)
class DPSGDSteps(_Objective):
    """Σ_t −⟨g_t, ḡ_t⟩/C² + ½‖g_t‖²/C², with g_t = Σ_i clip_C(∇ℓ(θ_t, x_i)): the likelihood of what DP-SGD released.

    Hayes et al. 2023, Equation 1, has ‖g_t − ḡ_t‖₁ as second term.

    For what DP-SGD releases: ḡ_t, the noisy *sum* of clipped gradients of each step. Searched by `Adam` unless the
    caller names another optimizer. For an MLP and many runs `attacks.gradient` has the same loss and is faster.

    Args:
        max_grad_norm: C > 0.
        known: (inputs, labels) of rows that the attacker knows; it subtracts their clipped gradients. None: no rows.
        l1_weight: None: the loss above. λ ≥ 0: λ‖g_t − ḡ_t‖₁/C in place of ½‖g_t‖²/C²; 1/C is the printed equation
            divided by C².
        box: as in `L2`.
        total_variation: as in `L2`.
        tolerance: as in `L2`; by default no distance ends a search.
    """

    max_grad_norm: float
    known: tuple[Any, Any] | None = dataclasses.field(default=None, kw_only=True)
    l1_weight: float | None = dataclasses.field(default=None, kw_only=True)
    name: ClassVar[str] = "dp-sgd"
    source: ClassVar[str] = "Hayes, Mahloujifar and Balle (2023), Equation 1"
    default_optimizer: ClassVar[LBFGS | Adam] = Adam()

    def __post_init__(self) -> None:
        super().__post_init__()
        limit = validate.positive(max_grad_norm=self.max_grad_norm)
        object.__setattr__(self, "max_grad_norm", limit)
        if self.l1_weight is not None:
            object.__setattr__(self, "l1_weight", validate.non_negative(l1_weight=self.l1_weight))
        if self.known is not None and (not isinstance(self.known, list | tuple) or len(self.known) != 2):
            raise ValueError("`known` must be a pair, (inputs, labels)")

    def distance(self, problem: Released, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The distance in the class's first line; `problem.released` already lacks the known rows."""
        weight = self.l1_weight

        def one_state(theta: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            rows = problem.flat.per_sample(theta, x, y) / self.max_grad_norm
            # Below C nothing is clipped; the clamp keeps a zero gradient's derivative finite.
            clipped = (rows * rows.square().sum(-1, keepdim=True).clamp(min=1).rsqrt()).sum(0)
            second = 0.5 * clipped.dot(clipped) if weight is None else weight * (clipped - step).abs().sum()
            return second - clipped.dot(step)

        return torch.func.vmap(one_state)(problem.states, problem.released / self.max_grad_norm).sum()


@dataclasses.dataclass(frozen=True, eq=False)
class LocalSteps(_WithStatistics):
    """‖D − d‖²/‖d‖², with d the change of the weights that a client sends, and D that of the same steps on a guess.

    For federated averaging: the client takes several steps of plain SGD on its rows, θ ← θ − η∇ℓ(θ, x_b, y_b), and
    sends θ_after − θ_before (Geiping et al. 2020, Section 6.2). The search differentiates through all steps. Rows
    enter in their order, `batch_size` at a time, the same in each pass: with one pass any order of the client's is
    one of these. Searched by `LBFGS` unless the caller names another optimizer.

    Args:
        learning_rate: η > 0.
        steps: how many, at least 1.
        batch_size: rows of one step; None: all of them.
        box: as in `L2`.
        total_variation: as in `L2`.
        statistics_weight: as in `L2`.
        tolerance: as in `L2`.

    Raises:
        ValueError: `invert` refuses several states, and labels that are to be recovered from signs.

    Example:
        >>> from leakcore.attacks import inversion
        >>> inversion.LocalSteps(learning_rate=0.1, steps=4, batch_size=2).batches(5)
        ((0, 2), (2, 4), (4, 5), (0, 2))
    """

    learning_rate: float
    steps: int = dataclasses.field(default=1, kw_only=True)
    batch_size: int | None = dataclasses.field(default=None, kw_only=True)
    tolerance: float = dataclasses.field(default=1e-9, kw_only=True)
    name: ClassVar[str] = "local steps"
    source: ClassVar[str] = "Geiping, Bauermeister, Dröge and Moeller (2020), Section 6.2; Zhu, Liu and Han (2019)"
    default_optimizer: ClassVar[LBFGS | Adam] = LBFGS()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "learning_rate", validate.positive(learning_rate=self.learning_rate))
        object.__setattr__(self, "steps", validate.integer(1, 1 << 20, steps=self.steps))
        if self.batch_size is not None:
            object.__setattr__(self, "batch_size", validate.integer(1, None, batch_size=self.batch_size))

    def batches(self, rows: int) -> tuple[tuple[int, int], ...]:
        """The first row of each step, and the one after its last."""
        size = min(rows, self.batch_size or rows)
        first = range(0, rows, size)
        return tuple((start, min(rows, start + size)) for start in (first[k % len(first)] for k in range(self.steps)))

    def path(self, problem: Released, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        """The parameters before each step on the guess, and after the last one."""
        thetas = [problem.states[0]]
        for start, end in self.batches(len(x)):
            slope = problem.flat.gradient(thetas[-1], x[start:end], y[start:end])
            thetas.append(thetas[-1] - self.learning_rate * slope)
        return thetas

    def distance(self, problem: Released, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The distance in the class's first line."""
        return self.change(problem, self.path(problem, x, y)[-1])

    @staticmethod
    def change(problem: Released, theta: torch.Tensor) -> torch.Tensor:
        """The distance with these parameters after the last step."""
        change, released = theta - problem.states[0], problem.released[0]
        return (change - released).square().sum() / released.square().sum()


def _gradients(problem: Released, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """(T, D) of the guess at every state."""
    flat, states = problem.flat, problem.states
    if len(states) == 1:
        return flat.gradient(states[0], x, y)[None]
    return torch.func.vmap(lambda theta: flat.gradient(theta, x, y))(states)
