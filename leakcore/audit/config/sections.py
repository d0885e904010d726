"""The sections of a configuration that belong to no class of their own: [trace], [scores] and [report]."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from annotated_types import MinLen

from leakcore.audit.config.values import (
    AdjacencyName,
    ClaimedAdjacencyName,
    Confidence,
    Count,
    CountFrom2,
    Delta,
    NonNegative,
    PositiveDelta,
    Probability,
    Seed,
    Text,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
    """[trace]: a recorded training run. file: one, or the parts of a run in order."""

    file: Text | Annotated[tuple[Text, ...], MinLen(1)]
    delta: PositiveDelta = 1e-5
    claimed_epsilon: NonNegative | None = None
    sample_rate: Probability | None = None
    steps: Count | None = None
    num_candidates: CountFrom2 = 10
    coins: bool = False
    confidence: Confidence = 0.95
    divisor: Literal["rows", "constant"] | None = None

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file,) if isinstance(self.file, str) else self.file


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scores:
    """[scores]: membership scores of another tool."""

    file: Text
    members: Text | None = None
    non_members: Text | None = None
    values: Text | None = None
    labels: Text | None = None
    higher: Literal["members", "non-members"] | None = None
    coins: bool = False
    retrained: bool = False
    k: Count = 1
    delta: Delta = 1e-5
    claimed_epsilon: NonNegative | None = None
    claimed_adjacency: ClaimedAdjacencyName | None = None
    adjacency: AdjacencyName | None = None
    confidence: Confidence = 0.95
    family: Literal["dp", "gdp"] = "dp"
    seed: Seed = 0
    select: Literal["simultaneous", "split"] = "simultaneous"

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """[report]: where the report goes, and the limit of the gate."""

    out: Text | None = None
    json: Text | None = None
    html: Text | None = None
    fail_above: NonNegative | None = None
