"""How well membership attacks do on one batch of trainings: `python -m bench.attacks.membership_attacks --out JSON`.

Digits, 500 rows with a fair coin each, a perceptron of 64 neurons, 100 full batches: without noise at a learning rate
of 4, and with the noise of ε = 8 (δ = 1e-5) at 0.5. 64 models are attacked; up to 128 others are references, and a
pair that was trained on a half of the rows and on the other. `--show JSON --page PAGE` writes the kept table between
the marks of a page.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench import environment, kept_page
from leakcore import accounting, bounds, datasets, dpsgd
from leakcore.attacks import membership
from leakcore.attacks.membership import LiRA, MembershipTrials, References

MARKS = ("<!-- membership-attacks -->", "<!-- /membership-attacks -->")
KEPT = Path(__file__).resolve().parent.parent / "results" / "membership-attacks.json"
ROWS, STEPS, FPR, EPSILON, DELTA = 500, 100, 0.01, 8.0, 1e-5
CHECKPOINTS = (25, 50, 75)
ATTACKS: tuple[tuple[str, Any, str], ...] = (
    ("loss", "loss", "none"),
    ("label-only", "label-only", "none"),
    ("quantile", "quantile", "none"),
    ("loss-trajectory", "loss-trajectory", "all"),
    ("rmia", "rmia", "pair"),
    ("rmia", "rmia", "all"),
    ("lira-offline", "lira-offline", "few"),
    ("lira-offline", "lira-offline", "all"),
    ("lira", "lira", "few"),
    ("lira", LiRA(spread="row"), "all"),
)
"""(name, attack, which references)."""


def noises() -> dict[str, float]:
    """σ of each training, by what the page calls it."""
    private = accounting.noise_multiplier(epsilon=EPSILON, delta=DELTA, sample_rate=1.0, steps=STEPS)
    return {"without noise": 0.0, f"with ε = {EPSILON:g}": float(private.value)}


def data(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """All digits in a random order."""
    digits = datasets.digits()
    order = np.random.default_rng(seed).permutation(len(digits.labels))
    return digits.features[order].astype(np.float32), digits.labels[order]


def ensemble(noise: float, seed: int) -> dpsgd.Ensemble:
    """The trainings."""
    return dpsgd.Ensemble(
        (64, 64, 10), noise_multiplier=noise, max_grad_norm=2.0, learning_rate=0.5 if noise else 4.0, steps=STEPS,
        seed=seed, sample_rate=dpsgd.PoissonBatches(1.0, expected_batch_size=ROWS / 2),
    )  # fmt: skip


def queries(x: np.ndarray, y: np.ndarray, seed: int) -> membership.Queries:
    """A population of 500 rows, and 33 copies of each row."""
    copies = membership.noisy_copies(x[:ROWS], scales=(0.25, 0.5, 1.0, 2.0), count=8, seed=seed)
    return membership.Queries(population=(x[ROWS : 2 * ROWS], y[ROWS : 2 * ROWS]), copies=copies)


def pair(noise: float, x: np.ndarray, y: np.ndarray, seed: int) -> References:
    """Two references such that each row is in one and out of the other."""
    half = np.random.default_rng(seed + 1).random(ROWS) < 0.5
    included = np.array([half, ~half])
    run = ensemble(noise, seed).run(
        x[:ROWS], y[:ROWS], runs=range(10_000, 10_002), probes=dpsgd.Rows(x[: 2 * ROWS], y[: 2 * ROWS]),
        per_run=dpsgd.PerRun(batches=np.broadcast_to(included[:, None], (2, STEPS, ROWS))),
    )  # fmt: skip
    assert run.probe_losses is not None
    return References(
        losses=run.probe_losses[:, :ROWS], population_losses=run.probe_losses[:, ROWS:], included=included
    )


def area(scores: np.ndarray, included: np.ndarray) -> float:
    """Of the ROC curve of all models' scores together."""
    inside, outside = scores[included], np.sort(scores[~included])
    below = np.searchsorted(outside, inside, "left") + np.searchsorted(outside, inside, "right")
    return float(below.mean() / (2 * len(outside)))


def true_positives(scores: np.ndarray, included: np.ndarray) -> float:
    """The rate at a false-positive rate of `FPR`, one threshold for all models."""
    outside = np.sort(scores[~included])[::-1]
    return float((scores[included] > outside[int(FPR * len(outside))]).mean())


