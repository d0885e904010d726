"""The keys of a configuration that say how the audited training takes its batches: which go together, and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from leakcore import mechanisms
from leakcore.audit.shared.settings import MOST_STEPS

Name = Literal["poisson", "full", "fixed", "shuffled", "allocation"]
"""The schemes of `mechanisms.SCHEMES`."""
DEFAULTS = {"sample_rate": 1.0, "steps": 100}
"""Of the arguments of a scheme that has them."""


def filled(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a configuration with the defaults of its scheme.

    ValueError names a key that the scheme needs or has no use for, or that does not go with the rows of the game.
    """
    out, name = dict(values), values["sampling"]
    for argument in mechanisms.SCHEMES[name].arguments:
        if out[argument] is None:
            out[argument] = out["num_rows"] if argument == "dataset_size" else DEFAULTS.get(argument)
    mechanisms.of_scheme(name, 1.0, out)
    rows, batches = out["num_rows"], out["batches"]
    if name == "fixed" and out["dataset_size"] != rows:
        raise ValueError(
            f"`dataset_size` must be num_rows={rows}, the rows that the game trains on, or be left out, got "
            f"{out['dataset_size']}"
        )
    if name == "shuffled" and rows % batches:
        raise ValueError(f"`num_rows` must be a multiple of batches={batches}, got {rows}")
    if batches is not None and batches * out["epochs"] > MOST_STEPS:
        raise ValueError(f"`batches` times `epochs` must be at most {MOST_STEPS}, got {batches} times {out['epochs']}")
    return out
