"""Gradients of any torch module: by row, by layer, and as a function of one parameter vector."""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.gradients.backward_roots import Listening as Listening
    from leakcore.gradients.backward_roots import Reached as Reached
    from leakcore.gradients.backward_roots import around as around
    from leakcore.gradients.by_layer import Batch as Batch
    from leakcore.gradients.by_layer import batch_of as batch_of
    from leakcore.gradients.by_layer import criterion as criterion
    from leakcore.gradients.by_layer import first_output as first_output
    from leakcore.gradients.by_layer import layer_gradients as layer_gradients
    from leakcore.gradients.by_layer import named_tensor as named_tensor
    from leakcore.gradients.by_layer import parameters_by_layer as parameters_by_layer
    from leakcore.gradients.by_layer import targets_of as targets_of
    from leakcore.gradients.flat_module import FlatModule as FlatModule
    from leakcore.gradients.flat_module import mean_cross_entropy as mean_cross_entropy
    from leakcore.gradients.flat_module import numbers as numbers
    from leakcore.gradients.flat_module import require_classes as require_classes
    from leakcore.gradients.flat_module import require_memory as require_memory
    from leakcore.gradients.flat_module import require_still as require_still
    from leakcore.gradients.flat_module import tensor as tensor
    from leakcore.gradients.flat_module import unrest as unrest
    from leakcore.gradients.functional import Functional as Functional
    from leakcore.gradients.functional import evaluate as evaluate
    from leakcore.gradients.module_lock import lock_of as lock_of
    from leakcore.gradients.module_lock import locked as locked
    from leakcore.gradients.module_state import State as State
    from leakcore.gradients.module_state import global_generators as global_generators
    from leakcore.gradients.row_by_row import Criterion as Criterion
    from leakcore.gradients.row_by_row import RowByRow as RowByRow
    from leakcore.gradients.row_by_row import RowError as RowError
    from leakcore.gradients.row_by_row import first_line as first_line
    from leakcore.gradients.row_by_row import through_backward as through_backward

_SHARED = {
    "Batch": ".by_layer",
    "Criterion": ".row_by_row",
    "FlatModule": ".flat_module",
    "Functional": ".functional",
    "Listening": ".backward_roots",
    "Reached": ".backward_roots",
    "RowByRow": ".row_by_row",
    "RowError": ".row_by_row",
    "State": ".module_state",
    "around": ".backward_roots",
    "batch_of": ".by_layer",
    "criterion": ".by_layer",
    "evaluate": ".functional",
    "first_line": ".row_by_row",
    "first_output": ".by_layer",
    "global_generators": ".module_state",
    "layer_gradients": ".by_layer",
    "lock_of": ".module_lock",
    "locked": ".module_lock",
    "mean_cross_entropy": ".flat_module",
    "numbers": ".flat_module",
    "parameters_by_layer": ".by_layer",
    "require_classes": ".flat_module",
    "require_memory": ".flat_module",
    "require_still": ".flat_module",
    "targets_of": ".by_layer",
    "named_tensor": ".by_layer",
    "tensor": ".flat_module",
    "through_backward": ".row_by_row",
    "unrest": ".flat_module",
}
"""For leakcore's other packages: no promise to users."""
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, {}, _SHARED)
