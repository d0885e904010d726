"""A trained network as the frozen first part of another: standardised outputs, and its state as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from leakcore.models.features import extract_features

_ROUNDING = 2.0**-21
"""A feature may vary by this share of its size through the extractor's rounding alone."""


def standardised(extractor: torch.nn.Module, images: Any) -> torch.nn.Sequential:
    """The extractor, followed by a fixed affine map that gives each of its features mean 0 and variance 1 on `images`.

    A feature that varies by no more than float32 rounding is centred and not rescaled.

    Args:
        extractor: a torch module that maps images to (rows, features). It becomes a part of the result and stays in
            evaluation mode.
        images: (rows, channels, height, width), public images, because the result contains their mean and variance.

    Returns:
        A torch module in evaluation mode: `extractor`, then a batch norm without learned parameters.

    Raises:
        ValueError: if `images` are not finite images, or the output of `extractor` is not a matrix.
        TypeError: if `extractor` is not a torch module in float32.

    Example:
        >>> import numpy as np
        >>> from leakcore import models
        >>> images = np.random.default_rng(0).random((64, 3, 8, 8))
        >>> front = models.standardised(models.conv_extractor(4), images)
        >>> features = models.extract_features(front, images)
        >>> bool(np.allclose(features.mean(0), 0, atol=1e-3)), bool(np.allclose(features.std(0), 1, atol=1e-3))
        (True, True)
    """
    features = extract_features(extractor, images)
    # eps is 0 because it would not be small compared with the variance of a small feature.
    standard = torch.nn.BatchNorm1d(features.shape[1], affine=False, eps=0.0)
    mean, variance = features.mean(axis=0, dtype=np.float64), features.var(axis=0, dtype=np.float64)
    variance[variance <= np.maximum((_ROUNDING * mean) ** 2, np.finfo(np.float32).tiny)] = 1
    for name, value in (("running_mean", mean), ("running_var", variance)):
        standard.get_buffer(name).copy_(torch.from_numpy(value))
    return torch.nn.Sequential(extractor, standard).eval()


def state_arrays(module: torch.nn.Module) -> dict[str, np.ndarray]:
    """All parameters and buffers of a module, by name.

    They are the arrays of `module.state_dict()`, including the running moments of batch norms.

    Args:
        module: any torch module.

    Returns:
        Copies, from which `load_state_arrays` restores the same bits.

    Example:
        >>> from leakcore import models
        >>> arrays = models.state_arrays(models.mlp((4, 2)))
        >>> arrays["0.weight"].shape
        (2, 4)
    """
    return {name: value.detach().cpu().numpy().copy() for name, value in module.state_dict().items()}


def load_state_arrays(module: torch.nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Restore the parameters and buffers of a module, in place, from the arrays of `state_arrays`.

    Args:
        module: a torch module of the same architecture as the one that the arrays came from.
        arrays: what `state_arrays` returned.

    Returns:
        None. `module` then has the same bits as the original.

    Raises:
        RuntimeError: if names or shapes differ.

    Example:
        >>> import torch
        >>> from leakcore import models
        >>> first, second = models.mlp((4, 2)), models.mlp((4, 2))
        >>> models.load_state_arrays(second, models.state_arrays(first))
        >>> torch.equal(first[0].weight, second[0].weight)
        True
    """
    module.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})
