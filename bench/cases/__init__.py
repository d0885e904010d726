"""The jobs, one module per kernel. Importing them imports neither torch nor a peer: their contenders do, when built."""

from __future__ import annotations

from bench.case import Case
from bench.cases import (
    accounting,
    allocation,
    clip,
    cuda,
    curve,
    ensemble,
    label_bound,
    mechanisms,
    mixture,
    monte_carlo,
    optimizer,
    reconstructions,
    scores,
    sensitivity,
    solve_labels,
)


def all_cases(device: str, quick: bool) -> list[Case]:
    """Every case of a device; `quick` takes small ones and few of them."""
    if device == "cuda":
        return cuda.cases(quick)
    return [
        *mixture.cases(quick),
        *allocation.cases(quick),
        *clip.cases(quick),
        *solve_labels.cases(quick),
        *label_bound.cases(quick),
        *curve.cases(quick),
        *accounting.cases(quick),
        *mechanisms.cases(quick),
        *monte_carlo.cases(quick),
        *optimizer.cases(quick),
        *reconstructions.cases(quick),
        *scores.cases(quick),
        *ensemble.cases(quick),
        *sensitivity.cases(quick),
    ]
