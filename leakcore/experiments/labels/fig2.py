"""Figure 2: lower and upper bound against the clipping norm, σ = 0.5."""

from __future__ import annotations

import numpy as np

from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.labels import notes, study, sweep
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Stated
from leakcore.experiments.verdict import Check
from leakcore.numerics import gaussian_pair_epsilon

_SIGMA = 0.5


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """A panel per data set, and the ratio of the two layers under both ways of clipping."""
    clips = context.pick(
        "clipping norms C",
        tiny=(0.1, 3.0),
        quick=(0.1, 0.3, 1.0, 3.0, 10.0),
        paper=(0.03, 0.1, 0.3, 0.6, 1.0, 2.0, 3.0, 6.0, 10.0, 30.0),
    )
    studies = study.studies(context)
    sweeps = [sweep.sweep(context, s, [(_SIGMA, clip) for clip in clips]) for s in studies]
    panels = [sweep.panel(f, lambda s: s[1], "clipping norm C", _upper) for f in sweeps]
    panels.append(sweep.ratios(sweeps, lambda s: s[1], "clipping norm C"))
    stated = []
    for f in sweeps:
        title = notes.TITLES[f.study.name]
        for setting in f.settings:
            both = f.trained[setting]
            stated += [
                Stated(what=f"{title}, C = {setting[1]:g}: last layer, trained", paper="drawn",
                       ours=float(both["layer"].last.mean())),
                *(Stated(what=f"{title}, C = {setting[1]:g}: last ÷ second last, {how}", paper="drawn",
                         ours=both[scope].ratio)
                  for scope, how in (("layer", "clipped by the layer"), ("joint", "clipped by the joint norm"))),
            ]  # fmt: skip
        start = study.trained(context, f.study, None)
        for scope, how in (("layer", "clipped by the layer"), ("joint", "clipped by the joint norm")):
            ratio = study.leak(context, f.study, start, _SIGMA, 1.0, scope).ratio
            stated.append(Stated(what=f"{title}, C = 1: last ÷ second last, initial, {how}", paper="–", ours=ratio))
        stated.append(
            Stated(
                what=f"{title}: accountant's ε, add/remove, {f.study.steps} steps",
                paper="drawn",
                ours=f.study.epsilon(_SIGMA),
                kind="upper",
                comment="does not depend on C; not compared",
            )
        )
    fixed = all(_falls(f, False) for f in sweeps)
    retrained = [notes.TITLES[f.study.name] for f in sweeps if not _falls(f, True)]
    above = [r > 1 for f in sweeps for scope in study.SCOPES for r in f.ratio(scope)]
    least, most = (g(r for f in sweeps for r in f.ratio("layer")) for g in (min, max))
    below = sorted({s[1] for f in sweeps for s, r in zip(f.settings, f.ratio("layer"), strict=True) if r < 1})
    joint = [r for f in sweeps for r in f.ratio("joint")]
    findings = Findings(
        panels=panels,
        stated=stated,
        checks=[
            Check(
                says="on a fixed network the bound never rises with C",
                holds=sum(_falls(f, False) for f in sweeps),
                cases=len(sweeps),
            ),
            Check(
                says="on networks trained with each C it falls", holds=len(sweeps) - len(retrained), cases=len(sweeps)
            ),
            Check(
                says="the last layer's mean bound is above the second last's",
                holds=sum(above),
                cases=len(above),
                chance=0.5,
            ),
        ],
        conclusion=(
            "On a fixed network the bound never rises with C and is constant while every gradient is clipped"
            if fixed
            else "The bound rises with C on a fixed network: an error"
        )
        + (
            ". On networks trained with each C it falls as well"
            if not retrained
            else f". On networks trained with each C it does not fall everywhere ({', '.join(retrained)})"
        )
        + f". The last layer's mean bound is {least:.1f} to {most:.1f} times the second last's if each is clipped by "
        f"itself, and {min(joint):.1f} to {max(joint):.1f} times if both are clipped by their joint norm (median "
        "over the second last layer's neurons)."
        + (" The paper draws orders of magnitude." if max(most, *joint) < 100 else "")
        + (
            f" The ratio is below 1 at C = {', '.join(f'{c:g}' for c in below)}. Clipped gradients of both layers have "
            "norm C, so that the second last layer need not leak less."
            if below
            else ""
        ),
    )
    return notes.report(
        experiment,
        context,
        findings,
        studies=studies,
        clipping_norms=list(clips),
        noise_multiplier=_SIGMA,
    )


def _upper(sigma: float) -> float:
    return float(gaussian_pair_epsilon(2.0 / sigma, delta=study.DELTA))


def _falls(sweep_of: sweep.LabelSweep, trained: bool) -> bool:
    leaks = [sweep_of.trained[s]["layer"] if trained else sweep_of.initial[s] for s in sweep_of.settings]
    last = np.array([leak.last.mean() for leak in leaks])
    return bool((np.diff(last) <= 1e-9 * last[:-1]).all())
