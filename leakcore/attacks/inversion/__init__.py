"""Gradient inversion: the inputs whose gradient is closest to the one that was released.

    g = inversion.gradient(model, image[None], label[None])     # what a client releases
    inverted = inversion.invert(model, g, (3, 32, 32), labels=label[None])
    scored = inverted.compared_with(image[None])
    print(scored.summary()); scored.figure().savefig("inverted.png")

| objective | searched by | good for |
|---|---|---|
| `L2` (default) | `LBFGS`, strong Wolfe (DLG) | smooth networks, one row or few |
| `Cosine` | `SignedAdam`, with a box and total variation | deep networks, batches, gradients of unknown scale |
| `LocalSteps` | `LBFGS` | the change of the weights by several steps: federated averaging |
| `DPSGDSteps` (Equation 1 of Hayes et al.) | `Adam`; clipped, many steps, known rows subtracted | DP-SGD's releases |

`closed_form` needs no search where the first layer is linear. Labels may be known, optimised, or recovered.
`ReleasedGradient` tells the attack more about the gradient: its loss, its parameters, its steps, and the
batch's statistics at its batch norms (`batch_statistics`).
"""

from leakcore.attacks.inversion.batch_norm import batch_statistics
from leakcore.attacks.inversion.invert import closed_form, gradient, invert
from leakcore.attacks.inversion.objectives import L2, LBFGS, Adam, Cosine, DPSGDSteps, LocalSteps, SignedAdam
from leakcore.attacks.inversion.problem import ReleasedGradient
from leakcore.attacks.inversion.result import Inversion, Quality, compare, ssim

__all__ = [
    "L2",
    "LBFGS",
    "Adam",
    "Cosine",
    "DPSGDSteps",
    "Inversion",
    "LocalSteps",
    "Quality",
    "ReleasedGradient",
    "SignedAdam",
    "batch_statistics",
    "closed_form",
    "compare",
    "gradient",
    "invert",
    "ssim",
]
