"""Figure 2: audited ε by three attacks against the provable ε."""

from __future__ import annotations

import math

import numpy as np

from leakcore import bounds
from leakcore.experiments.auditing import setting
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Series, Stated
from leakcore.experiments.verdict import Check

_TRIAL = {16.0: (3.2, 1.6, 0.0), 4.0: (1.1, 0.66, 0.0), 1.0: (0.34, 0.11, 0.0)}
"""An earlier trial of ours on Fashion-MNIST: ClipBKD, best backdoor, membership; full batches."""


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """Full batches with noise; shuffled minibatches where ε_th = ∞, because full batches without noise are constant."""
    count = context.pick("rows", tiny=60, quick=240, paper=6000)
    trials = context.pick("trainings of each cell", tiny=8, quick=500, paper=500)
    epsilons = context.pick(
        "values of ε",
        tiny=(4.0, math.inf),
        quick=(1.0, 4.0, 16.0, math.inf),
        paper=(1.0, 2.0, 4.0, 8.0, 16.0, math.inf),
    )
    ks = context.pick("poisoned rows k", tiny=(1, 2), quick=(1, 4), paper=(1, 2, 4, 8))
    nets: dict[str, tuple[int, ...]] = context.pick("networks",
        tiny={"LR": ()}, quick={"LR": ()}, paper={"LR": (), "FNN-32": (32,)}
    )  # fmt: skip
    sets = [setting.fashion_mnist(context, count)]
    if context.scale != "tiny":
        sets += [
            setting.cifar10(context, count),
            setting.location30(context, context.pick("rows of Location-30", quick=120, paper=4800)),
        ]
    panels, stated, proven = [], [], {}
    ceiling = float(bounds.epsilon_opt(trials, confidence=setting.CONFIDENCE, delta=setting.DELTA).value)
    for rows in sets:
        for net, hidden in nets.items():
            lines: dict[str, list[float]] = {n: [] for n in ("clipbkd", "gaussian", "backdoor", "membership")}
            for epsilon in epsilons:
                where = f"{rows.name} {net}, ε_th = {_shown(epsilon)}"
                noise = setting.noise_for(epsilon)
                loud = noise > 0
                batch = (
                    None
                    if loud
                    else len(rows.labels) // context.pick("batches an epoch without noise", quick=4, paper=24)
                )
                mechanism = setting.AuditedTraining(hidden, noise, batch_size=batch)
                poisoned = setting.audited(context, rows, mechanism, "clipbkd", ks, trials, f"ClipBKD, {where}")
                lines["clipbkd"].append(float(poisoned["dp"].value))
                lines["gaussian"].append(float(poisoned["gdp"].value) if loud else math.nan)
                limits = (
                    f"Gaussian bound {lines['gaussian'][-1]:.3g}; provable under replacement "
                    f"{setting.provable(noise, 'replace'):.3g}"
                )
                stated.append(
                    _row(where, rows.name, epsilon, "clipbkd", poisoned["dp"].chosen, lines["clipbkd"][-1],
                         limits if loud else "shuffled minibatches")
                )  # fmt: skip
                if rows.shape is not None:
                    door = setting.audited(context, rows, mechanism, "backdoor", ks, trials, f"backdoor, {where}")
                    lines["backdoor"].append(float(door["dp"].value))
                    stated.append(
                        _row(where, rows.name, epsilon, "backdoor", door["dp"].chosen, lines["backdoor"][-1], "")
                    )
                full = setting.AuditedTraining(hidden, noise)
                guessed = setting.guessed(context, rows, full, max(4, trials // 50), f"membership, {where}")
                lines["membership"].append(guessed.bound)
                remark = f"accuracy {guessed.accuracy:.4f}; the paper's estimate {guessed.estimate:.3g}"
                stated.append(_row(where, rows.name, epsilon, "membership", "over coins", guessed.bound, remark))
                for name in ("clipbkd", "backdoor", "membership"):
                    if lines[name]:
                        proven[rows.name, net, epsilon, name] = lines[name][-1]
            panels.append(_panel(f"{rows.name}, {net}", epsilons, lines, ceiling, rows.shape is not None))
    settings = [(r, n, e) for r, n, e, name in proven if name == "clipbkd"]
    with_door = [key for key in settings if (*key, "backdoor") in proven]

    def proved(key: tuple[str, str, float], name: str) -> float:
        at = (*key, name)
        return proven[at]

    guessed_at = [key for key in settings if proved(key, "membership") > 0]
    beats_membership = sum(proved(key, "clipbkd") > 2.5 * proved(key, "membership") for key in guessed_at)
    beats_doors = sum(proved(key, "clipbkd") > proved(key, "backdoor") for key in with_door)
    perfect = [proven[r, n, e, "clipbkd"] for r, n, e, name in proven if name == "clipbkd" and math.isinf(e)]
    noisy = [key for key in settings if math.isfinite(key[2])]
    near = [proved(key, "clipbkd") * 12.3 >= setting.provable(setting.noise_for(key[2]), "replace") for key in noisy]
    findings = Findings(
        panels=panels,
        stated=stated,
        checks=[
            Check(says="ClipBKD proves more than the backdoor", holds=beats_doors, cases=len(with_door), chance=0.5),
            Check(
                says="it proves more than 2.5 times what membership guesses prove, where these prove anything",
                holds=beats_membership,
                cases=len(guessed_at),
                about="size",
            ),
            Check(
                says="it proves at least 1/12.3 of the provable ε under replacement",
                holds=sum(near),
                cases=len(near),
                about="size",
            ),
        ],
        conclusion=f"Membership guesses prove nothing in {len(settings) - len(guessed_at)} of {len(settings)} "
        "settings. (They are audited under add/remove, and without noise in full batches.) Without noise, in "
        f"shuffled minibatches from one fixed start, ClipBKD proves {', '.join(f'{v:.2f}' for v in perfect)}; {trials} "
        f"trials can prove {ceiling:.2f} at most. {_gaussian(panels)}",
        notes=_NOTES,
    )
    return experiment.result(
        context,
        findings,
        data=(r.described for r in sets),
        settings={
            "rows": count,
            "trials": trials,
            "k": ks,
            "confidence": setting.CONFIDENCE,
            "clip": 1.0,
            "learning rate / batch": 0.15 / 250,
            "epochs": setting.EPOCHS,
            "delta": setting.DELTA,
        },
        provenance=setting.SOURCE,
    )


_NOTES = (
    (
        "poisoning replaces k rows, membership is add/remove; ε_th on the axis is under add/remove as in the paper; "
        "a poisoning bound may only be compared with the same mechanism's ε under replacement, in the table"
    ),
    "threshold and k are chosen on separate trials; bounds on ε at δ = 1e-5, at 99%, each for its own point",
    (
        "with noise: full batches, one fixed Glorot start. Without: shuffled minibatches, because a full-batch run "
        "without noise is a constant: every attack on it ties"
    ),
    (
        "membership: rows in or out by coins of their own, threshold from other models; the paper's number, by the "
        "accuracy alone, is an estimate"
    ),
)


def _gaussian(panels: list[Panel]) -> str:
    """How much more the Gaussian family proves of the same models."""
    lines = [{s.name: s for s in panel.series} for panel in panels]
    ratios = [
        float(g / c)
        for by_name in lines
        for c, g in zip(by_name["ClipBKD"].y, by_name["ClipBKD, Gaussian bound"].y, strict=False)
        if c > 0
    ]
    if not ratios:
        return "No finite ε_th was proved to leak."
    return f"The Gaussian bound proves {min(ratios):.1f} to {max(ratios):.1f} times as much on the same models."


def _row(where: str, name: str, epsilon: float, attack: str, how: str, ours: float, comment: str) -> Stated:
    return Stated(
        what=f"{where}: {attack}, {how}", paper=_paper(name, epsilon, attack), ours=ours, comment=comment, kind="lower",
        confidence=setting.CONFIDENCE,
    )  # fmt: skip


def _panel(
    title: str, epsilons: tuple[float, ...], lines: dict[str, list[float]], ceiling: float, images: bool
) -> Panel:  # fmt: skip
    # ∞ is drawn at four times the last finite value.
    finite = [e for e in epsilons if math.isfinite(e)]
    x = np.array([e if math.isfinite(e) else 4 * max(finite) for e in epsilons])
    span = np.array([0.8 * x.min(), 1.2 * x.max()])
    names = {"clipbkd": ("ClipBKD", "attack"), "backdoor": ("backdoor", "attack-3"),
             "membership": ("membership, over coins", "baseline")}  # fmt: skip
    series = [
        Series(name=label, role=role, x=x, y=np.array(lines[key]))
        for key, (label, role) in names.items()
        if key != "backdoor" or images
    ]
    loud = np.isfinite(lines["gaussian"])
    series.append(
        Series(name="ClipBKD, Gaussian bound", role="attack-2", x=x[loud], y=np.array(lines["gaussian"])[loud])
    )
    line = np.geomspace(span[0], 1.2 * max(finite), 24)
    series += [
        Series(name="ε_th (add/remove)", role="bound", x=line, y=line),
        Series(
            name="the same under replacement",
            role="rdp",
            x=line,
            y=np.array([setting.provable(setting.noise_for(float(e)), "replace") for e in line]),
        ),
        Series(name="ε_OPT of counts", role="chance", x=span, y=np.full(2, ceiling)),
    ]
    return Panel(
        title=title, x_label=f"provable ε at δ = 1e-5 ({x.max():g} stands for ∞)",
        y_label="audited ε (lower, 99%)", log_x=True,
        y_range=(0.0, max(1.3 * ceiling, 1.05 * float(np.nanmax([*lines["gaussian"], 1.0])))), series=tuple(series),
    )  # fmt: skip


def _paper(name: str, epsilon: float, attack: str) -> str:
    if (name, attack) == ("CIFAR-10", "backdoor"):
        return "never positive"
    if name != "FMNIST":
        return "drawn"
    if math.isinf(epsilon):
        return {"clipbkd": "4.54 (fixed initialisation)", "backdoor": "≤ 0.11"}.get(attack, "drawn")
    if epsilon in _TRIAL:
        value = _TRIAL[epsilon][("clipbkd", "backdoor", "membership").index(attack)]
        return f"drawn (our full-batch trial: {value:g})"
    return "drawn"


def _shown(epsilon: float) -> str:
    return "∞" if math.isinf(epsilon) else f"{epsilon:g}"
