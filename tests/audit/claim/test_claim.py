"""Audits of a claimed ε: what is asked, what is proved, when they stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

from leakcore import accounting, audit, mechanisms
from leakcore.audit.claim.proofs import chunks, claim_of, prove
from leakcore.audit.scores.statistics import area
from leakcore.cli import main
from tests.tolerances import HANG

DATA = Path(os.environ.get("LEAKCORE_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data")
QUICK: dict[str, dict[str, Any]] = {
    "data": {"name": "digits", "num_rows": 200},
    "mechanism": {"learning_rate": 0.5, "steps": 20},
    "claim": {"epsilon": 4.0},
    "audit": {"trials": 80, "k": [1, 2]},
}


def _with(**sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: {**QUICK.get(name, {}), **sections.get(name, {})} for name in {**QUICK, **sections}}


def _claim(**sections: dict[str, Any]) -> Any:
    return claim_of(audit.ClaimConfig.from_dict(_with(**sections)), 200)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"dat": {}}, r"\[dat\]: no such section \(did you mean \[data\]\?\); there are data, model, "),
        (
            {"data": {"nam": 1}},
            r"`data.nam = 1`: no such key \(did you mean `data.name`\?\); \[data\] has name, num_rows, path, features",
        ),
        ({"data": {"name": "cats"}}, "`data.name` must be 'digits', .*, got 'cats'"),
        (
            {"data": {"num_rows": 10**6}},
            "`data.num_rows` must be at most the 1438 training rows of digits, got 1000000",
        ),
        ({"model": {"hidden": [0]}}, r"`model.hidden\[0\]` must be in \[1, 65536\], got 0"),
        ({"mechanism": {"noise_multiplier": -1}}, r"`mechanism.noise_multiplier` must be at least 0, got -1"),
        (
            {"mechanism": {"sample_rate": 0.5, "batch_size": 10}},
            "`mechanism.sample_rate` must be 1 with shuffled batches, got 0.5",
        ),
        ({"mechanism": {"batch_size": 500}}, "`mechanism.batch_size` must be at most the 200 training rows, got 500"),
        ({"claim": {"epsilon": None}}, "`mechanism.noise_multiplier` or `claim.epsilon` must be given"),
        ({"claim": {"adjacency": "both"}}, "`claim.adjacency` must be 'add-remove' or 'replace', got 'both'"),
        ({"claim": {"adjacency": "replace"}, "audit": {"adjacency": "add-remove"}}, "says nothing of adding one"),
        ({"audit": {"k": [1, 1]}}, r"`audit.k` must be distinct numbers, got \[1, 1\]"),
        ({"audit": {"k": [200]}}, "`audit.k` must be below the 200 training rows, got 200"),
        (
            {"audit": {"attack": "membership", "adjacency": "replace"}},
            "`audit.adjacency` must be 'add-remove' with audit.attack='membership', got 'replace': coins",
        ),
        (
            {"audit": {"contrast": True, "adjacency": "add-remove"}},
            "`audit.contrast` must be false unless audit.attack is clipbkd or zero-input .*: it puts rows of D₀",
        ),
        (
            {"audit": {"contrast": True, "attack": "backdoor"}},
            "`audit.contrast` must be false unless audit.attack is clipbkd or zero-input .*: it puts rows of D₀",
        ),
        (
            {"audit": {"attack": "one-run", "adjacency": "replace"}},
            "`audit.adjacency` must be 'add-remove' with audit.attack='one-run'",
        ),
        (
            {"audit": {"attack": "one-run"}, "mechanism": {"batch_size": 50}},
            "`mechanism.batch_size` must be left out unless audit.adjacency is 'replace', got 50",
        ),
        ({"audit": {"canaries": 1}}, r"`audit.canaries` must be at least 2, got 1"),
        (
            {"audit": {"canaries": 2, "seed": 1, "attack": "one-run"}},
            "`audit.canaries` must have coins on both sides, got 2 on one side",
        ),
        (
            {"audit": {"trials": 7, "attack": "membership"}},
            "`audit.trials` must give models with and without each of 200 rows .*, got 7",
        ),
        (
            {"data": {"features": "frozen"}},
            "`data.features` must be 'pixels' with data.name='digits', got 'frozen', which only cifar10 has",
        ),
        (
            {"audit": {"attack": "backdoor"}, "data": {"name": "breast-cancer"}},
            "`audit.attack` must need no images with breast-cancer, which has none, got 'backdoor'",
        ),
        ({"fault": {"clip": "never"}}, "`fault.clip` must be 'sample' or 'batch', got 'never'"),
    ],
)
def test_bad_input_is_named(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audit.claim(_with(**sections))


def test_the_file_is_read_and_its_faults_are_named(tmp_path: Path) -> None:
    path = tmp_path / "audit.toml"
    path.write_text("[claim]\nepsilon = 4.0\n[audit]\nk = [1]\n", encoding="utf-8")
    config = audit.ClaimConfig.from_toml(path, override={"audit": {"attack": "backdoor"}, "claim": {"delta": 1e-6}})
    assert (config.audit.attack, config.audit.k, config.claim.delta) == ("backdoor", (1,), 1e-6)
    for text, message in (
        ("[claim", "is not TOML"),
        ("claim = 3", "must be a section"),
        ("[claim]\ne = 1", "`claim.e = 1`: no such key"),
    ):
        path.write_text(text, encoding="utf-8")
        done = CliRunner().invoke(main, ["audit", "claim", "clipbkd", "--config", str(path)])
        assert done.exit_code == 2
        assert message in done.output
    done = CliRunner().invoke(main, ["audit", "claim", "--config", "none.toml"])
    assert done.exit_code == 2
    assert "cannot be read" in done.output
    done = CliRunner().invoke(main, ["audit", "claim", "clipbkd", "--num-candidates", "3"])
    assert done.exit_code == 2
    assert "`--num-candidates` is allowed only with" in done.output


def test_options_stand_for_keys_of_the_file(tmp_path: Path) -> None:
    options = {"--epsilon": "3", "--delta": "1e-6", "--steps": "4", "--num-rows": "60", "--trials": "16", "--seed": "5"}
    flat = [word for pair in options.items() for word in pair]
    done = CliRunner().invoke(
        main, ["audit", "claim", "zero-input", *flat, "--out", str(tmp_path), "--quiet", "--json"]
    )
    assert done.exit_code == 0, done.output
    config = json.loads(done.stdout)["config"]
    assert (config["claim"]["epsilon"], config["claim"]["delta"], config["mechanism"]["steps"]) == (3.0, 1e-6, 4)
    assert (config["data"]["num_rows"], config["audit"]["trials"], config["audit"]["seed"]) == (60, 16, 5)
    assert config["audit"]["attack"] == "zero-input"


@pytest.mark.full
def test_the_claim_is_converted_to_the_adjacency_of_the_audit() -> None:
    sigma = float(accounting.noise_multiplier(epsilon=4.0, delta=1e-5, sample_rate=1.0, steps=20).value)
    replaced = _claim(audit={"adjacency": "replace"})
    assert replaced.noise_multiplier == pytest.approx(sigma)
    assert (replaced.stated, replaced.stated_adjacency, replaced.adjacency) == (4.0, "add-remove", "replace")
    wanted = accounting.epsilon(sigma, 1.0, 20, delta=1e-5, adjacency="replace").value
    assert replaced.epsilon == pytest.approx(wanted)
    assert round(replaced.epsilon, 2) == 9.08
    # Without a word on it an audit is of the claim's own adjacency, but where the data sets cannot differ in that way.
    added = _claim()
    assert _claim(claim={"adjacency": "replace"}).adjacency == "replace"
    assert _claim(audit={"contrast": True}).adjacency == "replace"
    assert _claim(mechanism={"batch_size": 50}).adjacency == "replace"
    assert _claim(audit={"attack": "one-run"}).adjacency == "add-remove"
    assert (added.epsilon, added.delta) == (4.0, 1e-5)
    # A claim with room to spare: what it would allow a mechanism of this kind, not what this σ reaches.
    spare = _claim(mechanism={"noise_multiplier": 4 * sigma}, audit={"adjacency": "replace"})
    assert spare.epsilon == pytest.approx(wanted, rel=1e-6)
    assert "the least that the claim allows" in spare.how
    # A claim that this σ does not give: group privacy, at its own δ.
    lower = _claim(mechanism={"noise_multiplier": 1.0}, audit={"adjacency": "replace"})
    assert lower.epsilon == 8.0
    assert lower.delta == pytest.approx(1e-5 * (1 + np.exp(4.0)))
    # Shuffled batches of 50 out of 200: 5 epochs, each one Gaussian step.
    shuffled = _claim(mechanism={"batch_size": 50})
    assert shuffled.noise_multiplier == pytest.approx(
        float(accounting.noise_multiplier(epsilon=4.0, delta=1e-5, sample_rate=1.0, steps=5).value)
    )
    assert shuffled.gaussian
    assert not _claim(mechanism={"sample_rate": 0.5}).gaussian
    assert _claim(claim={"epsilon": None}, mechanism={"noise_multiplier": sigma}).stated == pytest.approx(4.0, rel=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("adjacency", ["add-remove", pytest.param("replace", marks=pytest.mark.slow)])
def test_two_hundred_audits_of_a_correct_mechanism_pass(adjacency: str) -> None:
    """Claimed ε = 4, audited by the best attack there is (the Gaussians themselves, 1,000 a side): at most 1% may
    fail the gate. P(Bin(200, .01) > 8) < 1e-3."""
    claimed = _claim(audit={"adjacency": adjacency})
    mu = (2 if adjacency == "replace" else 1) * 20**0.5 / claimed.noise_multiplier
    rng = np.random.default_rng(21)
    failed, audited = 0, []
    for i in range(200):
        scores = {"k = 1": (rng.normal(mu, size=1000), rng.normal(size=1000), 1)}
        proofs = prove(scores, claimed, 0.99, i)
        failed += any(p.epsilon > claimed.epsilon for p in proofs)
        audited.append(max(p.epsilon for p in proofs))
    assert failed <= 8
    # Not by being blind.
    assert np.median(audited) > 0.45 * claimed.epsilon


@pytest.mark.full
def test_a_correct_mechanism_passes_and_the_report_says_what_was_proved(tmp_path: Path) -> None:
    report = audit.claim(_with(audit={"contrast": True}), folder=tmp_path)
    assert report.passed
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "report.json"]
    data = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert data == json.loads(report.to_json())
    assert data["schema"] == "leakcore.claim-audit/1"
    assert "seconds" not in data
    for proof in data["proofs"]:
        result = proof["found"]
        assert (result["kind"], result["assumptions"]["adjacency"]) == ("lower", "replace")
        assert result["trials"] == [80, 80]
        assert 0 <= result["value"] <= proof["ceiling"]
    text = report.to_text()
    assert "claimed ε = 4 at δ = 1e-5 (add/remove)" in text
    assert "ε = 9.085" in text
    assert "replacement adjacency" in (tmp_path / "report.html").read_text(encoding="utf-8")
    again = audit.claim(_with(audit={"contrast": True}), num_threads=1)
    assert again.to_json() == report.to_json()


@pytest.mark.full
def test_without_noise_on_biases_a_canary_of_zeros_ends_with_exit_code_1(tmp_path: Path) -> None:
    path = tmp_path / "audit.toml"
    path.write_text(
        '[data]\nname = "digits"\nnum_rows = 200\n[mechanism]\nlearning_rate = 0.5\nsteps = 20\n'
        '[fault]\nbias_noise = 0.0\n[claim]\nepsilon = 1.0\n[audit]\ntrials = 400\nk = [1]\nadjacency = "add-remove"\n',
        encoding="utf-8",
    )
    arguments = ["audit", "claim", "zero-input", "--config", str(path), "--out", str(tmp_path), "--quiet"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1, done.output
    assert "GATE FAILED: The attack proves more than is claimed: ε ≥ " in done.stderr
    assert "CLAIM CONTRADICTED" in done.stdout
    path.write_text(path.read_text(encoding="utf-8").replace("bias_noise = 0.0", ""), encoding="utf-8")
    mended = CliRunner().invoke(main, [*arguments, "--json"])
    assert mended.exit_code == 0, mended.output
    assert json.loads(mended.stdout)["passed"]


@pytest.mark.parametrize("attack", ["backdoor", "membership"])
def test_the_other_attacks_run(attack: str) -> None:
    report = audit.claim(_with(audit={"attack": attack, "trials": 32}, model={"hidden": [4]}, data={"num_rows": 60}))
    assert report.passed
    assert report.claim.adjacency == "add-remove"
    if attack == "membership":
        assert [p.what for p in report.proofs] == ["loss threshold", "likelihood ratio"]
    assert report.to_text()


@pytest.mark.full
def test_one_run_with_canaries_is_an_audit(tmp_path: Path) -> None:
    """A correct mechanism passes, one that forgets its noise does not, and the result says what it rests on."""
    sections = _with(audit={"attack": "one-run", "canaries": 300}, claim={"epsilon": 1.0}, data={"num_rows": 1000})
    report = audit.claim(sections)
    assert report.passed
    assert report.epsilon < 1
    for proof in report.proofs:
        assert (proof.found.kind, proof.found.adjacency) == ("lower", "add-remove")
        assert (proof.found.confidence, proof.what) == (0.995, "300 canaries in one run")
        assert proof.ceiling > 1
    plain, own = report.proofs
    assert own.ceiling > plain.ceiling  # the mechanism's own curve proves more
    assert any("its own fair coin" in line for line in report.assumptions())
    assert "guesses right" in " ".join(report.findings())
    assert report.to_html()
    done = CliRunner().invoke(
        main, ["audit", "claim", "one-run", "--num-rows", "60", "--out", str(tmp_path), "--quiet"]
    )
    assert done.exit_code == 0, done.output
    assert "500 canaries in one run" in done.stdout
    quiet = audit.claim({**sections, "fault": {"noise": 0.1}})
    assert quiet.epsilon > 1
    assert not quiet.passed


@pytest.mark.slow
def test_two_hundred_one_run_audits_of_a_correct_mechanism_pass() -> None:
    """Claimed ε = 4, trained and attacked for real: at most 1% may fail. P(Bin(200, .01) > 8) < 1e-3."""
    audited = []
    for seed in range(200):
        report = audit.claim(
            _with(audit={"attack": "one-run", "canaries": 200, "seed": seed}, mechanism={"steps": 5}), num_threads=1
        )
        audited.append(report.epsilon)
    assert sum(e > 4 for e in audited) <= 8
    # Not by being blind.
    assert np.median(audited) > 0.1


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "cifar100").is_dir(), reason="no folder of data sets: LEAKCORE_DATA")
@pytest.mark.parametrize("attack", ["clipbkd", "backdoor"])
def test_frozen_features_of_cifar10(attack: str, tmp_path: Path) -> None:
    """The network is trained once, kept, and gone with the other pieces; the audit is one of its features."""
    sections = _with(
        data={"name": "cifar10", "num_rows": 100, "features": "frozen", "path": str(DATA)},
        audit={"attack": attack, "trials": 16},
    )
    calls: list[str] = []

    def stop(task: str, done: int, total: int) -> None:
        calls.append(task)
        if task.endswith("models"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit.claim(sections, folder=tmp_path, progress=stop)
    assert "frozen network" in calls
    again: list[str] = []
    report = audit.claim(sections, folder=tmp_path, progress=lambda task, done, total: again.append(task))
    assert "frozen network" not in again
    assert report.passed
    assert "64 features of a frozen convolutional network" in report.data
    assert report.parameters == 64 * 2 + 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "report.json"]


@pytest.mark.full
def test_a_mechanism_without_noise_is_caught_by_shuffled_batches() -> None:
    report = audit.claim(
        _with(
            fault={"noise": 0.0}, mechanism={"batch_size": 50, "steps": 40}, audit={"trials": 600, "contrast": True},
            claim={"epsilon": 1.0},
        )
    )  # fmt: skip
    assert not report.passed
    assert report.best.epsilon == pytest.approx(report.best.ceiling, rel=0.5)


def test_area_under_the_curve() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 9, 60).astype(float), rng.integers(0, 7, 50).astype(float)
    assert area(a, b) == pytest.approx(stats.mannwhitneyu(a, b).statistic / 3000)


@pytest.mark.slow
def test_killed_in_the_middle_it_resumes_to_the_same_json(tmp_path: Path) -> None:
    sections = _with(audit={"trials": 800, "k": [1]}, mechanism={"steps": 60})
    code = f"from leakcore import audit; audit.claim({sections!r}, folder={str(tmp_path / 'b')!r}, num_threads=1)"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        deadline = time.monotonic() + HANG
        while len(list((tmp_path / "b").rglob("runs-*.npz"))) < 3 and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
    pieces = list((tmp_path / "b").rglob("runs-*.npz"))
    assert pieces
    assert not (tmp_path / "b" / "report.json").exists()
    audit.claim(sections, folder=tmp_path / "b")
    audit.claim(sections, folder=tmp_path / "a")
    assert (tmp_path / "a" / "report.json").read_bytes() == (tmp_path / "b" / "report.json").read_bytes()
    assert not (tmp_path / "b" / "partial").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sections", "method"),
    [
        ("σ/2, claimed 2", {"claim": {"epsilon": 2.0}, "fault": {"noise": 0.5}}, "counts, Gaussian mechanism"),
        ("σ/2, claimed 4", {"claim": {"epsilon": 4.0}, "fault": {"noise": 0.5}}, "counts, Gaussian mechanism"),
        (
            "σ/4, claimed 2",
            {"claim": {"epsilon": 2.0}, "fault": {"noise": 0.25}, "audit": {"trials": 2000}},
            "counts, (ε, δ)",
        ),
        (
            "batch clipped, claimed 4",
            {"claim": {"epsilon": 4.0}, "fault": {"clip": "batch"}, "mechanism": {"max_grad_norm": 0.1}},
            "counts, (ε, δ)",
        ),
        (
            "no noise on biases, claimed 1",
            {"claim": {"epsilon": 1.0}, "fault": {"bias_noise": 0.0}, "audit": {"attack": "zero-input"}},
            "counts, (ε, δ)",
        ),
    ],
)
def test_faults_are_caught_and_the_mended_code_passes(name: str, sections: dict[str, Any], method: str) -> None:
    """k = 1, 1,000 models a side unless said otherwise, D against D ∪ {poison}, 99%."""
    size = {"trials": 1000, "k": [1], "adjacency": "add-remove", **sections.get("audit", {})}
    faulty = audit.claim(_with(**{**sections, "audit": size}))
    caught = {p.method: p.epsilon > faulty.claim.epsilon for p in faulty.proofs}
    assert caught[method], name
    assert not faulty.passed
    mended = audit.claim(_with(**{**{k: v for k, v in sections.items() if k != "fault"}, "audit": size}))
    assert mended.passed, name


@pytest.mark.full
def test_an_audit_too_small_to_contradict_the_claim_has_not_tested_it() -> None:
    """Two models a side: their counts, all of them right, prove ε ≥ 0; fifty a side 2.9."""
    weak = "Not tested: this audit could not have contradicted the claim."
    small = {
        "data": {"num_rows": 100},
        "mechanism": {"learning_rate": 0.5, "steps": 2, "sample_rate": 0.5},
        "claim": {"epsilon": 4.0},
        "audit": {"trials": 4, "k": [1]},
    }
    report = audit.claim(small)
    assert max(p.ceiling for p in report.proofs) == 0
    assert (report.headline, report.tone, report.passed) == (weak, "neutral", True)
    assert report.to_text().count("Consistent with") == 0
    more: dict[str, Any] = {**small, "audit": {"trials": 100, "k": [1]}}
    assert (audit.claim(more).headline, audit.claim(more).tone) == (weak, "neutral")
    smaller = audit.claim({**more, "claim": {"epsilon": 2.5}})
    assert (smaller.headline, smaller.tone) == ("Consistent with its claim.", "good")


BROKEN: dict[str, dict[str, Any]] = {
    "data": {"name": "digits", "num_rows": 60},
    "mechanism": {"learning_rate": 0.5, "steps": 4},
    "claim": {"epsilon": 8.0},
    "audit": {"trials": 640, "k": [1, 2], "seed": 1},
    "fault": {"noise": 0.25},
}


def test_chunks_are_whole_blocks_and_few() -> None:
    for trials in (33, 64, 640, 1000, 4001, 10**6):
        parts = chunks(trials)
        assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
        assert parts[-1].stop == trials
        assert all(len(part) % 32 == 0 for part in parts[:-1])
        assert 2 <= len(parts) <= 20


def test_a_broken_mechanism_is_stopped_early_and_the_report_says_what_that_saved(tmp_path: Path) -> None:
    report = audit.claim(BROKEN, stop="early", folder=tmp_path)
    assert not report.passed
    stopped = report.stopped
    assert stopped is not None
    assert (stopped.why, stopped.planned) == ("refuted", 3 * 640)
    assert stopped.trainings <= 960
    assert all(len(a) == len(b) == stopped.trainings // 3 for a, b, _ in report.scores.values())
    said = f"The audit stopped after {stopped.trainings} of 1,920 trainings: the claim has fallen."
    assert said in report.verdict()
    assert said in " ".join(report.to_text().split())
    assert said in (tmp_path / "report.html").read_text(encoding="utf-8")
    data = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert data["stopped"] == {"trainings": stopped.trainings, "planned": 1920, "why": "refuted"}
    assert data["config"]["audit"]["stop"] == "early"
    assert audit.ClaimReport.from_dict(data).to_json() == report.to_json()
    # The file may say so, too, and the same models were trained as in the audit that does not stop.
    (tmp_path / "claim.toml").write_text(
        "[data]\nnum_rows = 60\n[mechanism]\nlearning_rate = 0.5\nsteps = 4\n[fault]\nnoise = 0.25\n"
        "[claim]\nepsilon = 8.0\n[audit]\ntrials = 640\nk = [1, 2]\nseed = 1\nstop = 'early'\n",
        encoding="utf-8",
    )
    out = tmp_path / "out"
    done = CliRunner().invoke(
        main, ["audit", "claim", "--config", str(tmp_path / "claim.toml"), "--out", str(out), "--quiet"]
    )
    assert done.exit_code == 1, done.output
    assert (out / "report.json").read_bytes() == (tmp_path / "report.json").read_bytes()
    whole = audit.claim({**BROKEN, "audit": {**BROKEN["audit"], "trials": 64}})
    assert (whole.scores["k = 2"][0] == report.scores["k = 2"][0][:64]).all()
    assert whole.stopped is None


def test_interrupted_between_looks_it_goes_on_to_the_same_json(tmp_path: Path) -> None:
    def stop(task: str, done: int, total: int) -> None:
        assert total == 1920
        if done > 150:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit.claim(BROKEN, stop="early", folder=tmp_path, num_threads=1, progress=stop)
    assert list(tmp_path.rglob("runs-*.npz"))
    counted: list[int] = []
    report = audit.claim(BROKEN, stop="early", folder=tmp_path, progress=lambda task, done, total: counted.append(done))
    assert report.to_json() == audit.claim(BROKEN, stop="early").to_json()
    assert counted == sorted(counted)
    assert not (tmp_path / "partial").exists()


def test_a_correct_mechanism_takes_all_trainings_or_stops_where_none_could_help() -> None:
    correct = {**BROKEN, "fault": {}, "audit": {"trials": 96, "k": [1]}}
    report = audit.claim({**correct, "claim": {"epsilon": 2.0}}, stop="early")
    assert report.passed
    assert report.stopped is not None
    assert report.stopped.why in ("planned", "hopeless")
    # 64 pairs on which to bet: not even perfect ones refute ε = 8 by (ε, δ); Poisson batches have no other family.
    weak = {**correct, "mechanism": {"learning_rate": 0.5, "steps": 4, "sample_rate": 0.5}}
    hopeless = audit.claim(weak, stop="early")
    assert hopeless.stopped is not None
    assert (hopeless.stopped.why, hopeless.stopped.trainings, hopeless.stopped.planned) == ("hopeless", 64, 192)
    assert "could not have made the claim fall" in hopeless.verdict()
    assert hopeless.headline == "Not tested: this audit could not have contradicted the claim."


@pytest.mark.parametrize(
    ("attack", "trials", "message"),
    [
        ("one-run", 1000, "`audit.stop` must be 'never' with audit.attack='one-run', got 'early': one training"),
        ("membership", 1000, "`audit.stop` must be 'never' with audit.attack='membership', got 'early': its first"),
        ("clipbkd", 32, "`audit.trials` must be above 32 with audit.stop='early', got 32"),
    ],
)
def test_where_looks_make_no_sense_they_are_refused(attack: str, trials: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audit.claim({"claim": {"epsilon": 1.0}, "audit": {"attack": attack, "trials": trials}}, stop="early")
    with pytest.raises(ValueError, match="`stop` must be 'early' or 'never', got 'soon'"):
        audit.claim({"claim": {"epsilon": 1.0}}, stop="soon")  # type: ignore[arg-type]


SECTIONS: dict[str, dict[str, Any]] = {
    "data": {"name": "digits", "num_rows": 200}, "audit": {"trials": 60, "k": [1]},
}  # fmt: skip
FIXED = {"sampling": "fixed", "batch_size": 40, "steps": 10}
ALLOCATED = {"sampling": "allocation", "batches": 5, "steps": 10}


def _sections(mechanism: dict[str, Any], **more: dict[str, Any]) -> dict[str, dict[str, Any]]:
    sigma = {"noise_multiplier": 2.0}
    return {
        **SECTIONS,
        **more,
        "mechanism": {**sigma, **mechanism},
        "audit": {**SECTIONS["audit"], **more.get("audit", {})},
    }


@pytest.mark.full
@pytest.mark.parametrize(
    ("keys", "adjacency", "mechanism"),
    [
        (FIXED, "replace", mechanisms.FixedSize(2.0, 40, 200, 10)),
        (ALLOCATED, "add-remove", mechanisms.RandomAllocation(2.0, 5, 2)),
        (ALLOCATED, "replace", mechanisms.RandomAllocation(2.0, 5, 2)),
    ],
)
def test_the_claim_is_the_mechanisms_own(
    keys: dict[str, Any], adjacency: str, mechanism: mechanisms.Mechanism
) -> None:  # fmt: skip
    config = audit.ClaimConfig.from_dict(_sections(keys, claim={"adjacency": adjacency}))
    claimed = claim_of(config, 200)
    assert claimed.epsilon == float(accounting.epsilon(mechanism, delta=1e-5, adjacency=adjacency).value)
    assert not claimed.gaussian  # so the Gaussian family, which would prove more, is not used


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(("keys", "adjacency"), [(FIXED, "replace"), (ALLOCATED, "add-remove")])
def test_a_correct_mechanism_passes_and_one_without_noise_does_not(keys: dict[str, Any], adjacency: str) -> None:
    sections = _sections({**keys, "noise_multiplier": 8.0}, claim={"adjacency": adjacency})
    honest = audit.claim(sections)
    assert honest.passed
    assert honest.epsilon < honest.claim.epsilon
    broken = audit.claim({**sections, "fault": {"noise": 1e-3}})
    assert not broken.passed
    words = {"fixed": "fresh batches of 40", "allocation": "rows allocated to 5 batches an epoch"}
    assert words[keys["sampling"]] in honest.title


@pytest.mark.parametrize(
    ("keys", "more", "message"),
    [
        ({"sampling": "allocation"}, {}, "`mechanism.batches` must be given with mechanism.sampling='allocation'"),
        ({"sampling": "shuffled"}, {}, "`mechanism.batch_size` must be given with mechanism.sampling='shuffled'"),
        ({"sampling": "poisson", "batch_size": 40}, {}, "`mechanism.batch_size` must be left out with poisson batches"),
        ({"batches": 5}, {}, "`mechanism.batches` must be left out with poisson batches, got 5"),
        ({**ALLOCATED, "steps": 11}, {}, "`mechanism.steps` must be whole epochs of 5 batches, got 11"),
        (
            {**FIXED, "sample_rate": 0.5},
            {"claim": {"adjacency": "replace"}},
            "`mechanism.sample_rate` must be 1 with fixed batches, got 0.5",
        ),
        (FIXED, {}, "`claim.adjacency` must be 'replace' with mechanism.sampling='fixed', got 'add-remove'"),
        (ALLOCATED, {"audit": {"attack": "one-run"}}, "`audit.attack` must be a poisoning attack"),
    ],
)
def test_keys_that_do_not_go_together_are_named(
    keys: dict[str, Any], more: dict[str, dict[str, Any]], message: str
) -> None:  # fmt: skip
    with pytest.raises(ValueError, match=message):
        audit.ClaimConfig.from_dict(_sections(keys, **more))
