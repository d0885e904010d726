"""What the pages say that audits can prove is computed: plans again, measurements from their files."""

from __future__ import annotations

import json
from pathlib import Path

from bench import kept_page
from bench.audits import audit_plans, canary_powers, claim_adjacencies, claim_faults

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "explanation" / "audit-power.md"


def test_the_page_shows_the_plans_of_today() -> None:
    page = PAGE.read_text(encoding="utf-8")
    again = kept_page.between(page, audit_plans.MARKS, audit_plans.text(audit_plans.planned()))
    assert again == page, "run python -m bench.audits.audit_plans --page PAGE"


def test_the_page_shows_the_faults_as_they_were_measured() -> None:
    page, stored = PAGE.read_text(encoding="utf-8"), json.loads(claim_faults.KEPT.read_text(encoding="utf-8"))
    assert {row["fault"] for row in stored["rows"]} == set(claim_faults.FAULTS)
    again = kept_page.between(page, claim_faults.MARKS, claim_faults.text(stored))
    assert again == page, "run python -m bench.audits.claim_faults --show JSON --page PAGE"


def test_the_page_shows_the_canaries_as_they_were_measured() -> None:
    page = PAGE.read_text(encoding="utf-8")
    stored = json.loads((DOCS.parent / "bench" / "results" / "canary-powers.json").read_text(encoding="utf-8"))
    again = kept_page.between(page, canary_powers.MARKS, canary_powers.text(stored))
    assert again == page, "run python -m bench.audits.canary_powers --show JSON --page PAGE"


def test_the_guide_shows_the_adjacencies_as_they_were_measured() -> None:
    guide = (DOCS / "how-to" / "test-a-claim.md").read_text(encoding="utf-8")
    stored = json.loads(claim_adjacencies.KEPT.read_text(encoding="utf-8"))
    again = kept_page.between(guide, claim_adjacencies.MARKS, claim_adjacencies.text(stored))
    assert again == guide, "run python -m bench.audits.claim_adjacencies --show JSON --page PAGE"


def test_a_fault_that_is_not_caught_is_said_to_be_missed() -> None:
    stored = json.loads(claim_faults.KEPT.read_text(encoding="utf-8"))
    stored["rows"][0]["faulty"] = stored["rows"][0]["mended"]
    assert f"{len(stored['rows']) - 1} of {len(stored['rows'])} faults are caught" in claim_faults.text(stored)
