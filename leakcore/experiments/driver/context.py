"""What an experiment needs to run: its scale, its seed, where the data are, and where finished pieces go."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from leakcore._base.progress import Progress
from leakcore._base.run_folder import PartialResults
from leakcore.experiments.driver.registry import Experiment
from leakcore.experiments.driver.result import Departure, ExperimentResult

T = TypeVar("T")

SCALES = ("tiny", "quick", "paper")
"""tiny: seconds, too few runs to conclude from. quick: minutes on two cores. paper: its sizes."""
TRAINERS = ("ensemble", "opacus")
"""What trains the label paper's networks: dpsgd.Ensemble, or Opacus where it is installed."""
_LISTED = 12
"""Values that are named one by one."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Context:
    """What an experiment needs to run, and how it reports.

    data: folder of data sets; None for LEAKCORE_DATA and the cache. pieces: finished parts, stored until the result is
    written. progress: called as `progress(task, done, total)`. executor: whose workers train and sample; None for this
    process. departures: differences from the paper, as they come up.
    """

    experiment: Experiment
    scale: str
    seed: int
    data: Path | None
    pieces: PartialResults
    progress: Progress
    trainer: str = "ensemble"
    executor: Executor | None = None
    departures: dict[str, Departure] = dataclasses.field(default_factory=dict, init=False)

    def pick(self, what: str = "", *, quick: T, paper: T, tiny: T | None = None) -> T:
        """The value for this scale; without `tiny` that of `quick`.

        what: names the value in the table of departures from the paper. Empty where the value decides only how finely
        a curve is drawn.
        """
        if self.scale == "paper":
            return paper
        value = tiny if self.scale == "tiny" and tiny is not None else quick
        if what:
            self.departs(what, in_words(paper), in_words(value))
        return value

    def departs(self, what: str, paper: str, here: str) -> None:
        """Note that the run does otherwise than the paper; nothing where the two are the same."""
        if paper != here:
            departure = Departure(what=what, paper=paper, here=here)
            self.departures[f"{what}: {paper}: {here}"] = departure

    def finish(self, task: str, jobs: Mapping[str, Callable[[], Any]], kind: Any = Any) -> dict[str, Any]:
        """The pieces of these jobs by name, in their order; what is stored is read, and the workers do the rest.

        kind: type of a piece.
        """
        pieces = {}
        for name, piece in self.pieces.each(jobs, self.executor, kind):
            pieces[name] = piece
            self.progress(task, len(pieces), len(jobs))
        return {name: pieces[name] for name in jobs}

    def result(self, *, data: Iterable[str] = (), **said: Any) -> ExperimentResult:
        """The result at this scale and seed, its other fields as they are `said`; `run` adds the departures."""
        fields: dict[str, Any] = {k: v if isinstance(v, str | Mapping) else tuple(v) for k, v in said.items()}
        about = {name: getattr(self.experiment, name) for name in ("name", "title", "statement")}
        return ExperimentResult(**about, scale=self.scale, seed=self.seed, data=tuple(dict.fromkeys(data)), **fields)


def in_words(value: Any) -> str:
    """A number, several, or numbers by name, as a table prints them."""
    if isinstance(value, Mapping):
        return "; ".join(f"{in_words(key)}: {in_words(one)}" for key, one in value.items())
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, tuple | list):
        if len(value) > _LISTED:
            return f"{len(value)} values from {in_words(value[0])} to {in_words(value[-1])}"
        return ", ".join(map(in_words, value)) or "none"
    if isinstance(value, float) and math.isinf(value):
        return "∞"
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def listed(values: Iterable[float], how: str = "g") -> str:
    """Numbers one by one, as a sentence has them."""
    return ", ".join(f"{value:{how}}" for value in values)
