"""Trainings that audits of a claim take, and what they prove: `python -m bench.audits.claim_audits --out JSON`.

Simulated: the best attack on a Gaussian mechanism sees N(fμ, 1) with a row and N(0, 1) without it, where μ gives the
claimed ε and f is the factor by which the noise is too small. Trained: ClipBKD against logistic regression on Digits
and Fashion-MNIST (needs LEAKCORE_DATA), as claimed and with half of the noise. "split" is the audit as it was: one half
of the models chose the threshold. All at 99%, by (ε, δ) and the Gaussian family together, 1,000 models planned on each
data set. `--show JSON --page PAGE` writes the kept tables between the marks of a page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize

from bench import environment, kept_page
from leakcore import audit, bounds
from leakcore.audit.claim.proofs import ClaimedEpsilon, Scores, prove, until_decided
from leakcore.numerics import gaussian_pair_epsilon

MARKS = ("<!-- claim-audits -->", "<!-- /claim-audits -->")
KEPT = Path(__file__).resolve().parent.parent / "results" / "claim-audits.json"
MODELS, DELTA, CONFIDENCE = 1000, 1e-5, 0.99
EPSILONS, FACTORS = (2.0, 4.0), (1.0, 1.5, 2.0, 4.0)
SIZES = range(64, MODELS, 64)
TRAINED: dict[str, dict[str, Any]] = {
    "Digits": {"data": {"name": "digits", "num_rows": 200}, "mechanism": {"learning_rate": 0.5, "steps": 20}},
    "Fashion-MNIST": {"data": {"name": "fashion-mnist", "num_rows": 500}, "mechanism": {"steps": 24}},
}


def claimed(epsilon: float) -> ClaimedEpsilon:
    """A claim about a Gaussian mechanism."""
    return ClaimedEpsilon(
        noise_multiplier=1.0, stated=epsilon, stated_adjacency="add-remove", epsilon=epsilon, delta=DELTA,
        adjacency="add-remove", how="as claimed", gaussian=True,
    )  # fmt: skip


def by_split(scores: Scores, claim: ClaimedEpsilon, seed: int) -> float:
    """ε by the audit as it was."""
    return max(
        float(
            bounds.epsilon_lower_bound_best(
                scores, adjacency="add-remove", threshold=bounds.SplitThreshold(seed=seed), delta=DELTA,
                confidence=1 - (1 - CONFIDENCE) / 2, hypothesis=bounds.Hypothesis(family=family),
            ).value
        )
        for family in ("dp", "gdp")
    )  # fmt: skip


def by_all(scores: Scores, claim: ClaimedEpsilon, seed: int) -> float:
    """ε by the audit as it is."""
    return max(p.epsilon for p in prove(scores, claim, CONFIDENCE, seed))


def early(scores: Scores, claim: ClaimedEpsilon, seed: int) -> tuple[float, int, str]:
    """(ε, trainings, why) of the audit that may stop early."""
    asked = audit.ClaimConfig.from_dict(
        {"claim": {"epsilon": claim.epsilon}, "audit": {"trials": MODELS, "k": [1], "seed": seed, "stop": "early"}}
    ).audit
    _, proofs, stopped = until_decided(lambda part: first(scores, part), claim, asked)
    return max(p.epsilon for p in proofs), stopped.trainings, stopped.why


def first(scores: Scores, part: range) -> Scores:
    """The scores of these trials."""
    return {name: (a[part.start : part.stop], b[part.start : part.stop], k) for name, (a, b, k) in scores.items()}


def least(scores: Scores, claim: ClaimedEpsilon, seed: int, method: Callable[..., float]) -> int | None:
    """The least number of trainings, of those tried, with which a fixed design would have contradicted the claim."""
    for size in (*SIZES, MODELS):
        if method(first(scores, range(size)), claim, seed) > claim.epsilon:
            return 2 * size
    return None


def simulated(repetitions: int, seed: int) -> list[dict[str, Any]]:
    rows = []
    for epsilon in EPSILONS:
        claim = claimed(epsilon)
        mu = float(optimize.brentq(lambda m, e=epsilon: gaussian_pair_epsilon(m, delta=DELTA) - e, 1e-3, 10.0))
        for factor in FACTORS:
            rng = np.random.default_rng(seed)
            fixed, taken, fell = [], [], []
            for i in range(repetitions):
                scores: Scores = {"k = 1": (factor * mu + rng.normal(size=MODELS), rng.normal(size=MODELS), 1)}
                fixed.append(by_all(scores, claim, i) > epsilon)
                _, trainings, why = early(scores, claim, i)
                taken.append(trainings)
                fell.append(why == "refuted")
            rows.append(
                {
                    "epsilon": epsilon, "factor": factor, "fixed": float(np.mean(fixed)), "early": float(np.mean(fell)),
                    "trainings": float(np.mean(taken)),
                }
            )  # fmt: skip
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def trained(seeds: int) -> list[dict[str, Any]]:
    rows = []
    for name, sections in TRAINED.items():
        for noise in (1.0, 0.5):
            for seed in range(seeds):
                report = audit.claim(
                    {
                        **sections, "claim": {"epsilon": 4.0, "delta": DELTA}, "fault": {"noise": noise},
                        "audit": {"trials": MODELS, "k": [1], "seed": seed, "confidence": CONFIDENCE},
                    }
                )  # fmt: skip
                scores, claim = report.scores, report.claim
                epsilon, trainings, why = early(scores, claim, seed)
                rows.append(
                    {
                        "data": name, "noise": noise, "seed": seed, "split": by_split(scores, claim, seed),
                        "all": float(report.epsilon), "early": epsilon, "trainings": trainings, "why": why,
                        "least_split": least(scores, claim, seed, by_split) if noise < 1 else None,
                        "least_all": least(scores, claim, seed, by_all) if noise < 1 else None,
                    }
                )  # fmt: skip
                print(rows[-1], file=sys.stderr, flush=True)
    return rows


def run(repetitions: int, seeds: int) -> dict[str, Any]:
    """Both tables."""
    return {
        "schema": "leakcore.claim-audits/1",
        "machine": environment.facts(),
        "repetitions": repetitions,
        "seeds": seeds,
        "trained": trained(seeds),
        "simulated": simulated(repetitions, 0),
    }


_SIMULATED = (
    "The best attack on a Gaussian mechanism, {trainings:,} trainings planned: the claim fell in these shares of "
    "{count} audits (simulated)."
)
_TRAINED = (
    "ClipBKD against logistic regression, ε = 4 claimed, means of {seeds} seeds (trained). {trainings:,} trainings "
    "prove ε: a split lets one half of the models choose the threshold, ranks are tests of the order of all scores. "
    "The least trainings are those with which an audit of a fixed size contradicts the claim, if somebody knows that "
    "size."
)


def text(result: dict[str, Any]) -> str:
    """The tables, as the docs show them."""
    count, seeds = result["repetitions"], result["seeds"]
    lines = [
        _SIMULATED.format(trainings=2 * MODELS, count=count),
        "",
        "| claimed ε | noise too small by | fell, all trained | fell, early stop | trainings, early stop |",
        "|---|---|---|---|---|",
    ]
    for row in result["simulated"]:
        factor = "—" if row["factor"] == 1 else f"{row['factor']:g}"
        lines.append(
            f"| {row['epsilon']:g} | {factor} | {100 * row['fixed']:.0f}% | {100 * row['early']:.0f}% | "
            f"{row['trainings']:,.0f} |"
        )
    lines += [
        "",
        _TRAINED.format(seeds=seeds, trainings=2 * MODELS),
        "",
        "| data | noise | ε, split | ε, ranks | least trainings, split | ranks | trainings, early stop | ε then |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for data in TRAINED:
        for noise in (1.0, 0.5):
            rows = [row for row in result["trained"] if (row["data"], row["noise"]) == (data, noise)]
            mean = {key: float(np.mean([row[key] for row in rows])) for key in ("split", "all", "early", "trainings")}
            lines.append(
                f"| {data} | {'as claimed' if noise == 1 else 'half'} | {mean['split']:.2f} | {mean['all']:.2f} | "
                f"{_least(rows, 'least_split')} | {_least(rows, 'least_all')} | {mean['trainings']:,.0f} | "
                f"{mean['early']:.2f} |"
            )
    lines += ["", "Measured by `python -m bench.audits.claim_audits`."]
    return "\n".join(lines)


def _least(rows: list[dict[str, Any]], key: str) -> str:
    values = [row[key] for row in rows]
    if None not in values:
        return f"{np.mean(values):,.0f}"
    return "—" if rows[0]["noise"] == 1 else f"over {2 * MODELS:,} in {values.count(None)} of {len(values)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    kept_page.main(parser, lambda options: run(options.repetitions, options.seeds), text, MARKS)


if __name__ == "__main__":
    main()
