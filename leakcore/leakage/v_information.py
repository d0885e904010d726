"""How much of an attribute a bounded attacker reads from a layer's gradient, compared with chance alone."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore import kernels
from leakcore._base import array_memory, pictures, validate
from leakcore._base.process_wide import one_thread
from leakcore._base.results import Result, attack_guarantee
from leakcore._base.workers import collected
from leakcore.leakage.families import family_of
from leakcore.leakage.held_out_gains import Gains, Problem, Units, gain_limits, gains_of, student

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PRIORS = ("uniform", "empirical")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class VInformation(Result):
    """V-information in nats; kind "estimate". Floats for one layer, (layers,) arrays for layers passed by name.

    Attributes:
        value: the held-out gain of the fitted, calibrated family (see `v_information`), typically below V-information.
        interval: confidence interval of V-information itself. Its lower end comes from held-out rows, its upper end
            from the best fit to all rows, where the family knows it, else it is the logarithm of the number of classes
            that occur, which are taken to be all there are.
        held_out_interval: confidence interval of what the `folds` fitted members gain on fresh rows, on average.
        raw: `value` for the family's own probabilities, not calibrated.
        raw_interval: its interval.
        null: (permutations,) or (permutations, layers), `value` after permuting the labels.
        null_mean: its mean, NaN without permutations.
        p_value: (1 + permutations with at least this value)/(1 + permutations).
        largest: the entropy of the prior, which no family exceeds except by chance.
        layers: names, () for one array.
        family: its name.
        prior: probability of each class under f[∅].
        set_sizes: units of each class.
        units: their number.
        folds: parts of the cross-validation.
        gains: (rows,) or (rows, layers), −log f[∅] + log f[g] of the rows that took part.
    """

    quantity: str = "V-information, nats"
    held_out_interval: tuple[Any, Any]
    raw: float | np.ndarray
    raw_interval: tuple[Any, Any]
    null: np.ndarray
    null_mean: float | np.ndarray
    p_value: float | np.ndarray
    largest: float
    layers: tuple[str, ...]
    family: str
    prior: tuple[float, ...]
    set_sizes: tuple[int, ...]
    units: int
    folds: int
    gains: np.ndarray

    @property
    def above_null(self) -> Any:
        """`value` minus the mean of its null: what can be compared between layers."""
        return self.value - self.null_mean

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw each layer's V-information with its interval, and the mean of its null.

        Args:
            ax: where to draw; None: on a new figure of pyplot's.

        Returns:
            The axes.
        """
        names = self.layers or ("gradient",)
        axes = pictures.bars(ax, names, self.value, self.interval, label=self.quantity)
        axes.plot(np.atleast_1d(self.null_mean), range(len(names)), "|", color="0.3", markersize=12, label="null")
        axes.legend()
        return axes


@dataclasses.dataclass(frozen=True, eq=False)
class CrossValidation:
    """Which rows are compared, how they are split, and what they are compared with.

    Attributes:
        folds: at least 2.
        prior: f[∅]: "uniform" (the paper's), or "empirical": frequencies of the training part.
        balance: draw as many units of each class (in each stratum) as the smallest has, so that the sets are equal.
        strata: (n,) values, such as the task's labels: sets are matched, and labels permuted, within each.
        groups: (n,) values: rows of a group (one sample in several snapshots, for example) stay together and must have
            one label.
        confidence: level of the intervals, in (0, 1).

    Example:
        >>> from leakcore import leakage
        >>> leakage.CrossValidation(folds=3).prior
        'uniform'
    """

    folds: int = 5
    prior: str = "uniform"
    balance: bool = True
    strata: Any = None
    groups: Any = None
    confidence: float = 0.95

    def __post_init__(self) -> None:
        vars(self).update(
            folds=validate.integer(2, None, folds=self.folds),
            prior=validate.one_of(*PRIORS, prior=self.prior),
            balance=validate.boolean(balance=self.balance),
            confidence=validate.confidence(confidence=self.confidence),
        )

    def units(self, labels: np.ndarray, seed: int) -> tuple[Units, np.ndarray]:
        """The units that take part, and their rows."""
        units = Units.of(labels, self.groups, self.strata)
        every = np.arange(len(units.labels))
        part = units.balanced(kernels.generator(seed, kernels.Stream.V_BALANCE)) if self.balance else every
        if len(part) == 0:
            raise ValueError(
                "`strata` must have one that holds every class, or there are no sets to match; pass balance=False"
            )
        units, rows = units.only(part)
        sizes = np.bincount(units.labels)
        if (sizes < 2 * self.folds).any():
            raise ValueError(
                f"`folds={self.folds}` needs at least {2 * self.folds} units of each class, got {sizes.tolist()}"
            )
        return units, rows


