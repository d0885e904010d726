"""Figures 6 and 8: sensitivity of every layer's gradient in three norms, compared with V-information."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import torch

from leakcore import leakage
from leakcore.experiments.driver.context import Context
from leakcore.experiments.driver.result import ExperimentResult, Panel, Series, Stated
from leakcore.experiments.leakage import common


@dataclasses.dataclass(frozen=True, eq=False)
class _Case:
    """A network on a set of images, and the sensitivity of its layers at some of them."""

    data: common.LayerData
    kind: str
    model: torch.nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor
    sensitivity: leakage.Sensitivity

    def error(self, norm: str) -> np.ndarray:
        """Half the width of each layer's 95% interval."""
        return np.asarray(1.96 * np.nan_to_num(self.sensitivity.standard_errors[norm]))

    def order(self, norm: str) -> common.Order:
        """The layers by this norm."""
        values = self.sensitivity.means[norm]
        return common.Order(values, values / np.sqrt(self.sensitivity.parameters))


def _cases(
    context: Context,
    sets: list[common.LayerData],
    networks: Mapping[str, tuple[int, int | None]],
    norms: tuple[str, ...],
    epochs: int,
) -> Iterator[_Case]:
    """Every network on every set. networks: number of images, and probes of a Jacobian or None for exact norms."""
    done = 0
    for data in sets:
        for kind, (count, probes) in networks.items():
            x, y = common.sample(data, count, context.seed)
            (model,) = common.trained(context, data, kind, [epochs])
            budget = leakage.JacobianBudget(probes=probes)
            result = leakage.sensitivity(model, x, y, norms=norms, budget=budget, seed=context.seed)
            yield _Case(data, kind, model, x, y, result)
            done += 1
            context.progress("sensitivity", done, len(sets) * len(networks))


def fig6(context: Context) -> ExperimentResult:
    """F-norm, raw and per root of the number of parameters: LeNet exactly, AlexNet and VGG9 by Hutchinson's estimate,
    on every set of images; correlation with V-information on LeNet."""
    count = context.pick("images", tiny=1, quick=4, paper=40)
    probes = context.pick("probes of a Jacobian", tiny=2, quick=8, paper=100)
    epochs = context.pick("epochs of training", tiny=0, quick=1, paper=10)
    sets = common.image_sets(context)
    exact = () if context.scale == "tiny" else ("lenet",)
    networks = {kind: (count, None if kind in exact else probes) for kind in common.ROLES}
    curves: dict[str, list[Series]] = {}
    stated, orders = [], []
    scores: list[np.ndarray] = []
    pairs: dict[str, list[np.ndarray]] = {"F": [], "F/√p": []}
    for case in _cases(context, sets, networks, ("F",), epochs):
        order, error = case.order("F"), case.error("F")
        top = order.values.max()
        low, high = (order.values - error) / top, (order.values + error) / top
        drawn = common.curve(case.kind, common.ROLES[case.kind], order.values / top, low, high)
        curves.setdefault(case.data.name, []).append(drawn)
        orders.append(order)
        stated.append(
            Stated(
                f"{case.kind}, {case.data.name}: layer with the largest F",
                "a first layer",
                order.largest,
                comment=f"F/√p: layer {order.largest_per_parameter}; mean over the first half of the layers ÷ mean "
                f"over the second: {order.ratio:.2f}",
            )
        )
        if case.kind == "lenet":
            steps = context.pick("iterations of inversion", tiny=3, quick=60, paper=1000)
            played = (case.model, case.inputs, case.targets, steps)
            each = np.asarray(common.inverted(context, *played, executor=context.executor).each)
            scores.append(each / max(float(each.mean(0).max()), 1e-9))
            norms = case.sensitivity.per_sample["F"]
            for name, by_layer in (("F", norms), ("F/√p", norms / np.sqrt(case.sensitivity.parameters))):
                pair = (by_layer[:, :-1] + by_layer[:, 1:]) / 2
                pairs[name].append(pair / pair.mean(0).max())
    score = np.concatenate(scores)
    by = {name: common.correlation(np.concatenate(v), score) for name, v in pairs.items()}
    points = f"{score.size} pairs of layers and images, taken as independent, relative to the largest pair of each set"
    stated += [common.stated_r(f"R of {n} with V-information, LeNet", r, span, points) for n, (r, span) in by.items()]
    _, raw = by["F"]
    result = context.result(
        stated=stated,
        panels=[
            Panel.of((f"‖∂g/∂x‖_F, {name}", "layer", "relative to the largest layer"), *drawn, y_range=(0.0, 1.3))
            for name, drawn in curves.items()
        ],
        checks=[common.first_half(orders), *common.checks_of_r("sensitivity", raw)],
        conclusion="The undivided norm, which the paper plots and which grows with the size of a layer, is largest at "
        f"the very first layer in {sum(o.largest == 1 for o in orders)} of {len(orders)} pairs of network and set; "
        "divided by the root of the number of parameters in "
        f"{sum(o.largest_per_parameter == 1 for o in orders)}.",
    )
    return common.report(result, data=[s.described for s in sets], images=count, probes=probes, epochs=epochs)


_NORMS = {"1": "1-norm", "inf": "∞-norm"}


def fig8(context: Context) -> ExperimentResult:
    """Exact 1-norm and ∞-norm on every set of images: LeNet and AlexNet, at the paper's scale VGG9 as well."""
    counts = context.pick(
        "images of each network",
        tiny={"lenet": 1},
        quick={"lenet": 3, "alexnet": 1},
        paper={"lenet": 40, "alexnet": 20, "vgg9": 20},
    )
    epochs = context.pick("epochs of training", tiny=0, quick=1, paper=10)
    sets = common.image_sets(context)
    networks = {kind: (count, None) for kind, count in counts.items()}
    curves: dict[tuple[str, str], list[Series]] = {}
    orders: dict[str, list[common.Order]] = {norm: [] for norm in _NORMS}
    stated = []
    for case in _cases(context, sets, networks, tuple(_NORMS), epochs):
        for norm, name in _NORMS.items():
            order, error = case.order(norm), case.error(norm)
            orders[norm].append(order)
            curves.setdefault((case.data.name, norm), []).append(
                common.curve(
                    case.kind, common.ROLES[case.kind], order.values, order.values - error, order.values + error
                )
            )
            stated.append(
                Stated(
                    f"{case.kind}, {case.data.name}, {name}: layer with the largest",
                    "a first layer",
                    order.largest,
                    comment=f"{common.images_in_words(counts[case.kind])}; mean over the first half of the layers ÷ "
                    f"mean over the second: {order.ratio:.2f}",
                )
            )
    result = context.result(
        stated=stated,
        panels=[
            Panel.of((f"‖∂g/∂x‖, {_NORMS[norm]}, {name}", "layer", "mean over images"), *drawn, log="y")
            for (name, norm), drawn in curves.items()
        ],
        checks=[common.first_half([order for of in orders.values() for order in of])],
        conclusion="The first half of the layers has the larger mean in "
        + " and ".join(
            f"{sum(o.falls for o in orders[norm])} of {len(orders[norm])} pairs of network and set in the {name}"
            for norm, name in _NORMS.items()
        )
        + ". A column sum runs over a layer's parameters, so the 1-norm grows with their number; a row sum runs over "
        "pixels and does not.",
    )
    return common.report(result, data=[s.described for s in sets], images=counts, epochs=epochs)
