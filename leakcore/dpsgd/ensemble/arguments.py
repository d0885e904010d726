"""The arguments of an ensemble, checked before any work: rows, which runs, and what differs between runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from leakcore._base import array_memory, validate
from leakcore.dpsgd.ensemble.network import ModuleNetwork, Network
from leakcore.dpsgd.ensemble.passes import RowGroup
from leakcore.dpsgd.ensemble.sampling import SLOTS


@dataclasses.dataclass(frozen=True)
class Samples:
    """Features (..., rows, dimensions) in the ensemble's dtype and integer labels (..., rows)."""

    features: np.ndarray
    labels: np.ndarray

    @property
    def rows(self) -> int:
        return int(self.labels.shape[-1])


def samples(
    features: Any, labels: Any, *, name: str, layers: tuple[int, ...], dtype: str, leading: tuple[int, ...] = ()
) -> Samples:
    """Checked samples, broadcast to `leading` before (rows, dimensions). Errors name `name`."""
    x_name, y_name = f"{name}features", f"{name}labels"
    array_memory.refuse_transforms(x_name)
    raw = _read(x_name, features)
    if raw.dtype.kind not in "fiu":
        raise TypeError(f"`{x_name}` must be of a real floating or integer type, got {raw.dtype}")
    x = _cast(raw, dtype)
    y = _read(y_name, labels)
    if y.dtype.kind not in "iu":
        raise TypeError(f"`{y_name}` must be of an integer type, got {y.dtype}")
    if y.dtype.kind == "u" or not y.dtype.isnative:  # a type that torch does not combine with others
        y = y.astype(np.int64)
    shape = "(rows, " if not leading else f"{(*leading, 'rows')} or (rows, "
    if x.ndim not in {2, 2 + len(leading)} or x.shape[-1] != layers[0]:
        wanted = f"{shape}{layers[0]}) (first of layers={layers})"
        raise ValueError(f"`{x_name}` must have shape {wanted}, got {x.shape}")
    if y.ndim not in {1, 1 + len(leading)} or y.shape[-1:] != x.shape[-2:-1]:
        raise ValueError(f"`{y_name}` must give one label to each row of {x_name}, {x.shape}, got shape {y.shape}")
    rows = x.shape[-2]
    own, own_labels = x, y  # what runs share is checked once
    try:
        x = np.broadcast_to(x, (*leading, rows, layers[0]))
        y = np.broadcast_to(y, (*leading, rows))
    except ValueError:
        raise ValueError(
            f"`{x_name}` and `{y_name}` must have shapes that start with runs={leading[0]}, got {x.shape} and {y.shape}"
        ) from None
    classes = max(2, layers[-1])
    if not np.isfinite(own).all():
        where = (0,) * (x.ndim - own.ndim) + tuple(int(i) for i in np.argwhere(~np.isfinite(own))[0])
        value = np.broadcast_to(raw, x.shape)[where]
        raise ValueError(f"`{x_name}{list(where)}` must be finite in {dtype}, got {value}")
    if own_labels.size and not (own_labels.min() >= 0 and own_labels.max() < classes):
        bad = own_labels[(own_labels < 0) | (own_labels >= classes)].flat[0]
        raise ValueError(f"`{y_name}` must be in [0, {classes - 1}] (last of layers={layers}), got {bad}")
    return Samples(x, y)


def injected(
    value: Any, *, name: str, shape: tuple[int, ...], dtype: str, kinds: str, allowed: str
) -> np.ndarray | None:
    """A ready-made array of exactly `shape`, or None. Errors name it."""
    if value is None:
        return None
    out = _read(name, value)
    if out.dtype.kind not in kinds:
        raise TypeError(f"`{name}` must be of {allowed}, got {out.dtype}")
    if out.shape != shape:
        raise ValueError(f"`{name}` must have shape {shape}, got {out.shape}")
    out = _cast(out, dtype)
    if kinds == "f" and not np.isfinite(out).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(out))[0])
        raise ValueError(f"`{name}{list(where)}` must be finite in {dtype}, got {_read(name, value)[where]}")
    return out