def v_information(
    gradients: Any,
    labels: Any,
    *,
    family: Any = "logistic",
    permutations: int = 10,
    validation: CrossValidation | None = None,
    seed: int = 0,
    executor: Executor | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> VInformation:
    """Empirical V-information of a latent attribute p in gradients g (Mo et al. 2021, eq. 6, after Xu et al. 2020).

        Î(G → P) = inf_f mean −log f[∅](p) − inf_f mean −log f[g](p)

    The text takes the infimum on the data it evaluates, which a rich family wins by memorising. Here each row is
    predicted by a member of the family that was not fitted to it (cross-validation), so the value may be negative; the
    predictions are shrunk towards the prior by as much as held-out rows justify. The null repeats this after permuting
    the labels. Layers differ in how much they let a family overfit, so compare them only above it.

    Args:
        gradients: (n, ...) of one layer, one row per released gradient; or {layer: (n, ...)}.
        labels: (n,) integers 0 … classes − 1, each class present.
        family: "logistic", "magnitudes", "random-forest", "mlp", or an object with `fit` and `log_prob`, as
            `leakage.Family`.
        permutations: how many times the null permutes the labels, at least 0; with 0 its results are NaN.
        validation: folds, prior, and which rows are compared; None: the defaults of `CrossValidation`.
        seed: 64-bit seed of folds, permutations and the family.
        executor: its workers take whole cross-validations, one per layer and permutation.
        progress: called as progress(done, total), in cross-validations.

    Returns:
        `VInformation`. Calibration and intervals: docs/explanation/leakage.md.

    Guarantees:
        Deterministic by seed, for any number of workers; fits use one thread. ValueError or TypeError names an argument
        that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore import leakage
        >>> p = np.arange(60) % 2
        >>> g = np.random.default_rng(0).standard_normal((60, 3)) + 3 * p[:, None]  # the attribute shifts the gradient
        >>> measured = leakage.v_information(g, p, permutations=2)
        >>> bool(measured.null_mean < 0.1 < 0.5 < measured.value < np.log(2))
        True
    """
    how = validate.settings(CrossValidation, validation=validation)
    names, arrays = _arrays(gradients)
    classes = _labels(labels, len(arrays[0]))
    shuffles = validate.integer(0, None, permutations=permutations)
    start = validate.seed(seed=seed)
    validate.executor(executor=executor)
    validate.callback(progress=progress)
    name, model = family_of(family, start)
    units, rows = how.units(classes, start)
    total = len(arrays) * (1 + shuffles)

    def jobs() -> Iterator[tuple[tuple[int, int], Callable[[], Gains]]]:
        for j, array in enumerate(arrays):
            mapped = getattr(model, "prepare", np.asarray)(array[rows].reshape(len(rows), -1))
            features = prepared(mapped, bool(getattr(model, "rotation_invariant", False)))
            problem = Problem(features, model, how.prior, how.folds)
            for k in range(1 + shuffles):
                # The same folds and permutations for every layer, so that layers are compared on the same rows.
                rng = kernels.generator(start, kernels.Stream.V_PERMUTATIONS, step=k)
                shuffled = units if k == 0 else units.permuted(rng)
                yield (j, k), functools.partial(gains_of, problem, shuffled, start, k)

    # Two layers at a time: a layer's features may take much of the memory.
    gains = collected(jobs(), executor, progress, total, ahead=2 * (1 + shuffles))
    layers, null = [], np.full((shuffles, len(arrays)), math.nan)
    for j in range(len(arrays)):
        own = gains[j, 0]
        limits = gain_limits(own.calibrated, own.worst, own.best, units, how.confidence, how.prior == "empirical")
        layers.append((*student(own.raw, units, how.confidence), own.calibrated.mean(), *limits))
        null[:, j] = [gains[j, k].calibrated.mean() for k in range(1, 1 + shuffles)]
    raw, raw_low, raw_high, value, low, held_out_high, high = np.array(layers).T
    each = np.stack([gains[j, 0].calibrated for j in range(len(arrays))])
    higher = (null >= value).sum(axis=0)
    null_mean = null.mean(axis=0) if shuffles else np.full(len(arrays), math.nan)
    p_value = (1 + higher) / (1 + shuffles) if shuffles else np.full(len(arrays), math.nan)

    def out(values: np.ndarray) -> Any:
        return values if names else float(values[0])

    sizes, frequencies = np.bincount(units.labels), np.bincount(units.labels[units.rows]) / len(rows)
    prior_used = np.full(len(sizes), 1 / len(sizes)) if how.prior == "uniform" else frequencies
    return VInformation(
        value=out(value),
        method=f"{name}, {how.folds}-fold cross-validation, calibrated on held-out rows",
        **attack_guarantee(
            "sees the layer's gradient, and learned the family's best member from gradients with known attributes",
            notes=(
                "a stronger family may read more: no bound on any attack",
                "compare layers above their label-permutation null only",
                "interval: of the family's V-information; held_out_interval: of the gain of its fitted members",
                "units taken as independent, their mean gain as normal",
                f"no other class exists than the {len(sizes)} that occur: the upper ends count these",
            ),
            confidence=how.confidence,
            interval=(out(low), out(high)),
        ),
        seed=start,
        provenance="Mo et al. (2021), eqs. 6 and 7; Xu et al. (2020), Definition 1",
        held_out_interval=(out(low), out(held_out_high)),
        raw=out(raw),
        raw_interval=(out(raw_low), out(raw_high)),
        null=null if names else null[:, 0],
        null_mean=out(null_mean),
        p_value=out(p_value),
        largest=float(-(prior_used * np.log(prior_used)).sum()),
        layers=names,
        family=name,
        prior=tuple(float(p) for p in prior_used),
        set_sizes=tuple(int(s) for s in sizes),
        units=len(units.labels),
        folds=how.folds,
        gains=each.T if names else each[0],
    )


@one_thread()
def prepared(array: np.ndarray, invariant: bool) -> np.ndarray:
    """Flat gradients; for a rotation-invariant family standardised and in coordinates of their span, without labels."""
    flat = array.reshape(len(array), -1)
    if not invariant:
        return np.ascontiguousarray(flat)
    flat = flat / (float(np.abs(flat).max()) or 1.0)  # squares of 1e-170 vanish, and squares of 1e160 overflow
    spread = flat.std(axis=0)
    varies = spread > 1e-12 * max(float(spread.max()), np.finfo(float).tiny)
    if not varies.any():
        return np.zeros((len(flat), 1))
    ready = (flat[:, varies] - flat[:, varies].mean(axis=0)) / (spread[varies] * math.sqrt(varies.sum()))
    if ready.shape[1] > len(ready):
        values, vectors = np.linalg.eigh(ready @ ready.T)
        spanning = values > 1e-10 * values[-1]
        return np.ascontiguousarray((vectors[:, spanning] * np.sqrt(values[spanning]))[:, ::-1])
    _, _, axes = np.linalg.svd(ready, full_matrices=False)
    return np.asarray(ready @ axes.T)


def _arrays(gradients: Any) -> tuple[tuple[str, ...], list[np.ndarray]]:
    array_memory.refuse_transforms("gradients")
    if isinstance(gradients, Mapping):
        names = tuple(str(name) for name in gradients)
        if len(set(names)) < len(names):
            raise ValueError(f"`gradients` must name layers that differ as text, got {list(gradients)}")
        arrays = [validate.host_array(**{f"gradients[{n!r}]": a})[0] for n, a in gradients.items()]
    else:
        names, arrays = (), [validate.host_array(gradients=gradients)[0]]
    if not arrays:
        raise ValueError("`gradients` must hold at least one layer")
    for name, array in zip(names or ("gradients",), arrays, strict=True):
        if array.ndim < 2 or 0 in array.shape or array.shape[:1] != arrays[0].shape[:1]:
            where = f"gradients[{name!r}]" if names else name
            raise ValueError(
                f"`{where}` must have shape (n, ...), none of them 0, with one n for all layers, got {array.shape}"
            )
    return names, arrays


def _labels(labels: Any, rows: int) -> np.ndarray:
    classes = validate.even_array(labels=labels)
    if classes.dtype.kind == "b":
        classes = classes.astype(np.int64)
    if classes.dtype.kind not in "iu":
        raise TypeError(f"`labels` must be integers or booleans, got {classes.dtype}")
    if classes.shape != (rows,):
        raise ValueError(f"`labels` must have shape ({rows},), one for each gradient, got {classes.shape}")
    if classes.min() != 0 or len(np.unique(classes)) != classes.max() + 1 or classes.max() < 1:
        raise ValueError(
            f"`labels` must be 0 … classes − 1, each present, at least 2, got {np.unique(classes).tolist()[:8]}"
        )
    return classes.astype(np.int64)
