"""Every measure by layer, its table and heat map, and the command line over a model of the user's."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from matplotlib.figure import Figure
from torch import nn

from leakcore import leakage, models
from leakcore.cli import main


def _case(n=120):
    rng = np.random.default_rng(0)
    y = np.zeros(n, np.int64)  # of one class: another would turn the gradient's sign, which a linear family cannot undo
    has = rng.integers(0, 2, n)
    x = rng.random((n, 1, 6, 6)) + 2.0 * has[:, None, None, None]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ELU(), nn.Flatten(), nn.Linear(32, 6), nn.Tanh(), nn.Linear(6, 2))
    return model, torch.from_numpy(x).float(), torch.from_numpy(y), has


def _by_layer(model, x, y, progress=None, **measures):
    return leakage.by_layer(model, x, y, measures=leakage.LayerMeasures(**measures), progress=progress)


@pytest.mark.full
def test_every_measure_for_every_layer():
    model, x, y, has = _case()
    calls = []
    measured = _by_layer(
        model,
        x,
        y,
        attributes={"bright": has},
        samples=3,
        permutations=3,
        iterations=5,
        progress=lambda task, done, total: calls.append(task),
    )
    assert measured.layers == ("0", "3", "5")
    assert measured.parameters == (20, 198, 14)
    rows = measured.rows()
    assert [r["original"] is None for r in rows] == [False, False, True]
    direct = leakage.sensitivity(model, x[:3], y[:3])
    np.testing.assert_allclose([r["sensitivity"] for r in rows], direct.value)
    value, null, p = rows[1]["latent"]["bright"]
    assert value > null
    assert p == 0.25
    assert set(calls) == {"sensitivity", "inversion", "latent: bright", "attributes"}
    text = measured.to_text()
    assert "latent: bright" in text
    assert "3 for sensitivity (exact), 3 inverted" in text
    assert json.loads(json.dumps(measured.to_dict(), allow_nan=False))["layers"] == ["0", "3", "5"]
    assert len(measured.figure().axes[0].texts) == 3 * 5
    _check_panels(measured)


def _check_panels(measured):
    """Each measure has a panel whose bars are its values by layer, with a mark at the null."""
    first = Figure().subplots()
    assert measured.plot(first) is first
    panels = {axes.get_title().strip().replace("\n", " "): axes for axes in first.figure.axes}
    assert list(panels) == ["sensitivity", "original", "latent: bright", "subspace: bright"]
    widths = {name: [bar.get_width() for bar in axes.patches] for name, axes in panels.items()}
    np.testing.assert_allclose(widths["sensitivity"], measured.sensitivity.means["F"])
    np.testing.assert_allclose(widths["original"], [*measured.original.raw, np.nan])
    np.testing.assert_allclose(widths["latent: bright"], measured.latent["bright"].value)
    np.testing.assert_allclose(
        widths["subspace: bright"], [measured.subspace["bright"][layer].value for layer in measured.layers]
    )
    for name, null in (
        ("original", [*measured.original.null, np.nan]),
        ("latent: bright", measured.latent["bright"].null_mean),
        ("subspace: bright", [measured.subspace["bright"][layer].null_mean for layer in measured.layers]),
    ):
        (marks,) = [line for line in panels[name].lines if line.get_label() == "null"]
        np.testing.assert_allclose(marks.get_xdata(), null)
        assert panels[name].yaxis_inverted()
    assert [tick.get_text() for tick in first.get_yticklabels()] == list(measured.layers)


@pytest.mark.full
def test_equal_samples():
    model, x, y, has = _case(60)
    once = _by_layer(
        model,
        x,
        y,
        attributes={"bright": has},
        samples=1,
        permutations=3,
        iterations=0,
        jacobian=leakage.JacobianBudget(probes=2),
    )
    often = _by_layer(
        model,
        x.repeat(3, 1, 1, 1),
        y.repeat(3),
        attributes={"bright": np.tile(has, 3)},
        samples=1,
        permutations=3,
        iterations=0,
        jacobian=leakage.JacobianBudget(probes=2),
    )
    # Copies on both sides of a fold would be told apart whatever the attribute: they add nothing here.
    a, b = once.latent["bright"], often.latent["bright"]
    assert a.units == b.units
    np.testing.assert_array_equal(a.value, b.value)
    np.testing.assert_array_equal(a.null_mean, b.null_mean)
    with pytest.raises(
        ValueError, match=r"attribute 'bright': `attribute` must have shape \(60,\), one for each row, got \(59,\)"
    ):
        _by_layer(
            model,
            x,
            y,
            attributes={"bright": has[:59]},
            samples=1,
            iterations=0,
            jacobian=leakage.JacobianBudget(probes=2),
        )


def test_optional_measures():
    model, x, y, _ = _case()
    bare = _by_layer(model, x, y, attributes={}, samples=2, iterations=0, jacobian=leakage.JacobianBudget(probes=4))
    assert bare.original is None
    assert "Hutchinson, 4 directions" in bare.to_text()
    assert bare.rows()[0]["latent"] == {}


@pytest.mark.full
def test_table_width():
    model, x, y, has = _case()
    many = {f"attribute{i}": has for i in range(4)}
    measured = _by_layer(model, x, y, attributes=many, samples=1, rows=60, columns=20, permutations=0, iterations=0)
    lines = measured.to_text().splitlines()
    assert max(map(len, lines)) <= 120
    table = [line for line in lines if line.startswith(("layer", "0 ", "3 ", "5 "))]
    assert len(table) >= 8  # two blocks or more, each with its layers
    for i in range(4):
        assert sum(f"latent: attribute{i}" in line for line in lines) == 1


def test_large_layers():
    model, x, y, has = _case()
    few = _by_layer(model, x, y, attributes={"bright": has}, samples=1, columns=50, permutations=0, iterations=0)
    assert few.columns == 50
    assert math.isfinite(few.latent["bright"].value[1])
    assert few.latent["bright"].value[0] > 0


def test_plain_features():
    x = torch.rand(11, 3, 8, 8)
    measured = leakage.input_attributes(x)
    assert set(measured) == {"brightness", "texture", "warmth"}
    assert all(v.sum() == 5 for v in measured.values())
    assert set(leakage.input_attributes(np.random.default_rng(0).random((6, 5)))) == {"mean"}
    line = leakage.input_attributes(np.random.default_rng(0).random((40, 1, 8, 1)))
    assert line["texture"].sum() == 20
    assert set(leakage.input_attributes(np.random.default_rng(0).random((40, 1, 1, 1)))) == {"brightness"}
    with pytest.raises(ValueError, match=r"`inputs` must have shape \(n, \.\.\.\), at least two inputs.*got \(1, 3\)"):
        leakage.input_attributes(np.zeros((1, 3)))


@pytest.fixture
def user(tmp_path, monkeypatch):
    """A folder with a module of the user's and its data."""
    _, x, y, has = _case()
    (tmp_path / "usernets.py").write_text(
        "from torch import nn\n\n\ndef build():\n"
        "    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(32, 2))\n"
    )
    np.savez(tmp_path / "rows.npz", inputs=x.numpy(), targets=y.numpy(), bright=has)
    np.savez(tmp_path / "floats.npz", inputs=x.numpy(), targets=y.numpy() + 0.5)
    np.savez(tmp_path / "beyond.npz", inputs=x.numpy(), targets=y.numpy() + 2)
    np.savez(tmp_path / "soft.npz", inputs=x.numpy(), targets=np.full((len(y), 2), 0.5), bright=has)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(*arguments):
    return CliRunner().invoke(main, ["leakage", *arguments, "--quiet"])


