"""How far apart a layer's mean gradients with and without an attribute lie, as subspaces."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from leakcore import kernels
from leakcore._base import memory_limit, validate
from leakcore._base.process_wide import one_thread
from leakcore._base.results import Result, attack_guarantee

_TIE = 1e-9
"""Distances (radians) that differ by less are equal: a permutation within the sets changes the mean's rounding."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SubspaceDistance(Result):
    """Grassmann distance of two layer gradients; kind "estimate": it describes these gradients and bounds nothing.

    Attributes:
        value: the distance in radians, between column or row spaces, whichever lie in the larger space (`space`).
        columns: the distance of the column spaces.
        rows: the distance of the row spaces.
        space: "columns" or "rows".
        angles: principal angles behind `value`, largest first.
        ranks: numerical ranks (without, with).
        rtol: singular values below rtol·largest count as zero.
        set_sizes: gradients averaged (without, with).
        largest: the largest possible distance at these ranks.
        null: (permutations,) distances after permuting which gradients have the attribute, with the same set sizes (and
            pairs).
        null_mean: its mean, NaN without permutations.
        p_value: (1 + permutations with at least this distance)/(1 + permutations), NaN without permutations.
    """

    quantity: str = "subspace distance"
    columns: float
    rows: float
    space: str
    angles: np.ndarray
    ranks: tuple[int, int]
    rtol: float
    set_sizes: tuple[int, int]
    largest: float
    null: np.ndarray
    null_mean: float
    p_value: float

    @property
    def above_null(self) -> float:
        """`value` minus the mean of its null: what can be compared between layers."""
        return float(self.value) - self.null_mean


