"""Whether other packages agree: `python -m bench.agreement --out JSON`.

ε of random configurations of Poisson sampling, full batches and their compositions against the optimistic and the
pessimistic privacy loss distributions of dp-accounting, under both adjacencies; each is also read by
`mechanisms.from_event`. δ of balls in bins, with independent and with correlated noise, against samples of jax_privacy
(`pip install jax-privacy`), whose limits hold at 99.9%. `--page PAGE --show JSON` writes what the result says between
the marks of a page.
"""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from bench import environment, kept_page
from leakcore import accounting, mechanisms
from leakcore.numerics.limits import betting_lower_limit, betting_upper_limit

MARKS = ("<!-- agreement -->", "<!-- /agreement -->")
ALPHA = 5e-4
"""Of each side of an interval from samples: two sides hold together at 99.9%."""
BETS = np.geomspace(1e-3, 0.9, 16)
"""Several bets, whose wealth is averaged: none has to be chosen on the data."""
CELLS = 20_000
"""Cells in which outcomes are counted: rounded down for the lower limit, up for the upper one."""
RELATIONS = {"add-remove": "ADD_OR_REMOVE_ONE", "replace": "REPLACE_ONE"}
BALLS = ((1.0, 10, 1, 1), (0.8, 20, 1, 1), (1.5, 10, 4, 1), (1.0, 20, 1, 4), (2.0, 10, 5, 4), (1.5, 30, 2, 8))
"""(σ, b, epochs, bands) of each comparison with jax_privacy; the matrix has ones on its bands, to columns of norm 1."""
KEPT = Path(__file__).resolve().parent / "results" / "agreement-epyc-2core.json"
Row = dict[str, Any]


def configurations(count: int, seed: int) -> list[Row]:
    """Random ones: q = 1 is full batches; every fourth has a second part of full batches."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(count):
        q = 1.0 if i % 4 == 3 else float(10.0 ** rng.uniform(-3.0, -0.5))
        out.append(
            {
                "noise_multiplier": float(np.exp(rng.uniform(np.log(0.6), np.log(4.0)))) * (4.0 if q == 1.0 else 1.0),
                "sample_rate": q,
                "steps": int(10 ** rng.uniform(0.0, 3.0 if q < 1.0 else 1.5)),
                "delta": float(10.0 ** rng.uniform(-8.0, -3.0)),
                "adjacency": ("add-remove", "replace")[i % 2],
                "second": {"noise_multiplier": 8.0, "steps": 5} if i % 4 == 2 else None,
            }
        )
    return out


def event(at: Row) -> Any:
    """The configuration as an event of dp-accounting."""
    import dp_accounting

    def gaussian(part: Row) -> Any:
        return dp_accounting.GaussianDpEvent(part["noise_multiplier"])

    step = gaussian(at)
    if at["sample_rate"] < 1.0:
        step = dp_accounting.PoissonSampledDpEvent(at["sample_rate"], step)
    whole = dp_accounting.SelfComposedDpEvent(step, at["steps"])
    if at["second"] is None:
        return whole
    return dp_accounting.ComposedDpEvent(
        [whole, dp_accounting.SelfComposedDpEvent(gaussian(at["second"]), at["second"]["steps"])]
    )


def of_dp_accounting(at: Row, pessimistic: bool) -> float:
    """ε of its privacy loss distributions, by the estimate that is asked for."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution

    def composed(part: Row) -> Any:
        return privacy_loss_distribution.from_gaussian_mechanism(
            part["noise_multiplier"],
            sampling_prob=part.get("sample_rate", 1.0),
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
            neighboring_relation=NeighboringRelation[RELATIONS[at["adjacency"]]],
        ).self_compose(part["steps"])

    whole = composed(at)
    if at["second"] is not None:
        whole = whole.compose(composed(at["second"]))
    return float(whole.get_epsilon_for_delta(at["delta"]))


def compare_epsilon(at: Row) -> Row:
    """Both intervals, and whether they meet."""
    start = time.process_time()
    spent = accounting.epsilon(mechanisms.from_event(event(at)), delta=at["delta"], adjacency=at["adjacency"])
    seconds = time.process_time() - start
    assert spent.interval is not None
    start = time.process_time()
    theirs = [of_dp_accounting(at, pessimistic) for pessimistic in (False, True)]
    return {
        **at,
        "ours": [float(end) for end in spent.interval],
        "theirs": theirs,
        "seconds": [seconds, time.process_time() - start],
        "meets": _meets(spent.interval, theirs),
    }


def compare_balls(sigma: float, bins: int, epochs: int, bands: int, samples: int, seed: int) -> list[Row]:
    """Balls in bins, both directions, at two ε with a few tenths and a few hundredths of the loss beyond."""
    from jax_privacy import batch_selection
    from jax_privacy.experimental.monte_carlo import sample_generation

    steps = bins * epochs
    column = np.full(bands, bands**-0.5)
    matrix = np.eye(steps) if bands == 1 else mechanisms.toeplitz(column, steps)
    mechanism = mechanisms.CorrelatedNoise(matrix, sigma, mechanisms.BallsInBins(bins))
    strategy = batch_selection.BallsInBinsSampling(cycle_length=bins, iterations=steps)
    rows = []
    for direction, positive in (("remove", True), ("add", False)):
        start = time.process_time()
        theirs, _ = sample_generation.get_privacy_loss_sample(
            strategy=strategy, noise_multiplier=sigma, c_col=column, positive_sample=positive, num_samples=samples,
            seed=seed,
        )  # fmt: skip
        their_seconds = time.process_time() - start
        start = time.process_time()
        under = "alternative" if positive else "null"
        ours = mechanism.sample_log_ratio(20 * samples, under, seed, 0) * (1.0 if positive else -1.0)
        our_seconds = (time.process_time() - start) / 20
        same_law = float(stats.ks_2samp(theirs, ours[: 10 * samples]).pvalue)
        for share in (0.1, 0.01):
            epsilon = max(float(np.quantile(ours[: 10 * samples], 1.0 - 3.0 * share)), 0.0)
            exact = None if bands > 1 else [float(end) for end in mechanism.loss(direction).delta(epsilon)]
            sampled = _limits(ours[10 * samples :], epsilon)
            theirs_limits = _limits(np.asarray(theirs), epsilon)
            rows.append(
                {
                    "noise_multiplier": sigma, "batches": bins, "epochs": epochs, "bands": bands,
                    "direction": direction, "epsilon": epsilon, "exact": exact, "ours": sampled,
                    "theirs": theirs_limits, "same_law": same_law, "seconds": [our_seconds, their_seconds],
                    "meets": _meets(sampled, theirs_limits) and (exact is None or _meets(exact, theirs_limits)),
                }
            )  # fmt: skip
    return rows