def measured(scores: np.ndarray, included: np.ndarray, resamples: int = 200) -> dict[str, float]:
    """Both numbers, with standard errors by resampling models."""
    rng, out = np.random.default_rng(0), {}
    draws = rng.integers(len(scores), size=(resamples, len(scores)))
    for name, measure in (("area", area), ("tpr", true_positives)):
        out[name] = measure(scores, included)
        out[f"{name}_error"] = float(np.std([measure(scores[own], included[own]) for own in draws]))
    return out


def run(targets: int, seed: int) -> dict[str, Any]:
    """Every attack on the same models."""
    x, y = data(seed)
    rows = []
    for training, noise in noises().items():
        trials: MembershipTrials = membership.play(
            ensemble(noise, seed), x[:ROWS], y[:ROWS], runs=3 * targets, queries=queries(x, y, seed),
            checkpoints=CHECKPOINTS,
        )  # fmt: skip
        target, others = trials[:targets], trials[targets:]
        known = {"none": None, "pair": pair(noise, x, y, seed), "few": others[:24], "all": others}
        for name, attack, which in ATTACKS:
            references = known[which]
            scores = membership.scores(attack, target, references=references)
            count = 0 if references is None else len(references)
            rows.append(
                {"training": training, "attack": name, "references": count, **measured(scores, target.included)}
            )
            print(rows[-1], file=sys.stderr, flush=True)
    bound = bounds.membership(noises()[f"with ε = {EPSILON:g}"], 1.0, STEPS, fpr=FPR)
    return {
        "schema": "leakcore.membership-attacks/1",
        "machine": environment.facts(),
        "targets": targets,
        "seed": seed,
        "bound": float(np.asarray(bound.value)),
        "rows": rows,
    }


def text(result: dict[str, Any]) -> str:
    """The table and what it says, as the docs show them."""
    rows = result["rows"]
    trainings = list(dict.fromkeys(row["training"] for row in rows))
    said = (
        f"Digits, {ROWS} rows with a coin each, a perceptron of 64 neurons, {STEPS} full batches, {result['targets']} "
        f"models attacked: area under the ROC curve, and true-positive rate at {100 * FPR:g}% false positives, ± "
        "standard error over models."
    )
    heads = " | ".join(f"{training}: area | TPR" for training in trainings)
    lines = [said, "", f"| attack | reference models | {heads} |", "|---|---|" + "---|---|" * len(trainings)]
    for attack, count in dict.fromkeys((row["attack"], row["references"]) for row in rows):
        own = {row["training"]: row for row in rows if (row["attack"], row["references"]) == (attack, count)}
        cells = [
            cell
            for t in trainings
            for cell in (
                f"{own[t]['area']:.3f} ± {own[t]['area_error']:.3f}",
                f"{100 * own[t]['tpr']:.1f}% ± {100 * own[t]['tpr_error']:.1f}",
            )
        ]
        lines.append(f'| `"{attack}"` | {count} | {" | ".join(cells)} |')
    lines.append("")
    for training in trainings:
        own_rows = [row for row in rows if row["training"] == training]
        best = max(own_rows, key=lambda row: row["tpr"])
        loss = next(row for row in own_rows if row["attack"] == "loss")
        ahead = [row for row in own_rows if _apart(row, loss) > 3]
        names = ", ".join(_named(row) for row in ahead) or "none"
        lines.append(
            f"The training {training}: {_named(best)} has the highest rate. Ahead of the loss threshold by more than 3 "
            f"standard errors of the area: {names}."
        )
    if any(row["tpr"] == 0 for row in rows if row["attack"] == "label-only"):
        lines.append(
            f"A rate of 0 of the label-only attack says that more than {100 * FPR:g}% of the non-members keep their "
            "label on every copy, so that no threshold has so few false positives."
        )
    lines.append(
        f"No test of a training with ε = {EPSILON:g} has a true-positive rate above {100 * result['bound']:.1f}% there "
        "(`bounds.membership`, upper): its attacker knows all other rows and sees every step. Measured by `python -m "
        "bench.attacks.membership_attacks`."
    )
    return "\n".join(lines)


def _named(row: dict[str, Any]) -> str:
    return f'`"{row["attack"]}"` with {row["references"]} references'


def _apart(row: dict[str, Any], other: dict[str, Any]) -> float:
    """By how many standard errors the area is larger, as if the two were independent."""
    return float((row["area"] - other["area"]) / np.hypot(row["area_error"], other["area_error"]))


def rewritten(page: str, result: dict[str, Any]) -> str:
    """The page with the table between its marks."""
    return kept_page.between(page, MARKS, text(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    kept_page.main(parser, lambda options: run(options.targets, options.seed), text, MARKS)


if __name__ == "__main__":
    main()
