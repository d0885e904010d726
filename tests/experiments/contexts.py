"""A context to call an experiment's parts with."""

from __future__ import annotations

from pathlib import Path

from leakcore import experiments
from leakcore._base.run_folder import PartialResults
from leakcore.experiments.driver.context import Context


def context(
    scale: str = "tiny", *, name: str = "reconstruction-fig7", data: Path | None = None, folder: Path | None = None
) -> Context:
    """folder: of the finished pieces; None to keep them in memory."""
    return Context(
        experiment=experiments.find(name),
        scale=scale,
        seed=0,
        data=data,
        pieces=PartialResults(folder, "bound to nothing"),
        progress=lambda task, done, total: None,
    )
