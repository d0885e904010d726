"""Figure 14: bound and improved attack over q for several ε and priors."""

from __future__ import annotations

import numpy as np

from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.reconstruction.setting import data, games, mechanism, notes
from leakcore.experiments.reconstruction.setting import rates as _rates
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Series, Stated, ours
from leakcore.experiments.verdict import APART, Check, lies_below


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """T = 100, C = 1; a panel per ε and prior size."""
    epsilons = context.pick(
        "values of ε", tiny=(4.0,), quick=(1.0, 2.0, 16.0, 32.0), paper=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    )
    sizes = context.pick("numbers of candidates", tiny=(10,), quick=(2, 10, 100), paper=(2, 10, 100))
    rates = context.pick(
        "sampling rates q", tiny=(0.2, 0.99), quick=(0.05, 0.3, 0.99), paper=(0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.99)
    )
    between = context.pick(tiny=(), quick=(0.02, 0.1, 0.2, 0.5, 0.7, 0.85), paper=(0.02, 0.03, 0.3, 0.5, 0.7, 0.9))
    runs = context.pick("runs of each game", tiny=32, quick=128, paper=10_000)
    split = data.mnist(context, context.pick("known rows", tiny=49, quick=499, paper=999))
    stated, panels, attacked = [], [], []
    bound_falls, attack_falls, apart = 0, 0, 0
    spread: dict[float, float] = {}
    fine = tuple(sorted({*rates, *between}))
    for epsilon in epsilons:
        for n in sizes:
            curves = _rates.sweep(context, split, epsilon, n, rates, runs)
            attacked += curves.attacked
            curve = _rates.limits(context, epsilon, n, fine)[1]
            x = np.array(fine)
            panels.append(
                Panel(title=f"ε = {epsilon:g}, prior of {n}", x_label="sampling rate q", y_label=games.SUCCESS,
                      series=(Series(name="upper bound, exact", role="bound", x=x, y=np.array(curve)),
                              mechanism.chance(x, n),
                              games.series("improved (Algorithm 3)", "attack-2", rates, curves.top),
                              games.series("likelihood (Appendix G)", "attack-3", rates, curves.likelihood)),
                      y_range=None, log_x=True)
            )  # fmt: skip
            bound_falls += curves.bound[0] < curves.bound[-1]
            if epsilon == max(epsilons):
                attack_falls += float(curves.top[0].value) < float(curves.top[-1].value)
                apart += lies_below(curves.top[0], curves.top[-1])
            spread[epsilon] = max(spread.get(epsilon, 0.0), curves.bound[-1] - curves.bound[0])
            for q, bound, top in (
                (rates[0], curves.bound[0], curves.top[0]),
                (rates[-1], curves.bound[-1], curves.top[-1]),
            ):
                stated.append(
                    Stated(what=f"ε = {epsilon:g}, prior {n}, q = {q:g}: improved attack", paper="smaller at smaller q",
                           **ours(top), comment=f"bound {bound:.4f}")
                )  # fmt: skip
    most = max(spread, key=lambda e: spread[e])
    findings = Findings(
        checks=[
            Check(
                says="the bound is smaller at the smallest q than at the largest", holds=bound_falls, cases=len(panels)
            ),
            Check(says="it differs most at the largest ε", holds=int(most == max(epsilons)), cases=1),
            Check(
                says="at the largest ε the improved attack is smaller, too, intervals apart",
                holds=apart,
                cases=len(sizes),
                chance=APART,
            ),
        ],
        conclusion=f"In {bound_falls} of {len(panels)} settings of equal ε the bound is smaller at q = {rates[0]:g} "
        f"than at q = {rates[-1]:g}. It differs most, by up to {spread[most]:.3f}, at ε = {most:g}. At ε = "
        f"{max(epsilons):g} the improved attack, too, is less successful at the smaller q for {attack_falls} of "
        f"{len(sizes)} priors.",
        stated=stated,
        panels=panels,
        notes=(f"{runs} runs a point: differences between attacks below about {2 / runs**0.5:.2f} are noise",),
    )
    return notes.report(
        experiment,
        context,
        findings,
        attacked=attacked,
        splits=[split],
        setting=curves.setting,
        runs=runs,
    )
