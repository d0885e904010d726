"""Figure 2's panels: against the provable ε, and against the number of training rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from leakcore.experiments.auditing import setting
from leakcore.experiments.result import Panel, Series


class Cell(NamedTuple):
    """One mechanism: data, network, start of the models, ε_th under add/remove."""

    data: str
    net: str
    start: str
    epsilon: float

    def __str__(self) -> str:
        provable = "∞" if math.isinf(self.epsilon) else f"{self.epsilon:g}"
        return f"{self.data} {self.net}, start {self.start}, ε_th = {provable}"


_LOOKS = {
    ("clipbkd", "fixed"): ("ClipBKD, fixed start", "attack"),
    ("clipbkd", "σ"): ("ClipBKD, random start", "attack-2"),
    ("backdoor", "fixed"): ("backdoor, fixed start", "attack-3"),
    ("backdoor", "σ"): ("backdoor, random start", "orthogonal"),
    ("membership", "σ"): ("membership, random start, over coins", "baseline"),
}
Proved = Mapping[tuple[Cell, str], float]


def against_epsilon(
    data: str, net: str, batches: int, epsilons: Sequence[float], proved: Proved, ceiling: float
) -> Panel:
    """One data set and network; ∞ is drawn at four times the last finite value."""
    finite = [e for e in epsilons if math.isfinite(e)]
    at = {e: e if math.isfinite(e) else 4 * max(finite) for e in epsilons}
    series = []
    for (attack, start), (name, role) in _LOOKS.items():
        cells = [Cell(data, net, start, e) for e in epsilons]
        points = [(at[c.epsilon], proved[c, attack]) for c in cells if (c, attack) in proved]
        if points:
            x, y = np.array(points).T
            series.append(Series(name=name, role=role, x=x, y=y))
    span = np.array([0.8 * min(at.values()), 1.2 * max(at.values())])
    line = np.geomspace(span[0], 1.2 * max(finite), 12)
    top = max(1.3 * ceiling, 1.05 * max(float(s.y.max()) for s in series))
    series += [
        Series(name="ε_th (add/remove)", role="bound", x=line, y=line),
        Series(
            name="the same under replacement",
            role="rdp",
            x=line,
            y=np.array([setting.provable(setting.noise_for(float(e), batches), batches, "replace") for e in line]),
        ),
        Series(name="ε_OPT of counts", role="chance", x=span, y=np.full(2, ceiling)),
    ]
    return Panel(
        title=f"{data}, {net}", x_label=f"provable ε at δ = 1e-5 ({max(at.values()):g} stands for ∞)",
        y_label="audited ε (lower, 99%)", log_x=True, y_range=(0.0, top), series=tuple(series),
    )  # fmt: skip
