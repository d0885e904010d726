"""Attribute inference: does the data behind a gradient have an attribute that its task never asked for?

Melis et al. (2019), as Mo et al. (2021, Section 3.2) use it: the attacker has rows of its own with and without the
attribute and snapshots of the model; it computes gradients of both kinds of rows, and learns to tell them apart.
`layer_gradients` makes gradients, `matched_batches` the rows behind them, `gradient_sets` both over snapshots;
`infer` is the attack. The measure that generalises its success is `leakage.v_information`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from leakcore import kernels
from leakcore._base import validate as check
from leakcore._base.columns import Columns as _Columns
from leakcore._base.results import Assumptions, Result
from leakcore.gradients import layer_gradients as layer_gradients

if TYPE_CHECKING:
    import torch


_MAX_TREES = 100_000
"""A tree takes tens of kilobytes."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class MatchedBatches:
    """rows: (batches, size) rows of the data, each in at most one batch. attribute: (batches,) 0 or 1. targets:
    (batches,) an integer for the targets of a batch: each occurs as often with the attribute as without."""

    rows: np.ndarray
    attribute: np.ndarray
    targets: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class GradientSets:
    """gradients: {layer: (n, parameters)}. attribute: (n,) 0 or 1. batch, snapshot, targets: (n,) which batch and which
    snapshot made each (gradients of one batch belong together), and the batch's targets, as in `MatchedBatches`."""

    gradients: dict[str, np.ndarray]
    attribute: np.ndarray
    batch: np.ndarray
    snapshot: np.ndarray
    targets: np.ndarray

    def joined(self) -> np.ndarray:
        """(n, all parameters)."""
        return np.concatenate(list(self.gradients.values()), axis=1)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class AttributeInference(Result):
    """value: the share of observed batches whose attribute the attack names rightly, kind "estimate".

    interval: Clopper–Pearson over batches. chance: of always naming the more frequent one. auc: area under the ROC
    curve. scores: (batches,) probability of the attribute, averaged over snapshots. named: (batches,) 0 or 1.
    attribute: the truth. batches: their number.
    """

    schema: ClassVar[str] = "leakcore.attribute_inference/1"

    chance: float
    auc: float
    scores: np.ndarray
    named: np.ndarray
    attribute: np.ndarray
    batches: int


def matched_batches(
    attribute: Any, targets: Any, *, size: int = 1, limit: int | None = None, seed: int
) -> MatchedBatches:
    """Disjoint batches of rows that all have, or all lack, the attribute, with the same targets on either side.

    For each target the rows with and without the attribute are shuffled and paired; `size` pairs of one target make a
    batch with and a batch without. What is left over is unused. The two sets are therefore equal in number, in size
    and in targets: what tells them apart is the attribute, or what goes with it.

    attribute: (n,) booleans, or 0 and 1. targets: (n,) integers; None: all alike. limit: batches per side at most,
    drawn at random. Raises ValueError where not one pair of batches can be made.
    """
    has = check.plain_array(attribute=attribute)
    if has.ndim != 1 or not np.isin(has, (0, 1)).all():
        raise ValueError(f"attribute.shape={has.shape}: must be (n,) of 0 and 1")
    has = has.astype(bool)
    task = np.zeros(len(has), np.int64) if targets is None else check.plain_array(targets=targets)
    if task.dtype.kind == "f":
        raise TypeError(f"targets: of {task.dtype}, must be integers")
    if task.shape != has.shape:
        raise ValueError(f"targets.shape={task.shape}: must be {has.shape}, one for each row")
    number = check.integer(1, None, size=size)
    most = None if limit is None else check.integer(1, None, limit=limit)
    rng = kernels.generator(seed, kernels.Stream.ATTRIBUTE_PAIRS)
    pairs, kinds = [], []
    for target in np.unique(task):
        sides = [rng.permutation(np.flatnonzero((task == target) & (has == side))) for side in (False, True)]
        count = min(len(s) for s in sides) // number
        for i in range(count):
            pairs.append([s[i * number : (i + 1) * number] for s in sides])
            kinds.append(int(target))
    if not pairs:
        raise ValueError(
            f"attribute: no target has {number} rows on both sides ({int(has.sum())} rows with, {int((~has).sum())} "
            "without)"
        )
    chosen = rng.permutation(len(pairs))[:most]
    rows = np.array([pairs[i][side] for i in chosen for side in (0, 1)])
    return MatchedBatches(
        rows=rows,
        attribute=np.tile([0, 1], len(chosen)),
        targets=np.repeat(np.array(kinds, np.int64)[chosen], 2),
    )


