"""One module per figure or table of the papers, with their stated numbers beside ours."""

from typing import TYPE_CHECKING

from leakcore._lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.experiments._registry import Experiment as Experiment
    from leakcore.experiments._registry import find as find
    from leakcore.experiments._registry import names as names
    from leakcore.experiments._result import ExperimentResult as ExperimentResult
    from leakcore.experiments._run import run as run

if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(
        __name__,
        {
            "Experiment": "._registry",
            "ExperimentResult": "._result",
            "find": "._registry",
            "names": "._registry",
            "run": "._run",
        },
    )
