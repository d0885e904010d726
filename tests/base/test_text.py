from __future__ import annotations

import pytest

from leakcore._base.text import renamed, renaming

KEYS = {"steps": "trace.steps", "mechanism": "trace.sample_rate", "sample_rate": "trace.sample_rate"}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("`steps` must be at least 1, got 0", "`trace.steps` must be at least 1, got 0"),
        ("`steps[2]` must be 1", "`trace.steps[2]` must be 1"),
        ("`k` must be None with steps=2", "`k` must be None with trace.steps=2"),
        ("`mechanism` must be left out", "`trace.sample_rate` must be left out"),
        ("`trace.steps` must be 1", "`trace.steps` must be 1"),
        ("`local_steps` must be 1", "`local_steps` must be 1"),
        ("the steps of a run", "the steps of a run"),
        ("out/steps: cannot be written", "out/steps: cannot be written"),
        ("[steps]: no such section", "[steps]: no such section"),
    ],
)
def test_renamed_arguments(message: str, expected: str) -> None:
    assert renamed(message, KEYS) == expected
    assert renamed(message, {}) == message


@pytest.mark.parametrize("kind", [ValueError, TypeError, FloatingPointError, MemoryError])
def test_error_types(kind: type[Exception]) -> None:
    def fail() -> None:
        with renaming(KEYS):
            raise kind("steps=3 overflowed")

    with pytest.raises(kind, match=r"^trace\.steps=3 overflowed$"):
        fail()


def test_errors_with_more_than_a_message() -> None:
    with pytest.raises(UnicodeDecodeError, match="steps=3"), renaming(KEYS):
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "steps=3")
