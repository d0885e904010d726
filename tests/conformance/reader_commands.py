"""The commands that read a file of the user's, each with the one word that is that file."""

from __future__ import annotations

from pathlib import Path

from tests.conformance.reader_files import report_text

MODEL = ("--model", "tests.conformance.reader_commands:model")
COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "compare before": (("compare", "FILE", "GOOD.json"), ".json"),
    "compare after": (("compare", "GOOD.json", "FILE"), ".json"),
    "audit scores": (("audit", "scores", "FILE", "--coins"), ".npz"),
    "audit scores csv": (("audit", "scores", "FILE", "--coins"), ".csv"),
    "audit trace": (("audit", "trace", "FILE"), ".npz"),
    "audit scores --config": (("audit", "scores", "--config", "FILE"), ".toml"),
    "audit trace --config": (("audit", "trace", "--config", "FILE"), ".toml"),
    "audit run --config": (("audit", "run", "--config", "FILE"), ".toml"),
    "audit claim --config": (("audit", "claim", "--config", "FILE"), ".toml"),
    "attack labels --batch": (("attack", "labels", *MODEL, "--batch", "FILE", "--gradient", "FILE"), ".npz"),
    "attack labels --weights": (
        ("attack", "labels", *MODEL, "--weights", "FILE", "--batch", "BATCH.npz", "--gradient", "BATCH.npz"),
        ".safetensors",
    ),
    "attack labels --gradient": (
        ("attack", "labels", *MODEL, "--batch", "BATCH.npz", "--gradient", "FILE"), ".safetensors",
    ),
    "attack inversion --batch": (("attack", "inversion", *MODEL, "--batch", "FILE"), ".npz"),
    "attack inversion --weights": (
        ("attack", "inversion", *MODEL, "--weights", "FILE", "--batch", "BATCH.npz"), ".safetensors",
    ),
    "attack inversion --gradient": (
        ("attack", "inversion", *MODEL, "--gradient", "FILE", "--shape", "4"), ".npz",
    ),
    "attack membership --data": (
        ("attack", "membership", *MODEL, "--weights", "WEIGHTS.safetensors", "--data", "FILE"), ".npz",
    ),
    "attack membership --weights": (
        ("attack", "membership", *MODEL, "--weights", "FILE", "--data", "ROWS.npz"), ".safetensors",
    ),
    "leakage --data": (("leakage", MODEL[1], "--data", "FILE"), ".npz"),
    "leakage --weights": (("leakage", MODEL[1], "--data", "ROWS.npz", "--weights", "FILE"), ".safetensors"),
}  # fmt: skip
WRITTEN = {"out", "html_path", "figure"}
"""Parameters that name what is written."""
FOLDERS = {"data", "folder"}
"""Parameters that name a folder: of data sets, or of reports."""


def model() -> object:
    """The user's factory."""
    import torch

    return torch.nn.Sequential(torch.nn.Linear(4, 2))


def prepared(words: tuple[str, ...], folder: Path) -> list[str]:
    """The words, with the good files among them written and named."""
    import numpy as np

    from leakcore import models

    rng = np.random.default_rng(0)
    (folder / "GOOD.json").write_text(report_text(), encoding="utf-8")
    batch = {"inputs": rng.random((4, 4), np.float32), "labels": np.arange(4) % 2}
    np.savez(folder / "BATCH.npz", **batch)
    np.savez(folder / "ROWS.npz", **batch, members=np.arange(4) < 2, targets=batch["labels"])
    models.save_safetensors(model(), folder / "WEIGHTS.safetensors")  # type: ignore[arg-type]
    good = {p.name for p in folder.iterdir()}
    return [str(folder / word) if word in good else word for word in words]
