"""Every measure for every layer of a model: where the leak sits."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from leakcore import kernels
from leakcore._base import validate as check
from leakcore._base.progress import Progress
from leakcore._base.results import Assumptions, jsonable
from leakcore._base.run_folder.pieces import from_piece, to_piece
from leakcore._store import PartialResults
from leakcore.attacks import attributes as attack
from leakcore.gradients import batch_of, parameters_by_layer
from leakcore.leakage.input_attributes import input_attributes
from leakcore.leakage.sensitivity import Sensitivity, sensitivity
from leakcore.leakage.subspace_distance import SubspaceDistance, subspace_distance
from leakcore.leakage.v_information import VInformation, v_information
from leakcore.leakage.v_information_original import OriginalInformation, v_information_original

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_EXACT = 5 * 10**8
"""Numbers in one sample's Jacobian (parameters × inputs) up to which its norms are computed exactly: seconds."""
_PROBES = 16
_KEPT = (Assumptions, Sensitivity, OriginalInformation, VInformation, SubspaceDistance)
_MEANS = 16
"""Means of gradients per side behind a subspace distance, which its null deals anew."""
_PAIRS = 10
"""Rows with an attribute, and as many without, that a latent measure takes: two for each of its five folds."""
_ROWS = 64


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LeakageByLayer:
    """What each layer's gradient carries. Every number is an estimate: it describes this model and data, no bound.

    layers, parameters: names and sizes. sensitivity: of each layer. original: of each pair of layers, None where it was
    not asked for. latent: {attribute: V-information by layer}, subspace: {attribute: {layer: distance}}. samples:
    inputs behind (sensitivity, inversion). columns: of a larger layer, that many parameters stood for it in `latent`.
    """

    schema: ClassVar[str] = "leakcore.leakage_by_layer/1"

    layers: tuple[str, ...]
    parameters: tuple[int, ...]
    sensitivity: Sensitivity
    original: OriginalInformation | None
    latent: Mapping[str, VInformation]
    subspace: Mapping[str, Mapping[str, SubspaceDistance]]
    samples: tuple[int, int]
    columns: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready types with the schema's version; reconstructions and single gains are left out."""
        original = None if self.original is None else dataclasses.replace(self.original, reconstructions=np.empty(0))
        bare = dataclasses.replace(
            self,
            original=original,
            latent={n: dataclasses.replace(v, gains=np.empty(0)) for n, v in self.latent.items()},
        )
        return {"schema": self.schema, **{f.name: jsonable(getattr(bare, f.name)) for f in dataclasses.fields(bare)}}

    def rows(self) -> list[dict[str, Any]]:
        """One dict per layer: layer, parameters, sensitivity, per_parameter, original (of the pair that it begins, less
        its null), and latent and subspace by attribute, (value, null's mean, p)."""
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
        from leakcore.leakage.table import render

        return render(self)

    def figure(self) -> Figure:
        """A heat map, layers by measures, each measure relative to its largest value."""
        from leakcore.leakage.table import heat_map

        return heat_map(self)


