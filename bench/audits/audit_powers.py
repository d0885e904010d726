"""How much audits prove from the same scores as jax_privacy: `python -m bench.audits.audit_powers --out JSON`.

Two designs: one run with 1,000 canaries, scores N(μ·coin, 1); and 1,000 models on each side, scores N(μ, 1) and
N(0, 1). The truth is the ε of μ-GDP at δ = 1e-5. Bounds are at 95%. jax_privacy is needed to run, not to show.
`--show JSON --page PAGE` writes the kept table between the marks of a page.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench import environment, kept_page
from leakcore import bounds
from leakcore.audit.scores.statistics import audited
from leakcore.numerics import gaussian_pair_epsilon

MARKS = ("<!-- audit-powers -->", "<!-- /audit-powers -->")
KEPT = Path(__file__).resolve().parent.parent / "results" / "audit-powers.json"
CANARIES, MODELS, DELTA, CONFIDENCE = 1000, 1000, 1e-5, 0.95
MUS = {"one run": (1.0, 2.0), "many runs": (1.0, 3.0)}
Method = Callable[[np.ndarray, np.ndarray], float]


def peer() -> Any:
    """jax_privacy's module of audits, which needs no JAX itself."""
    spec = importlib.util.find_spec("jax_privacy")
    if spec is None or spec.origin is None:
        raise SystemExit("bench.audits.audit_powers needs jax_privacy: pip install --no-deps jax-privacy")
    own = importlib.util.spec_from_file_location("jax_privacy_auditing", Path(spec.origin).with_name("auditing.py"))
    assert own is not None
    assert own.loader is not None
    module = importlib.util.module_from_spec(own)
    sys.modules["jax_privacy_auditing"] = module
    own.loader.exec_module(module)
    return module


def by_coins(family: str) -> Method:
    """The best of four numbers of guesses, paid for."""

    def prove(inside: np.ndarray, outside: np.ndarray) -> float:
        labels = np.arange(len(inside) + len(outside)) < len(inside)
        return float(audited(np.concatenate([inside, outside]), labels, DELTA, CONFIDENCE, family=family).value)

    return prove


@functools.cache
def _proved(correct: int, guesses: int, canaries: int, family: str) -> float:
    return float(
        bounds.epsilon_lower_bound_one_run(
            correct, guesses, canaries, confidence=CONFIDENCE, delta=DELTA, family=family
        ).value
    )


def by_a_fifth(inside: np.ndarray, outside: np.ndarray) -> float:
    """A fifth of the coins guessed, as fixed beforehand."""
    scores = np.concatenate([inside, outside])
    labels = np.arange(len(scores)) < len(inside)
    order, half = np.argsort(scores, kind="stable"), len(scores) // 10
    correct = int(labels[order[-half:]].sum()) + int((~labels[order[:half]]).sum())
    return _proved(correct, 2 * half, len(scores), "gdp")


def by_scores(select: str, family: str) -> Method:
    """One score a model."""
    threshold = bounds.SplitThreshold() if select == "split" else bounds.SimultaneousThreshold()

    def prove(inside: np.ndarray, outside: np.ndarray) -> float:
        return float(
            bounds.epsilon_lower_bound_from_scores(
                inside, outside, adjacency="add-remove", threshold=threshold, confidence=CONFIDENCE, delta=DELTA,
                hypothesis=bounds.Hypothesis(family=family, direction="in"),  # type: ignore[arg-type]
            ).value
        )  # fmt: skip

    return prove


def methods(peers: Any) -> dict[str, dict[str, Method]]:
    """By design and name."""

    def theirs(name: str, **more: Any) -> Method:
        return lambda a, b: float(getattr(peers.CanaryScoreAuditor(a, b), name)(1 - CONFIDENCE, DELTA, **more))

    split = {"threshold_strategy": peers.Split(seed=0)}
    return {
        "one run": {
            "leakcore, (ε, δ)": by_coins("dp"),
            "leakcore, Gaussian": by_coins("gdp"),
            "leakcore, Gaussian, a fifth guessed": by_a_fifth,
            "jax_privacy, (ε, δ), split": theirs("epsilon_one_run", **split),
            "jax_privacy, Gaussian, split": theirs("epsilon_one_run_fdp", **split),
            "jax_privacy, Gaussian, all thresholds": theirs("epsilon_one_run_fdp"),
        },
        "many runs": {
            "leakcore, (ε, δ), split": by_scores("split", "dp"),
            "leakcore, (ε, δ), simultaneous": by_scores("simultaneous", "dp"),
            "leakcore, Gaussian, simultaneous": by_scores("simultaneous", "gdp"),
            "jax_privacy, (ε, δ), split": theirs("epsilon_clopper_pearson", **split),
            "jax_privacy, (ε, δ), all thresholds": theirs("epsilon_clopper_pearson"),
            "jax_privacy, Gaussian, all thresholds": theirs("epsilon_from_gdp"),
        },
    }


