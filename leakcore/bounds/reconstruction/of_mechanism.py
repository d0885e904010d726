"""B_κ of any mechanism: of sampled Gaussian steps by every method, of others by lattice laws or by samples."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from leakcore._base.process_wide import one_thread
from leakcore._base.results import Assumptions
from leakcore.bounds.methods import Auto, Certified, Exact, Method
from leakcore.bounds.reconstruction.arguments import Kappa, ReconstructionBound, SampledGaussian
from leakcore.bounds.reconstruction.pair import StatedPair
from leakcore.mechanisms import Mechanism, Poisson
from leakcore.numerics import gaussian_pair

_ATTACKER = (
    "sees every noisy gradient sum and all model states, knows every other record, the hyperparameters and the prior"
)


def bound_of_mechanism(mechanism: Mechanism, prior: Kappa, method: Method) -> ReconstructionBound:
    """The bound under the mechanism's own relation; ValueError for a method that does not cover it."""
    loss = mechanism.steps_loss(mechanism.adjacency)
    if isinstance(mechanism, Poisson):
        return method.bound(SampledGaussian.of(mechanism), prior)
    if loss is not None and not (isinstance(method, Auto | Exact) and SampledGaussian.too_long(loss)):
        out = method.bound(SampledGaussian.of_loss(loss), prior)
        return dataclasses.replace(out, **_statements(mechanism, out.assumptions.notes, out.provenance))
    if isinstance(method, Certified):
        out = method.bound_of(StatedPair(mechanism), prior)
        notes = out.assumptions.notes
        if not mechanism.is_exact(mechanism.adjacency):
            # The pair that is drawn dominates the mechanism, which may leak less than it.
            notes = (*notes, "interval: the pair dominates the mechanism, so that only the upper end is one of attacks")
            assert out.interval is not None
            assert out.log_interval is not None
            out = dataclasses.replace(
                out, interval=(out.kappa, out.interval[1]), log_interval=(out.log_kappa, out.log_interval[1])
            )
        return dataclasses.replace(out, **_statements(mechanism, notes, out.provenance))
    if not isinstance(method, Auto | Exact):
        raise ValueError(
            f"`method` must be 'auto', 'exact' or 'certified' for {type(mechanism).__name__}, got {method.name!r}"
        )
    low, high = limits(mechanism, prior.log)
    claimed = mechanism.poisson_claim
    exact = mechanism.is_exact(mechanism.adjacency)
    return ReconstructionBound(
        kind="upper",
        confidence=None,
        method="exact" if exact else "bracket",
        poisson_claim=None if claimed is None else bound_of_mechanism(claimed, prior, Auto()).value,
        **_statements(mechanism, ("interval: numerical error, rounded outward",) if exact else (), _SOURCE),
        **prior.fields(high, low, high, proved=True),
    )


_SOURCE = "Hayes, Mahloujifar and Balle (2023), Theorem 2 and equation (3)"


@one_thread()
def limits(mechanism: Mechanism, log_kappa: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) of log B_κ under the mechanism's own relation, for each of a 1-d array."""
    low, high = mechanism.curve(mechanism.adjacency).log_blow_up(log_kappa)
    separation = mechanism.separation(mechanism.adjacency)
    if separation < np.inf:
        most = gaussian_pair.log_blow_up(log_kappa, separation) + gaussian_pair.log_blow_up_error(log_kappa, separation)
        high = np.minimum(high, most + 1e-14)
    high = np.clip(high, log_kappa, 0.0)
    return np.minimum(np.clip(low, log_kappa, 0.0), high), high


def _statements(mechanism: Mechanism, notes: tuple[str, ...], provenance: str) -> dict[str, Any]:
    """What the result assumes, and what it rests on."""
    relation = mechanism.adjacency
    return {
        "assumptions": Assumptions(adjacency=relation, attacker=_ATTACKER, notes=mechanism.notes(relation) + notes),
        "provenance": f"{provenance}; {mechanism.proof(relation)}",
    }
