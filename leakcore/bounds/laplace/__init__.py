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

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
