from .allocation import RandomAllocation as RandomAllocation
from .claims import GDP as GDP
from .claims import ZCDP as ZCDP
from .claims import ApproximateDP as ApproximateDP
from .claims import from_event as from_event
from .correlated import BallsInBins as BallsInBins
from .correlated import CorrelatedNoise as CorrelatedNoise
from .correlated import CyclicPoisson as CyclicPoisson
from .correlated import MinSeparation as MinSeparation
from .correlated import blt as blt
from .correlated import square_root as square_root
from .correlated import toeplitz as toeplitz
from .correlated import tree as tree
from .fixed_size import FixedSize as FixedSize
from .grid import Grid as Grid
from .grid import GridResult as GridResult
from .grid import grid as grid
from .mechanism import Composition as Composition
from .mechanism import Loss as Loss
from .mechanism import Mechanism as Mechanism
from .poisson import FullBatch as FullBatch
from .poisson import Poisson as Poisson
from .shuffled import Shuffled as Shuffled

"""For leakcore's other packages: no promise to users."""

from .grid import over_grids as over_grids
from .poisson import as_mechanism as as_mechanism
from .poisson import might_be_numbers as might_be_numbers
from .poisson import no_mechanism as no_mechanism
from .schemes import ARGUMENTS as ARGUMENTS
from .schemes import SCHEMES as SCHEMES
from .schemes import SchemeName as SchemeName
from .schemes import argument_errors as argument_errors
from .schemes import of_scheme as of_scheme
from .schemes import scheme_words as scheme_words
from .schemes import schemes_taking as schemes_taking