def scores(design: str, mu: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(in, out) of one repetition."""
    if design == "many runs":
        return mu + rng.normal(size=MODELS), rng.normal(size=MODELS)
    coins = rng.random(CANARIES) < 0.5
    drawn = mu * coins + rng.normal(size=CANARIES)
    return drawn[coins], drawn[~coins]


def run(repetitions: int, seed: int) -> dict[str, Any]:
    """Every method on the same scores."""
    rows = []
    for design, own in methods(peer()).items():
        for mu in MUS[design]:
            rng = np.random.default_rng(seed)
            proved: dict[str, list[float]] = {name: [] for name in own}
            for _ in range(repetitions):
                sides = scores(design, mu, rng)
                for name, method in own.items():
                    proved[name].append(method(*sides))
            truth = float(gaussian_pair_epsilon(mu, delta=DELTA))
            for name, values in proved.items():
                rows.append(
                    {
                        "design": design, "mu": mu, "truth": truth, "method": name, "mean": float(np.mean(values)),
                        "error": float(np.std(values) / np.sqrt(repetitions)), "above": sum(v > truth for v in values),
                    }
                )  # fmt: skip
                print(rows[-1], file=sys.stderr, flush=True)
    return {
        "schema": "leakcore.audit-powers/1",
        "machine": environment.facts(),
        "peer": f"jax_privacy {importlib.metadata.version('jax-privacy')}",
        "repetitions": repetitions,
        "seed": seed,
        "rows": rows,
    }


def text(result: dict[str, Any]) -> str:
    """The tables, as the docs show them."""
    count, lines = result["repetitions"], []
    for design, said in (
        ("one run", f"One run, {CANARIES:,} canaries, scores N(μ·coin, 1)"),
        ("many runs", f"Many runs, {MODELS:,} models on each side, scores N(μ, 1) and N(0, 1)"),
    ):
        rows = [row for row in result["rows"] if row["design"] == design]
        first, second = MUS[design]
        heads = [f"μ = {mu:g}: ε = {next(r['truth'] for r in rows if r['mu'] == mu):.2f}" for mu in (first, second)]
        lines += [f"{said}: mean ε proved ± standard error over {count} repetitions, the same scores for all.", ""]
        lines += [f"| method | {heads[0]} | {heads[1]} |", "|---|---|---|"]
        for name in dict.fromkeys(row["method"] for row in rows):
            cells = [next(r for r in rows if (r["method"], r["mu"]) == (name, mu)) for mu in (first, second)]
            lines.append(f"| {name} | {' | '.join(_cell(cell, count) for cell in cells)} |")
        lines.append("")
    wrong = [row for row in result["rows"] if row["above"] > (1 - CONFIDENCE) * count]
    lines.append(
        f"Above the truth in more than {100 * (1 - CONFIDENCE):g}% of the repetitions: "
        + ("none." if not wrong else "; ".join(f"{r['method']} (μ = {r['mu']:g})" for r in wrong) + ".")
    )
    lines.append(f"Compared with {result['peer']}, by `python -m bench.audits.audit_powers`.")
    return "\n".join(lines)


def _cell(row: dict[str, Any], count: int) -> str:
    above = f" (above in {row['above']} of {count})" if row["above"] else ""
    return f"{row['mean']:.2f} ± {row['error']:.2f}{above}"


def rewritten(page: str, result: dict[str, Any]) -> str:
    """The page with the tables between its marks."""
    return kept_page.between(page, MARKS, text(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    kept_page.main(parser, lambda options: run(options.repetitions, options.seed), text, MARKS)


if __name__ == "__main__":
    main()
