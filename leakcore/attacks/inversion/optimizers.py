"""How gradient inversion searches: LBFGS, Adam, or Adam on signs, each with its own settings."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from leakcore._base import validate as check


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
            object.__setattr__(self, field, check.integer(1, None, **{field: getattr(self, field)}))
        object.__setattr__(self, "learning_rate", check.positive(learning_rate=self.learning_rate))
        check.one_of("uniform", "normal", start=self.start)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LBFGS(_Optimizer):
    """LBFGS with strong Wolfe line search, one restart after the other: for smooth networks, one row or few.

    In a box it searches t in x = low + (high − low)(1 + sin t)/2.

    Args:
        iterations: of each search, at least 1.
        learning_rate: of its steps, > 0.
        restarts: R ≥ 1, from different starts.
        start: "uniform" in the box ([0, 1] without one) or "normal".
        patience: iterations over which the objective must fall by 10⁻⁴ of itself, or the search has stalled.
    """

    iterations: int = 3000
    learning_rate: float = 1.0
    name: ClassVar[str] = "lbfgs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam(_Optimizer):
    """Adam, its step falling to 0 along a cosine; in a box it clamps.

    Args:
        iterations, restarts, start, patience: as in `LBFGS`. Searches that run together end early only when all agree.
        learning_rate: in units of high − low, where there is a box; > 0.
        together: search all restarts at once (`torch.func.vmap`), or one after the other.
    """

    iterations: int = 1000
    learning_rate: float = 0.05
    together: bool = True
    name: ClassVar[str] = "adam"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "together", check.boolean(together=self.together))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SignedAdam(Adam):
    """Adam on the signs of the derivative (Geiping et al. 2020), for deep networks and batches; set as `Adam` is."""

    iterations: int = 2000
    learning_rate: float = 0.1
    name: ClassVar[str] = "signed-adam"
