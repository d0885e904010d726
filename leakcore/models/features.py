"""Frozen features: train an extractor on public images, standardise its outputs, hand them to a private last layer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from leakcore import kernels
from leakcore._base import validate

_ROWS = 256
_ROUNDING = 2.0**-21
"""A feature may vary by this share of its size through the extractor's rounding alone."""


def train_extractor(
    extractor: torch.nn.Module,
    images: Any,
    labels: Any,
    *,
    epochs: int = 20,
    batch_size: int = 64,
    learning_rate: float = 2e-3,
    seed: int,
    progress: Callable[[int, int], object] | None = None,
) -> float:
    """Train an extractor in place to classify public images. The training is not private.

    A linear head is added for the training and dropped afterwards. The loss is the cross-entropy, the optimiser AdamW
    (weight decay 0.01) with a cosine schedule to zero; each image is mirrored with probability ½. Training starts from
    the extractor's present weights. Its modes and `.grad` are restored at the end, also where training is interrupted.

    Args:
        extractor: a float32 torch module that maps images to (rows, features).
        images: (rows, channels, height, width), finite.
        labels: (rows,) integers, at least 0.
        epochs: passes over the images.
        batch_size: images per step.
        learning_rate: AdamW's step size at the first step, > 0.
        seed: 64-bit seed of the order, the mirroring and the head (Philox), and of the extractor's dropout (torch).
        progress: called as `progress(epochs done, epochs)` after each epoch.

    Returns:
        The training accuracy of the last epoch, in [0, 1].

    Raises:
        ValueError: for a value out of range, or arrays of other shapes; the text names the argument.
        TypeError: for parameters that are not float32, or arguments of another type.

    Guarantees:
        The result is deterministic for one machine, torch build and number of torch threads.

    Example:
        >>> import numpy as np
        >>> from leakcore import models
        >>> labels = np.arange(32) % 2
        >>> images = np.ones((32, 3, 8, 8)) * labels[:, None, None, None]  # black or white
        >>> accuracy = models.train_extractor(models.conv_extractor(4), images, labels, epochs=2, batch_size=8, seed=0)
        >>> 0 <= accuracy <= 1
        True
    """
    validate.callback(progress=progress)
    _require_float32(extractor)
    x, y = _images(images), validate.plain_array(labels=labels)
    if y.dtype.kind not in "iu" or y.shape != x.shape[:1] or (y < 0).any():
        raise ValueError(
            f"`labels` must be one integer ≥ 0 for each of {len(x)} images, got shape {y.shape}, {y.dtype}"
        )
    count, size = validate.integer(1, None, epochs=epochs), validate.integer(1, None, batch_size=batch_size)
    rate, key = validate.positive(learning_rate=learning_rate), validate.seed(seed=seed)
    targets = torch.from_numpy(y.astype(np.int64))
    with evaluating(extractor):
        outputs = _width(extractor, x)
    # The head's initial values are overwritten below; drawing them must not advance the caller's generator.
    with torch.random.fork_rng(devices=[]):
        head = torch.nn.Linear(outputs, int(y.max()) + 1)
    draws = kernels.uniform((1, head.weight.numel()), seed=key, purpose=kernels.Stream.EXTRACTOR_HEAD)[0]
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy((2 * draws - 1) * outputs**-0.5).view_as(head.weight))
        head.bias.zero_()
    gradients = [(parameter, parameter.grad) for parameter in extractor.parameters()]
    # Dropout draws from torch's generator.
    with _in_mode(extractor, training=True), kernels.torch_seeded(key, kernels.Stream.EXTRACTOR_DROPOUT):
        try:
            return _train(extractor, head, x, targets, count, size, rate, key, progress)
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient


