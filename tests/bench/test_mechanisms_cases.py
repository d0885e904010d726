"""The cases that time ε of each mechanism, and what is kept of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.cases import mechanisms

KEPT = Path(mechanisms.__file__).resolve().parents[1] / "results" / "mechanisms-epyc-2core.json"


def test_the_kept_result_is_of_these_cases_and_no_contender_failed() -> None:
    stored = json.loads(KEPT.read_text(encoding="utf-8"))
    cases = {case.size: {contender.name for contender in case.contenders} for case in mechanisms.cases(quick=False)}
    assert {case["size"]: set(case["contenders"]) for case in stored["cases"]} == cases
    for case in stored["cases"]:
        for name, row in case["contenders"].items():
            assert row["median"] > 0.0, (case["size"], name)
            assert row["peak_bytes"] is not None, (case["size"], name)


def test_peers_that_are_installed_answer_what_we_answer() -> None:
    pytest.importorskip("dp_accounting")
    for case in mechanisms.cases(quick=False):
        if case.size.startswith(("ε, full", "ε, Poisson and")):
            ours, theirs = (contender.build(None)() for contender in case.contenders)
            assert ours == pytest.approx(theirs, rel=1e-3), case.size


def test_the_number_of_samples_is_the_one_that_jax_privacy_asks_for() -> None:
    calculation = pytest.importorskip("jax_privacy.experimental.monte_carlo.delta_calculation")
    asked = calculation.minimum_samples_to_calibrate(0.5 * mechanisms.DELTA, mechanisms.DELTA)
    assert asked == mechanisms.NEEDED
