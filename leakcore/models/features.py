"""Frozen features: train an extractor on public images, then hand its features to a private last layer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from leakcore import kernels
from leakcore._base import validate as check

_ROWS = 256


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
    """Train `extractor` in place, with a linear head that is then dropped, to classify public images. Not private.
    Its modes and gradients come back as they were, also where training is interrupted.

    images: (rows, channels, height, width). labels: (rows,) integers ≥ 0. Cross-entropy, AdamW (weight decay 0.01), its
    step falling to zero along a cosine; each image is mirrored with probability ½. Starts from the weights that the
    extractor has. seed: of order, mirroring and the head, by Philox, and of the extractor's dropout, by torch.
    progress: progress(epochs done, epochs).
    Returns the last epoch's training accuracy. Deterministic for a machine, torch build and number of torch threads.
    Raises ValueError or TypeError that names argument, value and what is allowed.
    """
    check.callback(progress=progress)
    _require_float32(extractor)
    x, y = _images(images), check.plain_array(labels=labels)
    if y.dtype.kind not in "iu" or y.shape != x.shape[:1] or (y < 0).any():
        raise ValueError(
            f"labels.shape={y.shape}, dtype={y.dtype}: must be one integer ≥ 0 for each of {len(x)} images"
        )
    count, size = check.integer(1, None, epochs=epochs), check.integer(1, None, batch_size=batch_size)
    rate, key = check.positive(learning_rate=learning_rate), check.seed(seed=seed)
    targets = torch.from_numpy(y.astype(np.int64))
    with evaluating(extractor):
        outputs = _width(extractor, x)
    # The head's own draws are overwritten and must not move the caller's generator.
    with torch.random.fork_rng(devices=[]):
        head = torch.nn.Linear(outputs, int(y.max()) + 1)
    draws = kernels.uniform((1, head.weight.numel()), seed=key, purpose=kernels.Stream.EXTRACTOR_HEAD)[0]
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy((2 * draws - 1) * outputs**-0.5).view_as(head.weight))
        head.bias.zero_()
    held = [(parameter, parameter.grad) for parameter in extractor.parameters()]
    # Dropout draws from torch's generator.
    with _in_mode(extractor, training=True), kernels.torch_seeded(key, kernels.Stream.EXTRACTOR_DROPOUT):
        try:
            return _train(extractor, head, x, targets, count, size, rate, key, progress)
        finally:
            for parameter, slope in held:
                parameter.grad = slope


def _train(
    extractor: torch.nn.Module, head: torch.nn.Linear, x: torch.Tensor, targets: torch.Tensor, epochs: int, size: int,
    rate: float, key: int, progress: Callable[[int, int], object] | None,
) -> float:  # fmt: skip
    """The last epoch's accuracy."""
    optimiser = torch.optim.AdamW([*extractor.parameters(), *head.parameters()], lr=rate, weight_decay=0.01)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * -(-len(x) // size))
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
            fall.step()
            hits += int((logits.argmax(1) == targets[which]).sum())
        if progress is not None:
            progress(epoch + 1, epochs)
    return hits / len(x)


def extract_features(extractor: torch.nn.Module, images: Any) -> np.ndarray:
    """(rows, features) float32: what the frozen extractor makes of images (rows, channels, height, width).

    In evaluation mode, without gradients, 256 images at a time. `dpsgd.Ensemble((features, classes), ...)` on these is
    the paper's CIFAR-10 setting: fine-tune the final layer only (Hayes et al. 2023, Appendix A).
    """
    _require_float32(extractor)
    x = _images(images)
    with evaluating(extractor), torch.no_grad():
        parts = [extractor(x[start : start + _ROWS]) for start in range(0, len(x), _ROWS)]
    out: np.ndarray = torch.cat(parts).cpu().numpy()
    if out.ndim != 2:
        raise ValueError(f"extractor: its output has shape {out.shape}, must be (rows, features)")
    return out


@contextlib.contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """In evaluation mode; each part's own mode comes back."""
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
    check.instance(torch.nn.Module, extractor=extractor)
    for name, parameter in extractor.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            raise TypeError(f"extractor: its parameter {name} is {parameter.dtype}: must be float32, as the images are")


def _images(images: Any) -> torch.Tensor:
    with np.errstate(over="ignore"):  # named below
        x = check.plain_array(images=images).astype(np.float32)
    if x.ndim != 4 or len(x) == 0:
        raise ValueError(f"images.shape={x.shape}: must be (rows, channels, height, width), at least one row")
    if not np.isfinite(x).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(x))[0])
        raise ValueError(f"images{list(where)}={x[where]}: must be finite in float32")
    return torch.from_numpy(x)


def _width(extractor: torch.nn.Module, x: torch.Tensor) -> int:
    with torch.no_grad():
        out = extractor(x[:2])
    if out.dim() != 2:
        raise ValueError(f"extractor: its output has shape {tuple(out.shape)}, must be (rows, features)")
    return int(out.shape[1])
