"""What an experiment needs to run: its scale, its seed, where the data are, and where finished pieces go."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeVar

from leakcore._base.progress import Progress
from leakcore._base.run_folder.partial_results import PartialResults
from leakcore.experiments.departure import Departure, in_words

T = TypeVar("T")

SCALES = ("tiny", "quick", "paper")
"""tiny: seconds, too few runs to conclude from. quick: minutes on two cores. paper: its sizes."""
TRAINERS = ("ensemble", "opacus")
"""What trains the label paper's networks: dpsgd.Ensemble, or Opacus where it is installed."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Context:
    """What an experiment needs to run.

    Attributes:
        scale: one of `SCALES`.
        seed: of everything random.
        data: folder of data sets; None for LEAKCORE_DATA and the cache.
        pieces: finished parts, stored until the result is written.
        progress: called as `progress(task, done, total)`.
        trainer: one of `TRAINERS`.
        executor: whose workers train and sample; None for this process.
        departures: from the paper, as they come up.
    """

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

        what: is picked, in words, for the table of departures from the paper. Empty where the value decides only how
        finely a curve is drawn.
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
