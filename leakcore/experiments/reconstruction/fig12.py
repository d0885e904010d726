"""Figure 12: success on a share of pixels under tiny priors, with the corrected κ (E9)."""

from __future__ import annotations

import numpy as np

from leakcore import attacks, bounds
from leakcore.experiments._context import Context
from leakcore.experiments._registry import Experiment
from leakcore.experiments._result import ExperimentResult, Panel, Series, Stated
from leakcore.experiments.reconstruction import _games, _mechanism, _oblivious, _pair, _report

_LOG10 = np.log(10.0)


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """Shares ρ of 0.6, 0.8 and 1 of pixels within 32/255."""
    epsilons = context.pick(tiny=(100.0,), quick=(10.0, 1000.0), paper=(1.0, 10.0, 100.0, 1000.0, 10_000.0))
    targets = context.pick(tiny=2, quick=6, paper=1000)
    shares = ((0.6, "attack"), (0.8, "attack-2"), (1.0, "attack-3"))
    stated, panels, splits, worst = [], [], [], 0.0
    for name, split, hidden, clip in _pair.settings(context):
        splits.append(split)
        found = _pair.attacked(context, split, hidden, clip, epsilons, targets)
        pixels = int(np.prod(split.shape))
        series = []
        for share, role in shares:
            kappa = bounds.kappa_pixels(pixels, fraction=share)
            log_kappa = float(kappa.log_value)
            power = log_kappa / _LOG10
            printed = {("MNIST", 1.0): "9.66e-473", ("CIFAR-10", 1.0): "2.96e-1850"}.get(
                (name, share), f"10^{-pixels * share * np.log10(4):.0f} (wrong formula, E9)"
            )
            stated.append(Stated(what=f"{name}, ρ = {share:g}: log10 κ", paper=printed, ours=power))
            x = np.array(epsilons)
            curve = [
                float(
                    bounds.reconstruction(
                        _mechanism.noise_for(context, e, 1.0, 100), 1.0, 100, log_kappa=log_kappa
                    ).value
                )
                for e in epsilons
            ]
            rate = [attacks.pixel_success(f.points, split.images[f.index], fraction=share) for f in found]
            worst = max(worst, *(float(r.interval[0]) - b for r, b in zip(rate, curve, strict=True) if r.interval))
            series.append(
                Series(name=f"bound, ρ = {share:g}", role={"attack": "bound", "attack-2": "rdp"}.get(role,
                "simplex"), x=x,
                       y=np.array(curve))
            )  # fmt: skip
            series.append(
                Series(name=f"attack, ρ = {share:g}", role=role, x=x, y=np.array([float(r.value) for r in rate]))
            )
        panels.append(
            Panel(
                title=name, x_label=_games.EPSILON, y_label="probability of success", series=tuple(series), log_x=True
            )
        )
    verdict = "stays below the bound" if worst <= 0 else "lies above the bound for uniform pixels somewhere"
    return _report.report(
        experiment, context,
        conclusion=f"The attack {verdict}; κ is of an attacker to whom pixels are uniform and independent.",
        stated=stated, panels=panels, splits=splits, setting=_pair.setting(epsilons[-1], hidden, clip), runs=targets,
        optimiser=_oblivious.settings(context),
        notes=(("real images are not uniform: a guess such as all black does better than κ, so κ is that of the stated "
               "prior, not of images"),),
    )  # fmt: skip
