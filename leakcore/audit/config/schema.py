"""The configuration as a JSON Schema, from the tables that read it: editors complete and check TOML by it."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

from leakcore._base import validate as check
from leakcore.audit.config.file import FORMS, SECTIONS
from leakcore.audit.config.keys import KeyReader
from leakcore.audit.hyperparameters.config import AuditConfig

_NUMBERS: dict[Any, dict[str, Any]] = {
    check.open_probability: {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    check.confidence: {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    check.below_one: {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
    check.probability: {"type": "number", "minimum": 0, "maximum": 1},
    check.non_negative: {"type": "number", "minimum": 0},
    check.positive: {"type": "number", "exclusiveMinimum": 0},
    check.seed: {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
}
"""What the checks of numbers allow, as a schema says it."""
_TYPES: dict[Any, dict[str, Any]] = {
    float: {"type": "number"}, int: {"type": "integer"}, str: {"type": "string"}, Any: {"type": "string"},
}  # fmt: skip


def config_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a file for `leakcore audit --config`.

    It knows every section and key, types, ranges and choices. What belongs together (exactly one of `run.epsilon` and
    `run.noise_multiplier`, for example) only reading the file tells.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "leakcore audit configuration",
        "type": "object",
        "properties": {name: _section(name) for name in SECTIONS},
        "additionalProperties": False,
        "oneOf": [{"anyOf": [{"required": [name]} for name in names]} for names in FORMS.values()],
    }


def _section(name: str) -> dict[str, Any]:
    hints = typing.get_type_hints(AuditConfig) if name == "run" else {}
    keys = {
        key: _with_default(_of_type(hints[key]) if name == "run" else _of_reader(read), default)
        for key, (default, read) in SECTIONS[name].items()
    }
    required = {"required": ["file"]} if name in ("trace", "scores") else {}
    return {"type": "object", "properties": keys, "additionalProperties": False, **required}


def _with_default(schema: dict[str, Any], default: Any) -> dict[str, Any]:
    if default is None or default is dataclasses.MISSING:
        return schema
    return {**schema, "default": list(default) if isinstance(default, tuple) else default}


def _of_reader(read: Any) -> dict[str, Any]:
    """The schema that a reader carries, or that of a check of numbers; an optional key may be absent, never null."""
    if isinstance(read, KeyReader):
        return dict(read.schema) if read.inner is None else _of_reader(read.inner)
    return _NUMBERS[read]


def _of_type(hint: Any) -> dict[str, Any]:
    """The schema of a field of `AuditConfig`."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        (inner,) = (part for part in typing.get_args(hint) if part is not type(None))
        return _of_type(inner)
    if typing.get_origin(hint) is tuple:
        return {"type": "array", "items": _of_type(typing.get_args(hint)[0])}
    return _TYPES[hint]
