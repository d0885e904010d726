"""Attribute inference: does the data behind a gradient have an attribute that its task never asked for?

In the attack of Melis et al. (2019), as Mo et al. (2021, Section 3.2) use it, the attacker has rows of its own with and
without the attribute, and snapshots of the model. It computes gradients of both kinds of rows and learns to tell them
apart. `matched_batches` chooses the rows, `gradient_sets` computes their gradients on each snapshot, and `infer` is the
attack. The measure that generalises its success is `leakage.v_information`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from leakcore import kernels
from leakcore._base import validate
from leakcore._base.columns import ColumnScaler as _ColumnScaler
from leakcore._base.results import Result
from leakcore._base.results import attack_guarantee as _attack_guarantee
from leakcore._base.version import need as _need
from leakcore.gradients import layer_gradients as layer_gradients

if TYPE_CHECKING:
    import torch


_MAX_TREES = 100_000
"""A tree takes tens of kilobytes."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class MatchedBatches:
    """Batches of rows with and without an attribute, matched by their targets.

    Attributes:
        rows: (batches, size) row numbers, each in at most one batch.
        attribute: (batches,) 0 or 1.
        targets: (batches,) an integer for the targets of each batch; each occurs as often with the attribute as
            without.
    """

    rows: np.ndarray
    attribute: np.ndarray
    targets: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class GradientSets:
    """Gradients of batches with and without an attribute, on several snapshots of a model.

    Attributes:
        gradients: {layer: (n, parameters)}.
        attribute: (n,) 0 or 1.
        batch: (n,) number of the batch behind each gradient; gradients of one batch belong together.
        snapshot: (n,) number of the snapshot behind each gradient.
        targets: (n,) the batch's targets, as in `MatchedBatches`.
    """

    gradients: dict[str, np.ndarray]
    attribute: np.ndarray
    batch: np.ndarray
    snapshot: np.ndarray
    targets: np.ndarray

    def joined(self) -> np.ndarray:
        """The gradients of all layers side by side, (n, all parameters)."""
        return np.concatenate(list(self.gradients.values()), axis=1)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class AttributeInference(Result):
    """How often the attack names the attribute of an observed batch rightly.

    Attributes:
        value: share of observed batches whose attribute is named rightly, kind "estimate".
        interval: Clopper–Pearson over batches.
        chance: the share that always naming the more frequent value would reach.
        auc: area under the ROC curve.
        scores: (batches,) probability of the attribute, averaged over snapshots.
        named: (batches,) 0 or 1, the attack's answer.
        attribute: (batches,) 0 or 1, the truth.
        batches: their number.
    """

    schema: ClassVar[str] = "leakcore.attribute_inference/1"

    quantity: str = "accuracy"
    chance: float
    auc: float
    scores: np.ndarray
    named: np.ndarray
    attribute: np.ndarray
    batches: int


