"""Gradients of any torch module: by row, by layer, and as a function of one parameter vector."""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.gradients.checks import mean_cross_entropy as mean_cross_entropy
    from leakcore.gradients.checks import numbers as numbers
    from leakcore.gradients.checks import require_classes as require_classes
    from leakcore.gradients.checks import require_memory as require_memory
    from leakcore.gradients.checks import require_still as require_still
    from leakcore.gradients.checks import targets_of as targets_of
    from leakcore.gradients.checks import tensor as tensor
    from leakcore.gradients.checks import unrest as unrest
    from leakcore.gradients.flat_module import FlatModule as FlatModule
    from leakcore.gradients.functional import Functional as Functional
    from leakcore.gradients.functional import evaluate as evaluate
    from leakcore.gradients.functional import lock_of as lock_of
    from leakcore.gradients.functional import locked as locked
    from leakcore.gradients.layers import LayeredModel as LayeredModel
    from leakcore.gradients.layers import gradients_of_layers as gradients_of_layers
    from leakcore.gradients.layers import layer_gradients as layer_gradients
    from leakcore.gradients.module_state import State as State
    from leakcore.gradients.module_state import global_generators as global_generators
    from leakcore.gradients.row_by_row import BackwardHook as BackwardHook
    from leakcore.gradients.row_by_row import Criterion as Criterion
    from leakcore.gradients.row_by_row import Feed as Feed
    from leakcore.gradients.row_by_row import Reached as Reached
    from leakcore.gradients.row_by_row import RowByRow as RowByRow
    from leakcore.gradients.row_by_row import RowError as RowError
    from leakcore.gradients.row_by_row import around as around
    from leakcore.gradients.row_by_row import first_line as first_line
    from leakcore.gradients.row_by_row import vector_jacobian as vector_jacobian

_SHARED = {
    "Criterion": ".row_by_row",
    "Feed": ".row_by_row",
    "FlatModule": ".flat_module",
    "Functional": ".functional",
    "LayeredModel": ".layers",
    "BackwardHook": ".row_by_row",
    "Reached": ".row_by_row",
    "RowByRow": ".row_by_row",
    "RowError": ".row_by_row",
    "State": ".module_state",
    "around": ".row_by_row",
    "evaluate": ".functional",
    "first_line": ".row_by_row",
    "global_generators": ".module_state",
    "gradients_of_layers": ".layers",
    "layer_gradients": ".layers",
    "lock_of": ".functional",
    "locked": ".functional",
    "mean_cross_entropy": ".checks",
    "numbers": ".checks",
    "require_classes": ".checks",
    "require_memory": ".checks",
    "require_still": ".checks",
    "targets_of": ".checks",
    "tensor": ".checks",
    "vector_jacobian": ".row_by_row",
    "unrest": ".checks",
}
"""For leakcore's other packages: no promise to users."""
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, {}, _SHARED)
