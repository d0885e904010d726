"""ε of the ten points that were slowest in the kept result of `bench.accounting_grid`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.accounting_grid import NAMES
from bench.case import Case, Contender
from leakcore import accounting

KEPT = Path(__file__).resolve().parent.parent / "results" / "accounting-grid-epyc-2core.json"


def cases(quick: bool) -> list[Case]:
    slowest = json.loads(KEPT.read_text(encoding="utf-8"))["summary"]["slowest_ten"]
    points = [{name: row[name] for name in NAMES} for row in slowest]
    return [_epsilon(at) for at in (points[-1:] if quick else points)]


def _epsilon(at: dict[str, Any]) -> Case:
    def ours(_: Any) -> Callable[[], Any]:
        return lambda: accounting.epsilon(**at).value

    sigma, rate, steps, delta, adjacency = (at[name] for name in NAMES)
    return Case(
        "accounting",
        f"ε at σ={sigma:g} q={rate:g} T={steps:g} δ={delta:g}, {adjacency}",
        lambda: None,
        (Contender("leakcore", ours),),
        1,
        "ε",
        limit="none useful: Fourier transforms and a search, not a stream",
        seconds=8,
    )
