"""What every audit's report has: a verdict, findings, tables; as JSON, as one self-contained page and as plain text."""

from __future__ import annotations

import abc
import dataclasses
import json
from pathlib import Path
from typing import Any, ClassVar

from leakcore import __version__
from leakcore._store import write_atomically
from leakcore.audit import _page
from leakcore.audit._tables import Table


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class AuditReport(abc.ABC):
    """Everything one audit found. environment: versions and machine facts. seconds: wall time."""

    schema: ClassVar[str]

    environment: dict[str, Any]
    seconds: float

    @property
    @abc.abstractmethod
    def title(self) -> str:
        """What was audited, in one line."""

    @property
    @abc.abstractmethod
    def contradictions(self) -> list[str]:
        """Sentences naming each claim that an attack disproved; empty when the gate passes."""

    @property
    def passed(self) -> bool:
        """Whether no attack proved more leakage than was claimed."""
        return not self.contradictions

    @abc.abstractmethod
    def verdict(self) -> str:
        """One sentence for the top of the page."""

    @abc.abstractmethod
    def findings(self) -> list[str]:
        """Plain sentences, each with kind, confidence and adjacency; "what it is about: what was found"."""

    @abc.abstractmethod
    def tables(self) -> dict[str, Table]:
        """The tables that the page and the terminal show."""

    @abc.abstractmethod
    def sections(self) -> tuple[_page.Section, ...]:
        """The page's middle: figures and tables under headings."""

    @abc.abstractmethod
    def assumptions(self) -> list[str]:
        """What must hold for the report to mean what it says."""

    @abc.abstractmethod
    def settings(self) -> dict[str, Any]:
        """What it takes to run the audit again, JSON-ready."""

    @abc.abstractmethod
    def content(self) -> dict[str, Any]:
        """The results, JSON-ready; every number with kind, confidence, interval, method, assumptions, provenance."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: verdict, findings, settings, results."""
        return {
            "schema": self.schema,
            "version": __version__,
            "passed": self.passed,
            "contradictions": self.contradictions,
            "findings": self.findings(),
            "config": self.settings(),
            **self.content(),
            "assumptions": self.assumptions(),
            "environment": self.environment,
            "seconds": round(self.seconds, 1),
        }

    def to_json(self, path: str | Path | None = None, *, indent: int | None = None) -> str:
        """The report as strict JSON, also written to `path` (atomically) when one is given."""
        text = json.dumps(self.to_dict(), indent=indent, allow_nan=False, ensure_ascii=False)
        if path is not None:
            write_atomically(Path(path), text + "\n")
        return text

    def to_html(self, path: str | Path | None = None) -> str:
        """One self-contained HTML page, also written to `path` (atomically) when one is given."""
        html = _page.render(
            title=self.title,
            passed=self.passed,
            verdict=self.verdict(),
            findings=self.findings(),
            sections=self.sections(),
            assumptions=self.assumptions(),
            seconds=self.seconds,
            settings=self.settings(),
            environment=self.environment,
        )
        if path is not None:
            write_atomically(Path(path), html)
        return html

    def to_text(self, width: int = 110) -> str:
        """Tables and findings for a terminal, readable without colour."""
        return _page.text(
            title=self.title,
            passed=self.passed,
            verdict=self.verdict(),
            findings=self.findings(),
            tables=self.tables().values(),
            width=width,
        )
