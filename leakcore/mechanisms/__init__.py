"""What is run, as a pair of laws that dominates it: the one seam from a training scheme to every bound.

Each mechanism says its neighbouring relation and what is proved of it, and where. `a @ b` composes.
"""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.mechanisms.allocation import RandomAllocation as RandomAllocation
    from leakcore.mechanisms.claims import GDP as GDP
    from leakcore.mechanisms.claims import ZCDP as ZCDP
    from leakcore.mechanisms.claims import ApproximateDP as ApproximateDP
    from leakcore.mechanisms.claims import from_event as from_event
    from leakcore.mechanisms.correlated import BallsInBins as BallsInBins
    from leakcore.mechanisms.correlated import CorrelatedNoise as CorrelatedNoise
    from leakcore.mechanisms.correlated import CyclicPoisson as CyclicPoisson
    from leakcore.mechanisms.correlated import MinSeparation as MinSeparation
    from leakcore.mechanisms.correlated import blt as blt
    from leakcore.mechanisms.correlated import square_root as square_root
    from leakcore.mechanisms.correlated import toeplitz as toeplitz
    from leakcore.mechanisms.correlated import tree as tree
    from leakcore.mechanisms.fixed_size import FixedSize as FixedSize
    from leakcore.mechanisms.grid import Grid as Grid
    from leakcore.mechanisms.grid import GridResult as GridResult
    from leakcore.mechanisms.grid import grid as grid
    from leakcore.mechanisms.grid import over_grids as over_grids
    from leakcore.mechanisms.mechanism import Composition as Composition
    from leakcore.mechanisms.mechanism import Loss as Loss
    from leakcore.mechanisms.mechanism import Mechanism as Mechanism
    from leakcore.mechanisms.poisson import FullBatch as FullBatch
    from leakcore.mechanisms.poisson import Poisson as Poisson
    from leakcore.mechanisms.poisson import as_mechanism as as_mechanism
    from leakcore.mechanisms.poisson import might_be_numbers as might_be_numbers
    from leakcore.mechanisms.poisson import no_mechanism as no_mechanism
    from leakcore.mechanisms.schemes import ARGUMENTS as ARGUMENTS
    from leakcore.mechanisms.schemes import SCHEMES as SCHEMES
    from leakcore.mechanisms.schemes import SchemeName as SchemeName
    from leakcore.mechanisms.schemes import argument_errors as argument_errors
    from leakcore.mechanisms.schemes import of_scheme as of_scheme
    from leakcore.mechanisms.schemes import scheme_words as scheme_words
    from leakcore.mechanisms.schemes import schemes_taking as schemes_taking
    from leakcore.mechanisms.shuffled import Shuffled as Shuffled

_NAMES = {
    "ApproximateDP": ".claims",
    "BallsInBins": ".correlated",
    "Composition": ".mechanism",
    "CorrelatedNoise": ".correlated",
    "CyclicPoisson": ".correlated",
    "FixedSize": ".fixed_size",
    "FullBatch": ".poisson",
    "GDP": ".claims",
    "Grid": ".grid",
    "GridResult": ".grid",
    "Loss": ".mechanism",
    "Mechanism": ".mechanism",
    "MinSeparation": ".correlated",
    "Poisson": ".poisson",
    "RandomAllocation": ".allocation",
    "Shuffled": ".shuffled",
    "ZCDP": ".claims",
    "blt": ".correlated",
    "from_event": ".claims",
    "grid": ".grid",
    "square_root": ".correlated",
    "toeplitz": ".correlated",
    "tree": ".correlated",
}
_SHARED = {
    "ARGUMENTS": ".schemes",
    "SCHEMES": ".schemes",
    "SchemeName": ".schemes",
    "argument_errors": ".schemes",
    "as_mechanism": ".poisson",
    "might_be_numbers": ".poisson",
    "no_mechanism": ".poisson",
    "of_scheme": ".schemes",
    "over_grids": ".grid",
    "scheme_words": ".schemes",
    "schemes_taking": ".schemes",
}
"""For leakcore's other packages: no promise to users."""
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES, _SHARED)
