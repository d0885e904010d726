"""Figure 5: the bound against the number of batches, compared with the extrapolation from one batch."""

from __future__ import annotations

import numpy as np

from leakcore import bounds, kernels
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.labels import notes
from leakcore.experiments.labels import study as _study
from leakcore.experiments.labels.network import observe
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Series, Stated
from leakcore.experiments.verdict import Check

_SIGMA = 0.5
_PAPER = {"cancer": ("1.11", "1.69"), "bank": ("2.76 (0.033 to 0.091)", "2.12")}
"""Growth from one batch to all, and what the paper's extrapolation makes of it."""


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """Mean, over random orders of the batches and over networks, of the largest bound of the first m batches."""
    orders = context.pick("orders of the batches", tiny=20, quick=400, paper=4000)
    studies = _study.studies(context)
    panels, stated, growths, promises = [], [], {}, {}
    for study in studies:
        values = np.array([_batches(study, p) for p in _study.trained(context, study, _SIGMA)])
        curves = np.array([_growth(v, orders, context.seed) for v in values])
        mean = curves.mean(axis=(0, 1))
        count = np.arange(1, study.batches + 1)
        rules = {
            rule: np.array(
                [bounds.extrapolate_label_epsilon(mean[0], int(m), _study.BATCH, rule=rule).value for m in count],
                dtype=float,
            )
            for rule in ("harmonic", "log")
        }
        title = notes.TITLES[study.name]
        counts = np.unique(np.geomspace(1, study.batches, 9).round().astype(int))
        low, high = np.percentile(curves.reshape(-1, study.batches), (5, 95), axis=0)
        panels.append(
            Panel(
                title=title,
                x_label="number of batches",
                y_label="label-ε, largest of the batches",
                series=(
                    Series(name="extrapolated, logarithmic (paper)", role="rdp", x=count, y=rules["log"]),
                    Series(name="extrapolated, harmonic (exact if exponential)", role="bound", x=count,
                           y=rules["harmonic"]),
                    Series(name="measured", role="attack", x=counts, y=mean[counts - 1], low=low[counts - 1],
                           high=high[counts - 1]),
                    notes.accountant(study, [1, study.batches], [_SIGMA, _SIGMA]),
                ),
                log_x=True,
                log_y=True,
                y_range=None,
            )
        )  # fmt: skip
        growths[study.name] = float(mean[-1] / mean[0])
        promises[study.name] = {rule: float(v[-1] / v[0]) for rule, v in rules.items()}
        paper, extrapolated = _PAPER[study.name]
        stated += [
            Stated(what=f"{title}: bound of one batch, mean", paper="0.033" if study.name == "bank" else "drawn",
                   ours=float(mean[0]), comment="the paper does not state its noise" if study.name == "bank" else ""),
            Stated(what=f"{title}: bound of all {study.batches} batches",
                   paper="0.091" if study.name == "bank" else "drawn", ours=float(mean[-1])),
            Stated(what=f"{title}: all ÷ one, measured", paper=paper, ours=growths[study.name]),
            Stated(what=f"{title}: all ÷ one, logarithmic rule", paper=extrapolated, ours=promises[study.name]["log"]),
            Stated(what=f"{title}: all ÷ one, harmonic rule", paper="–", ours=promises[study.name]["harmonic"],
                   comment="exact for independent exponential bounds"),
            Stated(what=f"{title}: accountant's ε, add/remove, {study.steps} steps",
                   paper="282.24" if study.name == "bank" else "drawn", ours=study.epsilon(_SIGMA), kind="upper",
                   comment="not compared: another adjacency, and all steps"),
        ]  # fmt: skip
    over = [n for n in growths if growths[n] < promises[n]["harmonic"]]
    summary = " ".join(
        f"On {notes.TITLES[n]} it grows by a factor of {growths[n]:.2f}; the harmonic rule says "
        f"{promises[n]['harmonic']:.2f}, and the logarithmic rule {promises[n]['log']:.2f}."
        for n in growths
    )
    slow = all(g < 1 + np.log(s.batches) for g, s in zip(growths.values(), studies, strict=True))
    findings = Findings(
        panels=panels,
        stated=stated,
        checks=[
            Check(
                says="the bound grows more slowly than 1 + log(batches)",
                holds=sum(g < 1 + np.log(s.batches) for g, s in zip(growths.values(), studies, strict=True)),
                cases=len(studies),
            ),
            Check(
                says="it grows as the logarithmic rule says, within a quarter",
                holds=sum(abs(growths[n] / promises[n]["log"] - 1) <= 0.25 for n in growths),
                cases=len(growths),
                about="size",
            ),
        ],
        conclusion=f"The bound grows {'slowly' if slow else 'fast'} with the number of batches. {summary}"
        + (
            " Both rules predict more growth than we measure; they assume exponential bounds (see labels-fig3)."
            if len(over) == len(growths)
            else ""
        )
        + " Points are means over random orders and networks, with the 5th to 95th percentile.",
    )
    return notes.report(
        experiment,
        context,
        findings,
        studies=studies,
        noise_multiplier=_SIGMA,
        max_grad_norm=1.0,
        orders=orders,
    )


def _batches(study: _study.LabelData, parameters: np.ndarray) -> np.ndarray:
    observed = observe(parameters, study.features)
    return np.asarray(_study.label_bound(study, observed, observed.last, _SIGMA, 1.0, "layer").value)


def _growth(values: np.ndarray, orders: int, seed: int) -> np.ndarray:
    """(orders, batches): the largest of the first m values in random orders."""
    keys = kernels.uniform((orders, len(values)), seed=seed, purpose=kernels.Stream.BOUND_GROWTH)
    return np.asarray(np.maximum.accumulate(values[np.argsort(keys, axis=1)], axis=1))
