"""The model-based attack: a network learns from shadow models to map final parameters to the training point."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy import linalg

from leakcore import kernels, models
from leakcore._base import array_memory, memory_limit, validate
from leakcore._base.codec import from_npz, to_npz
from leakcore._base.results import Record
from leakcore._base.text import printable
from leakcore._base.writing import write_atomically
from leakcore.attacks.arguments import counting_on, read_finite_box

if TYPE_CHECKING:
    import torch

    from leakcore.dpsgd import Ensemble, Execution

_PORTION = 1024
"""Runs trained per call of the ensemble."""


def shadow_models(
    ensemble: Ensemble,
    known_features: Any,
    known_labels: Any,
    points: Any,
    labels: Any,
    *,
    first_run: int = 0,
    execution: Execution | None = None,
) -> np.ndarray:
    """Final parameters of one model per point, each trained on the known rows and that point.

    Run first_run + i trains on point i, so ranges of runs can be trained in any order, anywhere. The attacker knows the
    initial parameters: use a fixed initialisation, as the text does; with one per run the reconstructor must also see
    through those. The target's model is one more such run, with a number that no shadow model has.

    Args:
        ensemble: the mechanism.
        known_features: (rows, inputs), the rows that the attacker knows.
        known_labels: (rows,) class numbers.
        points: (points, inputs), one for each shadow model.
        labels: (points,) class numbers.
        first_run: number of the first model.
        execution: device, threads, workers and progress, without a checkpoint. None: as `dpsgd.Execution()`.

    Returns:
        (points, parameters) in the ensemble's dtype.

    Raises:
        FloatingPointError: as `dpsgd.Ensemble.run`.

    Guarantees:
        The same run has the same bits, as in `dpsgd.Ensemble.run`.

    Example:
        >>> import numpy as np
        >>> from leakcore import attacks, dpsgd
        >>> model = dpsgd.Ensemble((4, 2), noise_multiplier=0.1, max_grad_norm=1.0, learning_rate=0.1, steps=3, seed=0)
        >>> attacks.shadow_models(model, np.eye(4), np.arange(4) % 2, np.ones((6, 4)), np.arange(6) % 2).shape
        (6, 10)
    """
    from leakcore.dpsgd import Ensemble, Execution, PerRun, Rows

    validate.instance(Ensemble, ensemble=ensemble)
    how = validate.settings(Execution, execution=execution)
    if how.checkpoint is not None:
        raise ValueError(
            f"`execution.checkpoint` must be None, got {str(how.checkpoint)!r}: shadow models store no runs"
        )
    x, y = validate.plain_array(points=points), validate.plain_array(labels=labels)
    if x.ndim != 2 or y.shape != x.shape[:1] or len(y) == 0:
        raise ValueError(
            f"`points` and `labels` must have shapes (points, inputs) and (points,), got {x.shape} and {y.shape}"
        )
    first = validate.integer(0, 2**62, first_run=first_run)
    out = np.empty((len(x), ensemble.num_parameters), ensemble.dtype)
    for start in range(0, len(x), _PORTION):
        part = slice(start, min(start + _PORTION, len(x)))
        out[part] = ensemble.run(
            known_features,
            known_labels,
            runs=range(first + part.start, first + part.stop),
            per_run=PerRun(Rows(x[part, None], y[part, None])),
            execution=counting_on(how, start, len(x)),
        ).parameters
    return out


_PRINCIPAL_ROWS = 1024
"""Rows that principal components are computed from: more change them little, and a square matrix of all is large."""
_MIXTURES = 4
"""How many mixtures of the first layer's rows the network makes."""


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """From flat parameters to the network's input: every parameter less its mean; with `basis` their principal
    components; with `columns`, behind those, the first layer's rows (units, inputs) on theirs, flattened."""

    mean: np.ndarray
    basis: np.ndarray | None
    columns: np.ndarray | None
    units: int

    @classmethod
    def of(cls, values: np.ndarray, components: int, first_layer: tuple[int, int] | None) -> View:
        """The view that these models' parameters (models, parameters) suggest."""
        mean = values.mean(axis=0, dtype=np.float64)
        if not components:
            return cls(mean, None, None, 0)
        centred = (values[:_PRINCIPAL_ROWS] - mean).astype(np.float32)
        basis = principal(centred, components)
        if first_layer is None:
            return cls(mean, basis, None, 0)
        units, inputs = first_layer
        rows = centred[:, : units * inputs].reshape(-1, inputs)
        return cls(mean, basis, principal(rows, components), units)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """(models, network inputs) float64, not yet scaled."""
        centred = values - self.mean
        if self.basis is None:
            return np.asarray(centred)
        parts = [centred @ self.basis.T]
        if self.columns is not None:
            rows = centred[:, : self.units * self.columns.shape[1]].reshape(len(values), self.units, -1)
            parts.append((rows @ self.columns.T).reshape(len(values), -1))
        return np.concatenate(parts, axis=1)

    def scale(self, inputs: np.ndarray, noise: float) -> np.ndarray:
        """By which the input is divided: its standard deviation with the noise; one number for all of the rows."""
        total = np.sqrt(inputs.var(axis=0) + noise**2)
        if self.columns is not None and self.basis is not None:
            rows = slice(len(self.basis), None)
            total[rows] = np.sqrt(np.mean(np.square(inputs[:, rows])) + noise**2)
        total[total == 0] = 1
        return np.asarray(total)


