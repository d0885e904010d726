"""How many rows a malicious server's imprint reads: `python -m bench.attacks.imprint_rows --out JSON`.

Digits, a perceptron of 32 neurons behind an imprint of 256 units, batches of 16, each row's gradient clipped to C = 1,
and the noise of one step of DP-SGD. `--show JSON --page PAGE` writes the kept table between the marks of a page.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench import environment, kept_page
from leakcore import bounds, datasets, kernels
from leakcore.attacks import imprint, prior_aware

MARKS = ("<!-- imprint-rows -->", "<!-- /imprint-rows -->")
KEPT = Path(__file__).resolve().parent.parent / "results" / "imprint-rows.json"
BINS, SCALE, BATCH, CLOSE, CANDIDATES = 256, 100.0, 16, 0.05, 64
NOISES = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 0.1, 0.3, 1.0, 2.0)


def planted(seed: int) -> tuple[Any, Any, Any]:
    """The module that the server sends, and the rows that it does not own."""
    import torch

    digits = datasets.digits()
    order = np.random.default_rng(seed).permutation(len(digits.labels))
    x, y = torch.tensor(digits.features[order]).float(), torch.tensor(digits.labels[order])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    return imprint.plant(net, x[1000:], bins=BINS, scale=SCALE), x[:1000], y[:1000]


def clipped_rows(net: Any, x: Any, y: Any) -> np.ndarray:
    """(B, D), each row's gradient, at a norm of at most 1."""
    import torch

    parts = []
    for i in range(len(x)):
        loss = torch.nn.functional.cross_entropy(net(x[i : i + 1]), y[i : i + 1])
        own = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(net.parameters()))])
        parts.append((own * min(1.0, 1.0 / float(own.norm()))).numpy())
    return np.stack(parts)


def run(batches: int, seed: int) -> dict[str, Any]:
    """Every σ on the same batches."""
    net, x, y = planted(seed)
    rng = np.random.default_rng(seed)
    drawn = [rng.choice(len(x), BATCH, replace=False) for _ in range(batches)]
    gradients = [clipped_rows(net, x[own], y[own]) for own in drawn]
    candidates = clipped_rows(net, x[-CANDIDATES:], y[-CANDIDATES:])
    rows = []
    for sigma in NOISES:
        determined, right, hits = 0, 0, 0
        for own, parts in zip(drawn, gradients, strict=True):
            released = parts.sum(0) + np.float32(sigma) * rng.standard_normal(parts.shape[1], dtype=np.float32)
            recovery = imprint.read(net, released, batch_size=BATCH, accuracy=CLOSE, noise_std=sigma)
            gaps = np.abs(recovery.rows[:, None] - x[own].numpy()[None]).max(axis=2)
            determined += len(recovery.rows)
            right += int((gaps.min(axis=1) <= CLOSE).sum()) if len(gaps) else 0
        draws = CANDIDATES * 4
        if sigma >= 0.1:
            noise = np.float32(sigma) * rng.standard_normal((draws, candidates.shape[1]), dtype=np.float32)
            targets = np.arange(draws) % CANDIDATES
            scores = kernels.clip_scores(candidates, candidates[targets] + noise, 1.0)
            dots = np.asarray(scores.dots)[:, None]
            norms = np.broadcast_to(np.asarray(scores.clipped_norms), dots.shape)
            guess = prior_aware(
                dots, norms, max_grad_norm=1.0, sample_rate=1.0, noise_multiplier=sigma, method="likelihood"
            )
            hits = int((np.asarray(guess.index) == targets).sum())
        rows.append({
            "sigma": sigma, "rows": batches * BATCH, "determined": determined, "right": right, "hits": hits,
            "draws": draws if sigma >= 0.1 else 0, "bound": bound_at(sigma),
        })  # fmt: skip
        print(rows[-1], file=sys.stderr, flush=True)
    return {
        "schema": "leakcore.imprint-rows/1", "machine": environment.facts(), "seed": seed, "batches": batches,
        "rows": rows,
    }  # fmt: skip


def bound_at(sigma: float) -> float:
    """No attacker who knows 64 candidates and all other rows names the right one more often."""
    return 1.0 if sigma == 0 else float(np.asarray(bounds.reconstruction(sigma, 1.0, 1, kappa=1 / CANDIDATES).value))


def text(result: dict[str, Any]) -> str:
    """The table and what it says, as the docs show them."""
    said = (
        f"Digits, {result['batches']} batches of {BATCH}, {BINS} units, scale={SCALE:g}; each row's gradient is "
        f"clipped to C = 1, with noise σ in each number of the sum. Right: off by at most {CLOSE} in every pixel. The "
        f"candidate attack (`attacks.prior_aware`) knows {CANDIDATES} rows, one of them the batch's, and all other "
        "rows of the batch; the bound (`bounds.reconstruction`, upper) is on every attacker who knows as much:"
    )
    heads = f"| σ | rows read | right | likeliest of {CANDIDATES} candidates | no attacker above |"
    lines = [said, "", heads, "|---|---|---|---|---|"]
    for row in result["rows"]:
        likely = f"{100 * row['hits'] / row['draws']:.1f}% ({row['hits']} of {row['draws']})" if row["draws"] else ""
        share = f"{100 * row['determined'] / row['rows']:.1f}%"
        lines.append(f"| {row['sigma']:g} | {share} | {row['right']} | {likely} | {100 * row['bound']:.1f}% |")
    named, right = (sum(row[name] for row in result["rows"]) for name in ("determined", "right"))
    after = (
        f"Of the {named:,} rows that were read {named - right} are not right: with noise the mixture of two similar "
        "rows can pass as one. Measured by `python -m bench.attacks.imprint_rows`."
    )
    return "\n".join([*lines, "", after])


def rewritten(page: str, result: dict[str, Any]) -> str:
    """The page with the table between its marks."""
    return kept_page.between(page, MARKS, text(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    kept_page.main(parser, lambda options: run(options.batches, options.seed), text, MARKS)


if __name__ == "__main__":
    main()