def _read(name: str, value: Any) -> np.ndarray:
    """`value` as a NumPy array: lists, NumPy and torch CPU tensors; the error names the argument."""
    try:
        return validate.even_array(**{name: value})
    except ValueError as why:
        raise TypeError(str(why)) from None


def _cast(values: np.ndarray, dtype: str) -> np.ndarray:
    """`values` in `dtype`. What overflows becomes infinite, which the caller then reports."""
    with np.errstate(over="ignore"):
        return values.astype(dtype, copy=False)


def run_range(runs: int | range, *, name: str = "runs", most: int = 2**62) -> tuple[int, int]:
    """(first, stop) of the absolute run numbers, with `first` at most `most`. Errors name `name`."""
    if isinstance(runs, range):
        if runs.step != 1 or len(runs) == 0:
            raise ValueError(f"`{name}` must be a range of consecutive numbers, at least one, got {runs!r}")
        if not 0 <= runs.start <= most:
            raise ValueError(f"`{name}` must start in [0, {most}], got {runs!r}")
        return runs.start, runs.stop
    return 0, validate.integer(1, None, **{name: runs})


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Rows and their labels, for each run or for all runs.

    Shapes and values are checked where the rows are used, against the network and the number of runs.

    Args:
        features: (runs, n, inputs), or (n, inputs) where all runs share the rows; with `index` a pool (pool, inputs).
        labels: (runs, n), (n,) or (pool,) class numbers (0 or 1 for one output); None where only the features count.
        index: (runs, n) row numbers of the pool: the rows of each run. The pool is stored once, so memory does not grow
            with the number of runs.

    Raises:
        ValueError: for an `index` into a pool without labels.
        TypeError: if `features` is None.

    Example:
        >>> from leakcore import datasets, dpsgd
        >>> data = datasets.digits()
        >>> canaries = dpsgd.Rows(data.features, data.labels, index=[[0, 1], [2, 3], [4, 5]])  # two a run
        >>> len(canaries.index)
        3
    """

    features: Any
    labels: Any = None
    index: Any = None

    def __post_init__(self) -> None:
        if self.features is None:
            raise TypeError("`features` must have shape (runs, n, inputs) or (n, inputs), got None")
        if self.index is not None and self.labels is None:
            raise ValueError("`labels` must be given for a pool, which index draws from, got None")


@dataclasses.dataclass(frozen=True)
class Source:
    """Rows of each run: its own, features (runs, n, inputs), or row numbers (runs, n) of a pool that all runs share."""

    samples: Samples
    index: np.ndarray | None = None

    @property
    def rows(self) -> int:
        return self.samples.rows if self.index is None else int(self.index.shape[1])

    def part(self, low: int, high: int) -> Source:
        """Runs [low, high) of these."""
        if self.index is not None:
            return Source(self.samples, self.index[low:high])
        return Source(Samples(self.samples.features[low:high], self.samples.labels[low:high]))

    def take(self, low: int, high: int, at: int, outputs: int, dtype: torch.dtype, device: torch.device) -> RowGroup:
        """Runs [low, high) at slots at, at + 1, …; zeros in the other slots."""
        which = slice(low, high) if self.index is None else self.index[low:high]
        x, y = self.samples.features[which], self.samples.labels[which]
        return RowGroup.of(placed(x, at), placed(y, at), outputs, dtype, device)


def placed(array: np.ndarray, at: int) -> np.ndarray:
    """`array` at slots at, at + 1, …; zeros in the other slots."""
    out = np.zeros((SLOTS, *array.shape[1:]), array.dtype)
    out[at : at + len(array)] = array
    return out


class RowReader:
    """Checks rows against a network's sizes and a number of runs; a pool that several of them share is read once."""

    def __init__(self, layers: tuple[int, ...], dtype: str, runs: int) -> None:
        self._layers, self._dtype, self._runs = layers, dtype, runs
        self._pools: dict[tuple[int, int], Samples] = {}

    def of_runs(self, rows: Rows | None, name: str) -> Source | None:
        """Rows of each run; errors name `name`."""
        if rows is None:
            return None
        if rows.labels is None:
            raise ValueError(f"`{name}.labels` must give one label to each row, got None")
        if rows.index is not None:
            key = id(rows.features), id(rows.labels)
            if key not in self._pools:
                self._pools[key] = self.samples(rows.features, rows.labels, f"{name}.")
            pool = self._pools[key]
            return Source(pool, _row_numbers(rows.index, f"{name}.index", pool.rows, self._runs))
        samples = self.samples(rows.features, rows.labels, f"{name}.", (self._runs,))
        if samples.rows == 0:
            raise ValueError(
                f"`{name}.features` must hold at least one row per run, got shape {samples.features.shape}"
            )
        return Source(samples)

    def probes(self, rows: Rows | None) -> Samples | Source | None:
        """Rows to read the final models at: for all runs (n, inputs), or (runs, n, inputs). Without labels, zeros."""
        if rows is None:
            return None
        if rows.index is not None:
            raise ValueError("`probes.index` must be None: give each run's features")
        shape = validate.even_array(**{"probes.features": rows.features}).shape
        leading = (self._runs,) if len(shape) == 3 else ()
        labels = np.zeros(shape[:-1], np.int64) if rows.labels is None else rows.labels
        samples = self.samples(rows.features, labels, "probes.", leading)
        if samples.rows == 0:
            raise ValueError(f"`probes.features` must hold at least one row, got shape {shape}")
        return Source(samples) if leading else samples

    def samples(self, features: Any, labels: Any, name: str = "", leading: tuple[int, ...] = ()) -> Samples:
        return samples(features, labels, name=name, layers=self._layers, dtype=self._dtype, leading=leading)


