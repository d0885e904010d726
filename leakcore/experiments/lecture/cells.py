"""One release of the lecture's table and of its matrix: network, defence and strength, attacks on it, and the least
error that noise allows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from leakcore import datasets, defenses, kernels, models
from leakcore.attacks import imprint, inversion, labels, tensor
from leakcore.experiments.driver.result import Stated

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
    ).double()
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


CONFIDENCE = 0.95
"""Of an exponent's interval, over networks."""


@dataclasses.dataclass(frozen=True)
class Rate:
    """An exponent of the error: the one that a bound promises, and ours with its interval over networks."""

    over: str
    promised: float
    measured: float
    interval: tuple[float, float]

    @property
    def holds(self) -> bool:
        """Whether the error grows no faster than promised, as far as the interval can tell."""
        return self.interval[0] <= self.promised

    def stated(self) -> Stated:
        """As a line of the result."""
        return Stated(
            f"exponent of the error over {self.over}",
            f"at most {self.promised:g}",
            self.measured,
            interval=self.interval if all(map(math.isfinite, self.interval)) else None,
            kind="estimate",
            confidence=CONFIDENCE if all(map(math.isfinite, self.interval)) else None,
            comment="Student's t over networks, each with a slope of its own",
        )


def rate(over: str, promised: float, x: Sequence[float] | np.ndarray, errors: np.ndarray) -> Rate:
    """The slope of log error over log x, of each network by itself.

    errors: (values of x, networks), positive. With one network the interval is the whole line: it refutes nothing.
    """
    slopes = np.polyfit(np.log(np.asarray(x, float)), np.log(errors), 1)[0]
    middle = float(np.mean(slopes))
    if len(slopes) < 2:
        return Rate(over, promised, middle, (-math.inf, math.inf))
    reach = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(slopes) - 1) * np.std(slopes, ddof=1) / math.sqrt(len(slopes)))
    return Rate(over, promised, middle, (middle - reach, middle + reach))


def least_error(x: np.ndarray, residuals: np.ndarray, weights: np.ndarray, std: float) -> float:
    """Cramér–Rao: the least root mean square error of inputs of unit length, for an unbiased attacker.

    Of g_j = Σ_i r_i ELU(w_jᵀx_i) + N(0, std²), with weights known and inputs and residuals unknown. x: (B, d).
    """
    columns, tangents = [], []
    for row, r in zip(x, residuals, strict=True):
        u = weights @ row
        across = np.linalg.svd(row[None])[2][1:]  # (d − 1, d): the directions in which a unit vector can move
        slope = np.where(u > 0, 1.0, np.exp(np.minimum(u, 0.0)))
        columns += [
            np.where(u > 0, u, np.expm1(np.minimum(u, 0.0)))[:, None],
            (r * slope)[:, None] * weights @ across.T,
        ]
        tangents += [False] + [True] * len(across)
    design = np.hstack(columns)
    covariance = std**2 * np.linalg.pinv(design.T @ design, hermitian=True)
    return math.sqrt(float(np.diag(covariance)[np.array(tangents)].sum()) / len(x))


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


def gained(attack: str, strength: Strength, sizes: Sizes, seed: int) -> tuple[float, float]:
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
    setting = TableCell(batch=2 * strength.batches, inputs=8, neurons=sizes.neurons if wide else sizes.small)
    model, weights, x, y = network(setting, seed)
    released, _ = _released(model, x, y, strength, seed, square, RATE / setting.neurons)
    if wide:
        distances = by_tensor(released, weights, x, seed, dropout=strength.defence == "dropout")
    else:
        distances = by_inversion(model, released, x, y, seed, sizes.effort)
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
