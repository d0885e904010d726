"""Results: numbers with their guarantee, equal by value, and what frozen dataclasses share that users keep."""

from leakcore._base.results.record import Record as Record
from leakcore._base.results.record import without as without
from leakcore._base.results.result import Adjacency as Adjacency
from leakcore._base.results.result import Assumptions as Assumptions
from leakcore._base.results.result import Kind as Kind
from leakcore._base.results.result import Number as Number
from leakcore._base.results.result import Result as Result
from leakcore._base.results.result import jsonable as jsonable
from leakcore._base.results.result import parse_adjacency as parse_adjacency
from leakcore._base.results.result import require_same_adjacency as require_same_adjacency
from leakcore._base.results.table import Rows as Rows
