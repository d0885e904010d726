"""The Laplace mechanism: noise, sensitivities, composition, and what it costs a two-layer network.

    release = laplace.mechanism(counts, sensitivity=laplace.histogram_sensitivity(10), epsilon=1.0, secure=True)

| question | answer |
|---|---|
| how much noise? | `noise_scale(sensitivity, epsilon)` |
| the noisy array | `mechanism(values, ...)` |
| ℓ1-sensitivity of a query | `sum_sensitivity`, `mean_sensitivity`, `count_sensitivity`, `histogram_sensitivity` |
| how far off is the answer? | `error_bound`, `tail` |
| several releases | `compose` |
| the gradient of a two-layer network | `two_layer`, `two_layer_random`; `printed_change` for the lecture's (4.8) |

Every sensitivity says its neighbouring relation: "add-remove", or "replace" (one row changes, the lecture's). Measured
sensitivities of a torch model are in `leakcore.leakage.l1_sensitivity`; they are lower bounds, which no noise may rest
on.
"""

from leakcore.bounds.laplace.compose import LaplaceComposition, compose
from leakcore.bounds.laplace.mechanism import (
    LaplaceError,
    LaplaceScale,
    LaplaceTail,
    error_bound,
    mechanism,
    noise_scale,
    tail,
)
from leakcore.bounds.laplace.queries import (
    L1Sensitivity,
    count_sensitivity,
    histogram_sensitivity,
    mean_sensitivity,
    sum_sensitivity,
)
from leakcore.bounds.laplace.two_layer import (
    GradientQuery,
    PrintedChange,
    TwoLayerSensitivity,
    printed_change,
    two_layer,
    two_layer_random,
)
from leakcore.numerics import Activation

__all__ = [
    "Activation",
    "GradientQuery",
    "L1Sensitivity",
    "LaplaceComposition",
    "LaplaceError",
    "LaplaceScale",
    "LaplaceTail",
    "PrintedChange",
    "TwoLayerSensitivity",
    "compose",
    "count_sensitivity",
    "error_bound",
    "histogram_sensitivity",
    "mean_sensitivity",
    "mechanism",
    "noise_scale",
    "printed_change",
    "sum_sensitivity",
    "tail",
    "two_layer",
    "two_layer_random",
]
