"""Every report.json as a JSON Schema, made from the reports' fields: what reads reports can check and complete them."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

from leakcore import accounting, bounds
from leakcore._base.json_schema import JsonSchemas, Schema
from leakcore._base.results import Result
from leakcore.audit.claim.report import ClaimReport
from leakcore.audit.hyperparameters.report import RunReport
from leakcore.audit.scores.report import ScoresReport
from leakcore.audit.scores.statistics import MeasuredRate
from leakcore.audit.shared.report import OUTSIDE, AuditReport, Foot, Head
from leakcore.audit.trace.canaries import CanaryReport
from leakcore.audit.trace.measure import Measured, Separation
from leakcore.audit.trace.report import TraceReport

FORMS: tuple[type[AuditReport], ...] = (RunReport, TraceReport, ClaimReport, ScoresReport, CanaryReport)


def report_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the JSON of every audit's report.

    The report's key `schema` says which form it has, and the version of that form: "leakcore.trace-audit/2". All keys
    of that form must be there. Keys that a form does not have belong to parts that were added (`with_parts`), and may
    hold anything.
    """
    schemas = JsonSchemas((*_results(accounting), *_results(bounds), Measured, Separation, MeasuredRate))
    forms = [{"if": {"properties": {"schema": {"const": cls.schema}}}, "then": _file(cls, schemas)} for cls in FORMS]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "leakcore report.json",
        "type": "object",
        "properties": {"schema": {"enum": [cls.schema for cls in FORMS]}},
        "required": ["schema"],
        "allOf": forms,
        "$defs": dict(sorted(schemas.definitions.items())),
    }


def _results(package: types.ModuleType) -> Iterator[type]:
    """The classes of results that a package offers."""
    for name in package.__all__:
        value = getattr(package, name)
        if isinstance(value, type) and issubclass(value, Result):
            yield value


def _file(cls: type[AuditReport], schemas: JsonSchemas) -> Schema:
    """One form, by what `AuditReport.to_dict` writes."""
    properties = {name: schemas.of_jsonable(kind) for name, kind in typing.get_type_hints(Head).items()}
    properties["schema"] = {"const": cls.schema}
    properties["config"] = _settings(cls, schemas)
    for name, attribute in cls.result_names.items():
        properties[name] = schemas.of_jsonable(_kind_of(cls, attribute))
    properties |= {name: schemas.of_jsonable(kind) for name, kind in typing.get_type_hints(Foot).items()}
    if cls.timed:
        properties["seconds"] = {"type": "number", "minimum": 0}
    fields = schemas.fields(cls, but=OUTSIDE)
    properties["report"] = {**fields, "required": ["class", *fields["required"]]}
    return {"title": cls.__name__, "properties": properties, "required": list(properties)}


def _settings(cls: type[AuditReport], schemas: JsonSchemas) -> Schema:
    if not cls.setting_names:
        return schemas.of(_kind_of(cls, "config"))
    settings = {name: schemas.of_jsonable(_kind_of(cls, name)) for name in cls.setting_names}
    return {"type": "object", "properties": settings, "required": list(settings), "additionalProperties": False}


def _kind_of(cls: type, attribute: str) -> Any:
    """The annotation of a field, or of what a property returns."""
    value = getattr(cls, attribute, None)
    if isinstance(value, property):
        return typing.get_type_hints(value.fget)["return"]
    return typing.get_type_hints(cls)[attribute]
