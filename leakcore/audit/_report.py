"""The report: what was measured, in sentences and tables, as JSON, as one self-contained page and as plain text."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from leakcore import __version__
from leakcore._results import jsonable
from leakcore._store import write_atomically
from leakcore.audit import _findings, _tables
from leakcore.audit._config import AuditConfig
from leakcore.audit._labels import LabelStudy
from leakcore.audit._reconstruction import BoundCurve, ReconstructionPoint


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class AuditReport:
    """Everything one audit found.

    points: one entry per noise level, the claimed one marked. curve: the bounds between them. labels: the label study.
    environment: versions and machine facts. seconds: wall time. passed: no attack proved more than was claimed.
    """

    config: AuditConfig
    points: list[ReconstructionPoint]
    curve: BoundCurve
    labels: LabelStudy
    environment: dict[str, Any]
    seconds: float

    @property
    def claimed(self) -> ReconstructionPoint:
        """The configuration that the audit is about."""
        return next(p for p in self.points if p.claimed)

    @property
    def contradictions(self) -> list[str]:
        """Sentences naming each claim that an attack disproved; empty when the gate passes."""
        return _findings.contradictions(self.points)

    @property
    def passed(self) -> bool:
        """Whether no attack proved more leakage than the configuration claims."""
        return not self.contradictions

    def findings(self) -> list[str]:
        """Plain sentences, each with kind, confidence and adjacency."""
        return _findings.sentences(self.config, self.points, self.labels)

    def tables(self) -> dict[str, _tables.Table]:
        """The tables that the page and the terminal show."""
        return {
            "reconstruction": _tables.reconstruction_table(self.points, self.config.prior_size),
            "accounting": _tables.accounting_table(self.points, self.config.delta),
            "labels": _tables.labels_table(self.labels),
            "label_epsilon": _tables.label_epsilon_table(self.labels),
        }

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; every number is a result with kind, confidence, interval, method, assumptions and provenance."""
        return {
            "schema": "leakcore.audit/1",
            "version": __version__,
            "passed": self.passed,
            "contradictions": self.contradictions,
            "findings": self.findings(),
            "config": self.config.to_dict(),
            "reconstruction": jsonable(self.points),
            "curve": jsonable(self.curve),
            "labels": jsonable(self.labels),
            "assumptions": _findings.assumptions(self.config),
            "environment": self.environment,
            "seconds": round(self.seconds, 1),
        }

    def to_json(self, path: str | Path | None = None, *, indent: int | None = None) -> str:
        """The report as strict JSON, also written to `path` (atomically) when one is given."""
        import json

        text = json.dumps(self.to_dict(), indent=indent, allow_nan=False, ensure_ascii=False)
        if path is not None:
            write_atomically(Path(path), text + "\n")
        return text

    def to_html(self, path: str | Path | None = None) -> str:
        """One self-contained HTML page, also written to `path` (atomically) when one is given."""
        from leakcore.audit import _page
        from leakcore.audit._plot import sandwich_svg

        tables = self.tables()
        figure = _page.Figure(
            svg=sandwich_svg(self.curve, self.points),
            alt=_findings.figure_alt(self.points),
            caption=_findings.figure_caption(self.config, self.points),
        )
        return _page.render(
            path,
            title=_findings.title(self.config, self.claimed),
            passed=self.passed,
            verdict=_findings.verdict(self.points),
            findings=self.findings(),
            sections=(
                _page.Section("Reconstruction: attack below bound", (tables["reconstruction"],), figure),
                _page.Section("The accountant", (tables["accounting"],)),
                _page.Section("Labels from one aggregated gradient", (tables["labels"], tables["label_epsilon"])),
            ),
            assumptions=_findings.assumptions(self.config),
            seconds=self.seconds,
            config=self.config.to_dict(),
            environment=self.environment,
        )

    def to_text(self, width: int = 110) -> str:
        """Tables and findings for a terminal, readable without colour."""

        from leakcore.audit import _page

        return _page.text(
            title=_findings.title(self.config, self.claimed),
            passed=self.passed,
            verdict=_findings.verdict(self.points),
            findings=self.findings(),
            tables=self.tables().values(),
            width=width,
        )
