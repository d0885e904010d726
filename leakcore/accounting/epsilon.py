"""ε at a δ: the smallest that is proved. Also the arguments and statements that ε, δ and σ share."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Iterator
from typing import Any

from leakcore._base import validate
from leakcore._base.process_wide import one_thread
from leakcore._base.progress import timed
from leakcore._base.results import Adjacency, Assumptions, Result
from leakcore.mechanisms import Mechanism, Poisson, as_mechanism, over_grids
from leakcore.numerics import BEST, AccuracyError, Curve, DiscreteLoss, Precision, PrivacyLoss, gaussian_pair

METHODS = ("exact", "pld", "rdp")
TINY = sys.float_info.min
"""Below it a float has not its full precision."""
MIN_SEPARATION = 1e-6
"""Separation of a Gaussian pair that leaks at least as much, below which that pair's profile is used."""


@dataclasses.dataclass(frozen=True, eq=False)
class Accountant:
    """A mechanism with the relation and the method to account for it.

    Attributes:
        orders: Rényi orders of method "rdp"; None: dp-accounting's own.
        loss: the privacy loss, where the mechanism's pair is one of sampled Gaussian steps; else None.
    """

    mechanism: Mechanism
    relation: Adjacency
    method: str
    orders: Any
    loss: PrivacyLoss | None

    @classmethod
    def parse(
        cls, noise_multiplier: Any, sample_rate: Any, steps: Any, *, adjacency: str | None, method: str, orders: Any
    ) -> Accountant:
        """ValueError or TypeError names the argument that is out of range, or that the others do not go with."""
        name = validate.one_of(*METHODS, method=method)
        mechanism = as_mechanism(noise_multiplier, sample_rate, steps)
        relation = mechanism.relation(adjacency)
        if orders is not None and name != "rdp":
            raise ValueError(f"`orders` must be None with method={name!r}, got {orders!r}: only method='rdp' takes it")
        if relation == "replace" and name == "rdp" and mechanism.steps_loss(relation) is None:
            raise ValueError(
                "`method` must be 'exact' or 'pld' for adjacency='replace' with sample_rate < 1, got 'rdp'"
            )
        if name != "exact" and mechanism.steps_loss(relation) is None and not isinstance(mechanism, Poisson):
            raise ValueError(f"`method` must be 'exact' for {type(mechanism).__name__}, got {name!r}")
        return cls(mechanism, relation, name, _orders(orders), mechanism.steps_loss(relation))

    def with_noise(self, sigma: float) -> Accountant:
        """The same with another noise multiplier."""
        changed = self.mechanism.with_noise(sigma)
        return dataclasses.replace(self, mechanism=changed, loss=changed.steps_loss(self.relation))

    @property
    def curve(self) -> Curve:
        """The profile by the method, which is not "rdp"."""
        if self.method == "exact":
            return self.mechanism.curve(self.relation)
        replaced = self.loss is None
        return DiscreteLoss(self._added if self.loss is None else self.loss, pessimistic=True, replaced=replaced)

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions of the profile that differ."""
        return ("remove",) if self.mechanism.is_symmetric(self.relation) else ("remove", "add")

    @property
    def silent(self) -> bool:
        """Whether nothing leaks."""
        return self._added.silent if isinstance(self.mechanism, Poisson) else self.separation == 0.0

    @property
    def separation(self) -> float:
        """Separation of a Gaussian pair that leaks at least as much; ∞ where none is known."""
        return self.mechanism.separation(self.relation)

    def total_variation(self) -> float:
        """An upper bound of δ(0)."""
        if self.loss is not None:
            return self.loss.total_variation()
        return 2.0 * self._added.total_variation() if isinstance(self.mechanism, Poisson) else 1.0

    @property
    def _added(self) -> PrivacyLoss:
        loss = self.mechanism.steps_loss("add-remove")
        assert loss is not None
        return loss


def _orders(orders: Any) -> Any:
    if orders is None:
        return None
    if isinstance(orders, str):
        from leakcore.numerics import AUTHORS_ORDERS

        validate.one_of("authors", orders=orders)
        return AUTHORS_ORDERS
    return validate.real_array("above 1", lambda v: v > 1.0, orders=orders).ravel()


@contextlib.contextmanager
def naming(mechanism: Mechanism) -> Iterator[None]:
    """Adds the mechanism to an AccuracyError, so that swapped σ and q are seen."""
    try:
        yield
    except AccuracyError as error:
        if "noise_multiplier=" in str(error):
            raise
        hint = "; method='pld' gives an upper bound"
        hint = hint if isinstance(mechanism, Poisson) and "method=" not in str(error) else ""
        raise AccuracyError(f"{error}, of {mechanism!r}{hint}") from error


NEGLIGIBLE = 1e-6
"""An upper bound of ε that is as good as the exact value: what "exact" promises."""
_SOURCES = {
    "exact": "privacy profile of the dominating pair (Zhu, Dong and Wang 2022)",
    "exact, bounded": "privacy profile of the dominating pair, lattice laws from both sides (Doroshenko et al. 2022)",
    "bracket": "privacy profiles of an upper and of a lower pair (Zhu, Dong and Wang 2022)",
    "pld": "dp-accounting, privacy loss distributions, pessimistic (Doroshenko et al. 2022)",
    "rdp": "dp-accounting, Renyi differential privacy (Mironov, Talwar and Zhang 2019; Canonne et al. 2020)",
}
_ATTACKER = "sees every noisy gradient sum and all model states, knows every other record and the hyperparameters"


def label(accountant: Accountant, limits: tuple[float, float], size: float) -> str:
    """The method's name, which says where the limits of "exact" are wider than promised; `size` is the result's."""
    if accountant.method != "exact":
        return accountant.method
    if not accountant.mechanism.is_exact(accountant.relation):
        return "bracket"
    low, high = limits
    return "exact, bounded" if low < high and not high - low <= NEGLIGIBLE * (1.0 + abs(size)) else "exact"


def provenance(accountant: Accountant, route: str) -> str:
    """How the number was computed, and what it rests on."""
    return f"{_SOURCES[route]}; {accountant.mechanism.proof(accountant.relation)}"


def assumptions(accountant: Accountant, more: tuple[str, ...] = ()) -> Assumptions:
    """Adjacency, the attacker, how batches are drawn, and `more` notes."""
    notes = accountant.mechanism.notes(accountant.relation)
    return Assumptions(adjacency=accountant.relation, attacker=_ATTACKER, notes=notes + more)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Epsilon(Result):
    """ε at a δ, as `accounting.epsilon` returns it.

    Attributes:
        value: the smallest ε that the method proves at `delta`.
        delta: the δ that was asked for.
        poisson_claim: ε that accounting as Poisson sampling claims, for a mechanism that is often accounted for so; it
            may lie below the lower limit. Else None.
    """

    quantity: str = "ε"
    delta: float
    poisson_claim: float | None = None


@timed
@over_grids
@one_thread()
def epsilon(
    noise_multiplier: Any,
    sample_rate: Any = None,
    steps: int | None = None,
    *,
    delta: float,
    adjacency: str | None = None,
    method: str = "exact",
    orders: Any = None,
) -> Epsilon:
    """The smallest ε ≥ 0 for which a mechanism is proved (ε, δ)-private.

    The larger of δ_remove(ε) = E_μ(1 − e^{ε−L})_+ and δ_add(ε) = E_ν(1 − e^{ε+L})_+ of the mechanism's pair (Zhu, Dong
    and Wang 2022). Three numbers stand for `mechanisms.Poisson`. More: docs/explanation/bounds.md.

    Args:
        noise_multiplier: a mechanism; or σ_t in [0, ∞], relative to the clipping norm, a number or an array of length
            `steps`.
        sample_rate: q_t in [0, 1]; likewise. None with a mechanism.
        steps: T ≥ 0. None with a mechanism.
        delta: δ in [0, 1).
        adjacency: "add-remove", "zero-out" or "replace"; None: the mechanism's own, add-remove for Poisson sampling.
        method: "exact", "pld" or "rdp"; the last two for Poisson sampling and full batches.
        orders: Rényi orders of method "rdp", each above 1. None takes dp-accounting's default, "authors" the orders of
            Hayes et al. (2023).

    Returns:
        `Epsilon` of kind "upper". T = 0, q = 0 or σ = ∞ give 0; δ = 0 or σ = 0 give inf where anything leaks beyond δ.

    Raises:
        ValueError, TypeError: for an argument that is not allowed, which the text names.
        ImportError: for "pld" and "rdp" without dp-accounting.
        AccuracyError: (an ArithmeticError) where a method has no answer.

    Guarantees:
        Deterministic. `interval` is the numerical error of "exact", or a bracket where `method` says so; the value is
        its upper end. The other methods have no interval.

    Example:
        >>> from leakcore import accounting
        >>> spent = accounting.epsilon(1.0, 0.01, 1000, delta=1e-5)
        >>> f"{spent.value:.3f}", spent.kind, spent.adjacency
        ('1.828', 'upper', 'add-remove')
    """
    accountant = Accountant.parse(
        noise_multiplier, sample_rate, steps, adjacency=adjacency, method=method, orders=orders
    )
    target = validate.below_one(delta=delta)
    with naming(accountant.mechanism):
        low, high = epsilon_limits(accountant, target)
    claimed = accountant.mechanism.poisson_claim
    route = label(accountant, (low, high), high)
    return Epsilon(
        value=high,
        kind="upper",
        confidence=None,
        interval=(low, high) if accountant.method == "exact" else None,
        method=route,
        assumptions=assumptions(accountant),
        provenance=provenance(accountant, route),
        delta=target,
        poisson_claim=None if claimed is None else float(epsilon(claimed, delta=target)),
    )


def epsilon_limits(
    accountant: Accountant,
    delta: float,
    *,
    precision: Precision = BEST,
    directions: tuple[str, ...] = ("remove", "add"),
) -> tuple[float, float]:
    """(low, high) of the smallest ε ≥ 0. directions: which profiles count."""
    loss, method = accountant.loss, accountant.method
    if accountant.silent:
        return 0.0, 0.0
    if delta == 0.0 or (loss is not None and loss.log_no_escape != 0.0 and method != "exact"):
        return math.inf, math.inf
    target = math.log(delta)
    if method == "rdp":
        from leakcore.numerics import rdp_epsilon

        assert loss is not None
        value = rdp_epsilon(loss, target, accountant.orders)
        return value, value
    if method == "exact" and (high := _next_to_nothing(accountant, delta)) < NEGLIGIBLE:
        return 0.0, high
    curve = accountant.curve
    low, high = -math.inf, -math.inf
    for direction in directions:
        if direction not in accountant.directions and low > -math.inf:
            continue
        # ε of adding ends at −minimum.
        if direction == "add" and loss is not None and -loss.minimum - loss.log_no_escape <= low > -math.inf:
            continue
        pair = curve.epsilon(target, direction, precision=precision)
        if math.isnan(pair[0]) or math.isnan(pair[1]):  # `max` would pass over it, and leave no bound at all
            pair = (-math.inf, math.inf)
        low, high = max(low, pair[0]), max(high, pair[1])
    if high == math.inf and method == "exact" and accountant.separation < math.inf:
        high = gaussian_pair.epsilon_limits(target, accountant.separation)[1]
    return max(0.0, low), max(0.0, high)


def _next_to_nothing(accountant: Accountant, delta: float) -> float:
    """An upper bound of ε ≥ 0 for losses too small, or δ too large, for the profile: 0 where δ is beyond the total
    variation, else the full batches' ε."""
    if accountant.total_variation() * (1.0 + 1e-12) <= delta:
        return 0.0
    separation = accountant.separation
    return (
        max(0.0, gaussian_pair.epsilon_limits(math.log(delta), separation)[1])
        if separation < MIN_SEPARATION
        else math.inf
    )


