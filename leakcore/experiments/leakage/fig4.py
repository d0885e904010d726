"""Figure 4: the score of inverting each pair of consecutive layers."""

from __future__ import annotations

import numpy as np

from leakcore import leakage
from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.leakage import notes
from leakcore.experiments.leakage import study as _study
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Stated
from leakcore.experiments.verdict import Check


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """LeNet, AlexNet and VGG9, initial networks, as the paper's attacks start from."""
    study = _study.images(context)
    counts = context.pick("images of each network", tiny=(2, 1, 1), quick=(10, 3, 3), paper=(40, 20, 20))
    steps = context.pick("iterations of inversion", tiny=3, quick=80, paper=1000)
    panels, stated, falls, largest, fallen, luck = [], [], {}, {}, 0, []
    for kind, count in zip(("lenet", "alexnet", "vgg9"), counts, strict=True):
        x, y = _study.sample(study, count, context.seed)
        model = _study.network(study, kind, context.seed)
        scores = leakage.v_information_original(
            model,
            x,
            y,
            inversion=leakage.PairInversion(iterations=steps, low=0.0, high=1.0),
            seed=context.seed,
            executor=context.executor,
            progress=lambda done, total, kind=kind: context.progress(f"inversion, {kind}", done, total),  # type: ignore[misc]
        )
        assert scores.interval is not None
        several = count > 1
        panels.append(
            Panel(
                title=f"{kind}, {notes.images(count)}",
                x_label="pair of layers (first of the two)",
                y_label="score above f[∅]",
                series=(
                    notes.curve(
                        "inversion",
                        "attack",
                        scores.raw,
                        scores.interval[0] if several else None,
                        scores.interval[1] if several else None,
                    ),
                    *([notes.curve("against other images", "baseline", scores.null)] if several else []),
                ),
                y_range=None,
            )
        )
        falls[kind] = scores.falls
        fallen += round(scores.falls * count)
        luck.append(1 / len(scores.raw))
        largest[kind] = int(np.argmax(scores.raw)) + 1
        stated.append(
            Stated(
                what=f"{kind}: share of images whose score falls from first to last pair",
                paper="falls",
                ours=scores.falls,
                comment=f"{notes.images(count)}; largest at pair {int(np.argmax(scores.raw)) + 1}",
            )
        )
    summary = ", ".join(f"{v:.0%} ({k})" for k, v in falls.items())
    findings = Findings(
        panels=panels,
        stated=stated,
        checks=[
            Check(
                says="the score falls from the first pair of layers to the last, by image",
                holds=fallen,
                cases=sum(counts),
                chance=0.5,
            ),
            Check(
                says="the first pair has the most, by network",
                holds=sum(v == 1 for v in largest.values()),
                cases=len(largest),
                chance=float(np.mean(luck)),
            ),
        ],
        conclusion=f"From the first pair of layers to the last, the score falls on {summary} of the images. It is "
        f"largest at {', '.join(f'pair {v} ({k})' for k, v in largest.items())}. No prior on images was used, so a "
        "pair scores only what its own gradients say.",
        notes=("a total-variation prior raises every pair's score and its score against other images alike",),
    )
    return notes.report(
        experiment,
        context,
        findings,
        data=[study.described],
        iterations=steps,
        images=counts,
    )
