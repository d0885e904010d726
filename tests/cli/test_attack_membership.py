"""`leakcore attack membership` on saved models, and the audit of what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from leakcore import audit, datasets, models
from leakcore.attacks import membership
from leakcore.cli import main

MODULE = """
import torch

def build():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
"""
ROWS = 300
FILES = ("--model", "digit_nets:build", "--data", "rows.npz")
REFERENCES = ("--reference", "1-20.safetensors,1-60.safetensors", "--reference", "2-20.safetensors,2-60.safetensors")


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["attack", "membership", *arguments, "--quiet"])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target and a pair of references, trained on halves of the rows, each with a checkpoint."""
    place = tmp_path_factory.mktemp("models")
    (place / "digit_nets.py").write_text(MODULE, encoding="utf-8")
    digits, rng = datasets.digits(), np.random.default_rng(0)
    order = rng.permutation(1797)
    x, y = digits.features[order].astype(np.float32), digits.labels[order]
    members, half = (rng.random(ROWS) < 0.5 for _ in range(2))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name, inside in (("0", members), ("1", half), ("2", ~half)):
            names: dict[str, object] = {}
            exec(MODULE, names)
            model = names["build"]()  # type: ignore[operator]
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            inputs, labels = torch.from_numpy(x[:ROWS][inside]), torch.from_numpy(y[:ROWS][inside])
            for step in range(1, 61):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
                if step in (20, 60):
                    models.save_safetensors(model, place / f"{name}-{step}.safetensors")
    np.savez(
        place / "rows.npz", inputs=x[:ROWS], labels=y[:ROWS], members=members,
        reference_members=np.array([half, ~half]),
        population_inputs=x[ROWS:900], population_labels=y[ROWS:900],
    )  # fmt: skip
    return place


@pytest.fixture(autouse=True)
def _there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def _rows() -> dict[str, np.ndarray]:
    with np.load("rows.npz") as file:
        return dict(file)


def test_attacks_by_files() -> None:
    weights = ("--weights", "0-20.safetensors", "--weights", "0-60.safetensors")
    code, out, err = run(*FILES, *weights, *REFERENCES, "--out", "scores", "--json")
    assert code == 0, err
    report = json.loads(out)
    assert set(report["attacks"]) == {"loss", "rmia", "loss-trajectory", "label-only", "quantile"}
    assert set(report["left_out"]) == {"lira", "lira-offline"}
    areas = {name: own["area"] for name, own in report["attacks"].items()}
    assert all(own["interval"][0] <= own["value"] <= own["interval"][1] for own in areas.values())
    assert areas["rmia"]["value"] > areas["loss"]["value"] > 0.5
    for name, own in areas.items():
        written = audit.read_scores(f"scores/{name}.npz")
        assert len(written.members) + len(written.non_members) == ROWS
        report_of_file = audit.from_scores(written, coins=True)
        assert report_of_file.area.value == pytest.approx(own["value"])
        assert report_of_file.at_fpr[1].value == pytest.approx(report["attacks"][name]["rates"][1]["value"])


def test_scores_against_the_library() -> None:
    code, _, err = run(*FILES, "--weights", "0-60.safetensors", *REFERENCES, "--attack", "rmia", "--out", "only")
    assert code == 0, err
    assert [path.name for path in Path("only").iterdir()] == ["rmia.npz"]
    rows, names = _rows(), {}
    exec(MODULE, names)
    nets = []
    for number in range(3):
        nets.append(names["build"]())
        models.load_safetensors(nets[-1], f"{number}-60.safetensors")
    queries = membership.Queries(population=(rows["population_inputs"], rows["population_labels"]))
    target, known = (
        membership.observe(own, rows["inputs"], rows["labels"], queries=queries) for own in (nets[:1], nets[1:])
    )
    references = membership.References(**vars(known), included=rows["reference_members"])
    scores = membership.scores("rmia", target, references=references)
    with np.load("only/rmia.npz") as written:
        np.testing.assert_array_equal(written["scores"], scores[0])
        np.testing.assert_array_equal(written["membership"], rows["members"])


def test_table_and_audit_file() -> None:
    code, out, err = run(*FILES, "--weights", "0-60.safetensors", "--out", "table")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].split("  ")[0] == "attack"
    assert "TPR at 1% FPR" in lines[0]
    assert [line.split()[0] for line in lines[1:4]] == ["loss", "label-only", "quantile"]
    assert "rmia: left out: `references` must be given for RMIA" in out
    assert "table/loss.npz" in out
    done = CliRunner().invoke(main, ["audit", "scores", "table/loss.npz", "--coins", "--quiet"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--weights", "0-60.safetensors", "--attack", "rmia"), r"`--reference` must be given for RMIA("),
        (("--weights", "0-60.safetensors", "--attack", "mia"), "Invalid value for '--attack'"),
        ((), "Missing option '--weights'"),
        (("--weights", "absent.safetensors"), "absent.safetensors"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], message: str) -> None:
    code, _, err = run(*FILES, *arguments)
    assert code == 2
    assert message in err


def test_bad_rows() -> None:
    rows = _rows()
    for change, message in (
        ({"members": None}, "bad.npz: holds no array named members"),
        ({"members": np.ones(ROWS)}, "`members` must hold members and others, got all 1"),
        ({"members": np.full(ROWS, 2)}, "`members` must hold 0 and 1 in shape (300,)"),
        ({"reference_members": np.zeros((3, ROWS))}, "`reference_members` must hold 0 and 1 in shape (2, 300)"),
        ({"population_labels": None}, "`population_labels` must be in the data with population_inputs"),
    ):
        np.savez("bad.npz", **{name: value for name, value in {**rows, **change}.items() if value is not None})
        code, _, err = run(
            "--model", "digit_nets:build", "--data", "bad.npz", "--weights", "0-60.safetensors", *REFERENCES
        )
        assert code == 2
        assert message in err
