"""What one figure or table has to say, before it is a result with its experiment's name, scale and seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from leakcore.experiments.result import Panel, Pictures, Stated, TextTable
from leakcore.experiments.verdict import Check


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Findings:
    """The conclusion, what the paper says counted in our numbers, and the evidence; fields as in `ExperimentResult`."""

    conclusion: str
    stated: Iterable[Stated]
    checks: Iterable[Check] = ()
    panels: Iterable[Panel] = ()
    pictures: Iterable[Pictures] = ()
    tables: Iterable[TextTable] = ()
    notes: tuple[str, ...] = ()

    def with_notes(self, *notes: str) -> Findings:
        """The same with further notes at the end."""
        return dataclasses.replace(self, notes=(*self.notes, *notes))