def _row_numbers(index: Any, name: str, rows: int, runs: int) -> np.ndarray:
    out = validate.even_array(**{name: index})
    if out.dtype.kind not in "iu":
        raise TypeError(f"`{name}` must be of an integer type, got {out.dtype}")
    if out.ndim != 2 or out.shape[0] != runs or out.shape[1] == 0:
        raise ValueError(f"`{name}` must have shape (runs={runs}, at least one row), got {out.shape}")
    bad = (out < 0) | (out >= rows)
    if bad.any():
        raise ValueError(f"`{name}` must be in [0, {rows - 1}], a row of the pool, got {out[bad][0]}")
    return out.astype(np.int64, copy=False)


@dataclasses.dataclass(frozen=True, eq=False)
class CraftedGradient:
    """A gradient that the attacker chooses before training and inserts as if it were a row's.

    The mechanism clips it as any row's gradient and adds it to the sum of a step. This is the attacker of Cebere,
    Bellet and Papernot (2024): the guarantee of DP-SGD holds for every loss, hence for every sequence of gradients.

    Args:
        gradient: (parameters,) for every step, or (steps, parameters); flat in the order of
            `models.mlp(...).parameters()` or of the module's parameters.
        batches: (runs, steps) bool, True for a step that holds it.

    Raises:
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> import numpy as np
        >>> from leakcore import dpsgd
        >>> crafted = dpsgd.CraftedGradient(np.eye(5)[0], np.ones((1, 3), bool))
        >>> model = dpsgd.Ensemble(
        ...     (4, 1), noise_multiplier=0.0, max_grad_norm=1.0, learning_rate=1.0, steps=3, seed=0
        ... )
        >>> rows, labels = np.zeros((2, 4)), [0, 1]
        >>> changed = model.run(rows, labels, runs=1, per_run=dpsgd.PerRun(crafted=crafted)).parameters
        >>> as_it_was = model.run(rows, labels, runs=1).parameters
        >>> (changed - as_it_was).round(3).tolist()  # three steps of 1, divided by two rows
        [[-1.5, 0.0, 0.0, 0.0, 0.0]]
    """

    gradient: Any
    batches: Any

    def draws(self, shape: tuple[int, int, int], dtype: str) -> tuple[np.ndarray, np.ndarray]:
        """The gradients (1 or steps, parameters) and the batches, checked; shape: (runs, steps, parameters)."""
        runs, steps, size = shape
        each = (size,) if np.ndim(self.gradient) == 1 else (steps, size)
        gradient = injected(
            self.gradient, name="gradient", shape=each, dtype=dtype, kinds="f", allowed="a real floating type"
        )
        batches = injected(
            self.batches, name="batches", shape=(runs, steps), dtype="bool", kinds="b", allowed="type bool"
        )
        assert gradient is not None
        assert batches is not None
        return np.atleast_2d(gradient), batches


