"""Figure 6: sensitivity in the F-norm, raw and per root of the number of parameters, compared with V-information."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from leakcore import leakage
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.leakage import notes
from leakcore.experiments.leakage import study as _study
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Stated
from leakcore.experiments.verdict import Check


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """LeNet exactly, AlexNet and VGG9 by Hutchinson's estimate, on every set of images; correlation on LeNet."""
    count = context.pick("images", tiny=1, quick=4, paper=40)
    probes = context.pick("probes of a Jacobian", tiny=2, quick=8, paper=100)
    epochs = context.pick("epochs of training", tiny=0, quick=1, paper=10)
    studies = _study.image_sets(context)
    panels, stated = [], []
    orders: list[notes.Order] = []
    pairs: dict[str, list[np.ndarray]] = {"F": [], "F/√p": []}
    informed: list[np.ndarray] = []
    for number, study in enumerate(studies):
        x, y = _study.sample(study, count, context.seed)
        curves = []
        for kind, role in _study.ROLES.items():
            (model,) = _study.trained(context, study, kind, [epochs])
            exact = kind == "lenet" and context.scale != "tiny"
            budget = leakage.JacobianBudget(probes=None if exact else probes)
            result = leakage.sensitivity(model, x, y, norms="F", budget=budget, seed=context.seed)
            values, error = result.means["F"], 1.96 * np.nan_to_num(result.standard_errors["F"])
            top = values.max()
            curves.append(notes.curve(kind, role, values / top, (values - error) / top, (values + error) / top))
            order = notes.Order(values, result.per_parameter())
            orders.append(order)
            stated.append(
                Stated(
                    what=f"{kind}, {study.name}: layer with the largest F",
                    paper="a first layer",
                    ours=order.largest,
                    comment=f"F/√p: layer {order.largest_per_parameter}; mean over the first half of the layers ÷ mean "
                    f"over the second: {order.ratio:.2f}",
                )
            )
            if kind == "lenet":
                scores = _inverted(context, model, x, y)
                informed.append(scores / max(float(scores.mean(0).max()), 1e-9))
                for name, each in (
                    ("F", result.per_sample["F"]),
                    ("F/√p", result.per_sample["F"] / np.sqrt(result.parameters)),
                ):
                    pair = (each[:, :-1] + each[:, 1:]) / 2
                    pairs[name].append(pair / pair.mean(0).max())
        panels.append(
            Panel(
                title=f"‖∂g/∂x‖_F, {study.name}",
                x_label="layer",
                y_label="relative to the largest layer",
                y_range=(0.0, 1.3),
                series=tuple(curves),
            )
        )
        context.progress("sensitivity", number + 1, len(studies))
    score = np.concatenate(informed)
    by = {name: notes.correlation(np.concatenate(v), score) for name, v in pairs.items()}
    stated += [
        Stated(
            what=f"R of {name} with V-information, LeNet",
            paper="0.686–0.707",
            ours=r,
            interval=span,
            kind="estimate",
            confidence=notes.CONFIDENCE,
            comment=f"{score.size} pairs of layers and images, taken as independent, relative to the largest pair of "
            "each set",
        )
        for name, (r, span) in by.items()
    ]
    first = sum(o.largest == 1 for o in orders)
    findings = Findings(
        stated=stated,
        panels=panels,
        checks=[
            notes.first_half(orders),
            Check(
                says="sensitivity correlates with V-information, the interval above 0",
                holds=int(by["F"][1][0] > 0),
                cases=1,
                chance=0.025,
            ),
            Check(
                says="the interval meets the printed 0.686 to 0.707",
                holds=int(notes.meets(by["F"][1])),
                cases=1,
                about="size",
            ),
        ],
        conclusion=f"The undivided norm, which the paper plots, is largest at the very first layer in {first} of "
        f"{len(orders)} pairs of network and set; it grows with the size of a layer. Divided by the root of the number "
        f"of parameters it is largest there in {sum(o.largest_per_parameter == 1 for o in orders)}. On LeNet the "
        f"correlation with V-information is {_shown(*by['F'])} (the paper: 0.69–0.71); divided by √p it is "
        f"{_shown(*by['F/√p'])}.",
    )
    return notes.report(
        experiment,
        context,
        findings,
        data=[s.described for s in studies],
        images=count,
        probes=probes,
        epochs=epochs,
    )


def _inverted(context: Context, model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    """Scores of inverting each pair of layers, (images, pairs)."""
    iterations: Any = context.pick("iterations of inversion", tiny=3, quick=60, paper=1000)
    inverted = leakage.v_information_original(
        model,
        x,
        y,
        inversion=leakage.PairInversion(iterations=iterations, low=0.0, high=1.0),
        seed=context.seed,
        executor=context.executor,
    )
    return np.asarray(inverted.each)


def _shown(r: float, span: tuple[float, float]) -> str:
    return f"{r:.2f} [{span[0]:.2f}, {span[1]:.2f}]"
