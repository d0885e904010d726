from . import accounting as accounting
from . import attacks as attacks
from . import audit as audit
from . import bounds as bounds
from . import datasets as datasets
from . import defenses as defenses
from . import dpsgd as dpsgd
from . import experiments as experiments
from . import jax as jax
from . import kernels as kernels
from . import leakage as leakage
from . import mechanisms as mechanisms
from . import models as models
from . import numerics as numerics
from .dpsgd import Canaries as Canaries
from .dpsgd import record as record
from .kernels import clip_and_noise as clip_and_noise
from .kernels import clip_scores as clip_scores
from .kernels import get_include as get_include
from .kernels import mixture_log_ratio as mixture_log_ratio
from .kernels import mixture_tail as mixture_tail
from .kernels import solve_labels as solve_labels

__version__: str