@dataclasses.dataclass(frozen=True, eq=False)
class PerRun:
    """What differs between runs, besides their random numbers.

    Args:
        extra: further training rows of each run. In batches they are numbered after the common rows.
        initial: ready-made initial parameters, (parameters,) or (runs, parameters), flat in the order of
            `models.mlp(...).parameters()` or of the module's parameters.
        noise: ready-made standard normal variates (runs, steps, parameters), in the same order.
        batches: ready-made batches, bool (runs, steps, common rows + extra rows).
        crafted: a gradient that an attacker inserts.

    Raises:
        TypeError: if `extra` is not a `Rows`, or `crafted` not a `CraftedGradient`.

    Example:
        >>> import numpy as np
        >>> from leakcore import dpsgd
        >>> zeros = dpsgd.PerRun(initial=np.zeros(5, dtype=np.float32))
        >>> ensemble = dpsgd.Ensemble(
        ...     (4, 1), noise_multiplier=0.0, max_grad_norm=1.0, learning_rate=1.0, steps=1, seed=0
        ... )
        >>> result = ensemble.run(np.ones((6, 4)), [0, 1, 1, 1, 1, 1], runs=2, per_run=zeros)
        >>> bool(np.array_equal(result.parameters[0], result.parameters[1]))  # nothing random is left
        True
    """

    extra: Rows | None = None
    initial: Any = None
    noise: Any = None
    batches: Any = None
    crafted: CraftedGradient | None = None

    def __post_init__(self) -> None:
        if self.extra is not None:
            validate.instance(Rows, extra=self.extra)
        if self.crafted is not None:
            validate.instance(CraftedGradient, crafted=self.crafted)

    def draws(
        self, network: Network | ModuleNetwork, shape: tuple[int, int, int], *, noisy: bool
    ) -> dict[str, np.ndarray | None]:
        """The initial parameters, noise, batches and crafted gradient, checked against the network and the sizes.

        Args:
            network: the network that is trained.
            shape: (runs, steps, rows of a training set).
            noisy: whether the mechanism adds noise.

        Returns:
            A dict of arrays; None for what is drawn instead.
        """
        runs, steps, _ = shape
        size = network.num_parameters
        initial = network.initial() if self.initial is None else self.initial
        if initial is not None and np.ndim(initial) == 1:
            initial = np.broadcast_to(initial, (runs, np.shape(initial)[0]))
        real: dict[str, Any] = {"dtype": network.dtype, "kinds": "f", "allowed": "a real floating type"}
        start = injected(initial, name="initial", shape=(runs, size), **real)
        ready = injected(self.noise, name="noise", shape=(runs, steps, size), **real)
        if ready is not None and not noisy:
            raise ValueError("`noise` must be None with noise_multiplier=0, which adds no noise")
        taken = injected(self.batches, name="batches", shape=shape, dtype="bool", kinds="b", allowed="type bool")
        gradient, inside = (None, None)
        if self.crafted is not None:
            gradient, inside = self.crafted.draws((runs, steps, size), network.dtype)
        return {"initial": start, "noise": ready, "batches": taken, "crafted": gradient, "crafted_batches": inside}
