"""Audits of a configuration: what is asked, what is proved, and runs that are interrupted."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakcore import audit
from leakcore._base import version
from leakcore._base.run_folder import identity
from leakcore.audit.hyperparameters import reconstruction
from leakcore.audit.hyperparameters.config import AuditConfig


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("delta", 0.0, r"^`delta` must be in \(0, 1\), got 0.0$"),
        ("epsilon", -1.0, r"^`epsilon` must be in \(0, 1e\+06\], got -1.0$"),
        ("sample_rate", 1.5, r"^`sample_rate` must be in \(0, 1\], got 1.5$"),
        ("sample_rate", 0, r"^`sample_rate` must be in \(0, 1\], got 0$"),
        ("steps", 0, r"^`steps` must be in \[1, 16777215\], got 0$"),
        ("max_grad_norm", 0.0, r"^`max_grad_norm` must be above 0, got 0.0$"),
        ("sweep", (1.0, 0.0), r"^`sweep\[1\]` must be in \(0, 1e\+06\], got 0.0$"),
        ("num_candidates", 1, r"^`num_candidates` must be at least 2, got 1$"),
        ("runs", 0, r"^`runs` must be in \[1, 10000000\], got 0$"),
        ("confidence", 1.0, r"^`confidence` must be in \(0, 1 - 1e-12\], got 1.0$"),
        ("seed", -1, r"^`seed` must be in \[0, 18446744073709551615\], got -1$"),
    ],
)
def test_bad_fields_are_named(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AuditConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [{"epsilon": None}, {"noise_multiplier": 1.0}])
def test_exactly_one_of_epsilon_and_noise_multiplier(fields: dict[str, float | None]) -> None:
    with pytest.raises(ValueError, match="`epsilon` or `noise_multiplier` must be given, exactly one of the two"):
        AuditConfig(**fields)  # type: ignore[arg-type]


def test_fields_as_a_mapping() -> None:
    assert AuditConfig.from_dict({"epsilon": 4, "hidden": [20]}) == AuditConfig(epsilon=4.0, hidden=(20,))


def test_the_sweep_is_a_sorted_set() -> None:
    assert AuditConfig(sweep=(10, 1, 10)).sweep == (1.0, 10.0)


def test_partial_results_of_another_release_are_not_mixed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity("audit", AuditConfig().to_dict(), 0)
    monkeypatch.setattr("leakcore._base.version.__version__", "99.0")
    monkeypatch.setattr(version, "identity_text", version.identity_text.__wrapped__)
    after = identity("audit", AuditConfig().to_dict(), 0)
    assert after["versions"].pop("leakcore") == "99.0" != before["versions"].pop("leakcore")
    assert after == before


SMALL: dict[str, Any] = {"runs": 64, "sweep": (4.0,), "num_rows": 200, "steps": 20, "label_trials": 5}


@pytest.fixture(scope="module")
def report() -> audit.RunReport:
    return audit.run(audit.AuditConfig(**SMALL))


@pytest.mark.full
def test_every_number_carries_kind_confidence_and_adjacency(report: audit.RunReport) -> None:
    def results(value: Any) -> Any:
        if isinstance(value, dict):
            if "kind" in value and "title" not in value:  # a table's column has a kind, and is not a number
                yield value
            for v in value.values():
                yield from results(v)
        elif isinstance(value, list):
            for v in value:
                yield from results(v)

    data = json.loads(report.to_json(), parse_constant=lambda word: pytest.fail(f"bare {word} in JSON"))
    records = list(results(data))
    # Per level: three accountants, replacement, two bounds, a reference, a game, an audited ε; then the label study's.
    assert len(records) >= 2 * 9 + 2 * 5 + 1
    for result in records:
        assert result["kind"] in {"upper", "lower", "estimate"}
        # How much a layer shows of an input says nothing about neighbouring data sets.
        named = {None} if result["provenance"].startswith("Mo et al.") else {"add-remove", "replace"}
        assert result["assumptions"]["adjacency"] in named
        assert result["method"]
        assert result["provenance"]
        assert result["confidence"] is None or 0 < result["confidence"] < 1


@pytest.mark.full
def test_attack_reference_and_bounds_are_in_order(report: audit.RunReport) -> None:
    for p in report.points:
        assert p.attack.interval is not None
        assert p.reference is not None
        assert p.bound_rdp is not None
        assert 1 / p.num_candidates < p.reference.value < p.bound.value < p.bound_rdp.value
        assert p.attack.interval[0] <= p.bound.value
        assert p.epsilon_pld is not None
        assert p.epsilon_rdp is not None
        assert p.epsilon.value == pytest.approx(p.epsilon_pld.value, abs=1e-4)
        assert p.epsilon.value < p.epsilon_rdp.value
        assert p.epsilon.value < p.epsilon_replace.value
    assert report.passed
    assert report.claimed.epsilon.value == pytest.approx(10.0, abs=1e-6)


def test_labels_without_noise_are_all_right_and_bounds_in_order(report: audit.RunReport) -> None:
    clean, *noisy = report.labels.outcomes
    assert clean.noise_multiplier == 0
    assert clean.recovered.value == 1.0
    assert clean.right == clean.determined > 0.9 * clean.labels
    assert len(noisy) == 2
    for o in noisy:
        assert o.replacement is not None
        lower = [float(o.lower[test].value) for test in ("paper", "optimal", "likelihood-ratio")]
        assert 0 < lower[0] <= lower[1] <= lower[2] <= float(o.replacement.value)


@pytest.mark.slow
def test_the_same_configuration_gives_the_same_report(report: audit.RunReport, tmp_path: Path) -> None:
    again = audit.run(audit.AuditConfig(**SMALL), folder=tmp_path)
    one, two = report.to_dict(), again.to_dict()
    for d in (one, two):
        d.pop("seconds")
    assert one == two
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "report.json"]
    other = audit.run(audit.AuditConfig(**{**SMALL, "seed": 1})).to_dict()
    assert other["reconstruction"][0]["attack"]["cosine_units"] != one["reconstruction"][0]["attack"]["cosine_units"]


@pytest.mark.full
def test_an_interrupted_audit_goes_on_and_gives_the_same_report(
    report: audit.RunReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconstruction, "_PIECE", 32)

    def interrupt(task: str, done: int, total: int) -> None:
        if task.startswith("attack 2") and done >= 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit.run(audit.AuditConfig(**SMALL), folder=tmp_path, progress=interrupt)
    assert [p.name for p in tmp_path.iterdir()] == ["partial"]
    calls: list[tuple[str, int]] = []
    resumed = audit.run(audit.AuditConfig(**SMALL), folder=tmp_path, progress=lambda t, d, n: calls.append((t, d)))
    assert (next(t for t, _ in calls), calls[0][1]) == (calls[0][0], 32)  # the first piece came from the folder
    for mine, theirs in zip(resumed.points, report.points, strict=True):
        assert mine.attack == theirs.attack
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "report.json"]


@pytest.mark.full
def test_an_audit_that_could_not_have_failed_says_so(report: audit.RunReport) -> None:
    # 64 right answers of 64 lie above the bound at ε = 10 and below that at ε = 40.
    assert report.claimed.testable
    weak = audit.run(audit.AuditConfig(**{**SMALL, "runs": 16, "epsilon": 40.0, "sweep": (), "label_trials": 1}))
    p = weak.claimed
    # The lower limit of n hits in n at 1 − m is m^(1/n).
    assert p.attack_ceiling == pytest.approx(0.001 ** (1 / 16), rel=1e-9)
    assert p.epsilon_ceiling == pytest.approx(math.log(10 * (p.attack_ceiling - 1e-5)), rel=1e-9)
    assert p.attack_ceiling < p.bound.value
    assert weak.passed
    assert not p.testable
    assert (weak.headline, weak.tone) == ("Not tested: this audit could not have contradicted the claim.", "neutral")
    needed = re.search(
        r"16 right answers of 16 would prove .* takes ([\d,]+) trainings to be proved above it", weak.verdict()
    )
    assert needed
    trials = int(needed[1].replace(",", ""))
    assert 0.001 ** (1 / trials) > p.bound.value >= 0.001 ** (1 / (trials - 1))


class _Page(HTMLParser):
    """Collects what a page asks the network for, its headings, and whether every tag is closed."""

    VOID = frozenset({"meta", "br", "link", "img", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.headings: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.fetched += [v for k, v in named.items() if k in {"src", "href"} and v and not v.startswith("#")]
        if tag in {"h1", "h2"}:
            self.headings.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_self_contained_and_well_formed(report: audit.RunReport, tmp_path: Path) -> None:
    report.to_html(tmp_path / "report.html")
    page = _Page()
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    page.feed(html)
    assert page.open == []
    assert [u for u in page.fetched if "://" in u] == []
    assert page.headings[0] == "h1"
    for words in ("upper", "lower", "estimate", "add/remove", "replacement", "95% confidence"):
        assert words in html


def test_the_caption_says_what_the_intervals_say(report: audit.RunReport) -> None:
    p = report.claimed

    def caption(interval: tuple[float, float], lower: float) -> str:
        point = dataclasses.replace(p, attack=dataclasses.replace(p.attack, interval=interval), attack_lower=lower)
        figure = dataclasses.replace(report, points=[point]).sections()[0].figure
        assert figure is not None
        return figure.caption

    bound = float(p.bound.value)
    assert "with its whole interval" in caption((bound - 0.2, bound - 0.1), bound - 0.3)
    assert "reaches across it" in caption((bound - 0.1, bound + 0.1), bound - 0.2)
    assert "contradicted" in caption((bound + 0.1, bound + 0.2), bound + 0.05)


def test_what_a_logarithmic_axis_cannot_show_is_said_not_drawn(report: audit.RunReport) -> None:
    def with_epsilon(*values: float) -> audit.RunReport:
        points = [
            dataclasses.replace(p, epsilon=dataclasses.replace(p.epsilon, value=value, interval=None))
            for p, value in zip(report.points, values, strict=True)
        ]
        over = np.linspace(*values, len(report.curve.epsilon))
        return dataclasses.replace(report, points=points, curve=dataclasses.replace(report.curve, epsilon=over))

    some = with_epsilon(2.0, 0.0).sections()[0].figure
    assert some is not None
    assert "Not drawn on this axis: ε = 0." in some.caption
    assert "ε = 2" in some.svg()
    assert with_epsilon(0.0, 1e-300).sections()[0].figure is None


def test_the_gate_fails_when_an_attack_beats_its_bound(report: audit.RunReport) -> None:
    def contradictions(**changes: Any) -> list[str]:
        return dataclasses.replace(report, points=[dataclasses.replace(point, **changes)]).contradictions

    point = report.claimed
    assert "is above the bound" in contradictions(attack_lower=float(point.bound.value) + 0.01)[0]
    proved = dataclasses.replace(point.epsilon_audited, value=11.0)
    assert "above the claimed" in contradictions(epsilon_audited=proved)[0]
    with pytest.raises(ValueError, match="cannot compare"):
        contradictions(epsilon_audited=point.epsilon_replace)


@pytest.mark.full
def test_a_mechanism_without_enough_noise_is_caught(report: audit.RunReport) -> None:
    """Half the noise that was claimed: the game's counts against the claimed σ's bound."""
    config = audit.AuditConfig(**{**SMALL, "runs": 320, "sweep": (), "steps": 40})
    honest = reconstruction.noise_levels(config)[0][0]
    pieces = reconstruction.PartialResults(None, "audit")
    (game,) = reconstruction._games(config, [honest / 3], pieces, lambda *_: None, None)
    point = reconstruction._point(config, honest, True, game, 1)
    assert dataclasses.replace(report, points=[point]).contradictions


def test_audited_epsilon_is_zero_at_chance_and_never_above_its_ceiling(report: audit.RunReport) -> None:
    for p in report.points:
        assert 0 <= float(p.epsilon_audited.value) <= math.log(p.num_candidates)
    game = report.points[0].attack
    at_chance = reconstruction._audited(report.config, game, 0.1, 0.999)
    assert at_chance.value == 0.0


@pytest.mark.slow
def test_poisson_sampling_is_audited_too() -> None:
    report = audit.run(audit.AuditConfig(**{**SMALL, "sweep": (), "sample_rate": 0.2, "runs": 32}))
    assert report.claimed.reference is None
    assert report.passed
    report.to_html()


def test_too_many_rows_are_refused_before_any_work() -> None:
    with pytest.raises(ValueError, match=r"`num_rows` and `num_candidates` must add up to.*, got 1797 and 10"):
        audit.run(audit.AuditConfig(num_rows=1797))
    with pytest.raises(ValueError, match=r"`epsilom = 4`: no such key \(did you mean `epsilon`\?\)"):
        audit.run({"epsilom": 4})
    with pytest.raises(TypeError, match="`config` must be an AuditConfig or a mapping of its fields, got 'default'"):
        audit.run("default")  # type: ignore[arg-type]


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"`folder` must be writable, got .*file"):
        audit.run(audit.AuditConfig(**SMALL), folder=tmp_path / "file")


KILLS = 50
COMMAND = (
    "audit", "run", "--sweep", "4", "--runs", "600", "--steps", "20", "--num-rows", "200", "--quiet", "--json",
)  # fmt: skip


def _start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "leakcore.cli", *COMMAND, "--out", str(folder)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def _finish(folder: Path) -> dict[str, Any]:
    process = _start(folder)
    _, errors = process.communicate(timeout=1800)
    assert process.returncode == 0, errors.decode()
    return _content(folder)


def _content(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    del report["seconds"]
    return report


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_fifty_kills_lose_nothing(tmp_path: Path) -> None:
    began = time.monotonic()
    expected = _finish(tmp_path / "undisturbed")
    whole = time.monotonic() - began
    rng = random.Random(5)
    kills, finished, resumed, folder = 0, 0, 0, tmp_path / "run-0"
    while kills < KILLS:
        resumed += any((folder / "partial").rglob("game-*.json"))
        process = _start(folder)
        try:
            process.communicate(timeout=rng.uniform(0.1, 0.9) * whole)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
            continue
        assert process.returncode == 0
        assert _content(folder) == expected
        finished += 1
        folder = tmp_path / f"run-{finished}"
    assert _finish(folder) == expected
    assert resumed > 0, "no start found a piece: nothing was resumed"
