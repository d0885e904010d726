"""The lecture's seven defences against four attacks: what each attack still gets, and what each defence costs."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from scipy import stats

from leakcore import kernels
from leakcore._base.process_wide import one_thread
from leakcore.experiments.driver.context import Context
from leakcore.experiments.driver.result import ExperimentResult, Panel, Series, Stated, TextTable
from leakcore.experiments.driver.verdict import Check
from leakcore.experiments.lecture.cells import ATTACKS, NEAR, Sizes, Strength, accuracy, gained
from leakcore.numerics import clopper_pearson

_CONFIDENCE = 0.95
_COST = "accuracy"
_DEFENCES = {
    "local aggregation": ("local steps k", (2, 4)),
    "gradient noise": ("length of the noise ÷ the gradient's", (1e-2, 1, 10)),
    "clipping": ("‖g‖/s", (4, 16)),
    "DP-SGD": ("length of the noise ÷ the gradient's", (1e-2, 1, 10)),
    "dropout": ("probability to keep a unit", (0.5, 0.1)),
    "pruning": ("share of entries kept", (0.1, 0.01)),
}
"""Defence -> what its strength is, and its strengths, the strongest last."""
_BOUNDED = ("local aggregation", "gradient noise", "DP-SGD", "dropout")
"""Defences whose bound in the lecture's table grows with their strength."""
_ROLES = {**{attack: f"attack-{i + 1}".removesuffix("-1") for i, attack in enumerate(ATTACKS)}, _COST: "baseline"}
_NOTES = (
    (
        "tensor method and inversion: two-layer ELU networks, rows of unit length (d = 8, two in a minibatch); a row "
        f"counts as reconstructed within a distance of {NEAR:g}; the tensor method sees dL/da of a wide network, the "
        "inversion the whole gradient of a small one, and knows the targets"
    ),
    (
        "label attack: Algorithm 3 on the last layer of a network on digits, whose inputs are known; the label is the "
        "class of least residual, right for one row in ten by chance"
    ),
    (
        "imprint: a malicious server's module in front of the same network; a row counts as read if no pixel is off by "
        "more than 0.1 of the range"
    ),
    (
        "strengths are relative to the release that is attacked; DP-SGD clips each row to the median norm; local "
        "steps: each has a minibatch of its own"
    ),
    (
        "accuracy: of a network trained on digits with the defence that fits its first batch, on held-out rows, at a "
        "learning rate that was not tuned for each defence"
    ),
    (
        "intervals of shares: Clopper–Pearson with a network as one trial, rounded outward; of "
        "accuracies: Student's t; no attack here is a bound on another attacker"
    ),
)


def defenses(context: Context) -> ExperimentResult:
    """Every defence at several strengths against every attack, on several networks."""
    networks = context.pick("networks", tiny=2, quick=5, paper=20)
    sizes = context.pick(
        tiny=Sizes(3000, 60, 8, (1, 20), 5),
        quick=Sizes(10_000, 200, 16, (2, 100), 60),
        paper=Sizes(100_000, 1000, 16, (20, 400), 400),
    )
    strengths = [Strength()] + [
        Strength(defence, float(value))
        for defence, (_, values) in _DEFENCES.items()
        for value in context.pick(quick=values, paper=values, tiny=values[-1:])
    ]
    measured, errors = _measured(context, strengths, sizes, networks)
    columns = (*ATTACKS, _COST)
    none = strengths[0]
    last = {s.defence: s for s in strengths[1:]}

    def rises(attack: str, defence: str) -> bool:
        """Whether its error is larger in every network, which luck alone gives one time in 2^networks."""
        return bool((errors[attack, last[defence]] > errors[attack, none]).all())

    tensor = ATTACKS[0]
    raised = [defence for defence in _BOUNDED if rises(tensor, defence)]
    clipped = [s for s in strengths if s.defence == "clipping"]
    unmoved = [s for s in clipped if np.allclose(errors[tensor, s], errors[tensor, none], rtol=1e-3, atol=0)]
    mean = {key: float(np.mean(shares)) for key, shares in measured.items()}
    stops = [s for s in strengths[1:] if all(mean[a, s] <= 0.5 * mean[a, none] for a in ATTACKS)]
    good = [s for s in stops if mean[_COST, s] >= mean[_COST, none] - 0.05]
    return context.result(
        conclusion=(
            f"Every attack loses at least half of its rows under {_listed(stops)}"
            if stops
            else "No defence at any strength here takes half of its rows from every attack"
        )
        + (
            f"; of these, {_listed(good) if good else 'none'} trains within 5 points of the undefended accuracy."
            if stops
            else "."
        ),
        checks=[
            Check(
                says="clipping leaves the tensor method's error as it is, by strength",
                holds=len(unmoved),
                cases=len(clipped),
            ),
            Check(
                says="a defence whose bound grows raises the tensor method's error in every network, at its greatest "
                "strength",
                holds=len(raised),
                cases=len(_BOUNDED),
                chance=0.5**networks,
            ),
        ],
        stated=[_stated(s, column, measured[column, s]) for s in strengths for column in columns],
        panels=[_panel(defence, strengths, measured) for defence in _DEFENCES],
        tables=[
            TextTable(
                "What each attack gets under each defence (share of rows, 95% interval; mean error of rows "
                "of unit length), and the accuracy of training with it",
                ("defence", *columns),
                tuple(
                    (_named(s), *(_cell(column, measured[column, s], errors[column, s]) for column in columns))
                    for s in strengths
                ),
            )
        ],
        notes=_NOTES,
        data=("drawn: inputs uniform on the unit sphere", "scikit-learn's digits"),
        settings={"networks": networks, "neurons": sizes.neurons, "rows": sizes.rows, "steps": sizes.steps},
        provenance="Lecture 13 (Lei 2024), Sections 5.1 to 5.3 and Table 1; the package's label attack and imprint",
    )


