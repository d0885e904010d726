"""The experiments by name; a module is imported when its experiment is asked for."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterable
from typing import Any, cast

from leakcore.experiments.context import Context
from leakcore.experiments.findings import Findings
from leakcore.experiments.lists import auditing, labels, leakage, lecture, reconstruction
from leakcore.experiments.lists.durations import at_quick_scale
from leakcore.experiments.result import ExperimentResult


@dataclasses.dataclass(frozen=True)
class Experiment:
    """name, title; statement: what the paper says it shows; needs: data sets, empty where only bounds are computed."""

    name: str
    title: str
    statement: str
    needs: tuple[str, ...]
    module: str

    @property
    def quick(self) -> str:
        """How long it takes at the quick scale on two cores, roughly."""
        return at_quick_scale(self.name)

    def load(self) -> Callable[[Experiment, Context], ExperimentResult]:
        """The function that runs it."""
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
        """The findings as this experiment's result at the context's scale and seed."""
        return ExperimentResult(
            name=self.name,
            title=self.title,
            statement=self.statement,
            scale=context.scale,
            seed=context.seed,
            conclusion=findings.conclusion,
            agreement=findings.agreement,
            stated=tuple(findings.stated),
            panels=tuple(findings.panels),
            pictures=tuple(findings.pictures),
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
)


def names() -> list[str]:
    """Every experiment's name, paper by paper, in their order."""
    return list(EXPERIMENTS)


def find(name: str) -> Experiment:
    """The experiment; ValueError lists the names there are."""
    if name not in EXPERIMENTS:
        raise ValueError(f"name={name!r}: no such experiment; there are {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
