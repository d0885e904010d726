"""Gradients of any torch module: by row, by layer, and as a function of one parameter vector."""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore.gradients.backward_roots import Listening as Listening
    from leakcore.gradients.backward_roots import Reached as Reached
    from leakcore.gradients.backward_roots import around as around
    from leakcore.gradients.by_layer import gradients_of_layers as gradients_of_layers
    from leakcore.gradients.by_layer import layer_gradients as layer_gradients
    from leakcore.gradients.checked_module import require_memory as require_memory
    from leakcore.gradients.checked_module import require_still as require_still
    from leakcore.gradients.checked_module import unrest as unrest
    from leakcore.gradients.cross_entropy import mean_cross_entropy as mean_cross_entropy
    from leakcore.gradients.cross_entropy import require_classes as require_classes
    from leakcore.gradients.cross_entropy import targets_of as targets_of
    from leakcore.gradients.flat_module import FlatModule as FlatModule
    from leakcore.gradients.flat_module import numbers as numbers
    from leakcore.gradients.flat_module import tensor as tensor
    from leakcore.gradients.functional import Functional as Functional
    from leakcore.gradients.functional import evaluate as evaluate
    from leakcore.gradients.layered_model import LayeredModel as LayeredModel
    from leakcore.gradients.module_lock import lock_of as lock_of
    from leakcore.gradients.module_lock import locked as locked
    from leakcore.gradients.module_state import State as State
    from leakcore.gradients.module_state import global_generators as global_generators
    from leakcore.gradients.row_by_row import Criterion as Criterion
    from leakcore.gradients.row_by_row import Feed as Feed
    from leakcore.gradients.row_by_row import RowByRow as RowByRow
    from leakcore.gradients.row_by_row import RowError as RowError
    from leakcore.gradients.row_by_row import first_line as first_line
    from leakcore.gradients.row_by_row import through_backward as through_backward

_SHARED = {
    "Criterion": ".row_by_row",
    "Feed": ".row_by_row",
    "FlatModule": ".flat_module",
    "Functional": ".functional",
    "LayeredModel": ".layered_model",
    "Listening": ".backward_roots",
    "Reached": ".backward_roots",
    "RowByRow": ".row_by_row",
    "RowError": ".row_by_row",
    "State": ".module_state",
    "around": ".backward_roots",
    "evaluate": ".functional",
    "first_line": ".row_by_row",
    "global_generators": ".module_state",
    "gradients_of_layers": ".by_layer",
    "layer_gradients": ".by_layer",
    "lock_of": ".module_lock",
    "locked": ".module_lock",
    "mean_cross_entropy": ".cross_entropy",
    "numbers": ".flat_module",
    "require_classes": ".cross_entropy",
    "require_memory": ".checked_module",
    "require_still": ".checked_module",
    "targets_of": ".cross_entropy",
    "tensor": ".flat_module",
    "through_backward": ".row_by_row",
    "unrest": ".checked_module",
}
"""For leakcore's other packages: no promise to users."""
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, {}, _SHARED)
