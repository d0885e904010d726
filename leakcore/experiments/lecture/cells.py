"""One cell of the lecture's table: its network, its defence, its bound, and an attack on it."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore import defenses, kernels
from leakcore.attacks import inversion, tensor
from leakcore.experiments.lecture.rates import least_error

if TYPE_CHECKING:
    import torch

NOISE = 1.0
"""σ where another setting is varied, in units of what one sample adds to the sum."""
RATE = 0.02
"""The learning rate of local steps times m: a step moves outputs by about this share of a residual, so that the network
is nearly the same in all steps."""


@dataclasses.dataclass(frozen=True)
class TableCell:
    """One cell: rows of one minibatch, network, defence and its strength."""

    defence: str = "none"
    strength: float = 0.0
    batch: int = 2
    inputs: int = 20
    neurons: int = 20_000

    @property
    def rows(self) -> int:
        """How many rows share the release."""
        return self.batch * (int(self.strength) if self.defence == "local" else 1)

    @property
    def factor(self) -> float:
        """The table's bound without its constant; NaN where it gives none."""
        b, s = float(self.batch), self.strength
        scale = {
            "none": b,
            "local": s * b,
            "noise": b + s,
            "clip": b,
            "dp-sgd": b + NOISE * max(1.0, s),
            "dropout": b / math.sqrt(s) if s else math.nan,
        }.get(self.defence, math.nan)
        return scale * math.sqrt(self.inputs / self.neurons)


def noise_std(setting: TableCell) -> float:
    """Of Gaussian noise on the sum, over what a residual of 1 adds to it undefended; 0 for other defences."""
    if setting.defence == "noise":
        return setting.strength
    return NOISE * max(1.0, setting.strength) if setting.defence == "dp-sgd" else 0.0


def neurons_needed(setting: TableCell) -> float:
    """From how many neurons on order 2 shows an input of residual 1 above the noise that the setting adds.

    The moment's eigenvalue is c_2 r; noise alone has 2 std √(d/m), and the method asks for a margin above that.
    """
    second = tensor.choose("elu").coefficients[2]
    return setting.inputs * (2.0 * tensor.Decomposition().margin * noise_std(setting) / second) ** 2


def network(setting: TableCell, seed: int) -> tuple[Any, tensor.GaussianWeights, np.ndarray, np.ndarray]:
    """(network, its hidden weights, inputs (rows, d) of unit length, targets (rows, 1))."""
    import torch

    m, d = setting.neurons, setting.inputs
    weights = tensor.GaussianWeights(m, d, seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(d, m, bias=False), torch.nn.ELU(), torch.nn.Linear(m, 1, bias=False)
    ).double()  # fmt: skip
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), (weights.rows(0, m), np.full((1, m), 1.0 / m)), strict=True):
            parameter.copy_(torch.from_numpy(values.copy()))
    rng = kernels.generator(seed, kernels.Stream.TABLE1_ROWS, row=setting.rows << 32 | d)
    x = rng.standard_normal((setting.rows, d))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = rng.choice([-1.0, 1.0], (len(x), 1)) * rng.uniform(0.5, 1.5, (len(x), 1))
    return model, weights, x, y


def _limit(setting: TableCell, seed: int) -> float:
    """The least error that an unbiased attacker on dL/da has under this noise."""
    import torch

    model, weights, x, y = network(setting, seed)
    with torch.no_grad():
        residuals = model(torch.from_numpy(x)).numpy() - y
    return least_error(x, residuals[:, 0], weights.rows(0, setting.neurons), noise_std(setting))


def square(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Half the mean squared residual, whose gradient in the output is the residual over the number of rows."""
    return 0.5 * (outputs - targets).square().mean()


def attacked(attack: str, setting: TableCell, seed: int, effort: tuple[int, int]) -> float:
    """Root mean square distance of the reconstructed rows. effort: restarts and iterations of inversion."""
    if attack == "limit":
        return _limit(setting, seed)
    model, weights, x, y = network(setting, seed)
    norm = float(defenses.release(model, x, y, loss=square).gradient.norm())
    released = defenses.release(model, x, y, defense=_defence(setting, norm), loss=square, seed=seed)
    if attack == "inversion":
        distances = by_inversion(model, released, x, y, seed, effort)
    else:
        distances = by_tensor(released, weights, x, seed, dropout=setting.defence == "dropout")
    return float(np.sqrt(np.square(distances).mean()))


def by_inversion(
    model: torch.nn.Module, released: defenses.Release, x: np.ndarray, y: np.ndarray, seed: int, effort: tuple[int, int]
) -> np.ndarray:
    """Distances of the rows that gradient inversion finds, (rows,); 1 for each if it fails."""
    attempt = inversion.invert(
        model,
        inversion.ReleasedGradient(released, loss=square),
        (x.shape[1],),
        labels=y,
        objective=inversion.Cosine(box=(-1, 1), tolerance=1e-12),
        optimizer=inversion.LBFGS(iterations=effort[1], restarts=effort[0]),
        seed=seed,
    ).compared_with(x)
    if attempt.quality is None or attempt.best < 0:
        return np.ones(len(x))
    return np.asarray(np.sqrt(x.shape[1] * np.asarray(attempt.quality[attempt.best].mse)))


def by_tensor(
    released: defenses.Release, weights: tensor.GaussianWeights, x: np.ndarray, seed: int, *, dropout: bool
) -> np.ndarray:
    """Distances of the rows that the tensor method finds in dL/da, (rows,); 1 for a row that it does not find."""
    m = weights.num_neurons
    observed = released.parts["2.weight"][0].numpy()
    on = np.flatnonzero(observed) if dropout else np.arange(m)
    known = weights if len(on) == m else weights.rows(0, m)[on]
    answer = tensor.reconstruct(observed[on], known, num_examples=len(x), activation="elu", certify=False, seed=seed)
    distances = np.ones(len(x))
    if len(answer.inputs):
        matched = tensor.match(answer, x)
        distances[: len(matched.errors)] = matched.errors
    return distances


def _defence(setting: TableCell, norm: float) -> defenses.Defense | None:
    """norm: ‖g‖ of the undefended mean gradient."""
    s, share = setting.strength, 1.0 / setting.rows
    if setting.defence == "local":
        return defenses.LocalSteps(int(s), RATE / setting.neurons, minibatches=True)
    if setting.defence == "noise":
        return defenses.GaussianNoise(s * share)
    if setting.defence == "clip":
        return defenses.Clip(norm / s)
    if setting.defence == "dp-sgd":
        return defenses.Compose(defenses.Clip(norm / s), defenses.GaussianNoise(NOISE * share))
    if setting.defence == "dropout":
        return defenses.Dropout(s, per_sample=False)
    if setting.defence == "prune":
        return defenses.Prune(s)
    if setting.defence == "per-sample":
        # C about what a residual of 1 makes of a row's gradient, so that the longer ones are clipped.
        limit = math.sqrt(setting.neurons)
        return defenses.DPSGD(limit, s / limit)
    if setting.defence == "laplace":
        return defenses.Laplace(s * share)
    return None
