"""How much of ε canaries in one run prove: `python -m bench.audits.canary_powers --out JSON`.

Scores are the mechanism's own, for 5,000 canaries by fair coins and four controls for each; and then scores of real
Opacus runs. `--show JSON` prints the tables again.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leakcore
from bench import environment, kept_page
from leakcore import accounting, audit, bounds, mechanisms
from leakcore.audit.scores.statistics import audited

MARKS = ("<!-- canary-powers -->", "<!-- /canary-powers -->")
CANARIES, CONTROLS, DELTA, CONFIDENCE = 5000, 20_000, 1e-5, 0.95
RUNS = ((1.0, 0.01, 1000), (1.1, 0.0043, 14_000), (1.0, 0.02, 2000), (2.0, 0.1, 300), (0.8, 0.1, 50), (1.0, 0.01, 100))
REAL = ((1.0, 0.1, 60), (1.0, 0.02, 300))


def simulated(run: tuple[float, float, int], repetitions: int) -> dict[str, object]:
    """Shares of ε that are proved of scores as the mechanism makes them."""
    mechanism = mechanisms.Poisson(*run)
    spent = float(accounting.epsilon(mechanism, delta=DELTA).value)
    shares = []
    for seed in range(repetitions):
        coins = np.random.default_rng(seed).random(CANARIES) < 0.5
        inside = mechanism.sample_log_ratio(int(coins.sum()), "alternative", seed, 0)
        outside = mechanism.sample_log_ratio(int((~coins).sum()) + CONTROLS, "null", seed, 0)
        proof = bounds.epsilon_lower_bound_from_scores(
            inside, outside, adjacency="add-remove", threshold=bounds.SimultaneousThreshold(), confidence=CONFIDENCE,
            delta=DELTA, hypothesis=bounds.Hypothesis(mechanism),
        )  # fmt: skip
        shares.append(float(proof.value) / spent)
    whole = np.concatenate([inside, outside[: int((~coins).sum())]])
    guessed = audited(whole, np.arange(CANARIES) < len(inside), DELTA, CONFIDENCE)
    return {"run": run, "epsilon": spent, "shares": shares, "guesses": float(guessed.value) / spent}


def real(run: tuple[float, float, int]) -> dict[str, object]:
    """One Opacus run with canaries."""
    from opacus import PrivacyEngine

    warnings.filterwarnings("ignore")
    sigma, rate, steps = run
    torch.manual_seed(0)
    rows = 3000
    x = torch.randn(rows, 20)
    model = nn.Sequential(nn.Linear(20, 1200), nn.ReLU(), nn.Linear(1200, 2))
    model, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=sigma, max_grad_norm=1.0,
        data_loader=DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=round(rate * rows)),
    )  # fmt: skip
    with leakcore.record(optimizer, canaries=CANARIES, sampling=loader) as recorder:
        while recorder.steps < steps:
            for inputs, targets in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
    report = audit.from_canaries(recorder, delta=DELTA, confidence=CONFIDENCE)
    spent = float(report.epsilon.value)
    return {
        "run": (sigma, rate, recorder.steps), "epsilon": spent, "proved": float(report.proved.value),
        "release": float(report.from_release.value), "guesses": float(report.by_coins.value),
        "interference": report.interference, "p_value": report.p_value,
    }  # fmt: skip


def measure(options: argparse.Namespace) -> kept_page.Result:
    """All of it."""
    return {
        "machine": environment.facts(),
        "simulated": [simulated(run, options.repetitions) for run in RUNS],
        "real": [real(run) for run in REAL],
    }


def text(result: kept_page.Result) -> str:
    """Two tables."""
    count = len(result["simulated"][0]["shares"])
    out = [
        f"5,000 canaries by coins and 20,000 controls, 95%, δ = 1e-5; {count} simulated runs each:",
        "",
        "| σ, q, T | ε | share proved: mean | least | runs with 80% or more | by guesses at coins |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["simulated"]:
        sigma, rate, steps = row["run"]
        shares = np.array(row["shares"])
        out.append(
            f"| {sigma:g}, {rate:g}, {steps:,} | {row['epsilon']:.2f} | {shares.mean():.0%} | {shares.min():.0%} | "
            f"{(shares >= 0.8).sum()} of {count} | {row['guesses']:.0%} |"
        )
    out += [
        "",
        "Opacus runs of a network with 26,402 parameters on 3,000 rows, one each:",
        "",
        "| σ, q, T | ε | proved | p-value of the schedule | interference | release alone (estimate) | guesses |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["real"]:
        sigma, rate, steps = row["run"]
        out.append(
            f"| {sigma:g}, {rate:g}, {steps:,} | {row['epsilon']:.2f} | {row['proved']:.2f} "
            f"({row['proved'] / row['epsilon']:.0%}) | {row['p_value']:.2g} | {row['interference']:.2f}σ | "
            f"{row['release']:.2f} | {row['guesses']:.2f} |"
        )
    return "\n".join([*out, "", "Measured by `python -m bench.audits.canary_powers`."])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=20)
    kept_page.main(parser, measure, text, MARKS)
