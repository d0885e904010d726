"""The figures and tables by name, as registry.json lists them: title, the paper's statement, data, module, and time.

The function that makes a figure is imported when it is asked for.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Callable
from pathlib import Path

from leakcore.experiments.driver.result import ExperimentResult


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A figure or table of a paper that leakcore can reproduce.

    Attributes:
        name: by which `run` and `leakcore reproduce` find it, such as "reconstruction-fig3".
        title: what it is about.
        statement: what the paper says that it shows.
        needs: names of the data sets that it reads; empty if it computes bounds only.
        module: in leakcore.experiments, which is imported when the experiment runs. Its function has the last part of
            the name: "fig3".
        seconds: at the quick scale, on two cores of an AMD EPYC that had other work as well.

    Example:
        >>> from leakcore import experiments
        >>> experiment = experiments.find("labels-fig1")
        >>> experiment.module, len(experiment.needs) > 0
        ('labels.noise_and_clipping', True)
    """

    name: str
    title: str
    statement: str
    needs: tuple[str, ...]
    module: str
    seconds: int

    @property
    def quick(self) -> str:
        """How long it takes at the quick scale on two cores, roughly, such as "about 10 s"."""
        return _rounded(self.seconds)

    def load(self) -> Callable[..., ExperimentResult]:
        """Import the experiment's module.

        Returns:
            The function that makes the figure from a `Context`.
        """
        module = importlib.import_module(f"leakcore.experiments.{self.module}")
        function: Callable[..., ExperimentResult] = getattr(module, self.name.partition("-")[2])
        return function


def _rounded(seconds: int) -> str:
    if seconds < 100:
        return f"about {seconds} s"
    return f"about {seconds / 60:.1f} min" if seconds < 1000 else f"about {seconds / 60:.0f} min"


def quick_of_all() -> str:
    """How long all of them take at the quick scale."""
    return _rounded(sum(experiment.seconds for experiment in EXPERIMENTS.values()))


_ROWS = json.loads((Path(__file__).parents[1] / "registry.json").read_text(encoding="utf-8"))
EXPERIMENTS = {row["name"]: Experiment(**{**row, "needs": tuple(row["needs"])}) for row in _ROWS}


def names() -> list[str]:
    """The names of all experiments, paper by paper.

    Returns:
        A list in the order of the papers' figures and tables.

    Example:
        >>> from leakcore import experiments
        >>> "reconstruction-table2" in experiments.names()
        True
    """
    return list(EXPERIMENTS)


def find(name: str) -> Experiment:
    """The experiment of a name.

    Args:
        name: one of `names()`.

    Returns:
        An `Experiment`.

    Raises:
        ValueError: for another name; the text lists all names.

    Example:
        >>> from leakcore import experiments
        >>> experiments.find("reconstruction-table2").needs
        ()
    """
    if name not in EXPERIMENTS:
        raise ValueError(f"`name` must be an experiment's, one of {', '.join(EXPERIMENTS)}, got {name!r}")
    return EXPERIMENTS[name]
