"""Figure 3: the distribution of per-sample bounds, which the extrapolation takes to be exponential."""

from __future__ import annotations

import numpy as np

from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.labels import notes
from leakcore.experiments.labels import study as _study
from leakcore.experiments.labels.network import observe
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Series, Stated
from leakcore.experiments.verdict import Check

_SIGMA = 0.5
_BINS = 24


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """Histogram of every row's bound on one trained network, with the exponential of the same mean."""
    studies = _study.studies(context)
    panels, stated, cvs, medians, tails, lowest = [], [], [], [], [], []
    for study in studies:
        rows, undetermined = _rows(study, _study.trained(context, study, _SIGMA)[0])
        title, mean = notes.TITLES[study.name], float(rows.mean())
        edges = np.linspace(0.0, float(rows.max()), _BINS + 1)
        counts = np.histogram(rows, edges)[0]
        expected = len(rows) * (np.exp(-edges[:-1] / mean) - np.exp(-edges[1:] / mean))
        panels.append(
            Panel(
                title=f"{title}: {len(rows):,} samples",
                x_label="lower bound of the sample",
                y_label="samples",
                series=(
                    notes.steps("samples", "bound", edges, counts.astype(float)),
                    Series(name="exponential of the same mean", role="chance", x=0.5 * (edges[1:] + edges[:-1]),
                           y=expected),
                ),
                y_range=None,
            )
        )  # fmt: skip
        lowest.append((int(counts[0]), float(expected[0])))
        # An exponential variable's deviation is its mean, and its median log 2 of that.
        cvs.append(float(rows.std()) / mean)
        excess = float((rows > 3 * mean).mean())
        medians.append(float(np.median(rows)) / mean)
        tails.append(excess)
        stated += [
            Stated(what=f"{title}: mean of the bounds", paper="drawn", ours=mean),
            Stated(what=f"{title}: deviation ÷ mean", paper="1 (exponential)", ours=cvs[-1]),
            Stated(what=f"{title}: median ÷ mean", paper="0.693 (exponential)", ours=medians[-1]),
            Stated(what=f"{title}: share above three means", paper="0.050 (exponential)", ours=excess),
            Stated(what=f"{title}: share that the system does not determine", paper="not said", ours=undetermined),
        ]
    summary = " and ".join(f"{cv:.2f} ({notes.TITLES[s.name]})" for cv, s in zip(cvs, studies, strict=True))
    few = ", ".join(
        f"{count:,} on {notes.TITLES[s.name]} (an exponential: {wanted:,.0f})"
        for (count, wanted), s in zip(lowest, studies, strict=True)
    )
    findings = Findings(
        panels=panels,
        stated=stated,
        checks=[
            Check(
                says=f"{what} is an exponential's, within a fifth",
                holds=sum(abs(v / wanted - 1) <= 0.2 for v in values),
                cases=len(values),
            )
            for what, values, wanted in (
                ("deviation ÷ mean", cvs, 1.0),
                ("median ÷ mean", medians, np.log(2)),
                ("the share above three means", tails, np.exp(-3)),
            )
        ],
        conclusion=f"Bounds of single samples from the last layer's gradient, at σ = {_SIGMA:g} and C = 1, after "
        "training. The standard deviation of an exponential variable equals its mean; here deviation over mean is "
        f"{summary}. Samples in the lowest bin of the histogram: {few}. Samples that the linear system does not "
        "determine have no bound and are left out.",
    )
    return notes.report(
        experiment,
        context,
        findings,
        studies=studies,
        noise_multiplier=_SIGMA,
        max_grad_norm=1.0,
    )


def _rows(study: _study.LabelData, parameters: np.ndarray) -> tuple[np.ndarray, float]:
    """Bounds of all determined rows, and the share of the others."""
    observed = observe(parameters, study.features)
    result = _study.label_bound(study, observed, observed.last, _SIGMA, 1.0, "layer")
    return np.maximum(result.per_row[result.identifiable], 0.0), float(1.0 - result.identifiable.mean())