def matched_batches(
    attribute: Any, targets: Any, *, size: int = 1, limit: int | None = None, seed: int
) -> MatchedBatches:
    """Disjoint batches whose rows all have, or all lack, the attribute, with the same targets on either side.

    For each target the rows with and without the attribute are shuffled and paired; `size` pairs of one target make one
    batch with the attribute and one without. Rows that are left over are unused. The two sets are therefore equal in
    number, in size and in targets: what tells them apart is the attribute, or what correlates with it.

    Args:
        attribute: (n,) booleans, or 0 and 1.
        targets: (n,) integers; None: all alike.
        size: rows per batch.
        limit: batches per side at most, drawn at random; None: all.
        seed: seed of the shuffles.

    Returns:
        `MatchedBatches`.

    Raises:
        ValueError: where not one pair of batches can be formed, and for bad shapes.
        TypeError: for targets that are not integers.

    Guarantees:
        Deterministic given the seed.

    Example:
        >>> from leakcore.attacks import attributes
        >>> batches = attributes.matched_batches([1, 1, 0, 0, 1, 0], [0, 1, 0, 1, 1, 1], seed=0)
        >>> batches.rows.shape, batches.attribute.tolist()  # three pairs of single rows
        ((6, 1), [0, 1, 0, 1, 0, 1])
    """
    has = validate.plain_array(attribute=attribute)
    if has.ndim != 1 or not np.isin(has, (0, 1)).all():
        raise ValueError(f"`attribute` must have shape (n,) and hold 0 and 1, got shape {has.shape}")
    has = has.astype(bool)
    task = np.zeros(len(has), np.int64) if targets is None else validate.plain_array(targets=targets)
    if task.dtype.kind == "f":
        raise TypeError(f"`targets` must be integers, got {task.dtype}")
    if task.shape != has.shape:
        raise ValueError(f"`targets` must have shape {has.shape}, one for each row, got {task.shape}")
    number = validate.integer(1, None, size=size)
    most = None if limit is None else validate.integer(1, None, limit=limit)
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
            f"`attribute` must leave at least {number} rows of some target on both sides, got {int(has.sum())} rows "
            f"with and {int((~has).sum())} without it"
        )
    chosen = rng.permutation(len(pairs))[:most]
    rows = np.array([pairs[i][side] for i in chosen for side in (0, 1)])
    return MatchedBatches(
        rows=rows, attribute=np.tile([0, 1], len(chosen)), targets=np.repeat(np.array(kinds, np.int64)[chosen], 2)
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
    """Mean gradients of every batch on every snapshot of the model.

    Args:
        snapshots: the model at one or several steps of its training.
        inputs: (n, ...), the rows behind the batches.
        targets: (n, ...), one for each row, as the loss takes them.
        batches: `MatchedBatches`, of row numbers.
        loss: loss(outputs, targets); None: cross-entropy.
        layers: names of the layers; None: all.

    Returns:
        `GradientSets`, snapshot by snapshot.

    Guarantees:
        Deterministic for a machine and torch build.

    Example:
        >>> import torch
        >>> from leakcore.attacks import attributes
        >>> batches = attributes.matched_batches([1, 0, 1, 0], None, seed=0)
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        >>> sets = attributes.gradient_sets(model, torch.eye(4, 3), torch.tensor([0, 1, 0, 1]), batches)
        >>> {name: array.shape for name, array in sets.gradients.items()}
        {'0': (4, 16), '2': (4, 10)}
    """
    validate.instance(MatchedBatches, batches=batches)
    models = list(snapshots) if isinstance(snapshots, Sequence) else [snapshots]
    if not models:
        raise ValueError("`snapshots` must hold at least one model")
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
    """Name the attribute of observed batches with a random forest fitted to the attacker's own gradient sets.

    Each column is scaled to the range that it has in `known`, so a common factor of all gradients changes nothing.
    Probabilities are averaged over the snapshots of a batch (Melis et al. 2019; Mo et al. 2021, Section 3.2).

    Args:
        known: gradients of the attacker's rows.
        observed: gradients of the victim's rows, from the same model. The caller makes sure that no row is behind both.
        layers: the layers that the attacker sees; None: all.
        trees: in the forest, at least 1.
        confidence: level of the interval, in (0, 1).
        seed: seed of the forest.

    Returns:
        `AttributeInference`. A probability of exactly ½ counts as "without".

    Raises:
        ValueError: where the two have different layers, where one holds only one side, or where a batch has both.

    Guarantees:
        Deterministic by seed. An estimate: another classifier may do better.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import attributes
        >>> rng, side = np.random.default_rng(0), np.arange(40) % 2
        >>> def sets():
        ...     gradients = {"fc": rng.standard_normal((40, 5)) + 3 * side[:, None]}  # the attribute shifts them
        ...     zeros = np.zeros(40, int)
        ...     return attributes.GradientSets(
        ...         gradients=gradients, attribute=side, batch=np.arange(40), snapshot=zeros, targets=zeros
        ...     )
        >>> answer = attributes.infer(sets(), sets(), trees=20)
        >>> answer.value > 0.9, answer.chance
        (True, 0.5)
    """
    from scipy.special import betaincinv

    _need("sklearn")
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.metrics import roc_auc_score

    validate.instance(GradientSets, known=known)
    validate.instance(GradientSets, observed=observed)
    names = tuple(known.gradients) if layers is None else tuple(layers)
    if not names:
        raise ValueError("`layers` must name at least one layer")
    for name in names:
        if name not in known.gradients or name not in observed.gradients:
            raise ValueError(f"`layers` must be in both sets (known has {', '.join(known.gradients)}), got {name!r}")
        if known.gradients[name].shape[1:] != observed.gradients[name].shape[1:]:
            raise ValueError(f"`observed`: layer {name!r} must have the same size as in `known`")
        for what, sets in (("known", known), ("observed", observed)):
            if not np.isfinite(sets.gradients[name]).all():
                raise ValueError(f"`{what}`: the gradients of layer {name!r} must be finite")
    _require_sides(known=known)
    truth, batch = _require_sides(observed=observed)
    level = validate.confidence(confidence=confidence)
    start = validate.seed(seed=seed)
    key = kernels.subseed(start, kernels.Stream.ATTRIBUTE_FOREST, bits=32)
    forest = RandomForestClassifier(validate.integer(1, _MAX_TREES, trees=trees), random_state=key)
    own, theirs = (np.concatenate([s.gradients[n] for n in names], axis=1, dtype=np.float64) for s in (known, observed))
    ready = _ColumnScaler(own)
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
        method=f"random forest of {trees} trees on {', '.join(names)}",
        **_attack_guarantee(
            "sees gradients of single batches, knows the model and rows with and without the attribute",
            notes=("another classifier may do better: no bound", "batches taken as independent"),
            confidence=level,
            interval=(low, high),
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
    """The attribute of each batch, in order of their numbers, and the position of each gradient's batch among them."""
    ((name, sets),) = kwargs.items()
    count = len(sets.attribute)
    if not np.isin(sets.attribute, (0, 1)).all() or len(np.unique(sets.attribute)) < 2:
        raise ValueError(f"`{name}` must hold gradients with the attribute (1) and without it (0)")
    for what, rows in (("batch", sets.batch), *sets.gradients.items()):
        if len(rows) != count:
            raise ValueError(f"`{name}`: {what!r} must have {count} rows, as attribute has, got {len(rows)}")
    _, first, place = np.unique(sets.batch, return_index=True, return_inverse=True)
    truth = np.asarray(sets.attribute)[first].astype(np.int64)
    if (truth[place] != sets.attribute).any():
        raise ValueError(
            f"`{name}`: a batch has gradients with and without the attribute, but must have one of the two"
        )
    return truth, place
