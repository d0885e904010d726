"""One module per figure or table of the papers, with the papers' numbers and ours."""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.experiments.departure import Departure as Departure
    from leakcore.experiments.labels import released as released
    from leakcore.experiments.overview import Reproduction as Reproduction
    from leakcore.experiments.overview import run_all as run_all
    from leakcore.experiments.registry import Experiment as Experiment
    from leakcore.experiments.registry import find as find
    from leakcore.experiments.registry import names as names
    from leakcore.experiments.result import ExperimentResult as ExperimentResult
    from leakcore.experiments.run import run as run
    from leakcore.experiments.verdict import Check as Check

_NAMES = {
    "Check": ".verdict",
    "Departure": ".departure",
    "Experiment": ".registry",
    "ExperimentResult": ".result",
    "find": ".registry",
    "names": ".registry",
    "Reproduction": ".overview",
    "run": ".run",
    "run_all": ".overview",
}
_SHARED = {
    "released": ".labels.released",
}
"""For leakcore's other packages: no promise to users."""
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES, _SHARED)