@one_thread()
def subspace_distance(
    grads_without: Any,
    grads_with: Any,
    *,
    rtol: float | None = None,
    rank: int | None = None,
    permutations: int = 0,
    paired: bool = False,
    seed: int | None = None,
) -> Any:
    """Distance between the subspaces that a layer's mean gradients without and with an attribute span.

    With θ_i the principal angles between the spaces of G⁽⁰⁾ and G⁽¹⁾, of ranks r₀ and r₁,

        d = (Σ_{i ≤ min(r₀, r₁)} θ_i² + |r₀ − r₁|·(π/2)²)^{1/2}

    (Mo et al. 2021, eq. 13; Ye and Lim 2016 for unequal ranks). The value is the distance in the larger ambient space.
    Why, and why sets must be equal in size: docs/explanation/leakage.md.

    Args:
        grads_without: (n, out, ...) gradients of one layer's weight, one per sample or batch, NumPy or torch; or a
            mapping of such.
        grads_with: gradients with the attribute, of the same form, with the same keys.
        rtol: relative tolerance of the rank; None: max(out, rest)·ε of the gradients' precision.
        rank: use this many leading singular directions, at most the numerical rank.
        permutations: distances recomputed with the gradients split at random into sets of the same sizes; compare
            layers above this null.
        paired: gradient i of both sets belongs together (`attacks.attributes.matched_batches`): a permutation swaps
            only within pairs. The p-value is at least about 2¹⁻ⁿ for n pairs.
        seed: draws from the larger set as many as the smaller one has; None: refuse unequal sets. Required with
            permutations.

    Returns:
        `SubspaceDistance`, or a mapping of them. A zero gradient has rank 0.

    Guarantees:
        Deterministic. Invariant under orthogonal maps of the ambient space and invertible maps of the other. ValueError
        or TypeError names an argument that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore import leakage
        >>> without, with_ = np.array([[[1.0], [0.0]]]), np.array([[[0.0], [2.0]]])  # orthogonal directions
        >>> f"{leakage.subspace_distance(without, with_).value:.3f}"  # π/2
        '1.571'
    """
    if isinstance(grads_without, Mapping) or isinstance(grads_with, Mapping):
        keys = [list(g) if isinstance(g, Mapping) else None for g in (grads_without, grads_with)]
        if keys[0] is None or keys[1] is None or set(keys[0]) != set(keys[1]) or not keys[0]:
            raise ValueError(
                f"`grads_without` and `grads_with` must have the same keys, at least one, got {keys[0]} and {keys[1]}"
            )
        return {
            key: subspace_distance(
                grads_without[key],
                grads_with[key],
                rtol=rtol,
                rank=rank,
                permutations=permutations,
                paired=paired,
                seed=seed,
            )
            for key in keys[0]
        }
    (without, eps0), (with_, eps1) = (
        validate.host_array(grads_without=grads_without),
        validate.host_array(grads_with=grads_with),
    )
    for name, sets in (("grads_without", without), ("grads_with", with_)):
        if sets.ndim < 3 or 0 in sets.shape:
            raise ValueError(f"`{name}` must have shape (n, out, ...), none of them 0, got {sets.shape}")
    if without.shape[1:] != with_.shape[1:]:
        raise ValueError(
            f"`grads_with` must be gradients of the same layer as `grads_without`, got shapes {with_.shape} "
            f"and {without.shape}"
        )
    if len(without) != len(with_):
        if paired:
            raise ValueError(
                "`grads_without` and `grads_with` must hold equally many gradients with paired=True, got "
                f"{len(without)} and {len(with_)}"
            )
        if seed is None:
            raise ValueError(
                f"`grads_without` and `grads_with` must hold equally many gradients, got {len(without)} and "
                f"{len(with_)}; unequal sets inflate the distance: pass sets of one size, or seed= to draw "
                "from the larger"
            )
        rng, size = kernels.generator(seed, kernels.Stream.SUBSPACE_SUBSET), min(len(without), len(with_))
        without, with_ = (s if len(s) == size else s[rng.choice(len(s), size, replace=False)] for s in (without, with_))
    validate.instance(bool, np.bool_, paired=paired)
    shuffles = validate.integer(0, None, permutations=permutations)
    memory_limit.require(8 * shuffles, permutations=shuffles)
    if shuffles and seed is None:
        raise ValueError("`seed` is required with permutations")
    out, rest = without.shape[1], math.prod(without.shape[2:])
    tolerance = 2 * max(eps0, eps1) * max(out, rest)
    if rtol is not None:
        tolerance = validate.below_one(rtol=validate.non_negative(rtol=rtol))
    limit = None if rank is None else validate.integer(1, min(out, rest), rank=rank)
    space, ambient = ("columns", out) if out >= rest else ("rows", rest)
    ranks, angles = _compared(without, with_, tolerance, limit)
    distances = {name: _distance(between, ranks) for name, between in angles.items()}
    null = np.empty(shuffles)
    pool = np.concatenate([without, with_]).reshape(2 * len(without), -1) if shuffles else np.empty((0, 0))
    for k in range(shuffles):
        rng = kernels.generator(validate.seed(seed=seed), kernels.Stream.SUBSPACE_PERMUTATIONS, step=k)
        if paired:
            own = np.arange(len(without)) + len(without) * rng.integers(0, 2, len(without))
            dealt = np.concatenate([own, (own + len(without)) % len(pool)])
        else:
            dealt = rng.permutation(len(pool))
        first, second = (pool[d].reshape(len(d), out, rest) for d in np.split(dealt, [len(without)]))
        null_ranks, null_angles = _compared(first, second, tolerance, limit)
        null[k] = _distance(null_angles[space], null_ranks)
    # As far apart as spaces can lie: r₀ + r₁ − n dimensions must be shared.
    apart = max(0, min(ranks) - max(0, sum(ranks) - ambient))
    return SubspaceDistance(
        value=distances[space],
        method="Grassmann distance of mean gradients",
        **attack_guarantee(
            "sees the layer's gradient averaged over rows with, and over rows without the attribute",
            notes=(
                "describes these gradients; compare it with the distance after the attribute's labels are permuted",
                f"{ambient}-dimensional space of the gradient's {space}",
            ),
        ),
        seed=seed,
        provenance="Mo et al. (2021), eq. 13; Ye and Lim (2016), Theorem 12 for unequal ranks",
        columns=distances["columns"],
        rows=distances["rows"],
        space=space,
        angles=angles[space],
        ranks=ranks,
        rtol=tolerance,
        set_sizes=(len(without), len(with_)),
        largest=_distance(np.full(apart, math.pi / 2), ranks),
        null=null,
        null_mean=float(null.mean()) if shuffles else math.nan,
        p_value=(1 + int((null >= distances[space] - _TIE).sum())) / (1 + shuffles) if shuffles else math.nan,
    )


def _compared(
    without: np.ndarray, with_: np.ndarray, rtol: float, limit: int | None
) -> tuple[tuple[int, int], dict[str, np.ndarray]]:
    """Ranks of the two mean gradients, and the principal angles of their column and row spaces."""
    bases = [_bases(s.mean(axis=0).reshape(s.shape[1], -1), rtol, limit) for s in (without, with_)]
    ranks = (bases[0][0].shape[1], bases[1][0].shape[1])
    return ranks, {name: _angles(bases[0][i], bases[1][i]) for i, name in enumerate(("columns", "rows"))}


def _bases(mean: np.ndarray, rtol: float, limit: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Orthonormal bases of the column and of the row space."""
    u, s, vt = np.linalg.svd(mean, full_matrices=False)
    rank = int((s > rtol * s[0]).sum()) if s[0] > 0 else 0
    rank = rank if limit is None else min(rank, limit)
    return u[:, :rank], vt[:rank].T


def _angles(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Principal angles, largest first, min(ranks) of them."""
    if 0 in (first.shape[1], second.shape[1]):
        return np.empty(0)
    from scipy.linalg import subspace_angles

    return np.asarray(subspace_angles(first, second))


def _distance(angles: np.ndarray, ranks: tuple[int, int]) -> float:
    return math.sqrt(float((angles**2).sum()) + abs(ranks[0] - ranks[1]) * (math.pi / 2) ** 2)
