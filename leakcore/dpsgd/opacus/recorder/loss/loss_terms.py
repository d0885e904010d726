"""Terms of a loop's loss that reach the parameters around the model's outputs."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from torch import nn

from leakcore.dpsgd.opacus.recorder.forward_passes import ForwardPass
from leakcore.gradients import around

_log = logging.getLogger(__name__)


class LossTerms:
    """Watches what every backward pass of a loop goes back to. own: ids of the parameters that are trained."""

    def __init__(self, own: set[int]) -> None:
        self._own = own
        self._outside = ""
        self._around: dict[str, bool] = {}
        self._warned = False

    def called(self, layer: nn.Module, within: bool) -> None:
        """A layer with some of the parameters runs in training; `within`: as a part of the model's forward pass."""
        if not within:
            self._outside = type(layer).__name__

    def go_back(self, roots: list[Any], passes: Iterable[ForwardPass]) -> None:
        """A backward pass begins at these nodes."""
        known = list(passes)
        if any(not p.outputs for p in known):  # of a kind that torch cannot look into
            return
        outputs = {o.number for p in known for o in p.outputs if o.number >= 0}
        kind, through = around(roots, outputs, self._own)
        if kind:
            kind = "layers" if self._outside else kind
            self._around[kind] = self._around.get(kind, False) or through

    def require_known(self, optimizer: Any) -> None:
        """ValueError if the step releases more than the criterion's gradients, or releases them unclipped."""
        terms, outside = self._around, self._outside
        self._around, self._outside = {}, ""
        if "layers" in terms:
            how = f"{outside} called by itself" if outside else "a penalty on activations"
            raise ValueError(
                f"criterion: the loop adds a term to the loss that goes back to the model's layers around its outputs "
                f"({how}): let the model also return what the term needs, and pass criterion=, a function (all that "
                "the model returns, targets)"
            )
        if "parameters" not in terms:
            return
        if hasattr(optimizer, "accumulate") and terms["parameters"]:
            raise ValueError(
                "criterion: the loop adds to the loss a penalty on the parameters themselves. Ghost clipping adds its "
                "gradient once for each row, unclipped, so that a row can move the release by more than max_grad_norm, "
                "and no ε is proved for that: pass weight_decay= to the wrapped optimizer instead"
            )
        if not self._warned and not hasattr(optimizer, "accumulate"):
            self._warned = True
            _log.warning(
                "record: criterion: the loop adds to the loss a penalty on the parameters themselves (a regulariser), "
                "which is not part of any layer's per-sample gradients: Opacus does not release it, and it changes "
                "neither the model nor the candidates' gradients. Pass weight_decay= to the wrapped optimizer instead"
            )