def _measured(
    context: Context, strengths: list[Strength], sizes: Sizes, networks: int
) -> tuple[dict[tuple[str, Strength], np.ndarray], dict[tuple[str, Strength], np.ndarray]]:
    """(networks,) shares of every attack under every defence, and accuracies of training with it; errors likewise."""
    seeds = [kernels.subseed(context.seed, kernels.Stream.DEFENCES_NETWORKS, row=i) for i in range(networks)]
    names = {
        f"{column}-{s.defence}-{s.value:g}".replace(" ", "-"): (column, s)
        for s in strengths
        for column in (*ATTACKS, _COST)
    }
    jobs = {name: functools.partial(_shares, *of, sizes, seeds) for name, of in names.items()}
    pieces = context.finish("defences and attacks", jobs)
    shares, errors = ({of: np.array(pieces[name][key]) for name, of in names.items()} for key in ("shares", "errors"))
    return shares, errors


def _shares(column: str, strength: Strength, sizes: Sizes, seeds: list[int]) -> dict[str, Any]:
    import torch  # noqa: F401  # before the limit on its threads

    with one_thread():
        if column == _COST:
            shares = [accuracy(strength, sizes, seed) for seed in seeds]
            return {"shares": shares, "errors": [1.0 - share for share in shares]}
        both = [gained(column, strength, sizes, seed) for seed in seeds]
        return {"shares": [share for share, _ in both], "errors": [error for _, error in both]}


def _interval(column: str, shares: np.ndarray) -> tuple[float, float]:
    """Of the mean over networks: Student's t for an accuracy. Clopper–Pearson for a share of rows, with a network as a
    trial, because the rows of one release are not independent; the sum of shares is rounded outward."""
    count, total = len(shares), float(np.sum(shares))
    if column == _COST:
        reach = stats.t.ppf(0.5 + _CONFIDENCE / 2, count - 1) * np.std(shares, ddof=1) / math.sqrt(count)
        return max(0.0, total / count - float(reach)), min(1.0, total / count + float(reach))
    low, _ = clopper_pearson(math.floor(total + 1e-9), count, confidence=_CONFIDENCE)
    _, high = clopper_pearson(math.ceil(total - 1e-9), count, confidence=_CONFIDENCE)
    return float(low), float(high)


def _named(strength: Strength) -> str:
    if strength.defence == "none":
        return "no defence"
    return f"{strength.defence}, {_DEFENCES[strength.defence][0]} {strength.value:g}"


def _listed(strengths: list[Strength]) -> str:
    return ", ".join(f"{s.defence} at {s.value:g}" for s in strengths)


def _what(column: str) -> str:
    return "accuracy of training" if column == _COST else f"share of rows that the {column} gets"


def _cell(column: str, shares: np.ndarray, errors: np.ndarray) -> str:
    low, high = _interval(column, shares)
    error = f", error {np.mean(errors):.2g}" if column in ATTACKS[:2] else ""
    return f"{np.mean(shares):.2f} [{low:.2f}, {high:.2f}]{error}"


def _stated(strength: Strength, column: str, shares: np.ndarray) -> Stated:
    return Stated(
        f"{_named(strength)}: {_what(column)}",
        "not stated",
        float(np.mean(shares)),
        interval=_interval(column, shares),
        kind="estimate",
        confidence=_CONFIDENCE,
    )


def _panel(defence: str, strengths: list[Strength], measured: dict[tuple[str, Strength], np.ndarray]) -> Panel:
    over, _ = _DEFENCES[defence]
    at = sorted((s for s in strengths if s.defence == defence), key=lambda s: s.value)
    series = []
    for column, role in _ROLES.items():
        shares = [measured[column, s] for s in at]
        ends = np.array([_interval(column, v) for v in shares])
        bars = {} if column == _COST else {"low": ends[:, 0], "high": ends[:, 1]}
        name = "accuracy of training" if column == _COST else column
        y = np.array([float(np.mean(v)) for v in shares])
        series.append(Series.of(name, role, [s.value for s in at], y, **bars))
    return Panel(defence, over, "share of rows", tuple(series), log_x=True)
