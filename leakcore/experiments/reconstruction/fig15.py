"""Figure 15: the upper bound along the (q, σ) that share one ε, for priors of 2, 10 and 100."""

from __future__ import annotations

import numpy as np

from leakcore import bounds
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.reconstruction.setting import mechanism
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Series, Stated
from leakcore.experiments.verdict import Check

_PRIORS = (2, 10, 100)
_STEPS = 100


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """σ is calibrated per (ε, q); one call bounds all priors."""
    epsilons = context.pick(
        "values of ε", tiny=(4.0,), quick=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0), paper=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    )
    rates = context.pick(
        "sampling rates q",
        tiny=(0.2, 0.99),
        quick=(0.01, 0.03, 0.1, 0.3, 0.6, 0.99),
        paper=(0.01, *np.round(np.linspace(0.03, 0.99, 33), 3)),
    )
    kappa = np.array([1 / n for n in _PRIORS])
    noise, bound = {}, {}
    task = "noise and bounds"
    for i, epsilon in enumerate(epsilons):
        for j, q in enumerate(map(float, rates)):
            noise[epsilon, q] = mechanism.noise_for(context, epsilon, q, _STEPS)
            bound[epsilon, q] = np.asarray(bounds.reconstruction(noise[epsilon, q], q, _STEPS, kappa=kappa).value)
            context.progress(task, i * len(rates) + j + 1, len(epsilons) * len(rates))
    panels = tuple(
        Panel(
            title=f"ε = {epsilon:g}, prior of {n}",
            x_label="sampling rate q",
            y_label="noise multiplier σ",
            colour_label="upper bound on success",
            series=(
                Series(
                    name="bound",
                    role="bound",
                    x=np.array(rates),
                    y=np.array([noise[epsilon, float(q)] for q in rates]),
                    colour=np.array([bound[epsilon, float(q)][k] for q in rates]),
                ),
            ),
            y_range=None,
        )
        for epsilon in epsilons
        for k, n in enumerate(_PRIORS)
    )
    first, last = float(rates[0]), float(rates[-1])
    stated = tuple(
        Stated(what=f"ε = 32, prior 100, q = {q:g}: bound", paper=text, ours=float(bound[32.0, q][2]), kind="upper")
        for q, text in ((0.01, "0.4"), (0.99, "1"))
        if (32.0, q) in bound
    )
    spread = {e: bound[e, last] / bound[e, first] for e in epsilons}
    widest = max(epsilons, key=lambda e: float(spread[e].max()))
    rising = all((np.diff([bound[e, float(q)] for q in rates], axis=0) > -1e-9).all() for e in epsilons)
    findings = Findings(
        conclusion=f"At a fixed ε the bound {'rises' if rising else 'mostly rises'} with q: from q = {first:g} to "
        f"{last:g} by a factor of up to {spread[widest].max():.2f} (at ε = {widest:g}). So ε alone does not say how "
        "often a reconstruction can succeed.",
        checks=[
            Check(
                says="the bound is smaller at the smallest q than at the largest",
                holds=sum(int((bound[e, first] < bound[e, last]).sum()) for e in epsilons),
                cases=len(epsilons) * len(_PRIORS),
            ),
            Check(
                says="the bound is as printed, within 0.05",
                holds=sum(abs(float(s.ours or 0) - float(s.paper)) <= 0.05 for s in stated),
                cases=len(stated),
                about="size",
            ),
        ],
        stated=stated,
        panels=panels,
        notes=(mechanism.CALIBRATED, "colour ranges differ between panels, as in the paper"),
    )
    return experiment.result(
        context,
        findings,
        settings={"steps": _STEPS, "delta": mechanism.DELTA, "epsilons": epsilons, "sample_rates": rates},
    )
