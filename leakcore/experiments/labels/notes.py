"""What every figure's result of the label paper shares."""

from __future__ import annotations

from typing import Any

import numpy as np

from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.labels import study
from leakcore.experiments.labels.network import HIDDEN
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Series

_ADJACENCY = (
    "label-ε is of one step under replacement of a label, membership in the batch known; the accountant's ε is of the "
    "whole training under add/remove, so the two are drawn and never compared"
)
TITLES = {"cancer": "Cervical Cancer", "bank": "Bank Marketing"}


def report(
    experiment: Experiment, context: Context, findings: Findings, *, studies: list[study.LabelData], **settings: Any
) -> ExperimentResult:
    """The result with the notes and settings that all of them share."""
    return experiment.result(
        context,
        findings.with_notes(study.TRAINED[context.trainer], _ADJACENCY),
        data=(s.described for s in studies),
        settings={
            "hidden": HIDDEN,
            "batch_size": study.BATCH,
            "delta": study.DELTA,
            "networks": study.runs(context),
            "trainer": context.trainer,
            "neurons": len(study.neurons(context)),
            "epochs": {s.name: s.epochs for s in studies},
            **settings,
        },
        provenance=study.SOURCE,
    )


def points(name: str, role: str, x: Any, values: list[np.ndarray]) -> Series:
    """Means with the 5th to 95th percentile of all networks and batches."""
    low, high = np.array([np.percentile(v, (5, 95)) for v in values]).T
    return Series(name=name, role=role, x=np.asarray(x), y=np.array([v.mean() for v in values]), low=low, high=high)


def accountant(data: study.LabelData, x: Any, sigmas: Any) -> Series:
    """The accountant's ε of the whole training, which the paper draws above its bounds."""
    return Series(
        name="accountant's ε, all steps, add/remove", role="accountant", x=np.asarray(x, float),
        y=np.array([data.epsilon(float(s)) for s in sigmas]),
    )  # fmt: skip


def steps(name: str, role: str, edges: np.ndarray, heights: np.ndarray) -> Series:
    """A histogram's outline."""
    return Series(
        name=name,
        role=role,
        x=np.repeat(edges, 2),
        y=np.concatenate([[0.0], np.repeat(heights, 2), [0.0]]),
    )
