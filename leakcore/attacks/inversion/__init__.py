"""Gradient inversion: the inputs whose gradient is closest to the one that was released.

    g = inversion.gradient(model, image[None], label[None])     # what a client releases
    found = inversion.invert(model, g, (3, 32, 32), labels=label[None], originals=image[None])
    print(found.summary()); found.figure().savefig("inverted.png")

| method | recipe | good for |
|---|---|---|
| "l2" (default) | DLG: LBFGS, strong Wolfe | smooth networks, one row or few |
| "cosine" | signed Adam, total variation, box | deep networks, batches, gradients of unknown scale |
| "dp-sgd" | Equation 1 of Hayes et al.: clipped, many steps, known rows subtracted | what DP-SGD releases |

`closed_form`: the same without a search, where the first layer is linear. Labels: known, optimised, or recovered.
"""

from leakcore.attacks.inversion.image_quality import Quality, compare, ssim
from leakcore.attacks.inversion.invert import closed_form, gradient, invert
from leakcore.attacks.inversion.result import Inversion

__all__ = ["Inversion", "Quality", "closed_form", "compare", "gradient", "invert", "ssim"]
