"""Many mechanisms at once: every combination of some values, through any accountant or bound."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import numpy as np

from leakcore._base import validate
from leakcore._base.results import Result
from leakcore._base.tables import Rows, as_html, as_text
from leakcore.mechanisms.mechanism import Mechanism

P = ParamSpec("P")
R = TypeVar("R")
_MOST_CELLS = 1_000_000


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """Mechanisms of one kind for every combination of values, as `grid` makes it.

    Attributes:
        kind: the mechanism's class.
        axes: its fields that vary, each with its values; the order is that of the results' dimensions.
        fixed: its other fields.
    """

    kind: type[Mechanism]
    axes: dict[str, tuple[Any, ...]]
    fixed: dict[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values on each axis."""
        return tuple(len(values) for values in self.axes.values())

    def __iter__(self) -> Iterator[Mechanism]:
        for values in itertools.product(*self.axes.values()):
            yield self.kind(**self.fixed, **dict(zip(self.axes, values, strict=True)))

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}: {len(values)}" for name, values in self.axes.items())
        return f"Grid({self.kind.__name__}, {axes})"


@dataclasses.dataclass(frozen=True, eq=False)
class GridResult:
    """One result for each mechanism of a grid.

    Attributes:
        axes: the grid's axes.
        results: an array of the grid's shape, of the function's results.
    """

    axes: dict[str, tuple[Any, ...]]
    results: np.ndarray

    @property
    def value(self) -> np.ndarray:
        """The results' values: the grid's shape, then that of one value."""
        return self._field(lambda result: result.value)

    @property
    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        """The results' intervals, as two arrays like `value`; NaN where a result has none."""
        return self._field(lambda result: _end(result, 0)), self._field(lambda result: _end(result, 1))

    def at(self, **values: Any) -> Result:
        """The result of one mechanism.

        Args:
            **values: a value of each axis.

        Returns:
            Its result.

        Raises:
            ValueError: for an axis that is missing, or a value that is not on it.
        """
        if set(values) != set(self.axes):
            raise ValueError(f"`at` must be called with {', '.join(self.axes)}, got {', '.join(values) or 'nothing'}")
        index = []
        for name, on_axis in self.axes.items():
            if values[name] not in on_axis:
                raise ValueError(f"`{name}` must be one of {list(on_axis)}, got {values[name]!r}")
            index.append(on_axis.index(values[name]))
        result: Result = self.results[tuple(index)]
        return result

    def to_frame(self) -> Any:
        """Tidy rows: the axes' values, then the columns of `Result.to_frame`; needs pandas.

        Returns:
            A pandas DataFrame.

        Raises:
            ImportError: without pandas.
        """
        frames = []
        for values, result in zip(itertools.product(*self.axes.values()), self.results.ravel(), strict=True):
            frame = result.to_frame()
            for i, (name, value) in enumerate(zip(self.axes, values, strict=True)):
                frame.insert(i, name, value)
            frames.append(frame)
        return importlib.import_module("pandas").concat(frames, ignore_index=True)

    def _field(self, read: Callable[[Any], Any]) -> np.ndarray:
        parts = [np.asarray(read(result), dtype=np.float64) for result in self.results.ravel()]
        return np.stack(np.broadcast_arrays(*parts)).reshape(self.results.shape + parts[0].shape)

    def _rows(self) -> Rows:
        first = self.results.ravel()[0]
        rows = [(name, ", ".join(f"{value:g}" for value in values)) for name, values in self.axes.items()]
        return [("results", f"{self.results.size} of {type(first).__name__}"), *rows]

    def __repr__(self) -> str:
        return f"GridResult({', '.join(f'{name}: {len(values)}' for name, values in self.axes.items())})"

    def __str__(self) -> str:
        return as_text("GridResult", self._rows())

    def _repr_html_(self) -> str:
        return as_html("GridResult", self._rows())


def _end(result: Any, side: int) -> Any:
    return np.nan if result.interval is None else result.interval[side]


def grid(kind: type[Mechanism], **fields: Any) -> Grid:
    """Mechanisms for every combination of values, to be passed to an accountant or a bound in one call.

    A sequence is an axis. A schedule, one σ per step, is an axis with schedules for values: `[[1.0, 2.0, 3.0]]`.

    Args:
        kind: a class of mechanism.
        **fields: its fields: a number, or a sequence of values that are all tried.

    Returns:
        `Grid`. An accountant or a bound that takes a mechanism takes it, too, and returns a `GridResult`. Bounds that
        sample use one seed, and so the same random numbers, in every cell.

    Raises:
        ValueError: for fields that the class does not have, or an empty axis; for a value that the class refuses.
        TypeError: for a class that is not a mechanism.

    Example:
        >>> from leakcore import accounting, mechanisms
        >>> cells = mechanisms.grid(mechanisms.Poisson, noise_multiplier=[1.0, 2.0], sample_rate=[0.01, 0.1], steps=100)
        >>> accounting.epsilon(cells, delta=1e-5).value.round(2).tolist()
        [[0.72, 7.05], [0.19, 2.34]]
    """
    if not (isinstance(kind, type) and issubclass(kind, Mechanism)):
        raise TypeError(f"`kind` must be a class of mechanism, got {kind!r}")
    names = [field.name for field in dataclasses.fields(kind)]
    axes: dict[str, tuple[Any, ...]] = {}
    fixed: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in names:
            raise ValueError(f"`{name}` must be a field of {kind.__name__}: {', '.join(names)}")
        values = _axis(name, value)
        if values is None:
            fixed[name] = value
        elif not values:
            raise ValueError(f"`{name}` must hold at least one value, got none")
        else:
            axes[name] = values
    cells = Grid(kind, axes, fixed)
    if np.prod(cells.shape, dtype=float) > _MOST_CELLS:
        raise ValueError(f"`fields` must span at most {_MOST_CELLS} mechanisms, got {cells.shape}")
    for _ in cells:  # every value is checked before any work
        pass
    return cells


def _axis(name: str, value: Any) -> tuple[Any, ...] | None:
    """The values of a sequence, or of whatever is read as an array of one or more dimensions; None for one value."""
    if isinstance(value, list | tuple):
        return tuple(value)
    if not any(hasattr(value, way) for way in ("__array__", "__dlpack__", "__array_interface__", "__iter__")):
        return None
    array = validate.even_array(**{name: value})
    if array.ndim == 0:
        return None
    return tuple(array.tolist() if array.ndim == 1 else array)


def over_grids(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which also takes a `Grid` as its first argument and then returns a `GridResult`."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0] if args else None
        if not isinstance(first, Grid):
            return function(*args, **kwargs)
        results = np.empty(first.shape, dtype=object)
        results.ravel()[:] = [function(cell, *args[1:], **kwargs) for cell in first]  # type: ignore[arg-type]
        return GridResult(first.axes, results)  # type: ignore[return-value]

    return called
