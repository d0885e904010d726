"""The report on a configuration: bounds, attacks and labels over noise levels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

from leakcore.audit.hyperparameters import findings as _findings
from leakcore.audit.hyperparameters.config import AuditConfig
from leakcore.audit.hyperparameters.label_section import LabelStudy
from leakcore.audit.hyperparameters.reconstruction_section import BoundCurve, ReconstructionPoint
from leakcore.audit.report import page
from leakcore.audit.report import tables as _tables
from leakcore.audit.report.cards import Card
from leakcore.audit.report.report import NOTHING, TOO_WEAK, AuditReport


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class RunReport(AuditReport):
    """The report of `audit.run`.

    Attributes:
        config: of the audit.
        points: one entry for each noise level; the claimed one is marked.
        curve: the bounds between the noise levels.
        labels: the label study.
    """

    schema: ClassVar[str] = "leakcore.audit/2"
    result_names: ClassVar[Mapping[str, str]] = {"reconstruction": "points", "curve": "curve", "labels": "labels"}

    config: AuditConfig
    points: list[ReconstructionPoint]
    curve: BoundCurve
    labels: LabelStudy

    @property
    def claimed(self) -> ReconstructionPoint:
        """The configuration that the audit is about."""
        return next(p for p in self.points if p.claimed)

    @property
    def title(self) -> str:
        return _findings.title(self.config, self.claimed)

    @property
    def contradictions(self) -> list[str]:
        return _findings.contradictions(self.points)

    @property
    def word(self) -> str:
        if self.passed and not self.claimed.testable:
            return TOO_WEAK
        return NOTHING if self.passed and float(self.claimed.epsilon_audited.value) <= 0 else super().word

    def judged(self) -> tuple[page.Judged, ...]:
        p = self.claimed
        return (
            page.judged("the accountant's ε of the audited σ", p.epsilon),
            page.judged("the ε that the attack proves there", p.epsilon_audited),
        )

    def verdict_sentences(self) -> list[str]:
        return _findings.verdict(self.points)

    def cards(self) -> tuple[Card, Card, Card, Card]:
        return _findings.cards(self.config, self.claimed)

    def findings(self) -> list[str]:
        return _findings.sentences(self.config, self.points, self.labels)

    def assumptions(self) -> list[str]:
        return _findings.assumptions(self.config)

    def tables(self) -> dict[str, _tables.Table]:
        return {
            "reconstruction": _tables.reconstruction_table(self.points, self.config.num_candidates),
            "accounting": _tables.accounting_table(self.points, self.config.delta),
            "labels": _tables.labels_table(self.labels),
            "label_epsilon": _tables.label_epsilon_table(self.labels),
        }

    def sections(self) -> tuple[page.Section, ...]:
        from leakcore.audit.report.plots import sandwich_svg

        tables = self.tables()
        figure = page.Figure(
            svg=functools.partial(sandwich_svg, self.curve, self.points),
            alt=_findings.figure_alt(self.points),
            caption=_findings.figure_caption(self.config, self.points),
        )
        drawn = figure if any(p.drawable for p in self.points) else None
        return (
            page.Section("Reconstruction: the attack compared with its bound", (tables["reconstruction"],), drawn),
            page.Section("The accountant", (tables["accounting"],)),
            page.Section("Labels from one aggregated gradient", (tables["labels"], tables["label_epsilon"])),
        )

    def settings(self) -> dict[str, Any]:
        return self.config.to_dict()
