"""`leakcore attack labels` on saved files and on the label paper's data."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from leakcore import models
from leakcore.cli import main

DATA = Path(os.environ.get("LEAKCORE_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
needs_data = pytest.mark.skipif(not (DATA / "cervical").is_dir(), reason="no folder of data sets")
MODULE = """
import torch

def build():
    return torch.nn.Sequential(torch.nn.Linear(6, 24), torch.nn.ReLU(), torch.nn.Linear(24, 1))

def number():
    return 3

constant = 4
"""


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["attack", "labels", *arguments])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """A module of the user's in the current folder, its weights, a batch and the mean gradient of its loss."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets_of_mine.py").write_text(MODULE, encoding="utf-8")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 24), torch.nn.ReLU(), torch.nn.Linear(24, 1)).double()
    x, y = torch.randn(8, 6, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1, 0, 0, 0])
    torch.nn.functional.binary_cross_entropy_with_logits(net(x)[:, 0], y.double()).backward()
    models.save_safetensors(net, tmp_path / "net.safetensors")
    gradient = {name: p.grad.detach().clone() for name, p in net.named_parameters()}
    models.save_safetensors(gradient, tmp_path / "gradient.safetensors")
    np.savez(tmp_path / "gradient.npz", **{n: g.numpy() for n, g in gradient.items()})
    np.savez(tmp_path / "batch.npz", inputs=x.float().numpy(), labels=y.numpy())
    models.save_safetensors({"inputs": x.float()}, tmp_path / "batch.safetensors")
    return {"labels": y.numpy()}


FILES = ("--model", "nets_of_mine:build", "--weights", "net.safetensors")


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
@pytest.mark.parametrize(
    "only", [(), ("--parameter", "2.weight"), ("--parameter", "0.weight", "--parameter", "0.bias")]
)
def test_labels_from_files(saved, kind, only) -> None:
    code, out, err = run(
        *FILES, "--batch", "batch.npz", "--gradient", f"gradient.{kind}", *only, "--noise-std", "0", "--json"
    )
    assert code == 0, err
    report = json.loads(out)
    labels = np.array(report["attack"]["labels"])
    named = labels >= 0
    assert named.sum() >= 6
    assert (labels[named] == saved["labels"][named]).all()
    assert report["right"] == named.sum()
    assert report["attack"]["kind"] == "lower"
    assert report["parameters"] == list(only[1::2]) or (not only and len(report["parameters"]) == 4)


def test_printed_meaning(saved) -> None:
    code, out, _ = run(*FILES, "--batch", "batch.safetensors", "--gradient", "gradient.npz")
    assert code == 0
    assert "labels      0 1 1 0 1 0 0 0" in out
    assert "8 of 8  (100.0%)" in out
    assert "estimate: no guarantee" in out
    assert "right" not in out.replace("is right", "")
    code, out, _ = run(*FILES, "--batch", "batch.npz", "--gradient", "gradient.npz", "--noise-std", "1e9")
    assert code == 0
    assert "0 of 8" in out
    assert "no determined label is wrong with probability 0.99" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "nets_of_mine:build"), "--batch is missing (or give --dataset)"),
        ((*FILES, "--dataset", "cancer"), "give `--dataset` or `--model`, not both"),
        (("--model", "nets_of_mine", "--batch", "batch.npz", "--gradient", "gradient.npz"), "must be package.module:"),
        (("--model", "nets_of_mine:no", "--batch", "batch.npz", "--gradient", "gradient.npz"), "has no callable 'no'"),
        (("--model", "nets_of_mine:constant", "--batch", "batch.npz", "--gradient", "gradient.npz"), "no callable"),
        (
            ("--model", "nets_of_mine:number", "--batch", "batch.npz", "--gradient", "gradient.npz"),
            "`--model` must return a torch.nn.Module, got int",
        ),
        (("--model", "no_such_module:f", "--batch", "batch.npz", "--gradient", "gradient.npz"), "no_such_module"),
        ((*FILES, "--batch", "gradient.npz", "--gradient", "gradient.npz"), "holds no array named inputs; there are 0"),
        ((*FILES, "--batch", "batch.npz", "--gradient", "batch.npz"), "holds no gradient of any parameter"),
        ((*FILES, "--batch", "batch.npz", "--gradient", "gradient.npz", "--parameter", "9.w"), "holds no 9.w"),
        (
            (*FILES, "--batch", "batch.csv", "--gradient", "gradient.npz"),
            "must end in .safetensors or .npz, got batch.csv",
        ),
        ((*FILES, "--batch", "other.npz", "--gradient", "gradient.npz"), "other.npz"),
        ((*FILES, "--batch", "batch.npz", "--gradient", "text.npz"), "text.npz: is not an npz file"),
        (
            (*FILES, "--batch", "batch.npz", "--gradient", "gradient.npz", "--batches", "3"),
            "`--batches` is allowed only with",
        ),
        (("--dataset", "cancer", "--data", "."), "risk_factors_cervical_cancer.csv"),
    ],
)
def test_bad_input(saved, arguments, message) -> None:
    Path("text.npz").write_text("no archive", encoding="utf-8")
    code, _, err = run(*arguments)
    assert code == 2, err
    assert message in err
    assert "Traceback" not in err


def test_labels_of_another_length(saved) -> None:
    with np.load("batch.npz") as file:
        np.savez("short.npz", inputs=file["inputs"], labels=file["labels"][:3])
    code, _, err = run(*FILES, "--batch", "short.npz", "--gradient", "gradient.npz")
    assert code == 2
    assert "short.npz: `labels` must have shape (8,), one per input, got (3,)" in err


@needs_data
def test_paper_data_without_noise() -> None:
    code, out, err = run("--dataset", "cancer", "--batches", "4", "--data", str(DATA), "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["labels"] == 200
    assert report["determined"] >= 195
    assert report["right"] == report["determined"] == report["right_by_sign"]
    assert report["bound"]["value"][0] == "inf"


@needs_data
def test_paper_data_with_noise() -> None:
    code, out, err = run(
        "--dataset", "cancer", "--batches", "4", "--data", str(DATA), "--noise-multiplier", "0.5", "--json"
    )
    assert code == 0, err
    report = json.loads(out)
    assert report["right"] == report["determined"] < 100
    assert 0.5 * report["identifiable"] < report["right_by_sign"] < report["identifiable"]
    assert 0.5 < max(report["bound"]["value"]) < report["bound"]["replacement"]["value"]
    _, text, _ = run("--dataset", "cancer", "--batches", "4", "--data", str(DATA), "--noise-multiplier", "0.5")
    assert "label-ε ≥" in text
    printed = text.partition("label-ε ≤   ")[2].split()[0]
    assert 0 <= float(printed) - report["bound"]["replacement"]["value"] < 0.01
