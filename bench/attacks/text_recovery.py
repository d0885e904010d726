"""How many sentences a gradient gives away: `python -m bench.attacks.text_recovery --out JSON`.

A GPT-2 of two layers (transformers, random weights, or trained here), a byte-pair encoding of 2,000 tokens trained
here, and real text: the prose of this repository's docs. Each sentence ends with GPT-2's end token as a label.
`--show JSON --page PAGE` writes the kept table between the marks of a page.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench import environment, kept_page
from leakcore import bounds, kernels
from leakcore.attacks import prior_aware, text

MARKS = ("<!-- text-recovery -->", "<!-- /text-recovery -->")
KEPT = Path(__file__).resolve().parent.parent / "results" / "text-recovery.json"
DOCS = Path(__file__).resolve().parents[2] / "docs"
END = "<|endoftext|>"
VOCABULARY, WIDTH, SHORTEST, LONGEST = 2000, 256, 6, 24
BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 16)
TRAINING_STEPS = 300
SPAN_NOISE = (0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
CANDIDATE_NOISE = (0.1, 0.2, 0.3, 0.5, 1.0, 2.0)
CANDIDATES, DRAWS, AT_ONCE = 64, 128, 16
FEW = 1
"""Batches of more than 8 sentences."""


def prose() -> str:
    """The paragraphs of the docs, without code, tables, lists and headings."""
    pages = []
    for page in sorted(DOCS.rglob("*.md")):
        content = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
        paragraphs = [part for part in content.split("\n\n") if re.match(r"[A-Z]", part)]
        pages.append("\n".join(" ".join(part.split()) for part in paragraphs))
    return "\n".join(pages)


def encoder(corpus: str) -> Any:
    """A byte-level BPE, trained on the corpus."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    out = Tokenizer(models.BPE())
    out.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    out.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    out.train_from_iterator(corpus.splitlines(), trainer)
    return out


def sentences(corpus: str, encoding: Any) -> list[list[int]]:
    """The corpus's different sentences of 6 to 24 tokens, in order."""
    parts = dict.fromkeys(part for line in corpus.splitlines() for part in re.split(r"(?<=[.!?]) ", line))
    rows = [encoding.encode(part).ids for part in parts]
    return [row for row in rows if SHORTEST <= len(row) <= LONGEST]


def model(seed: int, width: int = WIDTH) -> Any:
    """A GPT-2 of two layers with random weights."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LONGEST, n_embd=width, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config).eval()


def loss_of(net: Any, batch: list[list[int]]) -> Any:
    """Mean cross-entropy of every next token; the end token follows the last one."""
    import torch

    longest = max(map(len, batch))
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in batch])
    labels = torch.tensor([[*row[1:], 0] + [-100] * (longest - len(row)) for row in batch])
    logits = net(tokens).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def gradient_of(net: Any, batch: list[list[int]]) -> Any:
    """(D,) gradient of a batch."""
    import torch

    parts = torch.autograd.grad(loss_of(net, batch), list(net.parameters()))
    return torch.cat([part.flatten() for part in parts])


def train(net: Any, rows: list[list[int]], rng: np.random.Generator) -> float:
    """300 steps of Adam on batches of 16; the last ones' mean loss."""
    import torch

    optimizer, losses = torch.optim.Adam(net.parameters(), lr=1e-3), []
    for _ in range(TRAINING_STEPS):
        optimizer.zero_grad()
        value = loss_of(net, [rows[i] for i in rng.choice(len(rows), 16, replace=False)])
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    return float(np.mean(losses[-20:]))


def attacked(net: Any, batch: list[list[int]], released: Any, noise_std: float = 0.0) -> dict[str, Any]:
    """What one attack recovers."""
    start = time.perf_counter()
    recovery = text.sequences(net, released, batch_size=len(batch), length=LONGEST, noise_std=noise_std)
    exact = recovery.exact(batch)
    truth = set(map(tuple, batch))
    sure = [tuple(row[row >= 0].tolist()) for row in recovery.sequences[recovery.determined]]
    return {
        "exact": int(exact.sum()), "determined": len(sure), "wrong": sum(row not in truth for row in sure),
        "sequences": len(batch), "positions": sum(map(len, batch)), "seconds": time.perf_counter() - start,
    }  # fmt: skip


