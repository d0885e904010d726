"""The mechanism under audit: DP-SGD, many independent runs at a time."""

from typing import TYPE_CHECKING

from leakcore._lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.dpsgd._ensemble import Ensemble as Ensemble
    from leakcore.dpsgd._fault import Fault as Fault
    from leakcore.dpsgd._fused_optimizer import FusedDPOptimizer as FusedDPOptimizer
    from leakcore.dpsgd._module_ensemble import ModuleEnsemble as ModuleEnsemble
    from leakcore.dpsgd._recorder import Recorder as Recorder
    from leakcore.dpsgd._recorder import record as record
    from leakcore.dpsgd._run import EnsembleRun as EnsembleRun
    from leakcore.dpsgd._scoring import Running as Running
    from leakcore.dpsgd._scoring import Scorer as Scorer
    from leakcore.dpsgd._secure_noise import secure_normal as secure_normal
    from leakcore.dpsgd._trace import Trace as Trace

_NAMES = {
    "Ensemble": "._ensemble",
    "EnsembleRun": "._run",
    "Fault": "._fault",
    "FusedDPOptimizer": "._fused_optimizer",
    "ModuleEnsemble": "._module_ensemble",
    "Recorder": "._recorder",
    "Running": "._scoring",
    "Scorer": "._scoring",
    "Trace": "._trace",
    "record": "._recorder",
    "secure_normal": "._secure_noise",
}
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES)
