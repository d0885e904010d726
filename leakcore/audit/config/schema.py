"""The configuration as a JSON Schema, from the classes that check it: editors complete and check TOML by it."""

from __future__ import annotations

from typing import Any

from leakcore.audit.config.checking import schema_of
from leakcore.audit.config.file import FORMS, SECTIONS


def config_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a file for `leakcore audit`.

    It knows every section and key, types, ranges and choices. What belongs together (exactly one of `run.epsilon` and
    `run.noise_multiplier`, for example) only reading the file tells.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "leakcore audit configuration",
        "type": "object",
        "properties": {name: schema_of(cls) for name, cls in SECTIONS.items()},
        "additionalProperties": False,
        "oneOf": [{"anyOf": [{"required": [name]} for name in names]} for names in FORMS.values()],
    }
