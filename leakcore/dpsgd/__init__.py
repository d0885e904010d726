"""The mechanism under audit: DP-SGD, many independent runs at a time."""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.dpsgd.ensemble import arguments as arguments
    from leakcore.dpsgd.ensemble.arguments import CraftedGradient as CraftedGradient
    from leakcore.dpsgd.ensemble.arguments import PerRun as PerRun
    from leakcore.dpsgd.ensemble.arguments import Rows as Rows
    from leakcore.dpsgd.ensemble.block import Fault as Fault
    from leakcore.dpsgd.ensemble.ensemble import Ensemble as Ensemble
    from leakcore.dpsgd.ensemble.network import Initialisation as Initialisation
    from leakcore.dpsgd.ensemble.network import ModuleNetwork as ModuleNetwork
    from leakcore.dpsgd.ensemble.network import Network as Network
    from leakcore.dpsgd.ensemble.observer import Observer as Observer
    from leakcore.dpsgd.ensemble.observer import Running as Running
    from leakcore.dpsgd.ensemble.observer import Scorer as Scorer
    from leakcore.dpsgd.ensemble.result import EnsembleRun as EnsembleRun
    from leakcore.dpsgd.ensemble.sampling import AllocatedBatches as AllocatedBatches
    from leakcore.dpsgd.ensemble.sampling import FixedBatches as FixedBatches
    from leakcore.dpsgd.ensemble.sampling import PoissonBatches as PoissonBatches
    from leakcore.dpsgd.ensemble.sampling import ShuffledBatches as ShuffledBatches
    from leakcore.dpsgd.ensemble.sampling import Streams as Streams
    from leakcore.dpsgd.ensemble.workers import Execution as Execution
    from leakcore.dpsgd.ensemble.workers import read_execution as read_execution
    from leakcore.dpsgd.fused.fused_optimizer import FusedDPOptimizer as FusedDPOptimizer
    from leakcore.dpsgd.fused.secure_noise import secure_normal as secure_normal
    from leakcore.dpsgd.record.canaries import Canaries as Canaries
    from leakcore.dpsgd.record.canaries import CanaryTrace as CanaryTrace
    from leakcore.dpsgd.record.canary_recorder import CanaryRecorder as CanaryRecorder
    from leakcore.dpsgd.record.record import record as record
    from leakcore.dpsgd.record.recorder import Recorder as Recorder
    from leakcore.dpsgd.trace.join import joined as joined
    from leakcore.dpsgd.trace.trace import Divisor as Divisor
    from leakcore.dpsgd.trace.trace import Sampling as Sampling
    from leakcore.dpsgd.trace.trace import Trace as Trace
    from leakcore.dpsgd.trace.trace import parse_divisor as parse_divisor

_NAMES = {
    "AllocatedBatches": ".ensemble.sampling",
    "CraftedGradient": ".ensemble.arguments",
    "CanaryRecorder": ".record.canary_recorder",
    "CanaryTrace": ".record.canaries",
    "Ensemble": ".ensemble.ensemble",
    "EnsembleRun": ".ensemble.result",
    "Execution": ".ensemble.workers",
    "Fault": ".ensemble.block",
    "FixedBatches": ".ensemble.sampling",
    "FusedDPOptimizer": ".fused.fused_optimizer",
    "Initialisation": ".ensemble.network",
    "ModuleNetwork": ".ensemble.network",
    "Network": ".ensemble.network",
    "Observer": ".ensemble.observer",
    "PerRun": ".ensemble.arguments",
    "PoissonBatches": ".ensemble.sampling",
    "Rows": ".ensemble.arguments",
    "Running": ".ensemble.observer",
    "Recorder": ".record.recorder",
    "Sampling": ".trace.trace",
    "Scorer": ".ensemble.observer",
    "ShuffledBatches": ".ensemble.sampling",
    "Trace": ".trace.trace",
    "secure_normal": ".fused.secure_noise",
    "record": ".record.record",
    "Canaries": ".record.canaries",
}
_SHARED = {
    "Divisor": ".trace.trace",
    "parse_divisor": ".trace.trace",
    "joined": ".trace.join",
    "Streams": ".ensemble.sampling",
    "arguments": ".ensemble.arguments",
    "read_execution": ".ensemble.workers",
}
"""For leakcore's other packages: no promise to users."""
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES, _SHARED)
