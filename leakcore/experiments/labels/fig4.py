"""Figure 4: magnitudes of the gradients of the last and the second last layer."""

from __future__ import annotations

import numpy as np

from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.labels import grid, notes
from leakcore.experiments.labels import study as _study
from leakcore.experiments.labels.network import observe
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Stated
from leakcore.experiments.verdict import Check

_LOOKS = {"trained": ("bound", "simplex"), "initial": ("rdp", "baseline")}
_EDGES = np.arange(-8.0, 1.01, 0.25)
"""Edges of the bins, of the logarithm to base 10."""


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """|entries| of every sample's gradient, on the initial network and on one trained with every σ and C of a sweep."""
    studies = _study.studies(context)
    panels, stated, ratios = [], [], []
    for study in studies:
        title, cells = notes.TITLES[study.name], grid.sweep(context, study)
        networks = {"initial": _study.trained(context, study, None)[0]}
        networks |= {f"trained, {cell}": cell.parameters[0] for cell in cells}
        drawn = {"initial": "initial", f"trained, {grid.the_drawn(cells)}": "trained"}
        outlines = []
        of_study = []
        for state, parameters in networks.items():
            last, second, zeros = _magnitudes(context, study, parameters)
            of_study.append(float(np.median(last) / np.median(second)))
            stated.append(
                Stated(what=f"{title}, {state}: last ÷ second last, medians", paper="much larger than 1",
                       ours=of_study[-1])
            )  # fmt: skip
            if state not in drawn:
                continue
            outlines += [
                notes.steps(f"{name}, {drawn[state]}", role, _EDGES, np.histogram(np.log10(v), _EDGES)[0] / len(v))
                for name, role, v in zip(
                    ("last layer", "second last layer"), _LOOKS[drawn[state]], (last, second), strict=True
                )
            ]
            stated += [
                *(Stated(what=f"{title}, {state}: median of the {name}", paper="drawn", ours=float(np.median(entries)))
                  for name, entries in (("last layer", last), ("second last", second))),
                Stated(what=f"{title}, {state}: entries of the second last that are 0", paper="not said", ours=zeros,
                       comment="a ReLU that is off makes a whole column 0"),
            ]  # fmt: skip
        panels.append(
            Panel(
                title=f"{title}, {grid.the_drawn(cells)}",
                x_label="log₁₀ |entry of a sample's gradient|",
                y_label="share of the entries that are not 0",
                series=tuple(outlines),
                y_range=None,
            )
        )
        panels.append(grid.lines(study, cells, of_study[1:], "last ÷ second last, medians", {"equal": 1.0}, log_y=True))
        ratios += of_study
    findings = Findings(
        panels=panels,
        stated=stated,
        checks=[
            Check(
                says="the last layer's median entry is the larger",
                holds=sum(r > 1 for r in ratios),
                cases=len(ratios),
            ),
            Check(
                says="it is more than 3 times as large",
                holds=sum(r > 3 for r in ratios),
                cases=len(ratios),
                about="size",
            ),
        ],
        conclusion="The paper does not state the noise or the clipping norm of this figure: both are swept. The median "
        f"entry of the last layer's gradient is {min(ratios):.1f} to {max(ratios):.0f} times as large as the second "
        "last layer's (entries that are 0 left out). The second last layer's gradient has the last layer's weights as "
        "a factor, and these start uniform within ±1/√200.",
    )
    return notes.report(
        experiment,
        context,
        findings,
        studies=studies,
        noise_multipliers=list(grid.sigmas(context)),
        clipping_norms=list(grid.clips(context)),
    )


def _magnitudes(
    context: Context, study: _study.LabelData, parameters: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:  # fmt: skip
    """|entries| that are not 0 of both layers' gradients, sample by sample, and the second's share of zeros."""
    observed = observe(parameters, study.features[:15])
    e = np.abs(observed.probs - study.labels[:15])[..., None]
    last = np.abs(observed.last * e).reshape(-1)
    some = _study.neurons(context)[:: max(1, len(_study.neurons(context)) // 20)]
    second = np.abs(observed.second_last(some) * e).reshape(-1)
    return last[last > 0], second[second > 0], float((second == 0).mean())
