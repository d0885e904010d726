"""What report.json says before and after an audit's own results, in the order in which it says it."""

from __future__ import annotations

from typing import Any, TypedDict

from leakcore.audit.report.page import Judged


class Limit(TypedDict):
    """The caller's limit on ε, what it is compared with, and what is above it."""

    fail_above: float | None
    judged: list[Judged]
    exceeded: list[str]


class Verdict(TypedDict):
    """What follows from one finding, and the conditions."""

    about: str
    verdict: str
    assumes: str


class Head(TypedDict):
    """What stands before the results. config, which follows it, holds the settings."""

    schema: str
    version: str
    passed: bool | None
    undecided: str
    contradictions: list[str]
    limit: Limit
    findings: list[str]
    verdicts: list[Verdict]


class Foot(TypedDict):
    """What stands after the results. report, which follows it, holds every field of the report."""

    assumptions: list[str]
    environment: dict[str, Any]
