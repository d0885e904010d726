"""How the label-ε bound grows with the number of batches: extrapolated from one."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore._base.results import Assumptions, Result


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LabelEpsilonExtrapolation(Result):
    """Expected label-ε bound over many batches, from that of one: an extrapolation, not a bound.

    Attributes:
        value: the expected largest bound over all batches.
        factor: what the bound of one batch was multiplied by.
        rule: as asked.
        num_batches: as asked.
        batch_size: as asked.
    """

    quantity: str = "ε of a label"
    factor: float
    rule: str
    num_batches: int
    batch_size: int


def extrapolate_label_epsilon(
    lb_one_batch: Any, num_batches: int, batch_size: int, *, rule: str = "harmonic"
) -> LabelEpsilonExtrapolation:
    """Expected largest label-ε bound over `num_batches` batches, from the expected one of a single batch.

    Yuan, Xue, Wang and Shen (2022), A.3.1, for per-row bounds that are independent and exponential, F(x) = 1 − e^{−λx}
    (E4: the text prints 1 − λe^{−λx}). The mean of the largest of n is H_n/λ with H_n the n-th harmonic number, so for
    M batches of N rows

    - "harmonic": H_{MN}/H_N, exact for every N; 1.600 and 1.972 for (M, N) = (15, 50) and (80, 50).
    - "log": 1 + log M/log N, the paper's approximation; 1.69 and 2.12 there. Needs N ≥ 2.

    Args:
        lb_one_batch: at least 0, a number or an array, ideally the mean over several single batches.
        num_batches: M ≥ 1.
        batch_size: N ≥ 1.
        rule: "harmonic" or "log".

    Returns:
        `LabelEpsilonExtrapolation` of kind "estimate", adjacency "replace".

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        None: the exponential tail is an observation about data, not a theorem. Deterministic.

    Example:
        >>> from leakcore import bounds
        >>> f"{bounds.extrapolate_label_epsilon(2.0, 15, 50).value:.2f}"
        '3.20'
    """
    one = validate.real_array("at least 0 and finite", lambda v: np.isfinite(v) & (v >= 0), lb_one_batch=lb_one_batch)
    batches = validate.integer(1, num_batches=num_batches)
    which = validate.one_of("harmonic", "log", rule=rule)
    rows = validate.integer(2 if which == "log" else 1, batch_size=batch_size)
    if which == "log":
        factor = 1.0 + math.log(batches) / math.log(rows)
    else:
        # H_n = ψ(n + 1) + γ.
        factor = float(
            (special.digamma(batches * rows + 1.0) + np.euler_gamma) / (special.digamma(rows + 1.0) + np.euler_gamma)
        )
    return LabelEpsilonExtrapolation(
        value=float(one * factor) if one.ndim == 0 else one * factor,
        kind="estimate",
        confidence=None,
        interval=None,
        method=f"{which} rule for the mean of the largest of independent exponential variables",
        assumptions=Assumptions(
            adjacency="replace",
            attacker="as for the bound that is extrapolated",
            notes=("per-row bounds are independent, with one exponential distribution", "an expectation over batches"),
        ),
        provenance="Yuan, Xue, Wang and Shen (2022), A.3.1; erratum E4",
        factor=factor,
        rule=which,
        num_batches=batches,
        batch_size=rows,
    )
