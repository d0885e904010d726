"""Figure 11: advantage bounds over σ for a uniform prior of ten."""

from __future__ import annotations

import numpy as np

from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.reconstruction.setting import fano
from leakcore.experiments.registry import Experiment
from leakcore.experiments.result import ExperimentResult, Panel, Series, Stated
from leakcore.experiments.verdict import Check

_CANDIDATES = 10


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """Three curves; the claim is their order."""
    samples = context.pick("Monte-Carlo samples", tiny=2_000, quick=100_000, paper=1_000_000)
    noise = np.linspace(0.4, 3.0, context.pick(tiny=5, quick=27, paper=53))
    exact = np.array([fano.ours(float(s), _CANDIDATES) for s in noise])
    both = fano.fano(context, noise.tolist(), _CANDIDATES, samples=samples)
    tighter = bool((exact < both[:, 0]).all()), bool((exact < both[:, 1]).all())
    ratio = both[:, 0] / exact, both[:, 1] / exact
    findings = Findings(
        conclusion=f"The blow-up bound is {'below' if all(tighter) else 'not always below'} both bounds of Guo et al. "
        f"Their analytic bound is {ratio[0].min():.2f} to {ratio[0].max():.2f} times as large, and its Monte-Carlo "
        f"form {ratio[1].min():.2f} to {ratio[1].max():.2f} times.",
        checks=[
            Check(
                says=f"the blow-up bound is below Guo et al.'s ({name})",
                holds=int((exact < both[:, i]).sum()),
                cases=len(noise),
            )
            for i, name in enumerate(("analytic", "Monte Carlo"))
        ],
        stated=(
            Stated(
                what="bound / Guo et al. (analytic), largest over σ",
                paper="below 1 (“tighter”)",
                ours=float((exact / both[:, 0]).max()),
            ),
            Stated(
                what="bound / Guo et al. (Monte Carlo), largest over σ",
                paper="below 1 (“tighter”)",
                ours=float((exact / both[:, 1]).max()),
                comment=f"the denominator is an estimate from {samples:,} samples",
            ),
        ),
        panels=(
            Panel(
                title=f"uniform prior of {_CANDIDATES}, one full-batch step",
                x_label="noise multiplier σ",
                y_label="upper bound on the advantage",
                series=(
                    Series(name="Guo et al. 2022b, analytic", role="rdp", x=noise, y=both[:, 0]),
                    Series(name="Guo et al. 2022b, Monte Carlo", role="orthogonal", x=noise, y=both[:, 1]),
                    Series(name="blow-up bound, exact", role="bound", x=noise, y=exact),
                ),
            ),
        ),
    )
    return experiment.result(
        context,
        findings,
        settings={"steps": 1, "sample_rate": 1.0, "num_candidates": _CANDIDATES, "monte_carlo_samples": samples},
    )
