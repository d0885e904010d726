from .ensemble.arguments import CraftedGradient as CraftedGradient
from .ensemble.arguments import PerRun as PerRun
from .ensemble.arguments import Rows as Rows
from .ensemble.block import Fault as Fault
from .ensemble.ensemble import Ensemble as Ensemble
from .ensemble.network import Initialisation as Initialisation
from .ensemble.network import ModuleNetwork as ModuleNetwork
from .ensemble.network import Network as Network
from .ensemble.observer import Observer as Observer
from .ensemble.observer import Running as Running
from .ensemble.observer import Scorer as Scorer
from .ensemble.result import EnsembleRun as EnsembleRun
from .ensemble.sampling import AllocatedBatches as AllocatedBatches
from .ensemble.sampling import FixedBatches as FixedBatches
from .ensemble.sampling import PoissonBatches as PoissonBatches
from .ensemble.sampling import ShuffledBatches as ShuffledBatches
from .ensemble.workers import Execution as Execution
from .fused.fused_optimizer import FusedDPOptimizer as FusedDPOptimizer
from .fused.secure_noise import secure_normal as secure_normal
from .record.canaries import Canaries as Canaries
from .record.canaries import CanaryTrace as CanaryTrace
from .record.canary_recorder import CanaryRecorder as CanaryRecorder
from .record.record import record as record
from .record.recorder import Recorder as Recorder
from .trace.trace import Sampling as Sampling
from .trace.trace import Trace as Trace

"""For leakcore's other packages: no promise to users."""

from .ensemble import arguments as arguments
from .ensemble.sampling import Streams as Streams
from .trace.join import joined as joined
from .trace.trace import Divisor as Divisor
from .trace.trace import parse_divisor as parse_divisor