def principal(rows: np.ndarray, components: int) -> np.ndarray:
    """(components or fewer, columns) orthonormal rows: the leading right singular vectors of rows (n, columns)."""
    count = min(components, *rows.shape)
    wide = rows.shape[0] < rows.shape[1]
    gram = (rows @ rows.T if wide else rows.T @ rows).astype(np.float64)
    _, vectors = linalg.eigh(gram, subset_by_index=(len(gram) - count, len(gram) - 1))
    leading = vectors[:, ::-1]
    # Orthonormal again: the product with rows loses it where singular values are small.
    basis = np.linalg.qr(rows.T.astype(np.float64) @ leading)[0] if wide else leading
    return np.ascontiguousarray(basis.T)


def num_weights(layers: tuple[int, ...], units: int, columns: int) -> int:
    """Of `network`."""
    if not units:
        return models.num_parameters(layers)
    mixing, reading, out = _sizes(layers, units, columns)
    return sum(map(models.num_parameters, (mixing, reading, (_MIXTURES * columns, columns), out)))


def network(layers: tuple[int, ...], units: int, columns: int) -> torch.nn.Module:
    """A perceptron of these layers, or, with units, one whose first layer mixes the attacked network's rows.

    The gradient of a first layer is an outer product: each of its rows is the training point times a number that
    depends on label and weights. A perceptron would have to learn to divide by that number for each feature; here a
    small network reads from the components by which numbers the rows are added, the same for all features.
    """
    import torch

    # Initial values are overwritten; drawing them must not move the caller's generator.
    with torch.random.fork_rng(devices=[]):
        if not units:
            return models.mlp(layers, "relu")
        return _mixing_network(layers, units, columns)


def _sizes(layers: tuple[int, ...], units: int, columns: int) -> tuple[tuple[int, ...], ...]:
    components, hidden = layers[0] - units * columns, layers[1:-1]
    return (
        (components, *hidden, _MIXTURES * units),
        (components + _MIXTURES * columns, *hidden, columns),
        (columns, layers[-1]),
    )


def _mixing_network(layers: tuple[int, ...], units: int, columns: int) -> torch.nn.Module:
    import torch

    mixing, reading, out = _sizes(layers, units, columns)

    class Mixing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mixing = models.mlp(mixing, "relu")
            self.reading = models.mlp(reading, "relu")
            self.straight = torch.nn.Linear(_MIXTURES * columns, columns)
            self.out = torch.nn.Linear(out[0], out[1])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            components = x[:, : mixing[0]]
            rows = x[:, mixing[0] :].view(-1, units, columns)
            mixed = torch.bmm(self.mixing(components).view(-1, _MIXTURES, units), rows).flatten(1)
            read = self.straight(mixed) + self.reading(torch.cat([components, mixed], dim=1))
            point: torch.Tensor = self.out(read)
            return point

    return Mixing()