def _limits(losses: np.ndarray, epsilon: float) -> list[float]:
    """Of E(1 − e^{ε−L})_+, from independent losses."""
    values = -np.expm1(np.minimum(epsilon - losses, 0.0))
    cells, counts = np.unique(np.floor(values * CELLS), return_counts=True)
    low = betting_lower_limit(cells / CELLS, counts, BETS, ALPHA, relative_width=1e-6)
    return [low, betting_upper_limit(np.minimum((cells + 1.0) / CELLS, 1.0), counts, BETS, ALPHA, relative_width=1e-6)]


def _meets(first: Any, second: Any) -> bool:
    """Whether two intervals have a point in common, up to rounding."""
    slack = 1e-9 * (1.0 + abs(first[1]))
    return bool(first[0] <= second[1] + slack and second[0] <= first[1] + slack)


def run(count: int, samples: int, seed: int) -> Row:
    """All comparisons, with their summary."""
    rows = []
    for at in configurations(count, seed):
        rows.append(compare_epsilon(at))
        print(f"[{len(rows)}/{count}] {rows[-1]['ours']} {rows[-1]['theirs']}", file=sys.stderr, flush=True)
    balls: list[Row] = []
    for setting in BALLS:
        balls += compare_balls(*setting, samples, seed)
        print(f"[{len(balls)}/{4 * len(BALLS)}] {balls[-1]['ours']} {balls[-1]['theirs']}", file=sys.stderr, flush=True)
    return {
        "schema": "leakcore.agreement/1",
        "machine": environment.facts(),
        "seed": seed,
        "samples": samples,
        "summary": summarise(rows, balls),
        "dp_accounting": rows,
        "jax_privacy": balls,
    }


def summarise(rows: list[Row], balls: list[Row]) -> Row:
    """How many agree, and how wide the intervals are."""
    widths = {side: [(r[side][1] - r[side][0]) / (1.0 + r[side][1]) for r in rows] for side in ("ours", "theirs")}
    return {
        "epsilon": {
            "compared": len(rows),
            "replacement": sum(r["adjacency"] == "replace" for r in rows),
            "meet": sum(r["meets"] for r in rows),
            "median_width": {side: float(np.median(w)) for side, w in widths.items()},
            "largest_width": {side: max(w) for side, w in widths.items()},
            "seconds": [math.fsum(r["seconds"][i] for r in rows) for i in (0, 1)],
        },
        "balls": {
            "compared": len(balls),
            "correlated": sum(r["bands"] > 1 for r in balls),
            "meet": sum(r["meets"] for r in balls),
            # Kolmogorov and Smirnov's test of the whole law, for the least of as many as there are.
            "same_law": min(1.0, min((r["same_law"] for r in balls), default=1.0) * len(balls[::2])),
            "largest_ratio": max((r["theirs"][1] / r["theirs"][0] for r in balls if r["theirs"][0] > 0.0), default=1.0),
            "seconds": [math.fsum(r["seconds"][i] for r in balls[::2]) for i in (0, 1)],
        },
    }


def text(result: Row) -> str:
    """What a result says, as the docs show it."""
    epsilon, balls, versions = result["summary"]["epsilon"], result["summary"]["balls"], result["machine"]["versions"]
    ours, theirs = (epsilon["largest_width"][side] for side in ("ours", "theirs"))
    law = "consistent" if balls["same_law"] > 2.0 * ALPHA else "not consistent"
    first = (
        f"dp-accounting {versions['dp-accounting']}: {epsilon['compared']} random configurations of Poisson "
        f"sampling, full batches and compositions of both, {epsilon['replacement']} of them under replacement. Our "
        "interval for ε meets the one from its optimistic to its pessimistic estimate in "
        f"{epsilon['meet']}. Relative to 1 + ε, ours is at most {ours:.1g} wide, theirs {theirs:.1g}."
    )
    second = (
        f"jax_privacy {versions['jax-privacy']}: {balls['compared']} values of δ of balls in bins, "
        f"{balls['correlated']} of them with correlated noise. Limits at 99.9% from its {result['samples']:,} "
        f"samples meet ours in {balls['meet']}. That its losses and ours have one law is {law} with "
        f"Kolmogorov–Smirnov tests (least p-value times their number: {balls['same_law']:.2g})."
    )
    return "\n".join(textwrap.fill(f"- {item}", 150, subsequent_indent="  ") for item in (first, second))


def rewritten(page: str, result: Row) -> str:
    """The page with what the result says between its marks."""
    return kept_page.between(page, MARKS, text(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configurations", type=int, default=40)
    parser.add_argument("--samples", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=0)
    kept_page.main(parser, lambda options: run(options.configurations, options.samples, options.seed), text, MARKS)


if __name__ == "__main__":
    main()
