"""What the keys of a configuration may hold, as types: from them come the checks and the JSON Schema, by pydantic.

They need annotated-types alone, so that a configuration's class is defined without importing pydantic.
"""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval, MinLen, Predicate

MOST_STEPS = 2**24 - 1
"""Steps that the random generator tells apart."""
MOST_RUNS = 10**7
MOST_HIDDEN = 2**16
"""Limits of sizes: what is more would take days, or memory that no machine has."""


def _holds_no_nul(text: str) -> bool:
    return "\0" not in text


Text = Annotated[str, MinLen(1), Predicate(_holds_no_nul)]
"""A path or a name."""
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Probability = Annotated[float, Interval(ge=0, le=1)]
SampleRate = Annotated[float, Interval(gt=0, le=1)]
"""A run that samples nothing has nothing to audit."""
PositiveDelta = Annotated[float, Interval(gt=0, lt=1)]
Delta = Annotated[float, Interval(ge=0, lt=1)]
Confidence = Annotated[float, Interval(gt=0, le=1 - 1e-12)]
"""So near to 1 that its complement cannot be divided among several limits is refused."""
Claimable = Annotated[float, Interval(gt=0, le=1e6)]
"""A larger ε does not count as a claim, and no accountant goes further."""
Count = Annotated[int, Ge(1)]
CountFrom2 = Annotated[int, Ge(2)]
Runs = Annotated[int, Interval(ge=1, le=MOST_RUNS)]
Trials = Annotated[int, Interval(ge=2, le=MOST_RUNS)]
Width = Annotated[int, Interval(ge=1, le=MOST_HIDDEN)]
"""Units of a hidden layer."""
Steps = Annotated[int, Interval(ge=1, le=MOST_STEPS)]
Seed = Annotated[int, Interval(ge=0, le=2**64 - 1)]
AdjacencyName = Literal["add-remove", "replace"]
ClaimedAdjacencyName = Literal["add-remove", "replace", "zero-out"]
ActivationName = Literal["elu", "relu", "tanh", "gelu", "silu", "sigmoid", "softplus", "leaky_relu"]
