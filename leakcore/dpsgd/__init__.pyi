from .ensemble.block.initial_parameters import Initialisation as Initialisation
from .ensemble.ensemble import Ensemble as Ensemble
from .ensemble.execution import Execution as Execution
from .ensemble.injected_fault import Fault as Fault
from .ensemble.network import ModuleNetwork as ModuleNetwork
from .ensemble.network import Network as Network
from .ensemble.observer import Observer as Observer
from .ensemble.per_run import CraftedGradient as CraftedGradient
from .ensemble.per_run import PerRun as PerRun
from .ensemble.result import EnsembleRun as EnsembleRun
from .ensemble.rows import Rows as Rows
from .ensemble.sampling import AllocatedBatches as AllocatedBatches
from .ensemble.sampling import FixedBatches as FixedBatches
from .ensemble.sampling import PoissonBatches as PoissonBatches
from .ensemble.sampling import ShuffledBatches as ShuffledBatches
from .ensemble.scorer import Running as Running
from .ensemble.scorer import Scorer as Scorer
from .fused.fused_optimizer import FusedDPOptimizer as FusedDPOptimizer
from .fused.secure_noise import secure_normal as secure_normal
from .opacus.canaries.canaries import Canaries as Canaries
from .opacus.canaries.canary_recorder import CanaryRecorder as CanaryRecorder
from .opacus.canaries.canary_trace import CanaryTrace as CanaryTrace
from .opacus.recorder.record import record as record
from .opacus.recorder.recorder import Recorder as Recorder
from .trace.trace import Sampling as Sampling
from .trace.trace import Trace as Trace

"""For leakcore's other packages: no promise to users."""

from .ensemble import arguments as arguments
from .ensemble.execution import read_execution as read_execution
from .ensemble.randomness import Streams as Streams
from .trace.join import joined as joined
from .trace.trace import Divisor as Divisor
from .trace.trace import parse_divisor as parse_divisor
