"""How gradient inversion searches: LBFGS, Adam, or Adam on signs, each with its own settings."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from leakcore._base import validate


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
        iterations: of each search, at least 1.
        learning_rate: of its steps, > 0.
        restarts: R ≥ 1, from different starts.
        start: "uniform" in the box ([0, 1] without one) or "normal".
        patience: iterations over which the objective must fall by 10⁻⁴ of itself, or the search has stalled.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore.attacks import inversion
        >>> inversion.LBFGS(restarts=5).iterations
        3000
    """

    iterations: int = 3000
    learning_rate: float = 1.0
    name: ClassVar[str] = "lbfgs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam(_Optimizer):
    """Adam, whose step falls to 0 along a cosine; in a box it clamps.

    Args:
        iterations: of each search, at least 1. Searches that run together end early only when all of them have ended.
        learning_rate: > 0, in units of high − low where there is a box.
        restarts: as in `LBFGS`.
        start: as in `LBFGS`.
        patience: as in `LBFGS`.
        together: search all restarts at once (`torch.func.vmap`), or one after the other.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore.attacks import inversion
        >>> inversion.Adam(iterations=500).together
        True
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

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore.attacks import inversion
        >>> inversion.SignedAdam().iterations
        2000
    """

    iterations: int = 2000
    learning_rate: float = 0.1
    name: ClassVar[str] = "signed-adam"