def above(log_value: float) -> float:
    """e^log_value ≤ 1, rounded up where it is too small for a float's full precision: 0 for −inf only."""
    value = math.exp(log_value)
    return math.nextafter(value, 1.0) if value < TINY and log_value > -math.inf else value


def to_replacement(claim: Epsilon) -> Epsilon:
    """A claim under add-remove adjacency as one under replacement, by group privacy alone.

    Replacing a row is removing one and adding another, so (ε, δ) becomes (2ε, (1 + e^ε)δ) (Dwork and Roth 2014, Section
    2.3). This is loose: where the configuration is known, `epsilon(..., adjacency="replace")` is tighter and keeps δ.

    Args:
        claim: a result of `epsilon` under add-remove adjacency.

    Returns:
        `Epsilon` of kind "upper" under adjacency "replace", with its own, larger `delta`.

    Raises:
        ValueError: for a claim that is not under add-remove adjacency.
        TypeError: for anything but an `Epsilon`.

    Guarantees:
        Deterministic; δ is rounded up.

    Example:
        >>> from leakcore import accounting
        >>> claim = accounting.epsilon(1.0, 1.0, 1, delta=1e-5)
        >>> replaced = accounting.to_replacement(claim)
        >>> f"{claim.value:.2f} at {claim.delta:.0e} becomes {replaced.value:.2f} at {replaced.delta:.1e}"
        '4.38 at 1e-05 becomes 8.75 at 8.1e-04'
        >>> f"{accounting.epsilon(1.0, 1.0, 1, delta=1e-5, adjacency='replace').value:.2f}"
        '10.00'
    """
    if not isinstance(claim, Epsilon):
        raise TypeError(f"`claim` must be an Epsilon, as accounting.epsilon returns it, got {claim!r}")
    if claim.adjacency != "add-remove":
        raise ValueError(f"`claim` must be under add-remove adjacency, got one under {claim.adjacency} adjacency")
    value = float(claim.value)
    log_delta = -math.inf
    if claim.delta:  # e^ε may overflow
        log_delta = math.log(claim.delta) + max(value, 0.0) + math.log1p(math.exp(-abs(value)))
        log_delta += 1e-15 * (1.0 + abs(math.log(claim.delta)) + abs(value))
    return Epsilon(
        value=2.0 * value,
        kind="upper",
        confidence=None,
        interval=None,
        method=f"{claim.method}, group privacy",
        assumptions=Assumptions(
            adjacency="replace",
            attacker=claim.assumptions.attacker,
            notes=("k=2 add/remove steps; delta has grown too",),
        ),
        provenance=f"group privacy (Dwork and Roth 2014, Section 2.3); {claim.provenance}",
        delta=above(min(log_delta, 0.0)),
    )
