"""`leakcore leakage`: what cannot be measured is refused before anything is."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from leakcore.cli import main

NETS = """
import torch

def build():
    return torch.nn.Linear(5, 2)

def broken():
    raise RuntimeError("no such size")
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["leakage", *arguments, "--quiet"])


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user's, 40 rows, and measures that must not begin."""
    (tmp_path / "nets_to_measure.py").write_text(NETS, encoding="utf-8")
    (tmp_path / "nets_with_a_fault.py").write_text("import no_such_package\n", encoding="utf-8")
    (tmp_path / "nets_with_a_typo.py").write_text("def build(:\n", encoding="utf-8")
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    few = (np.arange(40) < 9).astype(int)
    np.savez(
        tmp_path / "rows.npz", inputs=rng.normal(size=(40, 5)).astype(np.float32), targets=y, few=few, same=y,
        odd=np.full(40, 3), short=few[:7],
    )  # fmt: skip
    np.savez(tmp_path / "few.npz", inputs=rng.normal(size=(18, 5)).astype(np.float32), targets=y[:18])
    monkeypatch.chdir(tmp_path)

    def begun(*_: object, **__: object) -> None:
        raise AssertionError("measured before all was checked")

    monkeypatch.setattr(importlib.import_module("leakcore.leakage.by_layer"), "measure_sensitivity", begun)
    return tmp_path


MINE = ("nets_to_measure:build", "--data", "rows.npz")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*MINE, "--num-rows", "1"), "'--num-rows': 1 is not in the range 20<=x<=1000000"),
        ((*MINE, "--num-rows", "19"), "'--num-rows': 19 is not in the range 20<=x<=1000000"),
        ((*MINE, "--permutations", "-1"), "'--permutations': -1 is not in the range 0<=x<=100000"),
        ((*MINE, "--samples", "0"), "'--samples': 0 is not in the range 1<=x<=100000"),
        (
            (*MINE, "--attribute", "few"),
            "`attribute='few'` must have at least 10 pairs of rows with and without it that share a target, got 9",
        ),
        ((*MINE, "--attribute", "same"), "attribute 'same': `attribute` must leave at least 1 rows of some"),
        (
            (*MINE, "--attribute", "odd"),
            "attribute 'odd': `attribute` must have shape (n,) and hold 0 and 1, got shape (40,)",
        ),
        (
            (*MINE, "--attribute", "short"),
            "attribute 'short': `attribute` must have shape (40,), one for each row, got (7,)",
        ),
        (("nets_to_measure:build", "--data", "few.npz"), "`attribute='mean'` must have at least 10 pairs of rows"),
        (
            ("no_such_nets:build", "--data", "rows.npz"),
            "`model` must name a module that can be imported, got 'no_such_nets:build' (ModuleNotFoundError: No m",
        ),
        (
            ("nets_with_a_fault:build", "--data", "rows.npz"),
            "that can be imported, got 'nets_with_a_fault:build' (ModuleNotFoundError: No m",
        ),
        (
            ("nets_with_a_typo:build", "--data", "rows.npz"),
            "that can be imported, got 'nets_with_a_typo:build' (SyntaxError: ",
        ),
        (
            ("nets_to_measure:broken", "--data", "rows.npz"),
            "`model` must name a factory, got 'nets_to_measure:broken', which failed (RuntimeError: no such size)",
        ),
    ],
)
def test_errors_before_any_work(user: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2, done.output
    assert message in done.output, done.output


TOKENS = """
import torch

class Reads(torch.nn.Module):
    def __init__(self, masked=False):
        super().__init__()
        self.table, self.place, self.masked = torch.nn.Embedding(30, 6), torch.nn.Embedding(8, 6), masked
        self.body, self.head = torch.nn.Linear(6, 5), torch.nn.Linear(5, 2)

    def forward(self, ids):
        x = self.table(ids) + self.place(torch.arange(ids.shape[-1]))
        if self.masked:
            x = x * (ids > 3)[..., None]
        return self.head(torch.tanh(self.body(x)).mean(-2))

def masked():
    return Reads(True)
"""


def test_model_of_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets_of_tokens.py").write_text(TOKENS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    ids, y = rng.integers(0, 30, (60, 8)), np.arange(60) % 2
    np.savez(tmp_path / "tokens.npz", inputs=ids, targets=y)
    np.savez(tmp_path / "outside.npz", inputs=ids + 25, targets=y)
    few = ("--samples", "1", "--num-rows", "20", "--permutations", "1")
    done = run("nets_of_tokens:Reads", "--data", "tokens.npz", *few, "--no-inversion", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    assert report["layers"] == ["model.place", "model.body", "model.head"]
    assert list(report["latent"]) == ["many different tokens"]
    for spec, data, message in (
        ("masked", "tokens.npz", "must read its token ids in the embedding 'table' alone"),
        ("Reads", "outside.npz", "`--data` must hold token ids that fit the model, whose tables have 30 and 8 rows"),
    ):
        refused = run(f"nets_of_tokens:{spec}", "--data", data, *few)
        assert refused.exit_code == 2
        assert message in refused.output


def test_least_number_of_rows() -> None:
    done = run(
        "leakcore.models:digits_mlp", "--data", "digits", "--num-rows", "20", "--samples", "1", "--permutations", "0",
        "--no-inversion",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "10 and 10 rows without and with it" in done.output


def test_identity_of_a_run() -> None:
    """The same weights under another activation: pieces of one must not complete a report on the other."""
    from leakcore.cli.leakage import _behaviour, _content

    torch.manual_seed(0)
    first, last = torch.nn.Linear(5, 4), torch.nn.Linear(4, 2)
    relu = torch.nn.Sequential(first, torch.nn.ReLU(), last)
    sigmoid = torch.nn.Sequential(first, torch.nn.Sigmoid(), last)
    x = torch.rand(2, 5)
    assert _content(_behaviour(relu, x)) == _content(_behaviour(relu, x))
    assert _content(_behaviour(relu, x)) != _content(_behaviour(sigmoid, x))
