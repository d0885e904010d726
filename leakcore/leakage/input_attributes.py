"""Attributes that any input has, to measure latent information where nobody labelled an attribute."""

from __future__ import annotations

from typing import Any

import numpy as np

from leakcore._base import array_memory
from leakcore._base import validate as check


def input_attributes(inputs: Any) -> dict[str, np.ndarray]:
    """Whether each input lies above the median of a simple feature.

    Images (n, channels, height, width) have "brightness", the mean pixel; "texture", the mean absolute difference of
    neighbouring pixels, where there are any; and with three channels "warmth", the mean of red minus that of blue.
    Other inputs (n, ...) have "mean".

    Args:
        inputs: (n, ...), at least two inputs of at least one number; NumPy or torch.

    Returns:
        {name: (n,) booleans}; both sides are equal in number up to ties.

    Raises:
        ValueError: for fewer inputs, and for values that are not finite.
        TypeError: for anything but an array of real numbers.

    Guarantees:
        Deterministic.

    Example:
        >>> import numpy as np
        >>> from leakcore import leakage
        >>> images = np.linspace(0, 1, 4)[:, None, None, None] * np.ones((4, 1, 2, 2))
        >>> {name: side.tolist() for name, side in leakage.input_attributes(images).items()}
        {'brightness': [False, False, True, True], 'texture': [False, False, False, False]}
    """
    if array_memory.is_torch(inputs):
        inputs = array_memory.plain_tensor("inputs", inputs).detach().cpu()
    x, _ = check.host_array(inputs=inputs)
    if x.ndim < 2 or len(x) < 2 or 0 in x.shape:
        raise ValueError(
            f"`inputs` must have shape (n, ...), at least two inputs of at least one number, got {x.shape}"
        )
    features = {"mean": x.reshape(len(x), -1).mean(axis=1)}
    if x.ndim == 4:
        features = {"brightness": features["mean"]}
        across = [axis for axis in (2, 3) if x.shape[axis] > 1]
        if across:
            features["texture"] = sum(np.abs(np.diff(x, axis=axis)).mean(axis=(1, 2, 3)) for axis in across)
        if x.shape[1] == 3:
            features["warmth"] = (x[:, 0] - x[:, 2]).mean(axis=(1, 2))
    return {name: values > np.median(values) for name, values in features.items()}
