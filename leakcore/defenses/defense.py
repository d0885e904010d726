"""What every defence is: a transform that names the stage of a release it acts on."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from leakcore._base import validate as check

STAGES = ("training", "samples", "sum", "release")
"""The order in which a release passes them."""


class Defense:
    """One transform of what is released; `stage` says what it acts on.

    `apply` neither changes its argument nor keeps any state. Subclass it for a defence of your own.

    Example:
        >>> import numpy as np
        >>> from leakcore import defenses
        >>> class Signs(defenses.Defense):
        ...     stage = "release"
        ...     def apply(self, gradients, *, seed=None, step=0):
        ...         return np.sign(gradients)
        >>> defenses.Compose(defenses.Clip(1.0), Signs()).apply(np.array([3.0, -4.0])).tolist()
        [1.0, -1.0]
    """

    stage: ClassVar[str]

    def apply(self, gradients: Any, *, seed: int | None = None, step: int = 0) -> Any:
        """The transformed gradients, in the same library, device and dtype.

        Args:
            gradients: (..., D) finite floats, NumPy or torch. Each row is one release ("release" stage) or one sample's
                gradient ("samples", "sum": (B, D); "sum" returns (D,)).
            seed: required where anything is random.
            step: of a training run, in [0, 2²⁴): the same seed and step give the same noise.

        Raises:
            ValueError: for a value or shape that is not allowed, and for defences on training, which need the model
                (`release` applies them).
            TypeError: for an argument of another type.
        """
        raise NotImplementedError

    @property
    def parts(self) -> tuple[Defense, ...]:
        """The defences that it is composed of, in order."""
        return (self,)


def read_rows(name: str, gradients: Any, least: int = 1) -> Any:
    gradients = check.floating("gradients", gradients)
    shape = tuple(gradients.shape)
    if len(shape) < least or 0 in shape:
        raise ValueError(f"{name}: `gradients` must have shape (..., D), none of them 0, got {shape}")
    if isinstance(gradients, np.ndarray):
        finite = bool(np.isfinite(gradients).all())
    else:  # on a device, the check would have to wait for it
        finite = gradients.device.type != "cpu" or bool(gradients.isfinite().all())
    if not finite:
        raise ValueError(f"{name}: `gradients` must be finite")
    return gradients


def like(values: np.ndarray, gradients: Any) -> Any:
    """A float64 array in the library, device and dtype of `gradients`."""
    if isinstance(gradients, np.ndarray):
        return values.astype(gradients.dtype)
    import torch

    return torch.from_numpy(np.ascontiguousarray(values)).to(gradients)


def need_seed(name: str, seed: int | None) -> int:
    if seed is None:
        raise ValueError(f"{name}: `seed` is required: two calls must not share their noise by accident")
    return check.seed(seed=seed)
