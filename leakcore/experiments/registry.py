"""The experiments by name; a module is imported when its experiment is asked for."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterable
from typing import Any, cast

from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.lists import auditing, labels, leakage, lecture, mechanisms, reconstruction
from leakcore.experiments.lists.durations import at_quick_scale
from leakcore.experiments.result import ExperimentResult


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A figure or table of a paper that leakcore can reproduce.

    Attributes:
        name: by which `run` and `leakcore reproduce` find it, such as "reconstruction-fig3".
        title: what it is about.
        statement: what the paper says that it shows.
        needs: names of the data sets that it reads; empty if it computes bounds only.
        module: in leakcore.experiments, which is imported when the experiment runs.

    Example:
        >>> from leakcore import experiments
        >>> experiment = experiments.find("labels-fig1")
        >>> experiment.module, len(experiment.needs) > 0
        ('labels.fig1', True)
    """

    name: str
    title: str
    statement: str
    needs: tuple[str, ...]
    module: str

    @property
    def quick(self) -> str:
        """How long it takes at the quick scale on two cores, roughly, such as "about 10 s"."""
        return at_quick_scale(self.name)

    def load(self) -> Callable[[Experiment, Context], ExperimentResult]:
        """Import the experiment's module.

        Returns:
            The function `run(experiment, context)` of the module.
        """
        module = importlib.import_module(f"leakcore.experiments.{self.module}")
        return cast(Callable[["Experiment", Context], ExperimentResult], module.run)

    def result(
        self,
        context: Context,
        findings: Findings,
        *,
        data: Iterable[str] = (),
        settings: dict[str, Any] | None = None,
        provenance: str = ExperimentResult.provenance,
    ) -> ExperimentResult:
        """The findings as this experiment's result, at the context's scale and seed.

        Args:
            context: of the run.
            findings: what the run found.
            data: what was read, in words.
            settings: everything that defines the run.
            provenance: the paper.

        Returns:
            An `ExperimentResult`.
        """
        return ExperimentResult(
            name=self.name,
            title=self.title,
            statement=self.statement,
            scale=context.scale,
            seed=context.seed,
            conclusion=findings.conclusion,
            checks=tuple(findings.checks),
            stated=tuple(findings.stated),
            panels=tuple(findings.panels),
            pictures=tuple(findings.pictures),
            tables=tuple(findings.tables),
            departures=tuple(context.departures.values()),
            data=tuple(dict.fromkeys(data)),
            settings=dict(settings or {}),
            notes=findings.notes,
            provenance=provenance,
        )


EXPERIMENTS = (
    {
        f"reconstruction-{short}": Experiment(
            f"reconstruction-{short}", title, statement, needs, f"reconstruction.{short}"
        )
        for short, title, needs, statement in reconstruction.FIGURES
    }
    | {
        f"reconstruction-{short}": Experiment(
            f"reconstruction-{short}", title, statement, needs, f"reconstruction.studies.{short}"
        )
        for short, title, needs, statement in reconstruction.STUDIES
    }
    | {
        f"labels-{short}": Experiment(f"labels-{short}", title, statement, labels.NEEDS, f"labels.{short}")
        for short, title, statement in labels.FIGURES
    }
    | {
        f"leakage-{short}": Experiment(f"leakage-{short}", title, statement, needs, f"leakage.{short}")
        for short, title, needs, statement in leakage.FIGURES
    }
    | {
        f"auditing-{short}": Experiment(f"auditing-{short}", title, statement, needs, f"auditing.{short}")
        for short, title, needs, statement in auditing.FIGURES
    }
    | {
        f"lecture-{short}": Experiment(f"lecture-{short}", title, statement, needs, f"lecture.{short}")
        for short, title, needs, statement in lecture.FIGURES
    }
    | {
        f"mechanisms-{short}": Experiment(f"mechanisms-{short}", title, statement, (), f"mechanisms.{short}")
        for short, title, statement in mechanisms.FIGURES
    }
)


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
