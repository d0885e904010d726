"""Mutual information of a layer's gradient with inputs or labels, by a neural lower bound on held-out rows."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore import kernels
from leakcore._base import array_memory, memory_limit, validate
from leakcore._base.process_wide import one_thread
from leakcore._base.results import Result, attack_guarantee
from leakcore._base.workers import collected
from leakcore.leakage import mine_limits
from leakcore.leakage.families import initial_layers
from leakcore.leakage.v_information import prepared

if TYPE_CHECKING:
    import torch

_EVERY = 10
"""Steps between looks at the validation rows."""
_ROWS_OF_A_CLASS = 5
"""Rows for each class from which every class's share is limited; with fewer, classes are taken together."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class MutualInformation(Result):
    """Mutual information in nats by MINE; kind "estimate", typically below the truth.

    Attributes:
        value: the held-out estimate of the trained network's bound, at most the upper end of `interval`.
        interval: limits of the mutual information itself, for any number of independent rows: it lies below the lower
            end with probability at most 1 − confidence. The upper end is the logarithm of `num_classes`, if it was
            stated, else ∞: no number of rows bounds mutual information from above, nor the classes that did not occur
            in them.
        held_out_interval: limits of the network's bound, from its sampling error on the held-out rows (a U-statistic's,
            with Student's quantile): approximate, and narrower.
        null: (permutations,) values after permuting which rows belong together.
        null_mean: its mean, NaN without permutations.
        trained: what the network reaches on its training rows (it overfits: not to be quoted).
        rows: how many were held out.
    """

    quantity: str = "mutual information, nats"
    held_out_interval: tuple[float, float]
    null: np.ndarray
    null_mean: float
    trained: float
    rows: int

    @property
    def above_null(self) -> float:
        """`value` minus the mean of its null."""
        return float(self.value) - self.null_mean


@dataclasses.dataclass(frozen=True)
class MineNetwork:
    """The network of MINE and its training by Adam.

    Attributes:
        hidden: units of each of the two hidden layers.
        components: columns of a side that the network reads at most.
        steps: steps of Adam, at least 1.
        learning_rate: step size of Adam, > 0.

    Example:
        >>> from leakcore import leakage
        >>> leakage.MineNetwork(steps=100).hidden
        64
    """

    hidden: int = 64
    components: int = 16
    steps: int = 400
    learning_rate: float = 0.005

    def __post_init__(self) -> None:
        for name in ("hidden", "components", "steps"):
            object.__setattr__(self, name, validate.integer(1, None, **{name: getattr(self, name)}))
        object.__setattr__(self, "learning_rate", validate.positive(learning_rate=self.learning_rate))