def gradient_sets(
    snapshots: Sequence[torch.nn.Module] | torch.nn.Module,
    inputs: Any,
    targets: Any,
    batches: MatchedBatches,
    *,
    loss: Callable[[Any, Any], Any] | None = None,
    layers: Sequence[str] | None = None,
) -> GradientSets:
    """Mean gradients of every batch on every snapshot of the model; rows go snapshot by snapshot.

    snapshots: the model at one or several steps of its training. Other arguments as in `layer_gradients`.
    """
    check.instance(MatchedBatches, batches=batches)
    models = list(snapshots) if isinstance(snapshots, Sequence) else [snapshots]
    if not models:
        raise ValueError("snapshots: must hold at least one model")
    parts = [layer_gradients(m, inputs, targets, loss=loss, batches=batches.rows, layers=layers) for m in models]
    count = len(batches.rows)
    return GradientSets(
        gradients={name: np.concatenate([p[name] for p in parts]) for name in parts[0]},
        attribute=np.tile(batches.attribute, len(models)),
        batch=np.tile(np.arange(count), len(models)),
        snapshot=np.repeat(np.arange(len(models)), count),
        targets=np.tile(batches.targets, len(models)),
    )


def infer(
    known: GradientSets,
    observed: GradientSets,
    *,
    layers: Sequence[str] | None = None,
    trees: int = 100,
    confidence: float = 0.95,
    seed: int = 0,
) -> AttributeInference:
    """Name the attribute of observed batches by a random forest fitted on the attacker's own gradient sets.

    known: of the attacker's rows. observed: of the victim's, from the same model; no row may stand behind both, which
    is the caller's to see to. layers: what the attacker sees; None: all. Columns are brought to the range that they
    have in `known`, so that a factor of all gradients changes nothing. Probabilities are averaged over snapshots of a
    batch; ties name no attribute. Deterministic by seed.

    Raises ValueError where the two hold different layers, or one holds a single side or a batch of both.
    """
    from scipy.special import betaincinv
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.metrics import roc_auc_score

    check.instance(GradientSets, known=known)
    check.instance(GradientSets, observed=observed)
    names = tuple(known.gradients) if layers is None else tuple(layers)
    if not names:
        raise ValueError("layers: must name at least one")
    for name in names:
        if name not in known.gradients or name not in observed.gradients:
            raise ValueError(f"layers: {name!r} is not in both sets (known has {', '.join(known.gradients)})")
        if known.gradients[name].shape[1:] != observed.gradients[name].shape[1:]:
            raise ValueError(f"observed: layer {name!r} has another size than in known")
        for what, sets in (("known", known), ("observed", observed)):
            if not np.isfinite(sets.gradients[name]).all():
                raise ValueError(f"{what}: its gradients of layer {name!r} must be finite")
    _require_sides(known=known)
    truth, batch = _require_sides(observed=observed)
    level = check.confidence(confidence=confidence)
    start = check.seed(seed=seed)
    key = kernels.subseed(start, kernels.Stream.ATTRIBUTE_FOREST, bits=32)
    forest = RandomForestClassifier(check.integer(1, _MAX_TREES, trees=trees), random_state=key)
    own, theirs = (np.concatenate([s.gradients[n] for n in names], axis=1, dtype=np.float64) for s in (known, observed))
    ready = _Columns(own)
    forest.fit(ready(own), known.attribute)
    each = forest.predict_proba(ready(theirs))[:, 1]
    count = len(truth)
    scores = np.bincount(batch, each) / np.bincount(batch)
    named = (scores > 0.5).astype(np.int64)
    right = int((named == truth).sum())
    tail = (1 - level) / 2
    low = 0.0 if right == 0 else float(betaincinv(right, count - right + 1, tail))
    high = 1.0 if right == count else float(betaincinv(right + 1, count - right, 1 - tail))
    return AttributeInference(
        value=right / count,
        kind="estimate",
        confidence=level,
        interval=(low, high),
        method=f"random forest of {trees} trees on {', '.join(names)}",
        assumptions=Assumptions(
            adjacency=None,
            attacker="sees gradients of single batches, knows the model and rows with and without the attribute",
            notes=("another classifier may do better: no bound", "batches taken as independent"),
        ),
        seed=start,
        provenance="Melis et al. (2019); Mo et al. (2021), Section 3.2",
        chance=float(max(truth.mean(), 1 - truth.mean())),
        auc=float(roc_auc_score(truth, scores)),
        scores=scores,
        named=named,
        attribute=truth,
        batches=count,
    )


def _require_sides(**kwargs: GradientSets) -> tuple[np.ndarray, np.ndarray]:
    """The attribute of each batch, in order of their numbers, and the place of each gradient's batch among them."""
    ((name, sets),) = kwargs.items()
    count = len(sets.attribute)
    if not np.isin(sets.attribute, (0, 1)).all() or len(np.unique(sets.attribute)) < 2:
        raise ValueError(f"{name}: must hold gradients with and without the attribute, 1 and 0")
    for what, rows in (("batch", sets.batch), *sets.gradients.items()):
        if len(rows) != count:
            raise ValueError(f"{name}: {what!r} has {len(rows)} rows, must have {count}, as attribute has")
    _, first, place = np.unique(sets.batch, return_index=True, return_inverse=True)
    truth = np.asarray(sets.attribute)[first].astype(np.int64)
    if (truth[place] != sets.attribute).any():
        raise ValueError(f"{name}: a batch has gradients with and without the attribute, must have one of the two")
    return truth, place