def summed(rows: list[dict[str, Any]], **facts: Any) -> dict[str, Any]:
    """The counts of several attacks."""
    totals = {name: sum(row[name] for row in rows) for name in ("exact", "determined", "wrong", "sequences", "seconds")}
    largest = max(row["positions"] for row in rows)
    out = {**facts, "batches": len(rows), **totals, "most_positions": largest}
    print(out, file=sys.stderr, flush=True)
    return out


def without_noise(net: Any, rows: list[list[int]], batches: int, seed: int, weights: str) -> list[dict[str, Any]]:
    """Batches of each size."""
    out = []
    for size in BATCHES:
        rng = np.random.default_rng(seed + size)
        drawn = [
            [rows[i] for i in rng.choice(len(rows), size, replace=False)] for _ in range(batches if size <= 8 else FEW)
        ]
        results = [attacked(net, batch, gradient_of(net, batch)) for batch in drawn]
        out.append(summed(results, weights=weights, size=size))
    return out


def clipped(net: Any, row: list[int]) -> Any:
    """One sentence's gradient at norm 1, as DP-SGD clips it to C = 1 (all of these are longer)."""
    own = gradient_of(net, [row])
    norm = own.norm()
    assert norm > 1
    return own / norm


def under_noise(net: Any, rows: list[list[int]], batches: int, seed: int) -> list[dict[str, Any]]:
    """One step of DP-SGD on one sentence: the span attack at each σ."""
    import torch

    out = []
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(rows), batches, replace=False)
    for sigma in SPAN_NOISE:
        results = []
        for i in chosen:
            released = clipped(net, rows[i])
            released = released + sigma * torch.from_numpy(rng.standard_normal(len(released), dtype=np.float32))
            results.append(attacked(net, [rows[i]], released, sigma))
        out.append(summed(results, sigma=sigma))
    return out


def with_candidates(net: Any, rows: list[list[int]], seed: int) -> list[dict[str, Any]]:
    """The same step, seen by an attacker who knows 64 candidates: the likeliest one is its guess."""
    rng = np.random.default_rng(seed)
    own = np.stack([clipped(net, rows[i]).numpy() for i in rng.choice(len(rows), CANDIDATES, replace=False)])
    out = []
    for sigma in CANDIDATE_NOISE:
        hits = 0
        for start in range(0, DRAWS, AT_ONCE):
            targets = np.arange(start, start + AT_ONCE) % CANDIDATES
            noisy = own[targets] + np.float32(sigma) * rng.standard_normal((AT_ONCE, own.shape[1]), dtype=np.float32)
            scores = kernels.clip_scores(own, noisy, 1.0)
            dots = np.asarray(scores.dots)[:, None]
            norms = np.broadcast_to(np.asarray(scores.clipped_norms), dots.shape)
            guess = prior_aware(
                dots, norms, max_grad_norm=1.0, sample_rate=1.0, noise_multiplier=sigma, method="likelihood"
            )
            hits += int((np.asarray(guess.index) == targets).sum())
        bound = bounds.reconstruction(sigma, 1.0, 1, kappa=1 / CANDIDATES)
        out.append({"sigma": sigma, "hits": hits, "draws": DRAWS, "bound": float(np.asarray(bound.value))})
        print(out[-1], file=sys.stderr, flush=True)
    return out


def run(batches: int, seed: int) -> dict[str, Any]:
    """Everything."""
    corpus = prose()
    encoding = encoder(corpus)
    rows = sentences(corpus, encoding)
    net = model(seed)
    result = {
        "schema": "leakcore.text-recovery/1",
        "machine": environment.facts(),
        "seed": seed,
        "corpus": {
            "characters": len(corpus), "sha256": hashlib.sha256(corpus.encode()).hexdigest(), "sentences": len(rows),
            "mean_tokens": float(np.mean([len(row) for row in rows])), "example": encoding.decode(rows[0]),
        },
        "rows": without_noise(net, rows, batches, seed, "random"),
        "noise": under_noise(net, rows, 4 * batches, seed),
        "candidates": with_candidates(net, rows, seed),
    }  # fmt: skip
    result["loss"] = train(net, rows, np.random.default_rng(seed))
    result["rows"] += without_noise(net, rows, batches, seed, "trained")
    return result


