"""One cell of the matrix of defences and attacks: what an attack makes of a release, and what a defence costs."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore import datasets, defenses, kernels, models
from leakcore.attacks import imprint, labels
from leakcore.experiments.lecture import cells

if TYPE_CHECKING:
    import torch

ATTACKS = ("tensor method", "gradient inversion", "label attack", "imprint")
NEAR = 0.5
"""A reconstructed row of unit length counts as reconstructed within this distance."""
_PIXEL = 0.1
"""A row that the imprint reads counts as read if no number, of those in [0, 1], is further off."""
_LAYERS = (64, 32, 10)
_BINS = 128


@dataclasses.dataclass(frozen=True)
class Strength:
    """A defence and how strong it is, in units that mean the same for every model.

    defence: a key of `defenses.matrix.DEFENCES`. value: local steps k; the noise's length over the gradient's; ‖g‖/s;
    the probability to keep a unit; the share of entries kept. The larger or (for shares) the smaller, the stronger.
    """

    defence: str = "none"
    value: float = 0.0

    @property
    def batches(self) -> int:
        """How many minibatches share the release."""
        return int(self.value) if self.defence == "local aggregation" else 1

    def defense(self, gradient: torch.Tensor, rows: torch.Tensor, rate: float = 0.01) -> defenses.Defense | None:
        """The defence of a batch's release. gradient: (D,), undefended; rows: norms of single rows' gradients, for
        DP-SGD; rate: of local steps."""
        length, v = float(gradient.norm()), self.value
        if self.defence == "local aggregation":
            return defenses.LocalSteps(int(v), rate, minibatches=True)
        if self.defence == "gradient noise":
            return defenses.GaussianNoise(v * length / math.sqrt(len(gradient)))
        if self.defence == "clipping":
            return defenses.Clip(length / v)
        if self.defence == "DP-SGD":
            limit = float(rows.median())
            return defenses.DPSGD(limit, v * length * len(rows) / (limit * math.sqrt(len(gradient))))
        if self.defence == "dropout":
            return defenses.Dropout(v, per_sample=False)
        return defenses.Prune(v) if self.defence == "pruning" else None

    def noise(self, gradient: torch.Tensor) -> float:
        """Standard deviation of the noise in each number of the release, which an attacker may know."""
        noisy = self.defence in ("gradient noise", "DP-SGD")
        return self.value * float(gradient.norm()) / math.sqrt(len(gradient)) if noisy else 0.0


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of the networks and of the effort. rows: in a minibatch of the digits."""

    neurons: int
    small: int
    rows: int
    effort: tuple[int, int]
    steps: int


def attacked(attack: str, strength: Strength, sizes: Sizes, seed: int) -> tuple[float, float]:
    """(share of the batch's rows, or of its labels, that the attack gets; root mean square distance of the rows, and
    for attacks without one the share that it does not get)."""
    if attack in ("tensor method", "gradient inversion"):
        return _two_layers(attack, strength, sizes, seed)
    share = _labels(strength, sizes, seed) if attack == "label attack" else _imprint(strength, sizes, seed)
    return share, 1.0 - share


def _released(
    model: torch.nn.Module, x: Any, y: Any, strength: Strength, seed: int, loss: Any = None, rate: float = 0.01
) -> tuple[defenses.Release, float]:
    """The release under the defence, and the noise in each of its numbers."""
    import torch

    plain = defenses.release(model, x, y, loss=loss).gradient
    norms = torch.ones(len(x))
    if strength.defence == "DP-SGD":
        singles = [defenses.release(model, x[i : i + 1], y[i : i + 1], loss=loss).gradient for i in range(len(x))]
        norms = torch.stack([g.norm() for g in singles])
    released = defenses.release(model, x, y, defense=strength.defense(plain, norms, rate), loss=loss, seed=seed)
    return released, strength.noise(plain)


