"""One TOML file for every form of `leakcore audit`: its sections and keys, where the report goes, its JSON Schema."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import MinLen

from leakcore._base.reading import of_file, read_toml
from leakcore._base.text import printable, renaming
from leakcore.audit.claim import config as claim
from leakcore.audit.hyperparameters.config import AuditConfig
from leakcore.audit.shared import config_checks as checks
from leakcore.mechanisms import argument_errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
    """[trace]: a recorded training run. file: one, or the parts of a run in order."""

    file: checks.Text | Annotated[tuple[checks.Text, ...], MinLen(1)]
    delta: checks.PositiveDelta = 1e-5
    claimed_epsilon: checks.NonNegative | None = None
    sample_rate: checks.Probability | None = None
    steps: checks.Count | None = None
    num_candidates: checks.CountFrom2 = 10
    coins: bool = False
    confidence: checks.Confidence = 0.95
    divisor: Literal["rows", "constant"] | None = None

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file,) if isinstance(self.file, str) else self.file


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scores:
    """[scores]: membership scores of another tool."""

    file: checks.Text
    members: checks.Text | None = None
    non_members: checks.Text | None = None
    values: checks.Text | None = None
    labels: checks.Text | None = None
    higher: Literal["members", "non-members"] | None = None
    coins: bool = False
    retrained: bool = False
    k: checks.Count = 1
    delta: checks.Delta = 1e-5
    claimed_epsilon: checks.NonNegative | None = None
    claimed_adjacency: checks.ClaimedAdjacencyName | None = None
    adjacency: checks.AdjacencyName | None = None
    confidence: checks.Confidence = 0.95
    family: Literal["dp", "gdp"] = "dp"
    seed: checks.Seed = 0
    select: Literal["simultaneous", "split"] = "simultaneous"

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """[report]: where the report goes, and the limit of the gate."""

    out: checks.Text | None = None
    json: checks.Text | None = None
    html: checks.Text | None = None
    fail_above: checks.NonNegative | None = None


SECTIONS: dict[str, type] = {"run": AuditConfig, "trace": Trace, "scores": Scores, **claim.SECTIONS, "report": Report}
"""Section: the dataclass that defines its keys."""
FORMS = {"run": ("run",), "trace": ("trace",), "scores": ("scores",), "claim": tuple(claim.SECTIONS)}
"""Form of the audit: the sections that belong to it. [report] goes with each."""
Settings = AuditConfig | claim.ClaimConfig | Trace | Scores


def read_config(path: str | Path) -> tuple[str | None, dict[str, dict[str, Any]]]:
    """(form, sections) of the file; the form is None if the file has nothing but [report].

    Sections are checked, keys are not yet: options may take their place. ValueError names the file and what is wrong;
    TypeError, a section that is not one.
    """
    sections = read_toml(path)
    if not sections:
        raise ValueError(
            "`config` must have [run] (which may be empty: the defaults), [trace], [scores], or sections of a claim "
            f"({', '.join(f'[{name}]' for name in claim.SECTIONS)}), got {printable(repr(str(path)))}, which is empty"
        )
    with of_file(path):
        checks.refuse_sections(sections, SECTIONS)
        forms = [form for form, names in FORMS.items() if any(name in sections for name in names)]
        if len(forms) > 1:
            first, second = (next(n for n in FORMS[form] if n in sections) for form in forms[:2])
            raise ValueError(f"[{first}], [{second}]: belong to different audits; a file describes one")
    return forms[0] if forms else None, sections


def with_options(
    sections: Mapping[str, Mapping[str, Any]], options: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The sections of a file, where options take precedence over keys.

    In [run] a noise multiplier among the options takes precedence over the file's ε, and the other way round; a
    sampling takes precedence over the keys that go with the file's.
    """
    out = {name: {**sections.get(name, {}), **options.get(name, {})} for name in {**sections, **options}}
    run, typed = sections.get("run", {}), options.get("run", {})
    for one, other in (("noise_multiplier", "epsilon"), ("epsilon", "noise_multiplier")):
        if typed.get(one) is not None and other in run and typed.get(other) is None:
            del out["run"][other]
    if typed.get("sampling") is not None:
        for name in argument_errors(typed["sampling"], run)[1]:
            if typed.get(name) is None:
                del out["run"][name]
    return out


def read_settings(form: str, sections: Mapping[str, Any]) -> tuple[Settings, Report]:
    """What a form of audit is asked to do, with defaults for missing keys, and where its report goes; ValueError or
    TypeError lists every fault by section.key, as `checked` does.
    """
    names = (*FORMS[form], "report")
    read = checks.checked_sections({name: SECTIONS[name] for name in names}, sections)
    report = Report(**read.pop("report"))
    if form == "claim":
        return claim.ClaimConfig(**{name: SECTIONS[name](**keys) for name, keys in read.items()}), report
    if form != "run":
        return SECTIONS[form](**read[form]), report
    keys = read["run"]
    if keys["noise_multiplier"] is not None and "epsilon" not in sections.get("run", {}):
        keys["epsilon"] = None
    with renaming({key: f"run.{key}" for key in keys}):  # of keys that do not go together
        return AuditConfig(**keys), report


def config_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a file for `leakcore audit`.

    It knows every section and key, types, ranges and choices. What belongs together (exactly one of `run.epsilon` and
    `run.noise_multiplier`, for example) only reading the file tells.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "leakcore audit configuration",
        "type": "object",
        "properties": {name: checks.schema_of(cls) for name, cls in SECTIONS.items()},
        "additionalProperties": False,
        "oneOf": [{"anyOf": [{"required": [name]} for name in names]} for names in FORMS.values()],
    }
