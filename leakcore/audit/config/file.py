"""One TOML file for every form of `leakcore audit`: which form it is, its keys, and where the report goes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leakcore._base import validate as check
from leakcore._base.files.toml_file import read_toml
from leakcore._base.printable import name_of, printable
from leakcore.audit.claim import config
from leakcore.audit.config.keys import (
    Keys,
    adjacency,
    flag,
    nearest,
    optional,
    read_section,
    require_known,
    text,
    texts,
    whole,
    words,
)
from leakcore.audit.hyperparameters.config import AuditConfig

TRACE: Keys = {
    "file": (None, texts),
    "delta": (1e-5, check.open_probability),
    "claimed_epsilon": (None, optional(check.non_negative)),
    "sample_rate": (None, optional(check.probability)),
    "steps": (None, optional(whole(1))),
    "num_candidates": (10, whole(2)),
    "coins": (False, flag),
    "confidence": (0.95, check.confidence),
}
SCORES: Keys = {
    "file": (None, text),
    "members": (None, optional(text)),
    "non_members": (None, optional(text)),
    "values": (None, optional(text)),
    "labels": (None, optional(text)),
    "higher": (None, optional(words("members", "non-members"))),
    "coins": (False, flag),
    "retrained": (False, flag),
    "k": (1, whole(1)),
    "delta": (1e-5, check.below_one),
    "claimed_epsilon": (None, optional(check.non_negative)),
    "adjacency": (None, optional(adjacency)),
    "confidence": (0.95, check.confidence),
    "seed": (0, check.seed),
}
REPORT: Keys = {
    "out": (None, optional(text)),
    "json": (None, optional(text)),
    "html": (None, optional(text)),
    "fail_above": (None, optional(check.non_negative)),
}
_RUN: Keys = {f.name: (f.default, lambda **v: next(iter(v.values()))) for f in dataclasses.fields(AuditConfig)}
SECTIONS: dict[str, Keys] = {
    "run": _RUN, "trace": TRACE, "scores": SCORES, **config.KEYS, "report": REPORT,
}  # fmt: skip
FORMS = {"run": ("run",), "trace": ("trace",), "scores": ("scores",), "claim": tuple(config.KEYS)}
"""Form of the audit: the sections that belong to it. [report] goes with each."""
LACKING = (
    "describes no audit; it must have [run] (which may be empty: the defaults), [trace], [scores], or sections of a "
    f"claim ({', '.join(f'[{name}]' for name in config.KEYS)})"
)
"""What is said of a file that has none of these, where no option says which audit it is."""


def read_config(path: str | Path) -> tuple[str | None, dict[str, dict[str, Any]]]:
    """(form, sections) of the file; the form is None if the file has nothing but [report].

    Names are checked, values are not yet.

    Raises:
        ValueError: names what is wrong.
        TypeError: for a section that is not one.
    """
    sections = read_toml(path)
    if not sections:
        raise ValueError(f"config={str(path)!r}: is empty and {LACKING}")
    for name, section in sections.items():
        if name not in SECTIONS:
            near = nearest(name, SECTIONS)
            raise ValueError(f"[{name_of(name)}]: no such section; there are {', '.join(SECTIONS)}{near}")
        if not isinstance(section, Mapping):
            raise TypeError(f"{name}={printable(repr(section), 60)}: must be a section, [{name}]")
    forms = [form for form, names in FORMS.items() if any(name in sections for name in names)]
    if len(forms) > 1:
        first, second = (next(n for n in FORMS[form] if n in sections) for form in forms[:2])
        raise ValueError(f"[{first}], [{second}]: belong to different audits; a file describes one")
    form = forms[0] if forms else None
    own = {name: SECTIONS[name] for name in (*FORMS.get(form or "", ()), "report")}
    for name, section in sections.items():
        require_known(name, section, SECTIONS[name], {n: k for n, k in own.items() if n != name})
    return form, sections


def read_form(form: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The checked keys of [trace] or [scores], with defaults for missing keys."""
    if values.get("file") is None:
        raise ValueError(f"{form}.file: say which file")
    return read_section(form, values, SECTIONS[form])


def read_report(values: Mapping[str, Any]) -> dict[str, Any]:
    """The checked keys of [report]."""
    return read_section("report", values, REPORT)


def run_config(file: Mapping[str, Any], options: Mapping[str, Any]) -> AuditConfig:
    """The configuration of [run], where options take precedence over the file's keys; errors name run.key.

    A noise multiplier among the options takes precedence over the file's ε, and the other way round. Without either the
    default ε applies.
    """
    fields = {**file, **options}
    noise, epsilon = (fields.get(name) is not None for name in ("noise_multiplier", "epsilon"))
    if noise and epsilon and ("noise_multiplier" in options) != ("epsilon" in options):
        fields["epsilon" if "noise_multiplier" in options else "noise_multiplier"] = None
    elif noise and not epsilon:
        fields["epsilon"] = None
    try:
        return AuditConfig.from_dict(fields)
    except (ValueError, TypeError) as why:
        named = re.match(r"`?(\w+)", str(why))
        of_file = named is not None and named[1] in file and named[1] not in options
        raise type(why)(re.sub(r"^`?", r"\g<0>run.", str(why), count=1) if of_file else str(why)) from None