def bound_at(sigma: float) -> float:
    """No attacker who knows 64 candidates names the right one more often."""
    return 1.0 if sigma == 0 else float(np.asarray(bounds.reconstruction(sigma, 1.0, 1, kappa=1 / CANDIDATES).value))


def text_of(result: dict[str, Any]) -> str:
    """The tables and what they say, as the docs show them."""
    corpus = result["corpus"]
    wrong = sum(row["wrong"] for row in result["rows"] + result["noise"])
    spans = max((row["sigma"] for row in result["noise"] if 2 * row["exact"] >= row["sequences"]), default=0.0)
    likely = max((row["sigma"] for row in result["candidates"] if 2 * row["hits"] >= row["draws"]), default=0.0)
    before = (
        f"A GPT-2 of two layers (width {WIDTH}, {VOCABULARY:,} tokens, tied weights) and a byte-pair encoding that is "
        f"trained on the prose of these docs; {corpus['sentences']:,} different sentences of {SHORTEST} to {LONGEST} "
        f"tokens, {corpus['mean_tokens']:.0f} in the mean. One float32 gradient of a batch, and how many of its "
        "sentences the attack names token by token:"
    )
    between = (
        f"Of the determined sentences {wrong} are wrong. A batch with {WIDTH} different beginnings or more fills the "
        f"space. The trained weights had {TRAINING_STEPS} steps of Adam on batches of 16, to a loss of "
        f"{result['loss']:.2f}.\n\n"
        "One step of DP-SGD on one sentence, clipped to C = 1, with noise σ in each number of the gradient. The span "
        "attack knows the model alone. The candidate attack (`attacks.prior_aware`) knows "
        f"{CANDIDATES} sentences, and one of them was the batch; the bound (`bounds.reconstruction`, upper) is on "
        "every attacker who knows as much:"
    )
    after = (
        f"The span attack needs no candidates, and names at least half of the sentences up to σ = {spans:g}; the "
        f"attack by likelihood does so up to σ = {likely:g}. Noise that stops the first proves nothing about the "
        "second. Measured by `python -m bench.attacks.text_recovery`."
    )
    heads = (
        "| sentences in the batch | most tokens | random weights: exact | determined | trained: exact | determined |"
    )
    lines = [before, "", heads, "|---|---|---|---|---|---|"]
    for size in dict.fromkeys(row["size"] for row in result["rows"]):
        own = [row for row in result["rows"] if row["size"] == size]
        cells = [f"{_share(row['exact'], row['sequences'])} | {row['determined']}" for row in own]
        lines.append(f"| {size} | {own[0]['most_positions']} | {' | '.join(cells)} |")
    heads = f"| σ | span attack: exact | likeliest of {CANDIDATES} candidates | no attacker above |"
    lines += ["", between, "", heads, "|---|---|---|---|"]
    lines += [
        f"| {row['sigma']:g} | {_share(row['exact'], row['sequences'])} | | {100 * bound_at(row['sigma']):.1f}% |"
        for row in result["noise"]
    ]
    lines += [
        f"| {row['sigma']:g} | | {_share(row['hits'], row['draws'])} | {100 * row['bound']:.1f}% |"
        for row in result["candidates"]
    ]
    return "\n".join([*lines, "", after])


def _share(hits: int, count: int) -> str:
    return f"{100 * hits / count:.1f}% ({hits} of {count})"


def rewritten(page: str, result: dict[str, Any]) -> str:
    """The page with the tables between its marks."""
    return kept_page.between(page, MARKS, text_of(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    kept_page.main(parser, lambda options: run(options.batches, options.seed), text_of, MARKS)


if __name__ == "__main__":
    main()
