"""The self-test tells methods that keep their promise from those that do not."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from leakcore import audit, bounds
from leakcore.cli import main


@pytest.fixture(scope="module")
def selftest() -> audit.SelfTest:
    return audit.selftest(audits=10)


def test_every_method_keeps_its_promise(selftest: audit.SelfTest) -> None:
    assert selftest.passed
    methods = {p.method.split(",")[0] for p in selftest.promises}
    assert methods == {"counts", "scores", "bets", "best of four", "one run", "membership over models"}
    assert {p.mechanism for p in selftest.promises} == {"null", "randomised response", "Laplace", "Gaussian"}
    assert {p.epsilon for p in selftest.promises if p.mechanism == "randomised response"} == {0.5, 1.0, 2.0, 4.0}
    for p in selftest.promises:
        assert p.audits == (50 if p.mechanism == "null" else 10)
        assert p.interval[0] <= p.rate <= p.interval[1]
        assert p.allowed == pytest.approx(0.05)


def test_at_a_thousand_trials_the_bound_beats_the_best_published_tool(selftest: audit.SelfTest) -> None:
    """Mean valid bound at n = 1,000 and true ε = 1: above 0.75."""
    (counts,) = (p for p in selftest.promises if p.epsilon == 1 and p.method == "counts, direction fixed")
    assert counts.trials == 1000
    assert counts.mean > 0.85


@pytest.mark.full
def test_it_is_printed_and_is_json(selftest: audit.SelfTest) -> None:
    text = selftest.to_text()
    assert f"All {len(selftest.promises)} promises are kept." in text
    assert "False positives" in text
    assert "Coverage" in text
    assert json.loads(selftest.to_json())["schema"] == "leakcore.selftest/1"
    assert audit.selftest(audits=10).to_dict() == selftest.to_dict()


def test_a_broken_promise_is_found_and_ends_with_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake of published tools: both directions at the price of one, and no limits at all."""
    honest = bounds.epsilon_lower_bound

    def greedy(a: int, b: int, n: int, *, hypothesis: bounds.Hypothesis, **more: Any) -> Any:
        if hypothesis.direction == "in":
            return honest(a, b, n, hypothesis=hypothesis, **more)
        value = math.log(max(a, b, 1) / max(min(a, b), 1))
        return type("Greedy", (), {"value": value})()

    monkeypatch.setattr(bounds, "epsilon_lower_bound", greedy)
    done = CliRunner().invoke(main, ["selftest", "--audits", "10", "--quiet"])
    assert done.exit_code == 1, done.output
    assert "BROKEN" in done.output
    assert "counts, direction open, P = 0.5 on null" in done.output


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="`audits` must be at least 10, got 9"):
        audit.selftest(audits=9)
    assert CliRunner().invoke(main, ["selftest", "--confidence", "1.5"]).exit_code == 2


@pytest.mark.slow
def test_five_thousand_null_audits_by_every_method() -> None:
    result = audit.selftest(audits=1000)
    assert result.passed
    null = [p for p in result.promises if p.epsilon == 0]
    assert len(null) >= 18
    assert "Poisson sampling" in {p.mechanism for p in result.promises}
    assert all(p.audits in (5000, 500) and p.interval[0] <= 0.05 for p in null)
    assert sum(p.audits == 5000 for p in null) >= 18
    assert np.mean([p.rate for p in null]) < 0.05
