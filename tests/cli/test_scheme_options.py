"""How a training takes its batches, as options of bound and calibrate."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from leakcore import bounds, mechanisms
from leakcore.cli import main

WORDS = {
    "poisson": ("--sample-rate", "0.1", "--steps", "10"),
    "full": ("--steps", "10"),
    "fixed": ("--batch-size", "2", "--dataset-size", "20", "--steps", "10"),
    "shuffled": ("--batches", "10", "--epochs", "2"),
    "allocation": ("--batches", "10", "--epochs", "2"),
}
MECHANISMS: dict[str, mechanisms.Mechanism] = {
    "poisson": mechanisms.Poisson(2.0, 0.1, 10),
    "full": mechanisms.FullBatch(2.0, 10),
    "fixed": mechanisms.FixedSize(2.0, 2, 20, 10),
    "shuffled": mechanisms.Shuffled(2.0, 10, 2),
    "allocation": mechanisms.RandomAllocation(2.0, 10, 2),
}


def _run(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, list(words))
    return done.exit_code, done.stdout, done.stderr


def _bound(sampling: str, *words: str, noise: str = "2") -> tuple[int, str, str]:
    return _run("bound", "--noise-multiplier", noise, "--kappa", "0.1", "--sampling", sampling, *words)


def test_schemes() -> None:
    assert list(WORDS) == list(mechanisms.SCHEMES)
    (choice,) = [p for p in main.commands["bound"].params if p.name == "sampling"]
    assert list(choice.type.choices) == list(mechanisms.SCHEMES)  # type: ignore[attr-defined]
    taken = {name for scheme in mechanisms.SCHEMES.values() for name in scheme.arguments}
    assert set(mechanisms.ARGUMENTS) == taken <= {p.name for p in main.commands["bound"].params}


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("sampling", WORDS)
def test_bound_of_the_mechanism(sampling: str) -> None:
    code, out, err = _bound(sampling, *WORDS[sampling], "--json")
    assert code == 0, err
    content, expected = json.loads(out), bounds.reconstruction(MECHANISMS[sampling], kappa=0.1)
    assert content["value"] == expected.value
    assert content["assumptions"]["adjacency"] == expected.adjacency
    code, out, _ = _bound(sampling, *WORDS[sampling])
    assert code == 0
    assert f"mechanism   {MECHANISMS[sampling]!r}" in out
    if sampling != "poisson":
        assert MECHANISMS[sampling].proof() in out


@pytest.mark.full
def test_shuffled_batches() -> None:
    code, out, _ = _bound("shuffled", "--batches", "100", "--epochs", "5", noise="1")
    assert code == 0
    lines = dict(line.split(maxsplit=1) for line in out.replace("if Poisson", "if-Poisson").splitlines())
    assert lines["method"] == "bracket"
    assert "zero-out adjacency" in lines["kind"]
    low, high = (float(number) for number in lines["interval"].split(" to "))
    claim = float(lines["if-Poisson"].split()[0])
    assert claim < low < high
    assert "is what accounting for these batches as Poisson sampling claims" in lines["if-Poisson"]
    assert "accounting as Poisson sampling claims" in lines["WARNING"]
    assert "zero-out adjacency" in lines["WARNING"]


def test_no_warning() -> None:
    code, out, _ = _bound("shuffled", "--batches", "1", "--epochs", "2")
    assert (code, "WARNING" in out) == (0, False)


@pytest.mark.parametrize(
    ("sampling", "words", "message"),
    [
        ("poisson", ("--steps", "3"), "--sample-rate is missing (--sampling poisson needs it)"),
        ("shuffled", ("--epochs", "3"), "--batches is missing (--sampling shuffled needs it)"),
        ("full", ("--steps", "3", "--sample-rate", "1"), "--sample-rate: only with --sampling poisson, not full"),
        ("shuffled", (*WORDS["shuffled"], "--steps", "3"), "--steps: only with --sampling poisson or full or fixed"),
        ("fixed", ("--batch-size", "9", "--dataset-size", "5", "--steps", "3"), "--batch-size"),
        ("shuffled", (*WORDS["shuffled"], "--method", "importance"), "--method"),
    ],
)
def test_bad_combinations(sampling: str, words: tuple[str, ...], message: str) -> None:
    for command in ("bound", "calibrate") if "--method" not in words else ("bound",):
        own = {"bound": ("--noise-multiplier", "2"), "calibrate": ("--target-success", "0.5")}[command]
        code, _, err = _run(command, *own, "--kappa", "0.1", "--sampling", sampling, *words)
        assert code == 2
        assert message in err


@pytest.mark.full
@pytest.mark.parametrize("sampling", ["full", "shuffled"])
def test_calibrated_noise(sampling: str) -> None:
    how: tuple[Any, ...] = ("calibrate", "--target-success", "0.5", "--kappa", "0.1", "--sampling", sampling)
    code, out, err = _run(*how, *WORDS[sampling], "--json")
    assert code == 0, err
    content = json.loads(out)
    at = MECHANISMS[sampling].with_noise(content["value"])
    assert 0.4999 < bounds.reconstruction(at, kappa=0.1).value <= 0.5
    assert content["assumptions"]["adjacency"] == at.adjacency
    assert content["value"] < content["epsilon_noise_multiplier"]
