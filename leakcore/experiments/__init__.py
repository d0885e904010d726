"""The figures and tables of the papers, with the papers' numbers and ours."""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.experiments.driver.overview import Reproduction as Reproduction
    from leakcore.experiments.driver.overview import run_all as run_all
    from leakcore.experiments.driver.registry import Experiment as Experiment
    from leakcore.experiments.driver.registry import find as find
    from leakcore.experiments.driver.registry import names as names
    from leakcore.experiments.driver.result import Departure as Departure
    from leakcore.experiments.driver.result import ExperimentResult as ExperimentResult
    from leakcore.experiments.driver.run import run as run
    from leakcore.experiments.driver.verdict import Check as Check
    from leakcore.experiments.labels import released as released

_NAMES = {
    "Check": ".driver.verdict",
    "Departure": ".driver.result",
    "Experiment": ".driver.registry",
    "ExperimentResult": ".driver.result",
    "find": ".driver.registry",
    "names": ".driver.registry",
    "Reproduction": ".driver.overview",
    "run": ".driver.run",
    "run_all": ".driver.overview",
}
_SHARED = {"released": ".labels.released"}
"""For leakcore's other packages: no promise to users."""
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES, _SHARED)
