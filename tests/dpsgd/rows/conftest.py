"""What the tests of the row check share."""

from __future__ import annotations

import logging
from typing import Any

import pytest


@pytest.fixture
def silent(caplog: pytest.LogCaptureFixture) -> Any:
    """No check stood aside."""
    with caplog.at_level(logging.WARNING, "leakcore"):
        yield
    assert not caplog.records
