"""Two reports compared: what is equal, what moved within its interval, and what moved beyond it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from leakcore import audit
from leakcore.cli import main


def _report(shift: float, seed: int, count: int = 400, claimed: float | None = None) -> audit.ScoresReport:
    rng = np.random.default_rng(seed)
    inside, outside = rng.normal(shift, 1, count), rng.normal(0, 1, count)
    relation = None if claimed is None else "add-remove"
    return audit.from_scores(inside, outside, coins=True, claimed_epsilon=claimed, claimed_adjacency=relation)


def _how(compared: audit.Comparison, where: str) -> str | None:
    return next((c.how for c in compared.changes if c.where == where), None)


def test_equal_reports_differ_in_nothing() -> None:
    compared = audit.compare(_report(1.0, 0), _report(1.0, 0))
    assert compared.changes == ()
    assert compared.settings == ()
    assert compared.same > 3
    assert "as before" in compared.sentence


def test_another_sample_moves_within_its_interval_and_another_attack_beyond() -> None:
    first = _report(1.0, 0)
    assert _how(audit.compare(first, _report(1.0, 1)), "area") == "within its interval"
    compared = audit.compare(first, _report(3.0, 1))
    assert _how(compared, "area") == "beyond its interval"
    assert compared.changes[0].how == "beyond its interval", "the largest changes come first"
    assert _how(compared, "epsilon") == "changed"


def test_settings_claims_and_the_gate_are_compared() -> None:
    compared = audit.compare(_report(3.0, 0, claimed=8.0), _report(3.0, 0, claimed=0.5))
    assert compared.passed == (True, False)
    assert ("claimed_epsilon", "8.0", "0.5") in compared.settings
    assert len(compared.contradictions) == 1
    assert "The gate fails; before, it passes." in compared.sentence
    assert compared.contradictions[0] in compared.to_markdown()
    assert audit.Comparison.from_dict(json.loads(compared.to_json())) == compared


def test_numbers_of_two_relations_levels_or_deltas_are_not_compared() -> None:
    """A lower bound under replacement is not one under add/remove that grew, nor one at 99% a smaller one at 95%."""
    rng = np.random.default_rng(3)
    scores = rng.normal(2, 1, 300), rng.normal(0, 1, 300)
    plain = audit.from_scores(*scores, coins=True)
    replaced = audit.compare(plain, audit.from_scores(*scores, coins=True, adjacency="replace"))
    assert _how(replaced, "epsilon") == "not comparable", "the two values are equal, and say different things"
    assert "add-remove" in replaced.to_text()
    for other in ({"delta": 1e-3}, {"confidence": 0.99}, {"family": "gdp"}):
        assert (
            _how(audit.compare(plain, audit.from_scores(*scores, coins=True, **other)), "epsilon") == "not comparable"
        )


@pytest.mark.full
def test_equal_truths_seldom_lie_beyond_their_intervals() -> None:
    """Both intervals hold with 95%: of 60 pairs at most 10% on average. P(Bin(60, .1) > 15) = 2e-4."""
    beyond = sum(
        _how(audit.compare(_report(1.0, 2 * i, 60), _report(1.0, 2 * i + 1, 60)), "area") == "beyond its interval"
        for i in range(60)
    )
    assert beyond <= 15


def test_the_command_prints_text_markdown_and_json(tmp_path: Path) -> None:
    for name, shift in (("a", 1.0), ("b", 3.0)):
        _report(shift, 0).to_json(tmp_path / f"{name}.json")
    both = [str(tmp_path / f"{name}.json") for name in "ab"]
    text = CliRunner().invoke(main, ["compare", *both])
    assert text.exit_code == 0, text.output
    assert "beyond its interval" in text.output
    markdown = CliRunner().invoke(main, ["compare", *both, "--markdown"]).output
    assert "| number | kind | before | after | |" in markdown
    assert (
        json.loads(CliRunner().invoke(main, ["compare", *both, "--json"]).output)["schema"] == "leakcore.comparison/1"
    )
    assert CliRunner().invoke(main, ["compare", *both, "--json", "--markdown"]).exit_code == 2


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    _report(1.0, 0).to_json(tmp_path / "scores.json")
    (tmp_path / "other.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="`after` must be a report of leakcore"):
        audit.compare(tmp_path / "scores.json", tmp_path / "other.json")
    (tmp_path / "plan.json").write_text(audit.plan(4.0, trainings=[1000], canaries=[]).to_json(), encoding="utf-8")
    with pytest.raises(ValueError, match="of the same form as `before`"):
        audit.compare(tmp_path / "scores.json", tmp_path / "plan.json")
    with pytest.raises(TypeError, match="`before` must be a report or the path"):
        audit.compare(3, tmp_path / "scores.json")  # type: ignore[arg-type]
    assert (
        CliRunner().invoke(main, ["compare", str(tmp_path / "scores.json"), str(tmp_path / "no.json")]).exit_code == 2
    )