def _train(
    extractor: torch.nn.Module,
    head: torch.nn.Linear,
    x: torch.Tensor,
    targets: torch.Tensor,
    epochs: int,
    size: int,
    rate: float,
    key: int,
    progress: Callable[[int, int], object] | None,
) -> float:
    """Train and return the accuracy of the last epoch."""
    optimiser = torch.optim.AdamW([*extractor.parameters(), *head.parameters()], lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * -(-len(x) // size))
    hits = 0
    for epoch in range(epochs):
        keys = kernels.uniform((2, len(x)), seed=key, purpose=kernels.Stream.EXTRACTOR_ORDER, step=epoch)
        order, mirrored = torch.from_numpy(np.argsort(keys[0], kind="stable")), torch.from_numpy(keys[1] < 0.5)
        hits = 0
        for which in (order[start : start + size] for start in range(0, len(x), size)):
            batch = torch.where(mirrored[which, None, None, None], x[which].flip(-1), x[which])
            optimiser.zero_grad()
            logits = head(extractor(batch))
            torch.autograd.backward(torch.nn.functional.cross_entropy(logits, targets[which]))
            optimiser.step()
            schedule.step()
            hits += int((logits.argmax(1) == targets[which]).sum())
        if progress is not None:
            progress(epoch + 1, epochs)
    return hits / len(x)


def extract_features(extractor: torch.nn.Module, images: Any) -> np.ndarray:
    """The features that a frozen extractor computes from images.

    The extractor runs in evaluation mode, without gradients, on 256 images at a time; its modes are restored. An
    ensemble `dpsgd.Ensemble((features, classes), ...)` on these features is the CIFAR-10 setting of Hayes et al.
    (2023), Appendix A, which trains the last layer only.

    Args:
        extractor: a float32 torch module that maps images to (rows, features).
        images: (rows, channels, height, width), finite, at least one row.

    Returns:
        (rows, features) float32.

    Raises:
        ValueError: for images of another shape or with numbers that are not finite, or an output that is not a matrix.
        TypeError: for parameters that are not float32, or images that are not numbers.

    Example:
        >>> import numpy as np
        >>> from leakcore import models
        >>> features = models.extract_features(models.conv_extractor(8), np.zeros((5, 3, 32, 32)))
        >>> features.shape, str(features.dtype)
        ((5, 32), 'float32')
    """
    _require_float32(extractor)
    x = _images(images)
    with evaluating(extractor), torch.no_grad():
        parts = [extractor(x[start : start + _ROWS]) for start in range(0, len(x), _ROWS)]
    out: np.ndarray = torch.cat(parts).cpu().numpy()
    if out.ndim != 2:
        raise ValueError(f"`extractor` must return (rows, features), got shape {out.shape}")
    return out


@contextlib.contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode for the block; the mode of each part is restored afterwards."""
    with _in_mode(module, training=False):
        yield


@contextlib.contextmanager
def _in_mode(module: torch.nn.Module, *, training: bool) -> Iterator[None]:
    modes = {part: part.training for part in module.modules()}
    module.train(training)
    try:
        yield
    finally:
        for part, before in modes.items():
            part.training = before


def _require_float32(extractor: Any) -> None:
    validate.instance(torch.nn.Module, extractor=extractor)
    for name, parameter in extractor.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            raise TypeError(
                f"`extractor` must be float32, as the images are, got {parameter.dtype} of its parameter {name}"
            )


def _images(images: Any) -> torch.Tensor:
    with np.errstate(over="ignore"):  # named below
        x = validate.plain_array(images=images).astype(np.float32)
    if x.ndim != 4 or len(x) == 0:
        raise ValueError(f"`images` must be (rows, channels, height, width), at least one row, got shape {x.shape}")
    if not np.isfinite(x).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(x))[0])
        raise ValueError(f"`images` must be finite in float32, got {x[where]} at {list(where)}")
    return torch.from_numpy(x)


def _width(extractor: torch.nn.Module, x: torch.Tensor) -> int:
    with torch.no_grad():
        out = extractor(x[:2])
    if out.dim() != 2:
        raise ValueError(f"`extractor` must return (rows, features), got shape {tuple(out.shape)}")
    return int(out.shape[1])


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
