"""What of a recording failed, and whether it goes on."""

from __future__ import annotations

import logging

from leakcore.dpsgd.opacus.recorder.ranks import WrongRowsError

_log = logging.getLogger(__name__)
_IN_A_ROW = 3
"""The recording ends after this many steps in a row that cannot be recorded."""


class Failures:
    """The failures of a recording, which end it and not the loop that is recorded.

    Attributes:
        last: what failed last, with its step; "" if nothing did.
        of_step: whether the present step is left out.
        is_over: whether all further steps are.
        is_lost: whether what was recorded before may be wrong, too.
    """

    def __init__(self) -> None:
        self.last = ""
        self.of_step = self.is_over = self.is_lost = False
        self._in_a_row = 0

    def add(self, error: Exception, step: int, *, warn: bool = True) -> None:
        """Leave out this step; after several in a row, leave out all further steps."""
        message = str(error) or type(error).__name__
        is_known, self.last = message in self.last, f"step {step}: {message}"
        self._in_a_row += not self.of_step
        self.is_lost = self.is_lost or isinstance(error, WrongRowsError)
        self.is_over = self.is_lost or self._in_a_row == _IN_A_ROW
        self.of_step = True
        if warn and (self.is_over or not is_known):
            what = "it and what comes after it are" if self.is_over else "it is"
            _log.warning("record: %s. The training continues, and %s not recorded", self.last, what)

    def end_step(self) -> bool:
        """The step ended. Returns whether it is left out."""
        failed, self.of_step = self.of_step, False
        if not failed:
            self._in_a_row = 0
        return failed
