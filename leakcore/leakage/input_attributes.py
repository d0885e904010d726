"""Attributes that any input has, to measure latent information by where nobody labelled any."""

from __future__ import annotations

from typing import Any

import numpy as np

from leakcore._base import array_memory
from leakcore._base import validate as check


def input_attributes(inputs: Any) -> dict[str, np.ndarray]:
    """{name: (n,) booleans}: whether each input lies above the median of a plain feature of it.

    Images (n, channels, height, width): "brightness", the mean pixel; "texture", the mean absolute difference of
    neighbouring pixels, where there are any; with three channels "warmth", the mean of red less that of blue. Other
    inputs (n, ...): "mean".
    Sides are equal in number up to ties. ValueError unless there are at least two inputs, of at least one number.
    """
    if array_memory.is_torch(inputs):
        inputs = array_memory.plain_tensor("inputs", inputs).detach().cpu()
    x, _ = check.host_array(inputs=inputs)
    if x.ndim < 2 or len(x) < 2 or 0 in x.shape:
        raise ValueError(f"inputs.shape={x.shape}: must be (n, ...), at least two of at least one number")
    features = {"mean": x.reshape(len(x), -1).mean(axis=1)}
    if x.ndim == 4:
        features = {"brightness": features["mean"]}
        across = [axis for axis in (2, 3) if x.shape[axis] > 1]
        if across:
            features["texture"] = sum(np.abs(np.diff(x, axis=axis)).mean(axis=(1, 2, 3)) for axis in across)
        if x.shape[1] == 3:
            features["warmth"] = (x[:, 0] - x[:, 2]).mean(axis=(1, 2))
    return {name: values > np.median(values) for name, values in features.items()}