@pytest.mark.full
def test_command(user):
    short = ["--samples", "2", "--permutations", "1", "--no-inversion"]
    done = _run("usernets:build", "--data", "rows.npz", "--attribute", "bright", "--figure", "out/leak.png", *short)
    assert done.exit_code == 0, done.output
    assert "latent: bright" in done.output
    assert (user / "out" / "leak.png").read_bytes().startswith(b"\x89PNG")
    models.save_safetensors(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Identity(), nn.Linear(32, 2)),
                            user / "w.safetensors")  # fmt: skip
    weighted = _run("usernets:build", "--data", "rows.npz", "--weights", "w.safetensors", "--json", *short)
    assert weighted.exit_code == 0, weighted.output
    report = json.loads(weighted.output)
    assert report["schema"] == "leakcore.leakage_by_layer/2"
    assert set(report["latent"]) == {"brightness", "texture"}


def test_documented_commands(tmp_path, monkeypatch):
    page = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "where-it-leaks.md").read_text(encoding="utf-8")
    module, rows = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[:2]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mynet.py").write_text(module)
    exec(compile(rows, "where-it-leaks.md", "exec"), {})
    commands = re.findall(r"^\$ leakcore leakage (.*)$", page, re.MULTILINE)
    assert len(commands) == 1
    short = ["--samples", "1", "--permutations", "0", "--num-rows", "60", "--attribute", "left", "--no-inversion"]
    done = _run(*commands[0].split(), *short)
    assert done.exit_code == 0, done.output
    assert "latent: left" in done.output
    assert (tmp_path / "leak.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["usernets:build", "--data", "rows.npz", "--attribute", "age"], "holds no array named age"),
        (["usernets:build", "--data", "none.npz"], "none.npz"),
        (["usernets", "--data", "rows.npz"], "must be package.module:factory"),
        (["usernets:build", "--data", "digits"], "`--data` must hold inputs that fit the model, got shape (64,)"),
        (
            ["leakcore.models:breast_cancer_mlp", "--data", "digits"],
            "`--data` must hold inputs that fit the model, got shape (64,)",
        ),
        (
            ["usernets:build", "--data", "floats.npz"],
            "`targets` must be class numbers, integers, for cross-entropy, got torch.float64",
        ),
        (["usernets:build", "--data", "beyond.npz"], "must be a class of the model, in [0, 1]"),
        (["usernets:build", "--data", "rows.npz", "--figure", "x.jpg"], "must end in"),
        (
            ["usernets:build", "--data", "digits", "--attribute", "a"],
            "`--attribute` must be left out with --data digits",
        ),
    ],
)
def test_command_errors(user, arguments, message):
    done = _run(*arguments)
    assert done.exit_code == 2
    assert message in done.output


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(
    ("model", "data"), [("usernets:build", "soft.npz"), ("leakcore.models:breast_cancer_mlp", "breast-cancer")]
)
def test_command_targets(user, model, data):
    """Probabilities, and labels of a model with one logit."""
    done = _run(model, "--data", data, "--samples", "1", "--permutations", "1", "--no-inversion")
    assert done.exit_code == 0, done.output


def test_missing_faces(tmp_path, monkeypatch):
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    done = _run("leakcore.models:lenet", "--data", "lfw")
    assert done.exit_code == 2
    assert "lfw: not in scikit-learn's data folder" in done.output


def test_command_on_bundled_data():
    done = _run(
        "leakcore.models:breast_cancer_mlp", "--data", "breast-cancer", "--loss", "logistic", "--samples", "1",
        "--permutations", "0", "--num-rows", "60", "--no-inversion",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "latent: mean" in done.output
