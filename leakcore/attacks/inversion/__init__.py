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

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
