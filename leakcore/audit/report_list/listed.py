"""One report of a folder, and its numbers, as a list of reports has them."""

from __future__ import annotations

import dataclasses
import os
from urllib.parse import quote

from leakcore._base.results import Record


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ListedNumber(Record):
    """An ε of a report.

    Attributes:
        value: the number.
        text: as the report prints it, rounded to its safe side.
        kind: "lower", "upper", or "parameter" for a claim.
        guarantee: confidence and adjacency in words.
        adjacency: in words.
    """

    value: float
    text: str
    kind: str
    guarantee: str
    adjacency: str


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ListedReport(Record):
    """One report of a folder.

    Attributes:
        name: its folder, as seen from the listed folder; "." for a report in that folder itself.
        date: when its file was last written, UTC, ISO 8601.
        audit: what kind of audit it is.
        title: what was audited.
        word: the verdict in a few words.
        tone: "good", "neutral" or "bad", as on the report's page.
        verdict: the verdict's first sentence.
        claimed: the claimed ε, under the audit's adjacency; None without a claim.
        proved: the lower bound on ε; None where nothing proves one.
        accountant: the accountant's ε; None where the audit knows no mechanism.
        version: of leakcore that wrote it.
        page: path of its report.html, as seen from the listed folder; empty without one.
    """

    name: str
    date: str
    audit: str
    title: str
    word: str
    tone: str
    verdict: str
    claimed: ListedNumber | None
    proved: ListedNumber | None
    accountant: ListedNumber | None
    version: str
    page: str

    @property
    def link(self) -> str:
        """The page's path as an address."""
        return quote(os.fsencode(self.page)).lstrip("/")  # a name need not be UTF-8; it never leaves the folder
