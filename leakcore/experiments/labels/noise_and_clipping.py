"""Figures 1 and 2: lower and upper bound against the noise multiplier, and against the clipping norm."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence

import numpy as np

from leakcore.experiments.driver.context import Context
from leakcore.experiments.driver.result import ExperimentResult, Panel, Series, Stated
from leakcore.experiments.driver.verdict import Check
from leakcore.experiments.labels import common
from leakcore.numerics import gaussian_pair_epsilon

_CLIPPED_BY = {"layer": "clipped by the layer", "joint": "clipped by the joint norm"}


def _upper(sigma: float) -> float:
    return float(gaussian_pair_epsilon(2.0 / sigma, delta=common.DELTA))


@dataclasses.dataclass(frozen=True, eq=False)
class LabelSweep:
    """Bounds by setting (noise multiplier, clipping norm): on networks trained with it by scope; on initial ones,
    clipped by the layer."""

    study: common.LabelData
    settings: tuple[tuple[float, float], ...]
    trained: dict[tuple[float, float], dict[str, common.Leak]]
    initial: dict[tuple[float, float], common.Leak]

    def ratio(self, scope: str) -> list[float]:
        """Last layer over second last, trained, for each setting."""
        return [self.trained[s][scope].ratio for s in self.settings]


def _sweep(context: Context, study: common.LabelData, settings: Sequence[tuple[float, float]]) -> LabelSweep:
    """Train and bound at every setting."""
    start = common.trained(context, study, None)
    networks = common.all_trained(context, study, settings)
    asked = {(setting, scope): (networks[setting], *setting, scope) for setting in settings for scope in common.SCOPES}
    leaks = common.all_leaks(context, study, asked)
    trained = {setting: {scope: leaks[setting, scope] for scope in common.SCOPES} for setting in settings}
    initial = common.all_leaks(context, study, {setting: (start, *setting, "layer") for setting in settings})
    return LabelSweep(study, tuple(settings), trained, initial)


def _panel(one: LabelSweep, x: Callable[[tuple[float, float]], float], x_label: str) -> Panel:
    """One data set: both layers, trained (points) and initial (lines), under the upper bound of one step."""
    at = [x(s) for s in one.settings]
    layers, start = ([one.trained[s]["layer"] for s in one.settings], [one.initial[s] for s in one.settings])
    lines = [
        Series.of(f"{name}, initial network", role, at, [v.mean() for v in values])
        for name, role, values in (
            ("last layer", "orthogonal", [leak.last for leak in start]),
            ("second last layer", "simplex", [leak.second_median for leak in start]),
        )
    ]
    return Panel.of(
        (one.study.title, x_label, "label-ε"),
        Series.of("upper bound of one step", "bound", at, [_upper(s[0]) for s in one.settings]),
        common.accountant(one.study, at, [s[0] for s in one.settings]),
        common.points("last layer, trained", "attack", at, [leak.last for leak in layers]),
        common.points("second last layer, trained", "attack-2", at, [leak.second_median for leak in layers]),
        *lines,
        log="xy",
    )


def _ratios(sweeps: list[LabelSweep], x: Callable[[tuple[float, float]], float], x_label: str) -> Panel:
    """Last over second last layer on trained networks, by data set and clipping scope."""
    roles = iter(("attack-3", "chance", "rdp", "baseline"))
    names = {"layer": "clipped by this layer", "joint": "clipped by the joint norm"}
    return Panel.of(
        ("last ÷ second last layer, trained", x_label, "ratio of mean bounds"),
        *(
            Series.of(f"{f.study.title}, {names[scope]}", next(roles), [x(s) for s in f.settings], f.ratio(scope))
            for f in sweeps
            for scope in common.SCOPES
        ),
        log="xy",
    )


_TESTS = ("paper", "optimal", "likelihood-ratio")
_TEST_ROLES = {"paper": "attack-3", "optimal": "rdp", "likelihood-ratio": "chance"}


def fig1(context: Context) -> ExperimentResult:
    """A panel per data set, and one of the three tests on the last layer; the table holds all of them at every σ."""
    sigmas = context.pick(
        "noise multipliers σ",
        tiny=(0.5, 2.0),
        quick=(0.3, 0.5, 1.0, 2.0, 4.0),
        paper=(0.3, 0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0),
    )
    studies = common.studies(context)
    sweeps = [_sweep(context, s, [(sigma, 1.0) for sigma in sigmas]) for s in studies]
    panels = [_panel(f, lambda s: s[0], "noise multiplier σ") for f in sweeps]
    tables = {s.name: _tests(context, s, sigmas) for s in studies}
    panels.append(_three_tests(tables["cancer"], sigmas))
    stated = []
    for study, swept in zip(studies, sweeps, strict=True):
        title, table = study.title, tables[study.name]
        for sigma in sigmas:
            for test in _TESTS:
                stated.append(Stated(f"{title}, σ = {sigma:g}: {test}, last layer, initial", "–", table[test, sigma]))
            trained = swept.trained[sigma, 1.0]["layer"]
            stated += [
                Stated(f"{title}, σ = {sigma:g}: replacement ε of one step", "–", _upper(sigma), kind="upper"),
                *(
                    Stated(f"{title}, σ = {sigma:g}: mean over batches, {layer}, trained", "drawn", float(v.mean()))
                    for layer, v in (("last layer", trained.last), ("second last", trained.second_median))
                ),
                common.spent(f"{title}, σ = {sigma:g}", study, sigma, "drawn", common.NOT_COMPARED),
            ]
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
    leaks = [f.trained[s]["layer"] for f in sweeps for s in f.settings]
    ratios = [leak.last.mean() / leak.second_median.mean() for leak in leaks]
    gaps = {f.study.name: [_upper(s[0]) / f.trained[s]["layer"].last.mean() for s in f.settings] for f in sweeps}
    result = context.result(
        panels=panels,
        stated=stated,
        checks=[
            Check.of("the bound falls with every step of σ", fell),
            Check.of("the last layer's mean bound is above the second last's", [r > 1 for r in ratios]),
            Check.size("it is more than 3 times as large", [r > 3 for r in ratios]),
            Check.size(
                "the distance to the upper bound of one step changes by less than a factor of 2 over σ",
                [max(g) < 2 * min(g) for g in gaps.values()],
            ),
        ],
        conclusion=("" if ordered else "The order of the three tests is broken: an error. ")
        + f"On trained networks the last layer's mean bound is {min(ratios):.1f} to {max(ratios):.1f} times the second "
        f"last's. {_grown(context, studies, sigmas[-1])}Points are means over batches and networks, with the 5th to "
        "95th percentile of single batches; each network is trained at its σ.",
    )
    return common.report(context, result, studies=studies, sigmas=list(sigmas), max_grad_norm=1.0)


def _grown(context: Context, studies: list[common.LabelData], sigma: float) -> str:
    """How far training with the most noise has enlarged W_J, the factor of the second last layer's gradients."""
    growth = []
    for study in studies:
        start, end = (
            np.sqrt(np.square(common.trained(context, study, s)[:, -common.HIDDEN - 1 : -1]).mean())
            for s in (None, sigma)
        )
        growth.append(float(end / start))
    if min(growth) < 1.5:
        return ""
    times = " and ".join(f"{g:.1f}" for g in growth)
    return (
        f"At σ = {sigma:g} noise has enlarged the last layer's weights by factors of {times}, and the second last "
        "layer's gradients have these weights as a factor. "
    )