def initialise(module: torch.nn.Module, points: np.ndarray, seed: int, *, mixing: bool) -> None:
    """torch.nn.Linear's default distribution, from our own generator; a mixing network's last layer begins as the mean
    and the principal components of the points."""
    import torch

    linear = [layer for layer in module.modules() if isinstance(layer, torch.nn.Linear)]
    number = sum(p.numel() for layer in linear for p in layer.parameters())
    draws = kernels.uniform((1, number), seed=seed, purpose=kernels.Stream.RECONSTRUCTOR_INIT)[0]
    start = 0
    with torch.no_grad():
        for layer in linear:
            for parameter in (layer.weight, layer.bias):
                part = draws[start : start + parameter.numel()].reshape(parameter.shape)
                parameter.copy_(torch.from_numpy((2 * part - 1) * layer.in_features**-0.5))
                start += parameter.numel()
        if mixing:
            mean = points.mean(axis=0, dtype=np.float64)
            basis = principal((points - mean).astype(np.float32), linear[-1].in_features)
            linear[-1].weight[:, : len(basis)] = torch.from_numpy(basis.T.astype(np.float32))
            linear[-1].bias.copy_(torch.from_numpy(mean.astype(np.float32)))


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Reconstructor(Record):
    """A trained reconstructor network (RecoNN; Balle, Cherubin and Hayes 2022, as in Hayes et al. 2023, Section 2.1).

    Attributes:
        layers: sizes of the network, (its inputs, hidden…, features of a point).
        mean: (parameters,), subtracted from a model's parameters.
        basis: (components, parameters), on which they are then projected, or None.
        columns: (components, inputs), on which the first layer's rows are projected, or None.
        units: number of units of the first layer, 0 where the network does not see its rows.
        scale: (what it sees,), by which the network's input is then divided.
        weights: the network's flat weights.
        low: least value of a feature.
        high: largest value of a feature.
        losses: (epochs,) training loss.
        held_out: mean squared error on the held-out shadow models, NaN without any.
    """

    layers: tuple[int, ...]
    mean: np.ndarray
    basis: np.ndarray | None
    columns: np.ndarray | None
    units: int
    scale: np.ndarray
    weights: np.ndarray
    low: float
    high: float
    losses: np.ndarray
    held_out: float

    schema: ClassVar[str] = "leakcore.reconstructor/2"

    def reconstruct(self, parameters: Any) -> np.ndarray:
        """(models, features) float32 in [low, high], from final parameters (models, parameters)."""
        import torch

        values = _parameters(parameters, len(self.mean))
        module = network(self.layers, self.units, 0 if self.columns is None else len(self.columns))
        torch.nn.utils.vector_to_parameters(torch.from_numpy(self.weights.copy()), module.parameters())
        view = View(self.mean, self.basis, self.columns, self.units)
        with torch.no_grad():
            out: np.ndarray = module(_scaled(view(values), self.scale)).numpy()
        return np.asarray(out.clip(self.low, self.high))

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", models.layer_sizes(self.layers))
        columns = 0 if self.columns is None else len(self.columns)
        sizes: dict[str, tuple[int, ...]] = {
            "scale": (self.layers[0],),
            "weights": (num_weights(self.layers, self.units, columns),),
        }
        if self.mean.ndim != 1:
            raise ValueError(f"`mean` must have shape (parameters,), got {self.mean.shape}")
        if self.basis is None:
            sizes["mean"] = (self.layers[0],)
        else:
            sizes["basis"] = (self.layers[0] - self.units * columns, len(self.mean))
        for name, size in sizes.items():
            if getattr(self, name).shape != size:
                raise ValueError(f"`{name}` must have shape {size}, got {getattr(self, name).shape}")

    def save(self, path: str | Path) -> None:
        """Write an npz file, atomically; nothing is pickled. A new file is the owner's alone (mode 0600).

        `CannotWrite`, an OSError, where the system refuses.
        """
        write_atomically(Path(path), to_npz(self), private=True)

    @classmethod
    def load(cls, path: str | Path) -> Reconstructor:
        """Read what `save` wrote.

        FileNotFoundError if the file does not exist; ValueError says why a file cannot be read.
        """
        try:
            out: Reconstructor = from_npz(path, cls)
        except ValueError as why:
            raise ValueError(f"{printable(path)}: cannot be read as a reconstructor ({why})") from why
        return out


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReconstructorTraining:
    """How the reconstructor network is trained: Adam on mean squared plus mean absolute error, with ReLU.

    A few thousand shadow models do not teach a perceptron of thousands of parameters. `components` gives it fewer,
    `first_layer` what all features share, `noise` as many different models as there are epochs.

    Args:
        hidden: sizes of the network's hidden layers.
        epochs: passes over the shadow models, at least 1.
        batch_size: shadow models per step, at least 1.
        learning_rate: at the start, > 0; it falls to zero along a cosine.
        held_out: share of the shadow models, the last ones, that is not trained on, in [0, 1). 0: the last epoch's
            weights are used.
        components: how many principal components of the parameters the network sees. 0: every parameter, standardised.
        first_layer: None, or (units, inputs) of the attacked network's first layer, with whose weights the flat
            parameters begin. The network then also sees their rows, on `components` principal components of the inputs,
            and learns by which numbers to add them; needs `components`.
        noise: ≥ 0, standard deviation of Gaussian noise that each parameter gets afresh in every epoch. It stands for
            the mechanism's where shadow models are trained without: ησC√T/B with short steps.
    """

    hidden: Sequence[int] = (1000, 1000)
    epochs: int = 50
    batch_size: int = 128
    learning_rate: float = 1e-3
    held_out: float = 0.1
    components: int = 0
    first_layer: tuple[int, int] | None = None
    noise: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", validate.sizes(hidden=self.hidden))
        object.__setattr__(self, "epochs", validate.integer(1, None, epochs=self.epochs))
        object.__setattr__(self, "batch_size", validate.integer(1, None, batch_size=self.batch_size))
        object.__setattr__(self, "learning_rate", validate.positive(learning_rate=self.learning_rate))
        object.__setattr__(self, "held_out", validate.below_one(held_out=self.held_out))
        object.__setattr__(self, "components", validate.integer(0, None, components=self.components))
        object.__setattr__(self, "noise", validate.non_negative(noise=self.noise))
        if self.first_layer is not None:
            sizes = validate.sizes(first_layer=self.first_layer)
            if len(sizes) != 2:
                raise ValueError(f"`first_layer` must be (units, inputs) or None, got {self.first_layer!r}")
            if not self.components:
                raise ValueError("`components` must be at least 1 with a first_layer, got 0")
            object.__setattr__(self, "first_layer", tuple(sizes))
        memory_limit.require(8 * self.epochs, epochs=self.epochs)


