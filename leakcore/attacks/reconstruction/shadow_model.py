"""The model-based attack: a network learns from shadow models to map final parameters to the training point."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from leakcore import kernels, models
from leakcore._base import array_memory, memory_limit
from leakcore._base import validate as check
from leakcore._base.codec.npz import from_npz, to_npz
from leakcore._base.files.writing import write_atomically
from leakcore._base.printable import printable
from leakcore._base.results.record import Record
from leakcore.attacks.box import read_finite_box

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
        execution: device, threads, workers and progress, without a checkpoint. None: all cores of this process.

    Returns:
        (points, parameters) in the ensemble's dtype.

    Raises:
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.
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
    from leakcore.dpsgd import Ensemble, PerRun, Rows, read_execution

    check.instance(Ensemble, ensemble=ensemble)
    how = read_execution(execution)
    if how.checkpoint is not None:
        raise ValueError(
            f"`execution.checkpoint` must be None, got {str(how.checkpoint)!r}: shadow models store no runs"
        )
    x, y = check.plain_array(points=points), check.plain_array(labels=labels)
    if x.ndim != 2 or y.shape != x.shape[:1] or len(y) == 0:
        raise ValueError(
            f"`points` and `labels` must have shapes (points, inputs) and (points,), got {x.shape} and {y.shape}"
        )
    first = check.integer(0, 2**62, first_run=first_run)
    out = np.empty((len(x), ensemble.num_parameters), ensemble.dtype)
    for start in range(0, len(x), _PORTION):
        part = slice(start, min(start + _PORTION, len(x)))

        def report(done: int, total: int, before: int = start) -> None:
            if how.progress is not None:
                how.progress(before + done, len(x))

        out[part] = ensemble.run(
            known_features,
            known_labels,
            runs=range(first + part.start, first + part.stop),
            per_run=PerRun(Rows(x[part, None], y[part, None])),
            execution=dataclasses.replace(how, progress=report),
        ).parameters
    return out


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Reconstructor(Record):
    """A trained reconstructor network (RecoNN; Balle, Cherubin and Hayes 2022, as in Hayes et al. 2023, Section 2.1).

    Attributes:
        layers: of the network, (parameters, hidden…, inputs).
        mean: (parameters,), subtracted from its input.
        scale: (parameters,), by which its input is then divided.
        weights: the network's flat parameters, in the order of `models.mlp`.
        low: least value of a feature.
        high: largest value of a feature.
        losses: (epochs,) training loss.
        held_out: mean squared error on the held-out shadow models, NaN without any.
    """

    layers: tuple[int, ...]
    mean: np.ndarray
    scale: np.ndarray
    weights: np.ndarray
    low: float
    high: float
    losses: np.ndarray
    held_out: float

    schema: ClassVar[str] = "leakcore.reconstructor/1"

    def reconstruct(self, parameters: Any) -> np.ndarray:
        """(models, inputs) float32 in [low, high], from final parameters (models, parameters)."""
        import torch

        values = _parameters(parameters, self.layers[0])
        network = _network(self.layers)
        torch.nn.utils.vector_to_parameters(torch.from_numpy(self.weights.copy()), network.parameters())
        with torch.no_grad():
            out: np.ndarray = network(_standardised(values, self.mean, self.scale)).numpy()
        return np.asarray(out.clip(self.low, self.high))

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", models.layer_sizes(self.layers))
        number = models.num_parameters(self.layers)
        sizes = {"mean": self.layers[0], "scale": self.layers[0], "weights": number}
        for name, size in sizes.items():
            if getattr(self, name).shape != (size,):
                raise ValueError(f"`{name}` must have shape ({size},), got {getattr(self, name).shape}")

    def save(self, path: str | Path) -> None:
        """Write an npz file, atomically; nothing is pickled. `CannotWrite`, an OSError, where the system refuses."""
        write_atomically(Path(path), to_npz(self))

    @classmethod
    def load(cls, path: str | Path) -> Reconstructor:
        """Read what `save` wrote.

        ValueError says what is wrong with any other file; FileNotFoundError where it does not exist.
        """
        try:
            out: Reconstructor = from_npz(path, cls)
        except ValueError as why:
            raise ValueError(f"{printable(path)}: cannot be read as a reconstructor ({why})") from why
        return out


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReconstructorTraining:
    """How the reconstructor network is trained: Adam on mean squared plus mean absolute error, with ReLU.

    Args:
        hidden: sizes of the network's hidden layers.
        epochs: passes over the shadow models, at least 1.
        batch_size: shadow models per step, at least 1.
        learning_rate: at the start, > 0; it falls to zero along a cosine.
        held_out: share of the shadow models, the last ones, that is not trained on, in [0, 1). 0: the last epoch's
            weights are used.

    Raises:
        ValueError: for a value that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> from leakcore import attacks
        >>> attacks.ReconstructorTraining(hidden=(32,), epochs=5).batch_size
        128
    """

    hidden: Sequence[int] = (1000, 1000)
    epochs: int = 50
    batch_size: int = 128
    learning_rate: float = 1e-3
    held_out: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", check.sizes(hidden=self.hidden))
        object.__setattr__(self, "epochs", check.integer(1, None, epochs=self.epochs))
        object.__setattr__(self, "batch_size", check.integer(1, None, batch_size=self.batch_size))
        object.__setattr__(self, "learning_rate", check.positive(learning_rate=self.learning_rate))
        object.__setattr__(self, "held_out", check.below_one(held_out=self.held_out))
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

    The attacker of Hayes et al. 2023, Section 2.1, sees only the final model. Parameters are standardised by the shadow
    models' mean and standard deviation (a parameter that never varies becomes 0). The weights come from the epoch
    with the least error on the held-out shadow models.

    Args:
        parameters: (models, parameters), of `shadow_models`.
        points: (models, inputs), what each was trained on.
        training: sizes of the network, epochs and the like; None: the defaults.
        box: (low, high), the range of a feature; reconstructions are clipped to it.
        seed: of weights and order.
        progress: called as progress(epochs done, epochs).

    Returns:
        The trained `Reconstructor`.

    Raises:
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic for a machine, torch build and number of torch threads. It is one chain of steps, so there is no
        work to distribute, unlike in `shadow_models`.

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
    check.callback(progress=progress)
    if training is not None:
        check.instance(ReconstructorTraining, training=training)
    how = training or ReconstructorTraining()
    low, high = read_finite_box(box)
    key = check.seed(seed=seed)
    layers = models.layer_sizes([values.shape[1], *how.hidden, targets.shape[1]])
    memory_limit.require(32 * models.num_parameters(layers), hidden=how.hidden)  # with Adam's means and the best so far
    trained = len(values) - int(how.held_out * len(values))

    mean, scale = values[:trained].mean(axis=0, dtype=np.float64), values[:trained].std(axis=0, dtype=np.float64)
    scale[scale == 0] = 1
    x, y = _standardised(values, mean, scale), torch.from_numpy(targets.copy())
    network = _network(layers)
    _initialise(network, layers, key)
    optimiser = torch.optim.Adam(network.parameters(), lr=how.learning_rate)
    steps = how.epochs * -(-trained // how.batch_size)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    losses = np.empty(how.epochs)
    best, best_error = _flat(network), np.inf
    for epoch in range(how.epochs):
        keys = kernels.uniform((1, trained), seed=key, purpose=kernels.Stream.RECONSTRUCTOR_ORDER, step=epoch)[0]
        total = 0.0
        order = torch.from_numpy(np.argsort(keys, kind="stable"))
        for start in range(0, trained, how.batch_size):
            which = order[start : start + how.batch_size]
            optimiser.zero_grad()
            gap = network(x[which]) - y[which]
            loss = gap.square().mean() + gap.abs().mean()
            loss.backward()
            optimiser.step()
            fall.step()
            total += float(loss.detach()) * len(which)
        losses[epoch] = total / trained
        if trained < len(values):
            with torch.no_grad():
                error = float((network(x[trained:]).clamp(low, high) - y[trained:]).square().mean())
            if error < best_error:
                best, best_error = _flat(network), error
        if progress is not None:
            progress(epoch + 1, how.epochs)
    return Reconstructor(
        layers=layers,
        mean=mean,
        scale=scale,
        weights=best if trained < len(values) else _flat(network),
        low=low,
        high=high,
        losses=losses,
        held_out=best_error if trained < len(values) else float("nan"),
    )


def _parameters(parameters: Any, columns: int | None, *, name: str = "parameters") -> np.ndarray:
    array_memory.refuse_transforms(name)
    out = check.plain_array(**{name: parameters})
    if out.dtype.kind not in "fiu":
        raise TypeError(f"`{name}` must be of a real floating or integer type, got {out.dtype}")
    if out.ndim != 2 or 0 in out.shape or columns not in (None, out.shape[1]):
        raise ValueError(f"`{name}` must have shape (rows, {columns or 'columns'}), got {out.shape}")
    if not np.isfinite(out).all():
        raise ValueError(f"`{name}` must be finite")
    return out.astype(np.float32, copy=False)


def _standardised(values: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.ascontiguousarray((values - mean) / scale, np.float32))


def _network(layers: tuple[int, ...]) -> torch.nn.Sequential:
    import torch

    # Its initial values are overwritten; drawing them must not move the caller's generator.
    with torch.random.fork_rng(devices=[]):
        return models.mlp(layers, "relu")


def _initialise(network: torch.nn.Sequential, layers: tuple[int, ...], seed: int) -> None:
    """torch.nn.Linear's default distribution, from our own generator."""
    import torch

    draws = kernels.uniform((1, models.num_parameters(layers)), seed=seed, purpose=kernels.Stream.RECONSTRUCTOR_INIT)[0]
    start = 0
    with torch.no_grad():
        for module in network:
            if isinstance(module, torch.nn.Linear):
                for parameter in (module.weight, module.bias):
                    part = draws[start : start + parameter.numel()].reshape(parameter.shape)
                    parameter.copy_(torch.from_numpy((2 * part - 1) * module.in_features**-0.5))
                    start += parameter.numel()


def _flat(network: torch.nn.Module) -> np.ndarray:
    import torch

    out: np.ndarray = torch.nn.utils.parameters_to_vector(network.parameters()).detach().numpy().copy()
    return out