def _two_layers(attack: str, strength: Strength, sizes: Sizes, seed: int) -> tuple[float, float]:
    wide = attack == "tensor method"
    setting = cells.TableCell(batch=2 * strength.batches, inputs=8, neurons=sizes.neurons if wide else sizes.small)
    model, weights, x, y = cells.network(setting, seed)
    released, _ = _released(model, x, y, strength, seed, cells.square, cells.RATE / setting.neurons)
    if wide:
        distances = cells.by_tensor(released, weights, x, seed, dropout=strength.defence == "dropout")
    else:
        distances = cells.by_inversion(model, released, x, y, seed, sizes.effort)
    return float((distances <= NEAR).mean()), float(np.sqrt(np.square(distances).mean()))


def _network(seed: int) -> torch.nn.Module:
    with kernels.torch_seeded(seed, kernels.Stream.DEFENCES_MODEL):
        return models.mlp(_LAYERS, "elu").double()


def _digits(rows: int, seed: int) -> tuple[Any, Any, Any, torch.nn.Module]:
    """(inputs and labels of a batch, other rows that the attacker owns, a network)."""
    import torch

    data = datasets.digits()
    order = kernels.generator(seed, kernels.Stream.DEFENCES_ROWS).permutation(len(data.labels))
    model = _network(seed)
    x = torch.from_numpy(np.array(data.features, np.float64))
    y = torch.from_numpy(np.array(data.labels, np.int64))
    return x[order[:rows]], y[order[:rows]], x[order[rows : rows + 600]], model


def _labels(strength: Strength, sizes: Sizes, seed: int) -> float:
    """Algorithm 3 on the last layer; a row's label is the class whose residual is least, as chance would be 1 in 10."""
    x, y, _, model = _digits(sizes.rows * strength.batches, seed)
    released, _ = _released(model, x, y, strength, seed)
    last = max(name for name in released.parts if name.endswith("weight"))
    recovery = labels.last_layer(labels.KnownModel(model, x), released.parts[last])
    named = np.argmin(np.nan_to_num(np.asarray(recovery.residuals), nan=np.inf), axis=1)
    return float((named == y.numpy()).mean())


def _imprint(strength: Strength, sizes: Sizes, seed: int) -> float:
    """A malicious server's module in front of the network; the attacker knows how much noise there is."""
    x, y, own, model = _digits(sizes.rows * strength.batches, seed)
    planted = imprint.plant(model, own, bins=_BINS)
    released, noise = _released(planted, x, y, strength, seed)
    read = imprint.read(planted, released, batch_size=len(x), accuracy=_PIXEL, noise_std=noise).rows
    if len(read) == 0:
        return 0.0
    apart = np.abs(read[None] - x.numpy()[:, None]).max(axis=2).min(axis=1)
    return float((apart <= _PIXEL).mean())


def accuracy(strength: Strength, sizes: Sizes, seed: int) -> float:
    """Of a network on held-out digits, trained with the defence that fits the first batch."""
    import torch

    data = datasets.digits()
    order = kernels.generator(seed, kernels.Stream.DEFENCES_TRAINING).permutation(len(data.labels))
    x, y = torch.from_numpy(np.array(data.features, np.float64)), torch.from_numpy(np.array(data.labels, np.int64))
    train, test = order[:1200], order[1200:]
    model = _network(seed)
    size = 32 * strength.batches
    rng = kernels.generator(seed, kernels.Stream.DEFENCES_TRAINING, row=1)
    defense: defenses.Defense | None = None
    for step in range(sizes.steps):
        rows = rng.choice(train, size, replace=False)
        if step == 0:
            plain = defenses.release(model, x[rows], y[rows]).gradient
            norms = torch.stack([defenses.release(model, x[[i]], y[[i]]).gradient.norm() for i in rows])
            defense = strength.defense(plain, norms)
        g = defenses.release(model, x[rows], y[rows], defense=defense, seed=seed, step=step).gradient
        with torch.no_grad():
            at = 0
            for parameter in model.parameters():
                parameter.sub_(0.5 * g[at : at + parameter.numel()].view_as(parameter))
                at += parameter.numel()
    with torch.no_grad():
        return float((model(x[test]).argmax(1) == y[test]).double().mean())
