"""What a number of trainings can prove: `python -m bench.audits.audit_plans --page PAGE`. Nothing is trained."""

from __future__ import annotations

import argparse
from typing import Any

from bench import kept_page
from leakcore import audit

MARKS = ("<!-- audit-plans -->", "<!-- /audit-plans -->")
EPSILONS, TRAININGS = (1.0, 2.0, 4.0, 8.0), (1000, 2000, 10_000)
_HEADS = ("trainings", "claimed ε", *(f"{family}: {what}" for family in ("(ε, δ)", "Gaussian") for what in (
    "at most", "expected", "noise too small by",
)))  # fmt: skip


def planned() -> dict[str, Any]:
    """The plans, by claim."""
    plans = [audit.plan(epsilon, trainings=TRAININGS, canaries=()) for epsilon in EPSILONS]
    return {"plans": [plan.to_dict() for plan in plans]}


def text(result: dict[str, Any]) -> str:
    """The table, as the docs show it."""
    lines = [f"| {' | '.join(_HEADS)} |", "|---" * len(_HEADS) + "|"]
    for trainings in TRAININGS:
        for plan in result["plans"]:
            cells = []
            for family in ("dp", "gdp"):
                (one,) = (a for a in plan["audits"] if (a["trainings"], a["family"]) == (trainings, family))
                able = one["ceiling"] > plan["epsilon"]
                noticed = "over 8" if one["noticed"] is None else f"{one['noticed']:g}"
                cells += [f"{one['ceiling']:.1f}", f"{one['expected']:.2f}", noticed if able else "never"]
            lines.append(f"| {trainings:,} | {plan['epsilon']:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    kept_page.main(argparse.ArgumentParser(description=__doc__), lambda options: planned(), text, MARKS)
