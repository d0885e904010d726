"""`leakcore attack inversion` on bundled data and on files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from leakcore.attacks import inversion
from leakcore.cli import main
from leakcore.models import save_safetensors

NETS = """
import torch

def build():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 12), torch.nn.Sigmoid(), torch.nn.Linear(12, 3))
"""


def _call(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["attack", "inversion", *arguments])
    return done.exit_code, done.output


def test_bundled_digit(tmp_path: Path) -> None:
    code, text = _call("--dataset", "digits", "--restarts", "2", "--out", str(tmp_path), "--quiet")
    assert code == 0, text
    assert text.count("restart") == 2
    assert "SSIM 1.000" in text
    assert text.endswith(f"{tmp_path / 'inversion.npz'}\n{tmp_path / 'inversion.png'}\n")
    assert (tmp_path / "inversion.png").read_bytes().startswith(b"\x89PNG")
    assert np.load(tmp_path / "inversion.npz")["reconstructions"].shape == (1, 1, 8, 8)


def test_noise() -> None:
    code, text = _call(
        "--dataset", "digits", "--restarts", "1", "--noise-std", "1", "--iterations", "60", "--json", "--quiet"
    )
    assert code == 0, text
    content = json.loads(text)
    assert content["quality"][0]["ssim"][0] < 0.7


def test_defence_and_falling_prior() -> None:
    common = ("--dataset", "digits", "--restarts", "1", "--json", "--quiet")
    plain, pruned = (
        _call(*common, *more, "--total-variation", "1e-2,1e-4", "--iterations", "120")
        for more in ((), ("--defense", "prune:0.02 + gaussian-noise:0.01"))
    )
    assert plain[0] == pruned[0] == 0, plain[1] + pruned[1]
    first, second = (json.loads(text)["quality"][0]["ssim"][0] for _, text in (plain, pruned))
    assert first > 0.95
    assert second < first - 0.1
    assert "total variation 0.01, 0.0001" in plain[1]
    for option, value in (("--defense", "prune"), ("--total-variation", "a,b")):
        code, text = _call(*common, option, value)
        assert code == 2
        assert value in text


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets_for_inversion.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    scope: dict[str, object] = {}
    exec(NETS, scope)
    model = scope["build"]()  # type: ignore[operator]
    save_safetensors(model, tmp_path / "net.safetensors")
    x, y = torch.rand(1, 1, 4, 4), torch.tensor([2])
    flat = inversion.gradient(model, x, y)
    torch.nn.functional.cross_entropy(model(x), y).backward()
    gradients = {name: p.grad.numpy() for name, p in model.named_parameters()}
    assert len(flat) == sum(g.size for g in gradients.values())
    np.savez(tmp_path / "grad.npz", **gradients)
    np.savez(tmp_path / "batch.npz", inputs=x.numpy(), labels=y.numpy())
    common = (
        "--model", "nets_for_inversion:build", "--weights", "net.safetensors", "--gradient", "grad.npz",
        "--shape", "1,4,4", "--quiet",
    )  # fmt: skip
    code, text = _call(*common, "--batch", "batch.npz", "--restarts", "1")
    assert code == 0, text
    assert "labels     2" in text
    code, text = _call(*common, "--unknown-labels", "--restarts", "1", "--iterations", "60")
    assert code == 0, text
    code, text = _call(*common, "--batch", "batch.npz", "--batch-size", "2")  # before any search
    assert code == 2
    assert "`--batch` must hold inputs of shape (2, 1, 4, 4), --batch-size rows of --shape, got (1, 1, 4, 4)" in text
    code, text = _call(*common[:-3], "--shape", "a,b", "--quiet")
    assert code == 2
    assert "`--shape` must be numbers between commas, as 3,32,32, got 'a,b'" in text


def test_defence_on_a_users_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --gradient that of the batch is attacked, under the defence."""
    (tmp_path / "nets_to_defend.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "batch.npz", inputs=rng.random((1, 1, 4, 4)).astype(np.float32), labels=[2])
    np.savez(tmp_path / "unlabelled.npz", inputs=rng.random((1, 1, 4, 4)).astype(np.float32))
    common = ("--model", "nets_to_defend:build", "--restarts", "1", "--json", "--quiet")
    plain, noisy = (
        _call(*common, "--batch", "batch.npz", *more) for more in ((), ("--defense", "clip:1 + gaussian-noise:0.1"))
    )
    assert plain[0] == noisy[0] == 0, plain[1] + noisy[1]
    first, second = (json.loads(text)["quality"][0]["mse"][0] for _, text in (plain, noisy))
    assert first < 1e-3 < second
    for arguments, message in (
        (
            ("--batch", "unlabelled.npz"),
            "`--batch` must hold inputs and labels where there is no --gradient, and lacks",
        ),
        (("--gradient", "g.npz", "--batch", "batch.npz"), "--shape is missing (or leave out --gradient)"),
        (("--gradient", "g.npz", "--shape", "4", "--defense", "prune:1"), "is allowed only without --gradient"),
    ):
        code, text = _call(*common, *arguments)
        assert code == 2
        assert message in text


def test_bad_options() -> None:
    assert _call("--dataset", "digits", "--gradient", "g.npz")[0] == 2
    assert _call("--gradient", "g.npz")[0] == 2
    code, text = _call("--dataset", "digits", "--noise-std", "-1", "--quiet")
    assert code == 2
    assert "`--noise-std` must be at least 0, got -1.0" in text
