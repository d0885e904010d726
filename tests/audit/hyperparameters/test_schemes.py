"""The audit of every training scheme: its numbers are the mechanism's own, and its game is played with its batches."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from click.testing import CliRunner

from leakcore import accounting, audit, bounds, dpsgd, mechanisms
from leakcore.audit.hyperparameters import layers, reconstruction, scheme
from leakcore.cli import main

SMALL: dict[str, Any] = {
    "epsilon": None, "noise_multiplier": 0.9, "sweep": (), "runs": 32, "num_rows": 60, "label_trials": 2,
    "label_steps": 2, "hidden": (),
}  # fmt: skip
KEYS: dict[str, dict[str, Any]] = {
    "poisson": {"sample_rate": 0.25, "steps": 8},
    "full": {"steps": 8},
    "fixed": {"batch_size": 15, "steps": 8},
    "shuffled": {"batches": 4, "epochs": 2},
    "allocation": {"batches": 4, "epochs": 2},
}
MECHANISMS: dict[str, mechanisms.Mechanism] = {
    "poisson": mechanisms.Poisson(0.9, 0.25, 8),
    "full": mechanisms.FullBatch(0.9, 8),
    "fixed": mechanisms.FixedSize(0.9, 15, 60, 8),
    "shuffled": mechanisms.Shuffled(0.9, 4, 2),
    "allocation": mechanisms.RandomAllocation(0.9, 4, 2),
}
BATCHES: dict[str, Any] = {
    "poisson": dpsgd.PoissonBatches(0.25, 15.0),
    "full": dpsgd.PoissonBatches(1.0, 60.0),
    "fixed": dpsgd.FixedBatches(15),
    "shuffled": dpsgd.ShuffledBatches(15),
    "allocation": dpsgd.AllocatedBatches(4, 15.0),
}


@pytest.fixture(scope="module", autouse=True)
def _few_points() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reconstruction, "_FEW_CURVE_POINTS", 2)
        patch.setattr(layers, "_PERMUTATIONS", 1)
        patch.setattr(layers, "_ROWS", 40)
        yield


class Reports(Mapping[str, audit.RunReport]):
    """The report of each scheme, computed when a test first asks for it."""

    def __init__(self) -> None:
        self._ready: dict[str, audit.RunReport] = {}

    def __getitem__(self, name: str) -> audit.RunReport:
        if name not in self._ready:
            self._ready[name] = audit.run({**SMALL, "sampling": name, **KEYS[name]})
        return self._ready[name]

    def __iter__(self) -> Iterator[str]:
        return iter(KEYS)

    def __len__(self) -> int:
        return len(KEYS)


@pytest.fixture(scope="module")
def reports() -> Reports:
    return Reports()


def test_every_scheme_has_a_report_here() -> None:
    assert list(KEYS) == list(mechanisms.SCHEMES) == list(typing.get_args(mechanisms.SchemeName))


@pytest.mark.full
@pytest.mark.parametrize("name", KEYS)
def test_every_number_is_that_of_the_mechanism(name: str, reports: Reports) -> None:
    report, mechanism = reports[name], MECHANISMS[name]
    p = report.claimed
    for mine, theirs in (
        (p.epsilon, accounting.epsilon(mechanism, delta=1e-5)),
        (p.bound, bounds.reconstruction(mechanism, kappa=0.1)),
        (p.membership, bounds.membership(mechanism, fpr=0.01)),
    ):
        assert mine is not None
        assert (float(mine.value), mine.adjacency) == (float(theirs.value), mechanism.adjacency)
    adjacencies = {p.epsilon_audited.adjacency, p.attack.adjacency, *([p.reference.adjacency] if p.reference else [])}
    assert adjacencies == {mechanism.adjacency}
    assert (p.bound_rdp is None) is (name not in ("poisson", "full"))
    assert (p.reference is None) is (name not in ("full", "shuffled"))
    if name == "fixed":
        assert p.epsilon_replace is None
    else:
        assert p.epsilon_replace is not None
        assert p.epsilon_replace.adjacency == "replace"
    assert report.passed


@pytest.mark.full
@pytest.mark.parametrize("name", KEYS)
def test_the_game_is_played_with_the_batches_of_the_scheme(name: str, reports: Reports) -> None:
    config = audit.AuditConfig(**{**SMALL, "sampling": name, **KEYS[name]})
    assert reconstruction.ensemble(config, 0.9).sampling == BATCHES[name]
    assert reconstruction.ensemble(config, 0.9).steps == 8
    settings = reports[name].claimed.attack.settings
    assert settings["expected_batch_size"] in (BATCHES[name].expected_batch_size, None)
    assert settings["steps"] == 8
    assert settings["method"] == {"poisson": "top", "fixed": "top", "allocation": "likelihood"}.get(name, "sum")


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("name", KEYS)
def test_the_report_says_the_scheme_and_comes_back(name: str, reports: Reports) -> None:
    report = reports[name]
    words = {
        "poisson": "Poisson sampling q = 0.25", "full": "full batches", "shuffled": "4 shuffled batches an epoch",
        "fixed": "a fresh batch of 15 of 60 rows in each step", "allocation": "random allocation to 4 batches an epoch",
    }[name]  # fmt: skip
    assert words in report.title
    assert sum(words in text for text in report.assumptions()) == 1
    adjacency = {"fixed": "replacement", "shuffled": "zero-out"}.get(name, "add/remove")
    assert {card.adjacency for card in report.cards() if card.kind} == {f"{adjacency} adjacency"}
    html = report.to_html()
    assert f"{adjacency.capitalize()} adjacency throughout" in html
    for lead in ("The accountant", "Telling members from others"):
        assert sum(str(text).startswith(f"{lead}: ") for text in report.findings()) == 1
    again = audit.RunReport.from_dict(json.loads(report.to_json()))
    assert again.claimed.membership == report.claimed.membership
    assert audit.AuditConfig(**report.config.to_dict()) == report.config


@pytest.mark.full
def test_only_shuffled_batches_are_warned_of_what_poisson_accounting_claims(reports: Reports) -> None:
    lead = "What Poisson accounting would claim: "
    said = {name: [t for t in report.findings() if str(t).startswith(lead)] for name, report in reports.items()}
    assert [name for name, texts in said.items() if texts] == ["shuffled"]
    (finding,) = said["shuffled"]
    p = reports["shuffled"].claimed
    low = float(p.epsilon.interval[0])  # type: ignore[index]
    assert float(p.epsilon.poisson_claim) < low < float(p.epsilon.value)  # type: ignore[attr-defined]
    assert "probability 1/4" in finding
    assert "they lie below the lower limit for ε, naming the target" in finding.verdict  # type: ignore[attr-defined]
    curve = reports["shuffled"].curve
    assert curve.bound_lower is not None
    assert curve.poisson_claim is not None
    assert (curve.poisson_claim < curve.bound_lower).all()
    assert (curve.bound_lower < curve.bound).all()
    assert reports["allocation"].curve.bound_lower is None


@pytest.mark.full
@pytest.mark.parametrize("name", ["fixed", "shuffled", "allocation"])
def test_noise_for_a_claim_is_that_of_the_scheme(name: str) -> None:
    """And ε of that noise is not printed above the claim."""
    config = audit.AuditConfig(**{**SMALL, "sampling": name, **KEYS[name], "epsilon": 5.0, "noise_multiplier": None})
    ((noise, claimed),) = reconstruction.noise_levels(config)
    epsilon = float(accounting.epsilon(MECHANISMS[name].with_noise(noise), delta=1e-5).value)
    assert claimed
    assert 5.0 * (1 - 1e-4) < epsilon <= 5.0


def test_defaults_of_a_scheme() -> None:
    assert (audit.AuditConfig().sample_rate, audit.AuditConfig().steps) == (1.0, 100)
    fixed = audit.AuditConfig(sampling="fixed", batch_size=10)
    assert (fixed.sample_rate, fixed.steps, fixed.dataset_size) == (None, 100, 1000)
    shuffled = audit.AuditConfig(sampling="shuffled", batches=10, epochs=3)
    assert (shuffled.steps, scheme.total_steps(shuffled)) == (None, 30)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sampling": "some"}, "`sampling` must be 'poisson', 'full', 'fixed', 'shuffled' or 'allocation', got 'some'"),
        ({"sampling": "shuffled", "batches": 4}, "`epochs` must be given with sampling='shuffled'"),
        ({"sampling": "shuffled", "batches": 0, "epochs": 1}, r"`batches` must be in \[1, 16777215\], got 0"),
        (
            {"sampling": "shuffled", "batches": 4, "epochs": 1, "steps": 4},
            "`steps` must be left out with sampling='shuffled', got 4: it belongs to poisson and full and fixed",
        ),
        (
            {"batches": 4},
            "`batches` must be left out with sampling='poisson', got 4: it belongs to shuffled and alloca",
        ),
        ({"sampling": "shuffled", "batches": 7, "epochs": 1}, "`num_rows` must be a multiple of batches=7, got 1000"),
        ({"sampling": "fixed", "batch_size": 1001}, "`batch_size` must be at most dataset_size=1000, got 1001"),
        (
            {"sampling": "fixed", "batch_size": 9, "dataset_size": 90},
            "`dataset_size` must be num_rows=1000, .*, got 90",
        ),
        (
            {"sampling": "allocation", "batches": 5000, "epochs": 5000},
            "`batches` times `epochs` must be at most 16777215, got 5000 times 5000",
        ),
        (
            {"sampling": "shuffled", "batches": 4, "epochs": 1, "defense": "prune:0.1"},
            "`sampling` must be 'full', or 'poisson' with sample_rate=1, with a defense, got 'shuffled'",
        ),
    ],
)
def test_keys_that_do_not_go_together_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audit.AuditConfig(**change)


def _command(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["audit", "run", *words, "--quiet"])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--sampling shuffled --batches 10", "`--epochs` must be given with --sampling='shuffled'"),
        ("--sampling shuffled --batches 7 --epochs 1", "`--num-rows` must be a multiple of --batches=7, got 1000"),
        ("--batch-size 7", "`--batch-size` must be left out with --sampling='poisson', got 7: it belongs to fixed"),
    ],
)
def test_the_command_refuses_them_by_option(words: str, message: str) -> None:
    code, _, err = _command(*words.split())
    assert code == 2
    assert message in err


@pytest.mark.full
def test_a_file_and_options_before_it(tmp_path: Any, reports: Reports) -> None:
    """[run] sampling in a file, and another scheme on the command line, which replaces what belongs to the file's."""
    common = "epsilon = 2\nsweep = []\nruns = 32\nnum_rows = 60\nlabel_trials = 2\nlabel_steps = 2\nhidden = []\n"
    file = tmp_path / "audit.toml"
    file.write_text(f"[run]\nsampling = 'full'\nsteps = 8\n{common}")
    options = ("--config", str(file), "--noise-multiplier", "0.9", "--json", "--out", str(tmp_path / "out"))
    scheme_options = ("--sampling", "shuffled", "--batches", "4", "--epochs", "2")
    code, out, err = _command(*options, *scheme_options)
    assert code == 0, err
    report, expected = json.loads(out), reports["shuffled"].to_dict()
    assert report["config"] == json.loads(json.dumps(expected["config"]))
    assert report["reconstruction"][0]["bound"]["value"] == expected["reconstruction"][0]["bound"]["value"]
    assert report["reconstruction"][0]["attack"]["hits"] == expected["reconstruction"][0]["attack"]["hits"]
    file.write_text(f"[run]\nsampling = 'shuffled'\nbatches = 4\nsteps = 3\nepochs = 2\n{common}")
    code, _, err = _command("--config", str(file))
    assert code == 2
    assert "`run.steps` must be left out with run.sampling='shuffled', got 3" in err
