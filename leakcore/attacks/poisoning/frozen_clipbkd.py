"""The clipping-aware poison where only the last layers are trained: an image whose frozen features vary least."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore._base import validate
from leakcore._base.process_wide import one_thread
from leakcore._base.validate import asks_adjacency
from leakcore.attacks.poisoning.poisoned_data import Poisoning, copies

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class FrozenPoisoning(Poisoning):
    """A `Poisoning` of the features that a frozen network computes.

    Attributes:
        image: the poisoned input, (channels, height, width).
        spread: how far the rows' features reach along the poison's, the root mean square of ⟨f₀(xᵢ), h/‖h‖⟩, at the
            start and at the end of the descent.
    """

    image: np.ndarray
    spread: tuple[float, float]


class FrozenClipBKD:
    """ClipBKD for a model that is trained on features f₀(x) of a frozen network, which the attacker knows.

    The direction of least variance of the features is in general not the feature vector of any image, so projected
    gradient descent searches for an image whose features h = f₀(x) lie where the n rows reach least,

        minimise hᵀ G h / ‖h‖²  with G = (1/n) Σᵢ f₀(xᵢ) f₀(xᵢ)ᵀ,    x in [0, 1] per pixel.

    (Jagielski, Ullman and Oprea 2020, Appendix C, whose formula is missing from the copy we use. In its words, the
    features move towards the directions of low variance and away from the directions of high variance. This quotient
    does both, and does not depend on the length of h.) Adam descends its logarithm, and the best image wins.

    Args:
        extractor: the frozen torch module, images to (rows, features).
        shape: shape of an image, (channels, height, width).
        steps: number of steps of the descent, at least 1.
        learning_rate: step size of Adam, > 0.
        probabilities: as in `ClipBKD`, of features.

    Example:
        >>> import numpy as np
        >>> import torch
        >>> from leakcore.attacks import poisoning
        >>> images = np.random.default_rng(0).random((20, 9))
        >>> attack = poisoning.FrozenClipBKD(torch.nn.Flatten(), (1, 3, 3), steps=20)
        >>> poison = attack.poison(images, np.arange(20) % 2, adjacency="replace", k=2)
        >>> poison.image.shape, poison.k, poison.spread[1] < poison.spread[0]
        ((1, 3, 3), 2, True)
    """

    def __init__(
        self,
        extractor: torch.nn.Module,
        shape: Sequence[int],
        *,
        steps: int = 300,
        learning_rate: float = 0.02,
        probabilities: Callable[[np.ndarray], Any] | None = None,
    ) -> None:
        self.extractor = extractor
        self.shape = tuple(validate.integer(1, None, shape=size) for size in shape)
        if len(self.shape) != 3:
            raise ValueError(f"`shape` must be (channels, height, width), got {self.shape}")
        self.steps = validate.integer(1, None, steps=steps)
        self.learning_rate = validate.positive(learning_rate=learning_rate)
        self.probabilities = probabilities

    @asks_adjacency
    def poison(self, images: Any, labels: Any, *, adjacency: str, k: int = 1, seed: int = 0) -> FrozenPoisoning:
        """Replace k random rows by k copies of the poison, or add the copies, and return the features.

        The descent starts from the mean image. Deterministic for a machine and torch build.

        Args:
            images: (rows, pixels) in [0, 1], flattened channels first, or (rows, channels, height, width).
            labels: (rows,) class numbers.
            adjacency: "replace" or "add-remove", as in `Backdoor.poison`.
            k: how many rows.
            seed: seed of the choice of rows.
        """
        from leakcore import models

        x = np.asarray(validate.plain_array(images=images), dtype=np.float32)
        if math.prod(x.shape[1:]) != math.prod(self.shape):
            raise ValueError(
                f"`images` must have shape (rows, {math.prod(self.shape)}), images of {self.shape}, got {x.shape}"
            )
        x = x.reshape(-1, *self.shape)
        y = validate.plain_array(labels=labels)
        if y.shape != x.shape[:1] or y.dtype.kind not in "iu":
            raise ValueError(
                f"`labels` must hold one integer for each of {len(x)} rows, got {y.dtype} of shape {y.shape}"
            )
        features = models.extract_features(self.extractor, x)
        wide = features.astype(np.float64)
        with one_thread():
            second_moments = wide.T @ wide / len(wide)
        image, spread = self._descend(x.mean(axis=0), second_moments)
        point = models.extract_features(self.extractor, image[None])[0]
        poisoning = copies(
            "clipbkd-frozen", features, y.astype(np.int64), point, self.probabilities, k, adjacency, seed
        )
        fields = {f.name: getattr(poisoning, f.name) for f in dataclasses.fields(poisoning)}
        return FrozenPoisoning(**fields, image=image, spread=spread)

    def _descend(self, start: np.ndarray, second_moments: np.ndarray) -> tuple[np.ndarray, tuple[float, float]]:
        import torch

        from leakcore.models import evaluating

        moments = torch.from_numpy(second_moments).float()
        x = torch.from_numpy(start.copy())[None].requires_grad_(True)
        optimizer = torch.optim.Adam([x], lr=self.learning_rate)
        best, best_square, first = x.detach().clone(), math.inf, math.nan
        with evaluating(self.extractor):
            for step in range(self.steps + 1):
                with torch.enable_grad():
                    h = self.extractor(x)[0].float()
                    square = (h @ moments @ h) / (h @ h)
                # Not a number where all features are zero: such an image would change nothing.
                value = square.item()
                if step == 0:
                    first = value
                if value < best_square:
                    best, best_square = x.detach().clone(), value
                if step == self.steps or not math.isfinite(value):
                    break
                (x.grad,) = torch.autograd.grad(square.clamp_min(1e-30).log(), x)
                optimizer.step()
                with torch.no_grad():
                    x.clamp_(0, 1)
        if not math.isfinite(first):
            raise ValueError("`extractor` must give the mean image features that are not all zero and finite")
        return best[0].numpy(), (math.sqrt(first), math.sqrt(best_square))


def through(poisoning: Poisoning, extractor: torch.nn.Module, shape: Sequence[int]) -> Poisoning:
    """A poisoning of images as a poisoning of the features that a frozen network computes from them.

    Args:
        poisoning: poisoning of flattened images, as `Backdoor.poison` returns.
        extractor: the torch module, images to (rows, features).
        shape: shape of an image, (channels, height, width).

    Returns:
        `Poisoning` with the features in place of the images; labels stay.

    Guarantees:
        Deterministic for a machine and torch build. ValueError or TypeError names an argument that does not fit.

    Example:
        >>> import numpy as np
        >>> import torch
        >>> from leakcore.attacks import poisoning
        >>> images, labels = np.zeros((6, 16)), np.arange(6) % 2
        >>> attack = poisoning.Backdoor((1, 4, 4), label=1, patch=2)
        >>> poison = attack.poison(images, labels, images, labels, adjacency="replace")
        >>> pooled = torch.nn.Sequential(torch.nn.AvgPool2d(2), torch.nn.Flatten())
        >>> poisoning.through(poison, pooled, (1, 4, 4)).poison_features.tolist()
        [[1.0, 0.0, 0.0, 0.0]]
    """
    from leakcore import models

    size = tuple(validate.integer(1, None, shape=side) for side in shape)

    def features(rows: np.ndarray) -> np.ndarray:
        # Under add/remove no clean row is replaced, but the empty array needs the features' width.
        images = rows if len(rows) else np.zeros((1, rows.shape[1]))
        return models.extract_features(extractor, images.reshape(-1, *size))[: len(rows)]

    return dataclasses.replace(
        poisoning,
        common_features=features(poisoning.common_features),
        clean_features=features(poisoning.clean_features),
        poison_features=features(poisoning.poison_features),
        test_features=features(poisoning.test_features),
    )