def by_layer(
    model: Any,
    loss: Callable[[Any, Any], Any] | None,
    inputs: Any,
    targets: Any,
    *,
    attributes: Mapping[str, Any] | None = None,
    family: Any = "magnitudes",
    original: bool = True,
    samples: int = 4,
    rows: int = 400,
    columns: int = 20_000,
    permutations: int = 9,
    iterations: int = 100,
    probes: int | None = None,
    memory: int = 128 * 2**20,
    seed: int = 0,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> LeakageByLayer:
    """Sensitivity, original and latent V-information and subspace distance of every layer of a torch model.

    model, loss, inputs, targets: as in `sensitivity`.
    attributes: {name: (n,) 0 and 1}; None: `input_attributes(inputs)`; {}: none. Sets are matched by targets (where
        they are integers), equal in size, of single samples, `rows` ≥ 20 in all at most; 10 pairs at least. Of equal
        samples (input and target) the first stands for all: the null takes samples as independent. family: as in
        `v_information`.
    original: whether to invert gradients pair by pair. samples: inputs for sensitivity and inversion, the first ones.
    columns: parameters that stand for a larger layer in the latent measure, drawn at random.
    permutations: of each null. iterations: of the inversion. probes: random directions behind the sensitivity; None:
        exact, or 16 where one sample's Jacobian holds more than 5·10⁸ numbers. memory: bytes for sensitivity's chunks.
    executor: takes the pairs of the inversion and the fits of the latent measure; the rest is done here.
    progress: called as progress(task, done, total).

    Deterministic by seed, on a machine, torch build and number of torch threads, for any number of workers and none.
    Raises ValueError or TypeError that names the argument.
    """
    return measure_layers(
        model, loss, inputs, targets, attributes=attributes, family=family, original=original, samples=samples,
        rows=rows, columns=columns, permutations=permutations, iterations=iterations, probes=probes, memory=memory,
        seed=seed, executor=executor, progress=progress, pieces=PartialResults(None, ""),
    )  # fmt: skip


def measure_layers(
    model: Any, loss: Callable[[Any, Any], Any] | None, inputs: Any, targets: Any, *,
    attributes: Mapping[str, Any] | None, family: Any, original: bool, samples: int, rows: int, columns: int,
    permutations: int, iterations: int, probes: int | None, memory: int, seed: int, progress: Progress | None,
    pieces: PartialResults, executor: Executor | None = None,
) -> LeakageByLayer:  # fmt: skip
    """`by_layer`, which keeps each finished measure among `pieces`, bound by the caller to model, loss and data."""
    data = batch_of(model, inputs, targets)
    layers = parameters_by_layer(model)
    names = tuple(layers)
    sizes = tuple(sum(p.numel() for p in group.values()) for group in layers.values())
    few = min(check.integer(1, None, samples=samples), len(data.inputs))
    most = check.integer(1, None, columns=columns)
    start = check.seed(seed=seed)
    check.executor(executor=executor)
    check.callback(progress=progress)
    check.integer(0, None, permutations=permutations)
    matched = _matched(data, attributes, rows, start)
    shown: Progress = progress or (lambda task, done, total: None)
    if probes is None and sum(sizes) * data.inputs[0].numel() > _EXACT:
        probes = _PROBES
    x, y = data.inputs[:few], data.targets[:few]

    def kept(name: str, run: Callable[[], Any]) -> Any:
        if pieces.folder is None:
            return run()
        return from_piece(pieces.get_or_run(name, lambda: {"kept": to_piece(run())})["kept"], _KEPT)

    moved = kept("sensitivity", lambda: sensitivity(
        model, loss, x, y, probes=probes, seed=start, memory=memory,
        progress=lambda done, total: shown("sensitivity", done, total),
    ))  # fmt: skip
    found = None
    if original:
        found = kept("original", lambda: v_information_original(
            model, loss, x, y, iterations=iterations, seed=start, executor=executor,
            progress=lambda done, total: shown("inversion", done, total),
        ))  # fmt: skip
    latent, apart = {}, {}
    for number, (name, batches) in enumerate(matched.items()):

        def read_latent(name: str = name, batches: Any = batches) -> VInformation:
            return v_information(
                _columns(model, loss, data, batches.rows, sizes, most, start), batches.attribute, family=family,
                strata=batches.targets, permutations=permutations, seed=start, executor=executor,
                progress=lambda done, total: shown(f"latent: {name}", done, total),
            )  # fmt: skip

        def read_subspace(batches: Any = batches) -> dict[str, SubspaceDistance]:
            sides = [batches.rows[batches.attribute == side, 0] for side in (0, 1)]
            count = min(_MEANS, len(sides[0]))
            groups = [s[: len(s) // count * count].reshape(count, -1) for s in sides]
            means = [
                attack.layer_gradients(model, loss, data.inputs, data.targets, batches=g, weights_only=True)
                for g in groups
            ]
            # A parameter that is a vector is a matrix of one row, and a number one of one entry.
            flat = [{k: v if v.ndim > 2 else v.reshape(len(v), 1, -1) for k, v in side.items()} for side in means]
            return dict(subspace_distance(*flat, permutations=permutations, paired=True, seed=start))

        latent[name] = kept(f"latent-{number}", read_latent)
        apart[name] = kept(f"subspace-{number}", read_subspace)
        shown("attributes", number + 1, len(matched))
    return LeakageByLayer(
        layers=names,
        parameters=sizes,
        sensitivity=moved,
        original=found,
        latent=latent,
        subspace=apart,
        samples=(few, few if original else 0),
        columns=most,
        seed=start,
    )


def _matched(data: Any, attributes: Mapping[str, Any] | None, rows: int, seed: int) -> dict[str, Any]:
    """Sets of rows with and without each attribute; ValueError, before any measure, where they are too small."""
    if attributes is not None:
        check.instance(Mapping, attributes=attributes)
    given = input_attributes(data.inputs) if attributes is None else dict(attributes)
    integer = data.targets.ndim == 1 and not data.targets.is_floating_point()
    first = _first_of_equals(data)
    task = data.targets.cpu().numpy()[first] if integer else None
    limit = check.integer(2 * _PAIRS if given else 1, None, rows=rows) // 2
    matched = {}
    for name, has in given.items():
        try:
            kept = _one_for_each(has, len(data.inputs))[first]
            found = attack.matched_batches(kept, task, limit=limit, seed=seed)
            matched[name] = dataclasses.replace(found, rows=first[found.rows])
        except ValueError as error:
            raise ValueError(f"attribute={name!r}: {str(error).removeprefix('attribute: ')}") from error
        if (pairs := len(matched[name].attribute) // 2) < _PAIRS:
            raise ValueError(
                f"attribute={name!r}: the data have {pairs} pairs of rows with and without it that share a target; "
                f"must be at least {_PAIRS}"
            )
    return matched


def _one_for_each(attribute: Any, number: int) -> np.ndarray:
    has = check.plain_array(attribute=attribute)
    if has.shape != (number,):
        raise ValueError(f"attribute.shape={has.shape}: must be {(number,)}, one for each row")
    return np.asarray(has)


def _first_of_equals(data: Any) -> np.ndarray:
    """Where each different sample occurs first."""
    import torch

    number = len(data.inputs)
    # As bytes: NumPy has no bfloat16.
    sides = [
        part.detach().cpu().reshape(number, -1).contiguous().view(torch.uint8).numpy()
        for part in (data.inputs, data.targets)
    ]
    seen: dict[bytes, int] = {}
    for i in range(number):
        seen.setdefault(hashlib.sha256(b"".join(side[i].tobytes() for side in sides)).digest(), i)
    return np.array(list(seen.values()))


def _columns(
    model: Any, loss: Any, data: Any, index: np.ndarray, sizes: tuple[int, ...], most: int, seed: int
) -> dict[str, np.ndarray]:
    """Gradients of single rows, at most so many parameters of each layer, never all of them at once."""
    rng = kernels.generator(seed, kernels.Stream.LAYER_COLUMNS)
    kept = [slice(None) if s <= most else np.sort(rng.choice(s, most, replace=False)) for s in sizes]
    parts: dict[str, list[np.ndarray]] = {}
    for at in range(0, len(index), _ROWS):
        block = attack.layer_gradients(model, loss, data.inputs, data.targets, batches=index[at : at + _ROWS])
        for (name, values), choice in zip(block.items(), kept, strict=True):
            parts.setdefault(name, []).append(values[:, choice])
    return {name: np.concatenate(values) for name, values in parts.items()}
