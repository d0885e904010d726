"""Every measure for every layer of a model: where the leak sits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from leakcore import kernels
from leakcore._base import array_memory, validate
from leakcore._base.digest import digest
from leakcore._base.progress import Progress
from leakcore._base.results import Record
from leakcore._base.run_folder import PartialResults
from leakcore._base.tables import Rows, short
from leakcore.attacks import attributes as attack
from leakcore.gradients import LayeredModel, gradients_of_layers
from leakcore.leakage import layer_pictures
from leakcore.leakage.families import family_of
from leakcore.leakage.sensitivity import NORMS, JacobianBudget, Sensitivity, measure_sensitivity
from leakcore.leakage.subspace_distance import SubspaceDistance, subspace_distance
from leakcore.leakage.v_information import CrossValidation, VInformation, v_information
from leakcore.leakage.v_information_original import OriginalInformation, PairInversion, invert_pairs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_EXACT = 5 * 10**8
"""Numbers in one sample's Jacobian (parameters × inputs) up to which its norms are computed exactly: seconds."""
_PROBES = 16
_MEANS = 16
"""Means of gradients per side behind a subspace distance, which its null deals again."""
_PAIRS = 10
"""Rows with an attribute, and as many without, that a latent measure takes: two for each of its five folds."""
_ROWS = 64


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LeakageByLayer(Record):
    """What each layer's gradient carries; every number is an estimate that describes this model and data, not a bound.

    Attributes:
        layers: their names.
        parameters: their sizes.
        sensitivity: `Sensitivity` of all layers.
        original: `OriginalInformation` of each pair of layers; None where it was not measured.
        latent: {attribute: `VInformation` by layer}.
        subspace: {attribute: {layer: `SubspaceDistance`}}.
        samples: inputs behind (sensitivity, inversion).
        columns: number of parameters that stand for a larger layer in `latent`.
        seed: 64-bit seed of everything random.
    """

    schema: ClassVar[str] = "leakcore.leakage_by_layer/2"

    layers: tuple[str, ...]
    parameters: tuple[int, ...]
    sensitivity: Sensitivity
    original: OriginalInformation | None
    latent: Mapping[str, VInformation]
    subspace: Mapping[str, Mapping[str, SubspaceDistance]]
    samples: tuple[int, int]
    columns: int
    seed: int

    def without_samples(self) -> LeakageByLayer:
        """A copy without reconstructions and gains of single samples, which fill megabytes."""
        original = None if self.original is None else dataclasses.replace(self.original, reconstructions=np.empty(0))
        latent = {name: dataclasses.replace(v, gains=np.empty(0)) for name, v in self.latent.items()}
        return dataclasses.replace(self, original=original, latent=latent)

    def table_rows(self) -> Rows:
        """(layer, its size and sensitivity in words), one for each layer."""
        return [
            (layer, f"{size:,} parameters; sensitivity {short(mean)}")
            for layer, size, mean in zip(self.layers, self.parameters, self.sensitivity.means["F"], strict=True)
        ]

    def __repr__(self) -> str:
        return f"LeakageByLayer(layers={short(self.layers)}, attributes={short(tuple(self.latent))}, seed={self.seed})"

    def rows(self) -> list[dict[str, Any]]:
        """One dict per layer.

        Its keys: layer, parameters, sensitivity, per_parameter, original (of the pair that it begins, minus its null),
        and latent and subspace by attribute, (value, null's mean, p).
        """
        out = []
        for i, layer in enumerate(self.layers):
            begins = self.original is not None and i < len(self.original.pairs)
            out.append(
                {
                    "layer": layer,
                    "parameters": self.parameters[i],
                    "sensitivity": float(self.sensitivity.means["F"][i]),
                    "per_parameter": float(self.sensitivity.per_parameter()[i]),
                    "original": float(self.original.above_null[i]) if begins and self.original is not None else None,
                    "latent": {
                        n: (float(v.value[i]), float(v.null_mean[i]), float(v.p_value[i]))  # type: ignore[index]
                        for n, v in self.latent.items()
                    },
                    "subspace": {
                        n: (float(v[layer].value), v[layer].null_mean, v[layer].p_value)
                        for n, v in self.subspace.items()
                    },
                }
            )
        return out

    def to_text(self) -> str:
        """A table for a terminal, a line per layer."""
        return layer_pictures.render(self)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw every measure that was taken, a panel each, with its interval and the mean of its null.

        Args:
            ax: where to draw: its place is shared out among the panels; None: on a new figure of pyplot's.

        Returns:
            The axes of the first panel, the sensitivity; its figure holds the others.
        """
        return layer_pictures.draw(self, ax)

    def figure(self) -> Figure:
        """A heat map, layers by measures, each measure relative to its largest value."""
        return layer_pictures.heat_map(self)


@dataclasses.dataclass(frozen=True, eq=False)
class LayerMeasures:
    """What `by_layer` measures, and how much work goes into it.

    Attributes:
        attributes: {name: (n,) 0 and 1}; None: `input_attributes(inputs)`; {}: none. The sets with and without an
            attribute are matched by targets (where these are integers), equal in size, at least 10 pairs of single
            samples. Of equal samples (input and target) the first stands for all: the null takes samples as
            independent.
        family: predictive family of the latent measure, as in `v_information`.
        samples: inputs for sensitivity and inversion, the first ones; at least 1.
        rows: gradients behind each attribute's measures, at most; at least 20 where there are attributes.
        columns: parameters that stand for a larger layer in the latent measure, drawn at random.
        permutations: permutations of each null, at least 0.
        iterations: steps of the inversion; 0 leaves out original information, which takes longest to compute.
        jacobian: budget of the sensitivity; None: exact, or 16 random directions where one sample's Jacobian has more
            than 5·10⁸ numbers.

    Example:
        >>> from leakcore import leakage
        >>> leakage.LayerMeasures(attributes={}, iterations=0).samples  # sensitivity alone
        4
    """

    attributes: Mapping[str, Any] | None = None
    family: Any = "magnitudes"
    samples: int = 4
    rows: int = 400
    columns: int = 20_000
    permutations: int = 9
    iterations: int = 100
    jacobian: JacobianBudget | None = None

    def __post_init__(self) -> None:
        if self.attributes is not None:
            validate.instance(Mapping, attributes=self.attributes)
        least = {"samples": 1, "rows": 1, "columns": 1, "permutations": 0, "iterations": 0}
        for name, low in least.items():
            object.__setattr__(self, name, validate.integer(low, None, **{name: getattr(self, name)}))
        family_of(self.family, 0)
        if self.jacobian is not None:
            validate.instance(JacobianBudget, jacobian=self.jacobian)

    def jacobian_of(self, model: LayeredModel) -> JacobianBudget:
        """The budget for this model."""
        if self.jacobian is not None:
            return self.jacobian
        large = sum(model.sizes) * model.inputs[0].numel() > _EXACT
        return JacobianBudget(probes=_PROBES if large else None)


def by_layer(
    model: Any,
    inputs: Any,
    targets: Any,
    *,
    loss: Callable[[Any, Any], Any] | None = None,
    measures: LayerMeasures | None = None,
    seed: int = 0,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> LeakageByLayer:
    """Sensitivity, original and latent V-information and subspace distance of every layer of a torch model.

    Args:
        model: a torch module in eval mode; each submodule with parameters of its own is a layer.
        inputs: (samples, ...), floating, in the model's dtype and on its device.
        targets: (samples, ...).
        loss: loss(outputs, targets), a scalar; None: cross-entropy.
        measures: attributes, family, and how much work; None: the defaults of `LayerMeasures`.
        seed: 64-bit seed of everything random.
        executor: its workers take the pairs of the inversion and the fits of the latent measure; the rest is computed
            here.
        progress: called as progress(task, done, total).

    Returns:
        `LeakageByLayer`; `to_text()` is a table, `figure()` a heat map.

    Guarantees:
        Deterministic by seed, on a machine, torch build and number of torch threads, for any number of workers and
        none. ValueError or TypeError names an argument that does not fit.

    Example:
        >>> import torch
        >>> from leakcore import leakage
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
        >>> inputs, targets = torch.randn(40, 4), torch.arange(40) % 2
        >>> measures = leakage.LayerMeasures(attributes={"positive": inputs[:, 0] > 0}, permutations=1, iterations=0)
        >>> report = leakage.by_layer(model, inputs, targets, measures=measures)
        >>> report.layers, sorted(report.latent), report.latent["positive"].kind
        (('0', '2'), ['positive'], 'estimate')
    """
    return measure_layers(
        LayeredModel.of(model, inputs, targets, loss=loss),
        validate.settings(LayerMeasures, measures=measures),
        PartialResults(None, ""),
        seed=seed,
        executor=executor,
        progress=progress,
    )


def measure_layers(
    model: LayeredModel,
    how: LayerMeasures,
    pieces: PartialResults,
    *,
    seed: int = 0,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> LeakageByLayer:
    """`by_layer`, which keeps each finished measure among `pieces`, bound by the caller to model, loss and data."""
    start = validate.seed(seed=seed)
    validate.executor(executor=executor)
    validate.callback(progress=progress)
    few = model.first(how.samples)
    matched = _matched(model, how, start)
    report: Progress = progress or (lambda task, done, total: None)

    def counter(task: str) -> Callable[[int, int], object]:
        return lambda done, total: report(task, done, total)

    jacobian = how.jacobian_of(model)
    norms = ("F",) if jacobian.probes else NORMS
    moved = pieces.get_or_run(
        "sensitivity", lambda: measure_sensitivity(few, norms, jacobian, start, counter("sensitivity")), Sensitivity
    )
    inverted = None
    if how.iterations:
        search = PairInversion(iterations=how.iterations)
        inverted = pieces.get_or_run(
            "original", lambda: invert_pairs(few, search, start, executor, counter("inversion")), OriginalInformation
        )
    latent, apart = {}, {}
    for number, (name, batches) in enumerate(matched.items()):

        def read_latent(name: str = name, batches: Any = batches) -> VInformation:
            return v_information(
                _columns(model, batches.rows, how.columns, start),
                batches.attribute,
                family=how.family,
                permutations=how.permutations,
                validation=CrossValidation(strata=batches.targets),
                seed=start,
                executor=executor,
                progress=counter(f"latent: {name}"),
            )

        def read_subspace(batches: Any = batches) -> dict[str, SubspaceDistance]:
            sides = [batches.rows[batches.attribute == side, 0] for side in (0, 1)]
            count = min(_MEANS, len(sides[0]))
            groups = [s[: len(s) // count * count].reshape(count, -1) for s in sides]
            means = [gradients_of_layers(model, batches=g, weights_only=True) for g in groups]
            # A vector counts as a matrix of one row, and a number as a matrix of one entry.
            flat = [{k: v if v.ndim > 2 else v.reshape(len(v), 1, -1) for k, v in side.items()} for side in means]
            return dict(subspace_distance(*flat, permutations=how.permutations, paired=True, seed=start))

        latent[name] = pieces.get_or_run(f"latent-{number}", read_latent, VInformation)
        apart[name] = pieces.get_or_run(f"subspace-{number}", read_subspace, dict[str, SubspaceDistance])
        report("attributes", number + 1, len(matched))
    return LeakageByLayer(
        layers=model.names,
        parameters=model.sizes,
        sensitivity=moved,
        original=inverted,
        latent=latent,
        subspace=apart,
        samples=(len(few.inputs), len(few.inputs) if how.iterations else 0),
        columns=how.columns,
        seed=start,
    )


def _matched(data: LayeredModel, how: LayerMeasures, seed: int) -> dict[str, Any]:
    """Sets of rows with and without each attribute; ValueError, before any measure, where they are too small."""
    attributes = input_attributes(data.inputs) if how.attributes is None else dict(how.attributes)
    integer = data.targets.ndim == 1 and not data.targets.is_floating_point()
    first = _first_of_equals(data)
    task = data.targets.cpu().numpy()[first] if integer else None
    limit = validate.integer(2 * _PAIRS if attributes else 1, None, rows=how.rows) // 2
    matched = {}
    for name, has in attributes.items():
        try:
            one_each = _one_for_each(has, len(data.inputs))[first]
            batches = attack.matched_batches(one_each, task, limit=limit, seed=seed)
            matched[name] = dataclasses.replace(batches, rows=first[batches.rows])
        except ValueError as error:
            raise ValueError(f"attribute {name!r}: {error}") from error
        if (pairs := len(matched[name].attribute) // 2) < _PAIRS:
            raise ValueError(
                f"`attribute={name!r}` must have at least {_PAIRS} pairs of rows with and without it that share "
                f"a target, got {pairs}"
            )
    return matched


def _one_for_each(attribute: Any, number: int) -> np.ndarray:
    has = validate.plain_array(attribute=attribute)
    if has.shape != (number,):
        raise ValueError(f"`attribute` must have shape {(number,)}, one for each row, got {has.shape}")
    return np.asarray(has)


def _first_of_equals(data: LayeredModel) -> np.ndarray:
    """Where each different sample occurs first."""
    first: dict[str, int] = {}
    inputs, targets = data.inputs.detach().cpu(), data.targets.detach().cpu()
    for i in range(len(inputs)):
        first.setdefault(digest(inputs[i], targets[i]), i)
    return np.array(list(first.values()))


def _columns(model: LayeredModel, index: np.ndarray, most: int, seed: int) -> dict[str, np.ndarray]:
    """Gradients of single rows, at most this many parameters of each layer, never all of them at once."""
    rng = kernels.generator(seed, kernels.Stream.LAYER_COLUMNS)
    chosen = [slice(None) if s <= most else np.sort(rng.choice(s, most, replace=False)) for s in model.sizes]
    parts: dict[str, list[np.ndarray]] = {}
    for at in range(0, len(index), _ROWS):
        block = gradients_of_layers(model, batches=index[at : at + _ROWS])
        for (name, values), choice in zip(block.items(), chosen, strict=True):
            parts.setdefault(name, []).append(values[:, choice])
    return {name: np.concatenate(values) for name, values in parts.items()}


def input_attributes(inputs: Any) -> dict[str, np.ndarray]:
    """Whether each input lies above the median of a simple feature.

    Images (n, channels, height, width) have "brightness", the mean pixel; "texture", the mean absolute difference of
    neighbouring pixels, where there are any; and with three channels "warmth", the mean of red minus that of blue.
    Other inputs (n, ...) have "mean".

    Args:
        inputs: (n, ...), at least two inputs of at least one number; NumPy or torch.

    Returns:
        {name: (n,) booleans}; both sides are equal in number up to ties.

    Guarantees:
        Deterministic. ValueError or TypeError names an argument that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore import leakage
        >>> images = np.linspace(0, 1, 4)[:, None, None, None] * np.ones((4, 1, 2, 2))
        >>> {name: side.tolist() for name, side in leakage.input_attributes(images).items()}
        {'brightness': [False, False, True, True], 'texture': [False, False, False, False]}
    """
    if array_memory.is_torch(inputs):
        inputs = array_memory.plain_tensor("inputs", inputs).detach().cpu()
    x, _ = validate.host_array(inputs=inputs)
    if x.ndim < 2 or len(x) < 2 or 0 in x.shape:
        raise ValueError(
            f"`inputs` must have shape (n, ...), at least two inputs of at least one number, got {x.shape}"
        )
    features = {"mean": x.reshape(len(x), -1).mean(axis=1)}
    if x.ndim == 4:
        features = {"brightness": features["mean"]}
        across = [axis for axis in (2, 3) if x.shape[axis] > 1]
        if across:
            features["texture"] = sum(np.abs(np.diff(x, axis=axis)).mean(axis=(1, 2, 3)) for axis in across)
        if x.shape[1] == 3:
            features["warmth"] = (x[:, 0] - x[:, 2]).mean(axis=(1, 2))
    return {name: values > np.median(values) for name, values in features.items()}
