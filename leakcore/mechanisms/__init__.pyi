from .allocation import RandomAllocation as RandomAllocation
from .claims import GDP as GDP
from .claims import ApproximateDP as ApproximateDP
from .correlated import CorrelatedNoise as CorrelatedNoise
from .events import from_event as from_event
from .fixed_size import FixedSize as FixedSize
from .grid import Grid as Grid
from .grid import GridResult as GridResult
from .grid import grid as grid
from .matrices import blt as blt
from .matrices import square_root as square_root
from .matrices import toeplitz as toeplitz
from .matrices import tree as tree
from .mechanism import Composition as Composition
from .mechanism import Loss as Loss
from .mechanism import Mechanism as Mechanism
from .participation import BallsInBins as BallsInBins
from .participation import CyclicPoisson as CyclicPoisson
from .participation import MinSeparation as MinSeparation
from .poisson import FullBatch as FullBatch
from .poisson import Poisson as Poisson
from .shuffled import Shuffled as Shuffled
from .zcdp import ZCDP as ZCDP

"""For leakcore's other packages: no promise to users."""

from .grid import over_grids as over_grids
from .poisson import as_mechanism as as_mechanism
from .poisson import might_be_numbers as might_be_numbers
from .poisson import no_mechanism as no_mechanism
from .schemes import SCHEMES as SCHEMES
from .schemes import misfit as misfit
from .schemes import of_scheme as of_scheme
from .schemes import takers as takers
