"""Filters of warnings are the process's: blocks that overlap in threads leave those that there were."""

from __future__ import annotations

import threading
import warnings

import pytest

from leakcore._base.process_wide import quiet
from tests.tolerances import HANG


def test_overlapping_blocks() -> None:
    before = list(warnings.filters)
    inside, out = threading.Event(), threading.Event()

    def other() -> None:
        with quiet("second"):
            inside.set()
            assert out.wait(HANG)

    thread = threading.Thread(target=other)
    with quiet("first"):
        thread.start()
        assert inside.wait(HANG)
    warnings.warn("first of all: ignored while a block is at work", stacklevel=1)
    with pytest.raises(UserWarning, match="third"):
        warnings.warn("third", stacklevel=1)
    out.set()
    thread.join()
    assert warnings.filters == before
    with pytest.raises(UserWarning, match="second"):
        warnings.warn("second", stacklevel=1)


def test_error_inside_a_block() -> None:
    before = list(warnings.filters)

    def fails() -> None:
        with quiet():
            warnings.warn("anything", stacklevel=1)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert warnings.filters == before
