"""The pages of the documentation say what the kept results say, and nothing else."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from bench import kept_page, recorded_step
from bench.audits import audit_plans, claim_faults
from tests.project.script import load

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "accounting_grid": ("accounting-grid-epyc-2core", "explanation/numbers.md"),
    "agreement": ("agreement-epyc-2core", "explanation/numbers.md"),
    "audits.audit_powers": ("audit-powers", "explanation/audit-power.md"),
    "audits.canary_powers": ("canary-powers", "explanation/audit-power.md"),
    "audits.claim_adjacencies": ("claim-adjacencies", "how-to/test-a-claim.md"),
    "audits.claim_audits": ("claim-audits", "explanation/audit-power.md"),
    "audits.claim_faults": ("claim-faults", "explanation/audit-power.md"),
    "attacks.final_model": ("final-model", "explanation/audit-power.md"),
    "attacks.imprint_rows": ("imprint-rows", "how-to/federated.md"),
    "attacks.membership_attacks": ("membership-attacks", "explanation/attacks.md"),
    "attacks.text_recovery": ("text-recovery", "explanation/attacks.md"),
    "clusters.auditing_scale": ("auditing-scale", "papers/auditing.md"),
    "clusters.paper_scale": ("paper-scale", "papers/reconstruction.md"),
    "clusters.throughput": ("cluster-throughput", "how-to/clusters.md"),
    "fused_memory": ("fused-memory", "how-to/fused-optimizer.md"),
    "installs": ("installs", "reference/platforms.md"),
    "jobs.__main__": ("jobs", "explanation/performance.md"),
    "recorded_step": ("recorded-step", "explanation/recording.md"),
}
"""Module of the benchmark: its kept result, and the page of docs/ that shows it."""


def stored(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return result


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_the_kept_result_says(name: str) -> None:
    bench = importlib.import_module(f"bench.{name}")
    kept, page = PAGES[name]
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert all(text.count(mark) == 1 for mark in bench.MARKS)
    again = f"run python -m bench.{name.removesuffix('.__main__')} --show bench/results/{kept}.json --page docs/{page}"
    result = stored(kept)
    rewritten = (
        bench.rewritten(text, result)
        if hasattr(bench, "rewritten")
        else kept_page.between(text, bench.MARKS, bench.text(result))
    )
    assert rewritten == text, again


def test_the_plans_on_the_page_are_those_of_today() -> None:
    page = (ROOT / "docs" / "explanation" / "audit-power.md").read_text(encoding="utf-8")
    again = kept_page.between(page, audit_plans.MARKS, audit_plans.text(audit_plans.planned()))
    assert again == page, "run python -m bench.audits.audit_plans --page PAGE"


def test_the_picture_of_memory_is_of_the_kept_result() -> None:
    hook = load("docs/hooks/fused_memory.py")
    assert hook.carried(hook.PICTURE) == hook.points(stored("fused-memory"))


def test_sentences_follow_the_numbers() -> None:
    faults = stored("claim-faults")
    faults["rows"][0]["faulty"] = faults["rows"][0]["mended"]
    assert f"{len(faults['rows']) - 1} of {len(faults['rows'])} faults are caught" in claim_faults.text(faults)
    step = stored("recorded-step")
    step["ways"]["layers"] = {"often": step["step"] + 1.3 * step["pass"], "due": step["step"]}
    assert "1.30 is above it" in recorded_step.text(step)
