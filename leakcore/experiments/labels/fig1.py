"""Figure 1: lower and upper bound against the noise multiplier."""

from __future__ import annotations

import operator

import numpy as np

from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.labels import notes
from leakcore.experiments.labels import study as _study
from leakcore.experiments.labels import sweep as _sweep
from leakcore.experiments.labels.network import HIDDEN, observe
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Series, Stated
from leakcore.experiments.verdict import Check
from leakcore.numerics import gaussian_pair_epsilon

_TESTS = ("paper", "optimal", "likelihood-ratio")
_TEST_ROLES = {"paper": "attack-3", "optimal": "rdp", "likelihood-ratio": "chance"}


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """A panel per data set, and one of the three tests on the last layer; the table holds all of them at every σ."""
    sigmas = context.pick(
        "noise multipliers σ",
        tiny=(0.5, 2.0),
        quick=(0.3, 0.5, 1.0, 2.0, 4.0),
        paper=(0.3, 0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0),
    )
    studies = _study.studies(context)
    sweeps = [_sweep.sweep(context, s, [(sigma, 1.0) for sigma in sigmas]) for s in studies]
    panels = [_sweep.panel(f, lambda s: s[0], "noise multiplier σ", _upper) for f in sweeps]
    tables = {s.name: _tests(context, s, sigmas) for s in studies}
    panels.append(_three_tests(tables["cancer"], sigmas))
    stated = []
    for study, sweep in zip(studies, sweeps, strict=True):
        title, table = notes.TITLES[study.name], tables[study.name]
        for sigma in sigmas:
            for test in _TESTS:
                stated.append(
                    Stated(what=f"{title}, σ = {sigma:g}: {test}, last layer, initial", paper="–",
                           ours=table[test, sigma])
                )  # fmt: skip
            trained = sweep.trained[sigma, 1.0]["layer"]
            stated += [
                Stated(what=f"{title}, σ = {sigma:g}: replacement ε of one step", paper="–", ours=_upper(sigma),
                       kind="upper"),
                Stated(what=f"{title}, σ = {sigma:g}: mean over batches, last layer, trained", paper="drawn",
                       ours=float(trained.last.mean())),
                Stated(what=f"{title}, σ = {sigma:g}: mean over batches, second last, trained", paper="drawn",
                       ours=float(trained.second_median.mean())),
                Stated(what=f"{title}, σ = {sigma:g}: accountant's ε, add/remove, {study.steps} steps", paper="drawn",
                       ours=study.epsilon(sigma), kind="upper",
                       comment="not compared: another adjacency, and all steps"),
            ]  # fmt: skip
    fell = [
        bool((np.diff([values(f.trained[s]["layer"]).mean() for s in f.settings]) < 0).all())
        for f in sweeps
        for values in (operator.attrgetter("last"), operator.attrgetter("second_median"))
    ]
    ordered = all(
        np.all(np.diff([*(table[t, sigma] for t in _TESTS), _upper(sigma) * (1 + 1e-12)]) >= 0)
        for table in tables.values()
        for sigma in sigmas
    )
    ratios = [leak.last.mean() / leak.second_median.mean() for f in sweeps for leak in
              (f.trained[s]["layer"] for s in f.settings)]  # fmt: skip
    gaps = {f.study.name: [_upper(s[0]) / f.trained[s]["layer"].last.mean() for s in f.settings] for f in sweeps}
    summary = ", ".join(
        f"{g[0]:.1f} at σ = {sigmas[0]:g} and {g[-1]:.1f} at σ = {sigmas[-1]:g} ({notes.TITLES[n]})"
        for n, g in gaps.items()
    )
    findings = Findings(
        panels=panels,
        stated=stated,
        checks=[
            Check(says="the bound falls with every step of σ", holds=sum(fell), cases=len(fell)),
            Check(
                says="the last layer's mean bound is above the second last's",
                holds=sum(r > 1 for r in ratios),
                cases=len(ratios),
            ),
            Check(
                says="it is more than 3 times as large",
                holds=sum(r > 3 for r in ratios),
                cases=len(ratios),
                about="size",
            ),
            Check(
                says="the distance to the upper bound of one step changes by less than a factor of 2 over σ",
                holds=sum(max(g) < 2 * min(g) for g in gaps.values()),
                cases=len(gaps),
                about="size",
            ),
        ],
        conclusion=(
            "The paper's bound falls with σ on both layers"
            if all(fell)
            else "The bound does not fall with σ everywhere"
        )
        + (
            ". The paper's test never proves more than the optimal one, which never proves more than the "
            "likelihood-ratio test, which never exceeds the replacement ε of one step"
            if ordered
            else ". The order of the three tests is broken: an error"
        )
        + f". On trained networks the last layer's mean bound is {min(ratios):.1f} to {max(ratios):.1f} times the "
        "second last's."
        + _grown(context, studies, sigmas[-1])
        + f" The upper bound divided by the last layer's mean bound is {summary}. Points are means over batches and "
        "networks, with the 5th to 95th percentile of single batches; each network is trained at its σ. The third "
        "panel shows the largest row of all batches on the initial network.",
    )
    return notes.report(
        experiment,
        context,
        findings,
        studies=studies,
        sigmas=list(sigmas),
        max_grad_norm=1.0,
    )


def _grown(context: Context, studies: list[_study.LabelData], sigma: float) -> str:
    """How far training with the most noise has enlarged W_J, the factor of the second last layer's gradients."""
    growth = []
    for study in studies:
        start, end = (
            np.sqrt(np.square(_study.trained(context, study, s)[:, -HIDDEN - 1 : -1]).mean()) for s in (None, sigma)
        )
        growth.append(float(end / start))
    if min(growth) < 1.5:
        return ""
    times = " and ".join(f"{g:.1f}" for g in growth)
    return (
        f" At σ = {sigma:g} noise has enlarged the last layer's weights by factors of {times}, and the second last "
        "layer's gradients have these weights as a factor."
    )


def _upper(sigma: float) -> float:
    return float(gaussian_pair_epsilon(2.0 / sigma, delta=_study.DELTA))


def _tests(context: Context, study: _study.LabelData, sigmas: tuple[float, ...]) -> dict[tuple[str, float], float]:
    """Each test's largest bound of all batches on the first initial network, clipped by the last layer alone, C = 1."""
    observed = observe(_study.trained(context, study, None)[0], study.features)
    return {
        (test, sigma): _study.label_bound(study, observed, observed.last, sigma, 1.0, "layer", test).largest
        for test in _TESTS
        for sigma in sigmas
    }


def _three_tests(table: dict[tuple[str, float], float], sigmas: tuple[float, ...]) -> Panel:
    x = np.array(sigmas)
    tests = [
        Series(
            name=f"{t} test, initial, all batches", role=_TEST_ROLES[t], x=x, y=np.array([table[t, s] for s in sigmas])
        )
        for t in _TESTS
    ]
    upper = Series(name="upper bound of one step", role="bound", x=x, y=np.array([_upper(s) for s in sigmas]))
    return Panel(
        title="Cervical Cancer, last layer: three tests",
        x_label="noise multiplier σ",
        y_label="label-ε",
        series=(upper, *tests),
        log_x=True,
        log_y=True,
        y_range=None,
    )