def mutual_information(
    first: Any,
    second: Any,
    *,
    num_classes: int | tuple[int | None, int | None] | None = None,
    network: MineNetwork | None = None,
    permutations: int = 1,
    confidence: float = 0.95,
    seed: int = 0,
    executor: Executor | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> MutualInformation:
    """Mutual information I(U; V) by the Donsker–Varadhan bound with a network T (MINE).

        I(U; V) ≥ sup_T E T(u, v) − log E e^{T(u, v′)},   v′ independent of u

    Belghazi et al. (2018); Mo et al. (2021, Fig. 3). T is trained by Adam on half of the rows, the training step is
    chosen on a fifth, and the bound is evaluated on the rest. It may be negative there.

    Args:
        first: (n, ...) rows, n ≥ 50; integers (n,) are classes. More than `components` columns are split into norm and
            direction; the network reads the norm, leading coordinates, and the columns that correlate most with the
            other side on training rows.
        second: (n, ...), the rows that belong to `first`; likewise.
        num_classes: how many classes a side of integers has at most; a pair for both sides. None: not known.
        network: its size and training; None: the defaults of `MineNetwork`.
        permutations: how many times the null is computed; 0 for none (NaN).
        confidence: level of the intervals, in (0, 1).
        seed: 64-bit seed of everything random.
        executor: its workers take one training each.
        progress: called as progress(trainings done, trainings).

    Returns:
        `MutualInformation`. Its measured bias is in docs/explanation/leakage.md.

    Guarantees:
        Deterministic by seed, on a machine and torch build. `interval` covers if rows are independent draws;
        coordinates of more than `components` columns come from all rows of their own side, which this ignores.
        ValueError or TypeError names an argument that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore import leakage
        >>> classes = np.arange(200) % 2
        >>> network = leakage.MineNetwork(hidden=16, steps=100)
        >>> same = leakage.mutual_information(classes, classes, num_classes=2, network=network, permutations=0)
        >>> f"{same.value:.1f}"  # one bit is log 2 = 0.69 nats
        '0.7'
    """
    mine = validate.settings(MineNetwork, network=network)
    totals = _totals(num_classes)
    u = _side("first", first, mine.components, totals[0])
    v = _side("second", second, mine.components, totals[1])
    if num_classes is not None and u.codes is None and v.codes is None:
        raise ValueError("`num_classes` is allowed only where a side consists of classes, integers of shape (n,)")
    number = len(u.leading)
    if number != len(v.leading) or number < 50:
        raise ValueError(
            f"`first` and `second` must have equally many rows, at least 50, got {number} and {len(v.leading)}"
        )
    memory_limit.require(32 * mine.hidden * (u.leading.shape[1] + v.leading.shape[1] + 2), hidden=mine.hidden)
    shuffles = validate.integer(0, None, permutations=permutations)
    level = validate.confidence(confidence=confidence)
    start = validate.seed(seed=seed)
    validate.executor(executor=executor)
    validate.callback(progress=progress)
    order = kernels.generator(start, kernels.Stream.MUTUAL_ORDER).permutation(number)
    job = functools.partial(_trained, u, v, order, mine, start, 1 - level)
    jobs = ((k, functools.partial(job, k)) for k in range(1 + shuffles))
    trainings = collected(jobs, executor, progress, 1 + shuffles)
    answer = trainings[0]
    null = np.array([trainings[k].value for k in range(1, 1 + shuffles)])
    from scipy.special import stdtrit

    largest, classes = min(u.largest, v.largest), u.codes is not None or v.codes is not None
    reach = float(stdtrit(answer.rows - 1, (1 + level) / 2)) * answer.error
    low, high = (min(end, largest) for end in (answer.value - reach, answer.value + reach))
    return MutualInformation(
        value=min(answer.value, largest),
        method=f"MINE, two hidden layers of {mine.hidden}, evaluated held out",
        **attack_guarantee(
            "computationally unbounded, up to what the network finds",
            notes=(
                "of a lower bound: more information may be there",
                f"stated: a side has at most {round(math.exp(largest))} classes, from which the upper end follows"
                if largest < math.inf
                else "no upper end: how many classes there are was not stated (num_classes=)"
                if classes
                else "no upper end: no number of rows gives one",
                "interval: of the mutual information; held_out_interval: of the trained network's bound on it",
                "rows are independent draws: none occurs twice, and no two are of one sample",
                *(
                    ("columns were chosen from all rows of their own side, which the interval ignores",)
                    if u.directions is not None or v.directions is not None
                    else ()
                ),
            ),
            confidence=level,
            interval=(answer.lower, largest),
        ),
        seed=start,
        provenance="Belghazi et al. (2018), eqs. 10 and 12; Mo et al. (2021), Section 4.1",
        held_out_interval=(low, high),
        null=null,
        null_mean=float(null.mean()) if shuffles else math.nan,
        trained=answer.trained,
        rows=answer.rows,
    )


@dataclasses.dataclass(frozen=True)
class _Answer:
    """One training: the network's bound on `rows` held-out rows, its standard error, the lower limit of the mutual
    information, and the network's bound on its training rows."""

    value: float
    error: float
    lower: float
    trained: float
    rows: int


def _trained(u: _Side, v: _Side, order: np.ndarray, network: MineNetwork, seed: int, alpha: float, k: int) -> _Answer:
    """Training k, the same wherever it is called: of the pairs themselves (0), or of a permutation of them."""
    import torch  # noqa: F401  # before the limit on its threads

    with one_thread():
        rng = kernels.generator(seed, kernels.Stream.MUTUAL_TRAINING, step=k)
        partners = order if k == 0 else rng.permutation(len(order))[order]
        first, second = u.rows(order, len(order) // 2), v.rows(partners, len(order) // 2)
        training = np.arange(len(order) // 2)
        sides = first.features(second, training), second.features(first, training)
        return _estimate(*sides, _fewest(first, second, training), network, rng, alpha)


def _fewest(u: _Side, v: _Side, training: np.ndarray) -> _Classes | None:
    """The side that consists of fewer classes than the other, if any does, by what occurs in the training rows."""
    chosen = min((s for s in (u, v) if s.codes is not None), key=lambda s: s.leading.shape[1], default=None)
    if chosen is None or chosen.codes is None:
        return None
    own = chosen.leading[training]
    spread = own.std(axis=0)
    return _Classes(
        side=0 if chosen is u else 1,
        kinds=(np.eye(chosen.leading.shape[1]) - own.mean(axis=0)) / np.where(spread > 0, spread, 1.0),
        codes=chosen.leading.argmax(axis=1),
        counts=chosen.counts(len(training)),
        total=chosen.total if chosen.closed else None,
    )


@dataclasses.dataclass(frozen=True)
class _Classes:
    """A side of classes, 0 or 1. A kind is a class of the training rows or, last, all other classes together.

    kinds: (kinds, columns) that the network reads. codes: (rows,) the kind of each. counts: rows of each class. total:
    largest possible number of classes where the entropy's limit is one of classes; None where it is one of kinds.
    """

    side: int
    kinds: np.ndarray
    codes: np.ndarray
    counts: np.ndarray
    total: int | None


def _estimate(
    u: np.ndarray, v: np.ndarray, classes: _Classes | None, mine: MineNetwork, rng: np.random.Generator, alpha: float
) -> _Answer:
    import torch

    cut, end = len(u) // 2, len(u) * 7 // 10
    parts = [
        (torch.from_numpy(u[s]).float(), torch.from_numpy(v[s]).float())
        for s in (slice(cut), slice(cut, end), slice(end, None))
    ]
    weights, biases = initial_layers((u.shape[1] + v.shape[1], mine.hidden, mine.hidden, 1), rng)
    own = [*weights, *biases]

    def network(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.cat([x, y], -1)
        for w, b in zip(weights[:-1], biases[:-1], strict=True):
            z = torch.nn.functional.elu(z @ w + b)
        out: torch.Tensor = (z @ weights[-1] + biases[-1])[..., 0]
        return out

    @torch.no_grad()
    def bound(x: torch.Tensor, y: torch.Tensor, pairings: int) -> float:
        joint = network(x, y).double()
        n = len(x)
        # All pairs except the true ones, or an even choice of them, one pairing at a time to save memory.
        shifts = np.unique(np.linspace(1, n - 1, min(n - 1, pairings)).astype(int))
        crossed = torch.stack([network(x, y.roll(-int(k), 0)) for k in shifts]).double()
        return float(joint.mean() - crossed.logsumexp((0, 1)) + math.log(crossed.numel()))

    @torch.no_grad()
    def table(x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
        """T of every row's u, down, with every row's v."""
        return np.stack([network(x, one.expand(len(x), -1)).double().numpy() for one in y], axis=1)

    def likelihoods() -> mine_limits.Likelihoods | None:
        if classes is None:
            return None
        number = len(classes.kinds)
        of_kind = torch.from_numpy(classes.kinds).float()
        shares = np.log(np.bincount(classes.codes[:cut], minlength=number) + 1.0)
        own, pilot = (
            (table(x, of_kind) if classes.side else table(of_kind, y).T) + shares for x, y in (parts[2], parts[1])
        )
        # Of classes that the training rows do not hold, each has an equal part of what q gives to all of them.
        others = 0.0 if classes.total is None else math.log(max(1, classes.total - number + 1))
        logs = [
            mine_limits.log_share(scores, at) - np.where(at == number - 1, others, 0.0)
            for scores, at in ((own, classes.codes[end:]), (pilot, classes.codes[cut:end]))
        ]
        return mine_limits.Likelihoods(logs[0], logs[1], classes.counts, classes.total or number)

    optimiser = torch.optim.Adam(own, lr=mine.learning_rate, weight_decay=1e-4)
    running = 1.0
    with torch.no_grad():
        weights[-1].zero_()
    best, chosen = 0.0, [p.detach().clone() for p in own]  # T = 0, whose bound is 0, is a member of the family
    x, y = parts[0]
    for step in range(1, mine.steps + 1):
        joint = network(x, y).mean()
        crossed = network(x, y[torch.from_numpy(rng.permutation(len(y)))])
        average = float(crossed.detach().exp().mean())
        running = average if step == 1 else 0.9 * running + 0.1 * average
        optimiser.zero_grad()
        # The derivative of log E e^T with the denominator's running mean: the paper's correction of its bias.
        (crossed.exp().mean() / running - joint).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(own, 1.0)
        optimiser.step()
        if step % _EVERY == 0 or step == mine.steps:
            now = bound(*parts[1], 40)
            if now > best:
                best, chosen = now, [p.detach().clone() for p in own]
    with torch.no_grad():
        for p, value in zip(own, chosen, strict=True):
            p.copy_(value)
    held_out = table(*parts[2])
    return _Answer(
        value=mine_limits.plug_in(held_out),
        error=mine_limits.sampling_error(held_out),
        lower=mine_limits.lower_limit(held_out, table(*parts[1]), alpha, likelihoods()),
        trained=bound(*parts[0], 100),
        rows=len(held_out),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Side:
    """One side of the pairs, as the network reads it.

    leading: (n, k), k ≤ `components`, read unless columns are chosen. directions: (n, d) where there are more columns
    than `components`, of which `chosen` are to be chosen. codes: (n,) the class of every row where the side consists of
    classes. total: largest possible number of classes, if known. closed: whether they are few enough to limit the share
    of each.
    """

    leading: np.ndarray
    directions: np.ndarray | None
    chosen: int
    codes: np.ndarray | None = None
    total: int | None = None
    closed: bool = False

    @property
    def largest(self) -> float:
        """An upper limit of the entropy."""
        return math.inf if self.total is None else math.log(self.total)

    def rows(self, indices: np.ndarray, training: int) -> _Side:
        """These rows, in this order; classes that the first `training` of them do not hold become one kind, the last.
        The network then is a function of the training rows alone, whatever else the others hold."""
        directions = None if self.directions is None else self.directions[indices]
        if self.codes is None:
            return dataclasses.replace(self, leading=self.leading[indices], directions=directions)
        codes = self.codes[indices]
        known = np.unique(codes[:training])
        at = np.minimum(np.searchsorted(known, codes), len(known) - 1)
        kind = np.where(known[at] == codes, at, len(known))
        more = not (self.closed and self.total == len(known))
        return dataclasses.replace(self, leading=np.eye(len(known) + more)[kind], codes=codes)

    def counts(self, training: int) -> np.ndarray:
        """How often each class occurs, or else each kind in the rows that did not choose the kinds."""
        assert self.codes is not None
        if self.closed:
            return np.bincount(self.codes)
        return np.asarray(self.leading[training:].sum(axis=0).astype(np.int64))

    def features(self, other: _Side, training: np.ndarray) -> np.ndarray:
        """(n, k) standardised columns for the network, chosen by correlation with the other side on training rows."""
        flat = self.leading
        if self.directions is not None and self.chosen:
            pairs = other.directions
            if pairs is None or pairs.shape[1] * self.directions.shape[1] > MOST_PAIRS:
                pairs = other.leading
            at = screen(self.directions, pairs, training, self.chosen)
            flat = np.concatenate([flat[:, : flat.shape[1] - self.chosen], self.directions[:, at]], axis=1)
        some = flat[training]
        spread = some.std(axis=0)
        return np.asarray((flat - some.mean(axis=0)) / np.where(spread > 0, spread, 1.0))


def _totals(num_classes: Any) -> tuple[int | None, int | None]:
    """How many classes each side has at most, as far as it was stated."""
    both = num_classes if isinstance(num_classes, tuple | list) else (num_classes, num_classes)
    if len(both) != 2:
        raise ValueError(f"`num_classes` must be one number or a pair for (first, second), got {len(both)} numbers")
    first, second = (None if one is None else validate.integer(1, None, num_classes=one) for one in both)
    return first, second


def _side(name: str, values: Any, components: int, total: int | None) -> _Side:
    array_memory.refuse_transforms(name)
    argument: dict[str, Any] = {name: validate.even_array(**{name: values})}
    kind = argument[name].dtype.kind
    classes = argument[name].ndim == 1 and kind in "iub"
    array, _ = validate.host_array(**argument)
    if array.ndim < 1 or 0 in array.shape:
        raise ValueError(f"`{name}` must have shape (n, ...), none of them 0, got {array.shape}")
    if classes:
        values, codes = np.unique(array, return_inverse=True)
        if kind == "b":
            total = 2 if total is None else min(2, total)
        if total is not None and len(values) > total:
            raise ValueError(f"`num_classes` must be at least the {len(values)} classes of `{name}`, got {total}")
        closed = total is not None and total <= len(codes) // _ROWS_OF_A_CLASS
        return _Side(np.eye(len(values))[codes], None, 0, codes, total, closed)
    flat = array.reshape(len(array), -1)
    flat = flat / (float(np.abs(flat).max()) or 1.0)
    if flat.shape[1] <= components:
        return _Side(flat, None, 0)
    # Directions and logarithms of norms: a few outlying rows would dominate the leading coordinates.
    norms = np.linalg.norm(flat, axis=1, keepdims=True)
    floor = (float(norms.max()) or 1.0) * 1e-12
    sizes = np.log(np.maximum(norms, floor))
    directions = flat / np.maximum(norms, floor)
    leading = np.concatenate([sizes, prepared(directions, invariant=True)[:, : components - 1]], axis=1)
    return _Side(leading, directions, min(components // 2, leading.shape[1] - 1))


MOST_PAIRS = 20_000_000
"""Numbers in a matrix of correlations, or in a block of columns, at a time (160 MB)."""


def screen(columns: np.ndarray, other: np.ndarray, rows: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` columns (n, d) most correlated on these training rows with a column of `other` (n, k). The
    score of a column is its largest absolute correlation, or that of its distance from its median (which shows what its
    sign hides), with any column of `other`. The rows on which columns are not chosen can still be held out."""
    some, target = columns[rows], _standardised(other[rows])
    scores = np.zeros(columns.shape[1])
    width = max(1, MOST_PAIRS // max(len(rows), target.shape[1]))
    for start in range(0, columns.shape[1], width):
        block = some[:, start : start + width]
        for view in (block, np.abs(block - np.median(block, axis=0))):
            correlations = np.abs(_standardised(view).T @ target)
            np.maximum(scores[start : start + width], correlations.max(axis=1), out=scores[start : start + width])
    return np.sort(np.argsort(-scores, kind="stable")[:count])


def _standardised(columns: np.ndarray) -> np.ndarray:
    """Mean 0 and norm 1, a constant column all 0."""
    centred = columns - columns.mean(axis=0)
    norms = np.linalg.norm(centred, axis=0)
    return np.asarray(centred / np.where(norms > 1e-12 * np.abs(columns).max(axis=0, initial=0.0), norms, np.inf))