def reconstructor(
    parameters: Any,
    points: Any,
    *,
    training: ReconstructorTraining | None = None,
    box: tuple[float, float] = (0.0, 1.0),
    seed: int = 0,
    progress: Callable[[int, int], object] | None = None,
) -> Reconstructor:
    """Train a network that maps final parameters to the point they were trained on.

    The attacker of Hayes et al. 2023, Section 2.1, sees only the final model. What the network sees of the parameters
    is standardised by the shadow models' mean and standard deviation (what never varies becomes 0). The weights come
    from the epoch with the least error on the held-out shadow models.

    Args:
        parameters: (models, parameters), of `shadow_models`.
        points: (models, inputs), what each was trained on.
        training: sizes of the network, epochs and the like; None: the defaults.
        box: (low, high), the range of a feature; reconstructions are clipped to it.
        seed: seed of the initial weights and of the order of the shadow models.
        progress: called as progress(epochs done, epochs).

    Returns:
        The trained `Reconstructor`.

    Guarantees:
        Deterministic for a machine, torch build and number of torch threads. It is one chain of steps, so there is no
        work to distribute, unlike in `shadow_models`. ValueError or TypeError names an argument that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore import attacks
        >>> points = np.random.default_rng(0).random((64, 2))
        >>> training = attacks.ReconstructorTraining(hidden=(16,), epochs=20, batch_size=8, learning_rate=0.01)
        >>> network = attacks.reconstructor(points @ [[1.0, 2.0, 0.5], [-1.0, 1.0, 3.0]], points, training=training)
        >>> network.held_out < attacks.UNIFORM_MSE / 10  # far better than a uniform guess
        True
    """
    import torch

    values = _parameters(parameters, None)
    targets = _parameters(points, None, name="points")
    if len(values) != len(targets) or len(values) < 2:
        raise ValueError(
            f"`parameters` and `points` must have equally many rows, at least 2, got shapes {values.shape} "
            f"and {targets.shape}"
        )
    validate.callback(progress=progress)
    how = validate.settings(ReconstructorTraining, training=training)
    low, high = read_finite_box(box)
    key = validate.seed(seed=seed)
    if how.first_layer is not None and how.first_layer[0] * how.first_layer[1] > values.shape[1]:
        raise ValueError(
            f"`training.first_layer` must have at most the {values.shape[1]} weights of parameters, got "
            f"{how.first_layer!r}"
        )
    trained = len(values) - int(how.held_out * len(values))
    units, columns = 0, 0
    size = min(how.components, values.shape[1], trained) or values.shape[1]
    if how.first_layer is not None:
        units, columns = how.first_layer[0], min(how.components, how.first_layer[1])
        size += units * columns
    layers = models.layer_sizes([size, *how.hidden, targets.shape[1]])
    number = num_weights(layers, units, columns)
    memory_limit.require(32 * number, hidden=how.hidden)  # with Adam's means and the best so far

    view = View.of(values[:trained], how.components, how.first_layer)
    inputs = view(values)
    scale = view.scale(inputs[:trained], how.noise)
    x, y = _scaled(inputs, scale), torch.from_numpy(targets.copy())
    spread = torch.from_numpy((how.noise / scale).astype(np.float32))
    generator = kernels.torch_generator(key, kernels.Stream.RECONSTRUCTOR_NOISE)

    def noisy(clean: torch.Tensor) -> torch.Tensor:
        return clean + spread * torch.randn(clean.shape, generator=generator) if how.noise else clean

    x_held = noisy(x[trained:])
    module = network(layers, units, columns)
    initialise(module, targets[:trained], key, mixing=units > 0)
    optimiser = torch.optim.Adam(module.parameters(), lr=how.learning_rate)
    steps = how.epochs * -(-trained // how.batch_size)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    losses = np.empty(how.epochs)
    best, best_error = _flat(module), np.inf
    for epoch in range(how.epochs):
        keys = kernels.uniform((1, trained), seed=key, purpose=kernels.Stream.RECONSTRUCTOR_ORDER, step=epoch)[0]
        total = 0.0
        order = torch.from_numpy(np.argsort(keys, kind="stable"))
        for start in range(0, trained, how.batch_size):
            which = order[start : start + how.batch_size]
            optimiser.zero_grad()
            gap = module(noisy(x[which])) - y[which]
            loss = gap.square().mean() + gap.abs().mean()
            loss.backward()
            optimiser.step()
            fall.step()
            total += float(loss.detach()) * len(which)
        losses[epoch] = total / trained
        if trained < len(values):
            with torch.no_grad():
                error = float((module(x_held).clamp(low, high) - y[trained:]).square().mean())
            if error < best_error:
                best, best_error = _flat(module), error
        if progress is not None:
            progress(epoch + 1, how.epochs)
    return Reconstructor(
        layers=layers,
        mean=view.mean,
        basis=view.basis,
        columns=view.columns,
        units=units,
        scale=scale,
        weights=best if trained < len(values) else _flat(module),
        low=low,
        high=high,
        losses=losses,
        held_out=best_error if trained < len(values) else float("nan"),
    )


def _parameters(parameters: Any, columns: int | None, *, name: str = "parameters") -> np.ndarray:
    array_memory.refuse_transforms(name)
    out = validate.plain_array(**{name: parameters})
    if out.dtype.kind not in "fiu":
        raise TypeError(f"`{name}` must be of a real floating or integer type, got {out.dtype}")
    if out.ndim != 2 or 0 in out.shape or columns not in (None, out.shape[1]):
        raise ValueError(f"`{name}` must have shape (rows, {columns or 'columns'}), got {out.shape}")
    if not np.isfinite(out).all():
        raise ValueError(f"`{name}` must be finite")
    return out.astype(np.float32, copy=False)


def _scaled(inputs: np.ndarray, scale: np.ndarray) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.ascontiguousarray(inputs / scale, np.float32))


def _flat(module: torch.nn.Module) -> np.ndarray:
    import torch

    out: np.ndarray = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy().copy()
    return out