def _tests(context: Context, study: common.LabelData, sigmas: tuple[float, ...]) -> dict[tuple[str, float], float]:
    """Each test's largest bound of all batches on the first initial network, clipped by the last layer alone, C = 1."""
    observed = common.observe(common.trained(context, study, None)[0], study.features)
    return {
        (test, sigma): common.label_bound(study, observed, observed.last, sigma, 1.0, "layer", test).largest
        for test in _TESTS
        for sigma in sigmas
    }


def _three_tests(table: dict[tuple[str, float], float], sigmas: tuple[float, ...]) -> Panel:
    x = np.array(sigmas)
    tests = [
        Series.of(f"{t} test, initial, all batches", _TEST_ROLES[t], x, [table[t, s] for s in sigmas]) for t in _TESTS
    ]
    upper = Series.of("upper bound of one step", "bound", x, [_upper(s) for s in sigmas])
    return Panel.of(
        ("Cervical Cancer, last layer: three tests", "noise multiplier σ", "label-ε"), upper, *tests, log="xy"
    )


_SIGMA = 0.5


def fig2(context: Context) -> ExperimentResult:
    """A panel per data set, and the ratio of the two layers under both ways of clipping."""
    clips = context.pick(
        "clipping norms C",
        tiny=(0.1, 3.0),
        quick=(0.1, 0.3, 1.0, 3.0, 10.0),
        paper=(0.03, 0.1, 0.3, 0.6, 1.0, 2.0, 3.0, 6.0, 10.0, 30.0),
    )
    studies = common.studies(context)
    sweeps = [_sweep(context, s, [(_SIGMA, clip) for clip in clips]) for s in studies]
    panels = [_panel(f, lambda s: s[1], "clipping norm C") for f in sweeps]
    panels.append(_ratios(sweeps, lambda s: s[1], "clipping norm C"))
    stated = []
    for f in sweeps:
        title = f.study.title
        for setting in f.settings:
            both = f.trained[setting]
            stated += [
                Stated(f"{title}, C = {setting[1]:g}: last layer, trained", "drawn", float(both["layer"].last.mean())),
                *(
                    Stated(f"{title}, C = {setting[1]:g}: last ÷ second last, {how}", "drawn", both[scope].ratio)
                    for scope, how in _CLIPPED_BY.items()
                ),
            ]
        start = common.trained(context, f.study, None)
        for scope, how in _CLIPPED_BY.items():
            (leak,) = common.all_leaks(context, f.study, {0: (start, _SIGMA, 1.0, scope)}).values()
            stated.append(Stated(f"{title}, C = 1: last ÷ second last, initial, {how}", "–", leak.ratio))
        stated.append(common.spent(title, f.study, _SIGMA, "drawn", "does not depend on C; not compared"))
    above = [r > 1 for f in sweeps for scope in common.SCOPES for r in f.ratio(scope)]
    layer, joint = ([r for f in sweeps for r in f.ratio(scope)] for scope in common.SCOPES)
    fixed, retrained = ([_falls(f, trained) for f in sweeps] for trained in (False, True))
    result = context.result(
        panels=panels,
        stated=stated,
        checks=[
            Check.of("on a fixed network the bound never rises with C", fixed),
            Check.of("on networks trained with each C it falls", retrained),
            Check.of("the last layer's mean bound is above the second last's", above, chance=0.5),
        ],
        conclusion=("" if all(fixed) else "The bound rises with C on a fixed network: an error. ")
        + f"The last layer's mean bound is {min(layer):.1f} to {max(layer):.1f} times the second last's if each is "
        f"clipped by itself, and {min(joint):.1f} to {max(joint):.1f} times if both are clipped by their joint norm "
        "(median over the second last layer's neurons). Where both layers' gradients are clipped to C, the second last "
        "need not leak less.",
    )
    return common.report(context, result, studies=studies, clipping_norms=list(clips), noise_multiplier=_SIGMA)


def _falls(sweep_of: LabelSweep, trained: bool) -> bool:
    leaks = [sweep_of.trained[s]["layer"] if trained else sweep_of.initial[s] for s in sweep_of.settings]
    last = np.array([leak.last.mean() for leak in leaks])
    return bool((np.diff(last) <= 1e-9 * last[:-1]).all())
