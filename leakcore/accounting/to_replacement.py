"""A claim under add/remove as one under replacement."""

from __future__ import annotations

import math

from leakcore._base.results import Assumptions
from leakcore.accounting.delta import above
from leakcore.accounting.epsilon import Epsilon


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
