from .driver.overview import Reproduction as Reproduction
from .driver.overview import run_all as run_all
from .driver.registry import Experiment as Experiment
from .driver.registry import find as find
from .driver.registry import names as names
from .driver.result import Departure as Departure
from .driver.result import ExperimentResult as ExperimentResult
from .driver.run import run as run
from .driver.verdict import Check as Check

"""For leakcore's other packages: no promise to users."""

from .labels.released import play as play
