"""The schema of report.json takes every form of report, and refuses what a report does not hold."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from leakcore import audit
from leakcore._base.results import Assumptions, Result
from leakcore.audit import report_schema
from leakcore.audit.shared import elements
from leakcore.cli import main
from tests.audit import samples as reports

jsonschema = pytest.importorskip("jsonschema")
FORMS: list[Any] = [
    reports.trace,
    reports.scores,
    reports.canaries,
    reports.claim,
    pytest.param(reports.run, marks=pytest.mark.slow),
]


@functools.cache
def schema() -> dict[str, Any]:
    return report_schema()


def errors(data: Any) -> list[str]:
    """What the schema says against it, at the place where it is wrong."""
    every = jsonschema.Draft202012Validator(schema()).iter_errors(data)
    deepest = [jsonschema.exceptions.best_match([error]) for error in every]
    return [f"{error.json_path}: {error.message}" for error in deepest]


@functools.cache
def written(make: Callable[[], audit.AuditReport]) -> Any:
    return json.loads(make().to_json())


def test_it_is_a_schema_and_names_the_version_of_every_form() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    assert schema()["properties"]["schema"]["enum"] == [
        "leakcore.audit/2", "leakcore.trace-audit/2", "leakcore.claim-audit/1", "leakcore.scores-audit/1",
            "leakcore.canary-audit/2",
    ]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("make", FORMS)
def test_a_real_report_fits(make: Callable[[], audit.AuditReport]) -> None:
    assert errors(written(make)) == []


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("make", FORMS)
def test_it_knows_every_key(make: Callable[[], audit.AuditReport]) -> None:
    data = written(make)
    (form,) = (f["then"] for f in schema()["allOf"] if f["then"]["properties"]["schema"] == {"const": data["schema"]})
    parts = {part.key for part in make().parts}
    assert set(form["required"]) == set(form["properties"]) == set(data) - parts


def test_a_part_may_say_anything_under_its_key() -> None:
    section = elements.Section("More", (), elements.Figure(svg=lambda: "<svg/>", alt="a picture", caption="see"))
    part = elements.Part(key="more", findings=("More: 1",), sections=(section,), content={"value": math.inf})
    data = json.loads(reports.scores().with_parts(part).to_json())
    assert data["more"] == {"value": "inf"}
    assert errors(data) == []
    data["report"]["parts"][0]["sections"][0]["title"] = 3
    assert "$.report.parts[0].sections[0].title" in errors(data)[0]


def put(data: Any, path: str, value: Any) -> Any:
    """A copy with another value there; without the key where the value is `...`."""
    changed = copy.deepcopy(data)
    *steps, last = path.split(".")
    place = functools.reduce(lambda at, step: at[int(step)] if isinstance(at, list) else at[step], steps, changed)
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return changed


@pytest.mark.parametrize(
    ("make", "path", "value", "said"),
    [
        (reports.trace, "schema", "leakcore.trace-audit/0", "schema: 'leakcore.trace-audit/0' is not one of"),
        (reports.scores, "passed", "yes", "passed: 'yes' is not of type"),
        (reports.scores, "verdicts.0.about", 1, r"verdicts\[0\].about: 1 is not of type 'string'"),
        (reports.scores, "epsilon", ..., "'epsilon' is a required property"),
        (reports.scores, "epsilon.kind", "sure", "epsilon.kind: 'sure' is not one of"),
        (reports.trace, "exposed.0.times_seen", "often", r"exposed\[0\].times_seen: 'often' is not of type 'integer'"),
        (reports.scores, "seconds", "long", "seconds: 'long' is not of type 'number'"),
        (reports.scores, "config.kk", 2, "config: .*'kk' was unexpected"),
        (reports.scores, "limit.judged.0.guarantee", 1, r"limit.judged\[0\].guarantee: 1 is not of type 'string'"),
        (reports.claim, "statistics.k = 1.with", "none", "statistics.*with.*: 'none' "),
    ],
)
def test_what_is_wrong_outside_the_fields_does_not_fit(make: Any, path: str, value: Any, said: str) -> None:
    data = written(make)
    (error,) = errors(put(data, path, value))
    assert re.search(said, error)


@pytest.mark.parametrize(
    ("make", "path", "value"),
    [
        (reports.trace, "report.schema", "leakcore.trace-audit/0"),
        (reports.trace, "report.class", "ScoresReport"),
        (reports.trace, "report.coins", "true"),
        (reports.trace, "report.coins", ...),
        (reports.trace, "report.more", 1),
        (reports.trace, "report.noise_multiplier", [1.0]),
        (reports.trace, "report.epsilon.kind", 3),
        (reports.trace, "report.epsilon.interval", [1.0, 2.0, 3.0]),
        (reports.trace, "report.exposed.0.lead", "much"),
        (reports.scores, "report.roc", [[0.0, 1.0]]),
        (reports.scores, "report.delta", None),
        (reports.scores, "report.epsilon.assumptions.adjacency", 7),
        (reports.claim, "report.scores", []),
        (reports.claim, "report.proofs.0.found.trials", ...),
        (reports.claim, "report.proofs.0.found.more", 1),
    ],
)  # fmt: skip
def test_what_reading_refuses_does_not_fit(make: Any, path: str, value: Any) -> None:
    data = put(written(make), path, value)
    assert errors(data)
    with pytest.raises((ValueError, TypeError)):
        type(make()).from_dict(data)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Elsewhere(Result):
    """A result that the schema does not know."""

    more: int


def test_a_result_of_another_class_is_checked_by_the_fields_of_every_result() -> None:
    result = Elsewhere(
        value=1.0, kind="upper", confidence=None, interval=None, method="m", provenance="p", more=1,
        assumptions=Assumptions(None, "sees nothing"),
    )  # fmt: skip
    assert report_schema() == schema(), "it does not depend on the classes that happen to be there"
    data = put(written(reports.scores), "area", result.to_dict())
    assert errors(data) == []
    assert errors(put(data, "area.value", "high"))
    assert errors(put(data, "area.method", ...))


def test_the_command_prints_it() -> None:
    done = CliRunner().invoke(main, ["schema", "report"])
    assert done.exit_code == 0
    assert json.loads(done.output) == schema()
