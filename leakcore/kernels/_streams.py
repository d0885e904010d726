"""What random numbers are for: the Python mirror of csrc/core/streams.h (a test compares the two)."""

from __future__ import annotations

import enum

from leakcore import _validate

STEP_BITS = 24


class Purpose(enum.IntEnum):
    """The leading byte of Philox's stream word; the other 24 bits are the step. Two purposes never share a draw."""

    MIXTURE = 1
    """Normals of the Gaussian mixture, T ≥ 2; step 0 under the null, 1 under the alternative."""
    CLIP_NOISE = 2
    """Noise of `clip_and_noise`; the sample index is the run, the draw is the column."""
    INIT = 3
    """Initial parameters of models."""
    BATCH = 4
    """Poisson sampling of batches."""
    ORDER = 5
    """Orders and shuffles."""
    MIXTURE_PICK = 6
    """Which component a mixture step takes; step 0 is the leading 32 bits, step 1 the next 32."""
    AUDIT = 7
    """Repeated releases of one gradient; the sample index is the release, the step the batch."""
    MIXTURE_ONE = 8
    """As `MIXTURE`, where T = 1: sample i takes draw i % 4 of sample index i // 4, so that none is wasted."""
    MIXTURE_ONE_PICK = 9
    """As `MIXTURE_PICK`, likewise."""
    LAPLACE = 10
    """Noise of the Laplace mechanism: entry i takes draws 2i and 2i + 1 of sample index 0."""
    FEATURES = 11
    """Features that an attacker makes (`attacks.labels.malicious_input`)."""
    DEFENSE = 12
    """Noise that a defence adds to a release: never that of the mechanism beneath it, whatever the seeds."""


def stream_word(purpose: Purpose | str, step: int) -> int:
    """purpose·2²⁴ + step; errors name what is allowed."""
    if isinstance(purpose, str):
        names = [p.name.lower() for p in Purpose]
        purpose = Purpose[_validate.one_of(*names, purpose=purpose).upper()]
    elif not isinstance(purpose, Purpose):
        raise TypeError(f"purpose={purpose!r}: must be a leakcore.kernels.Purpose or its name in lower case")
    return (purpose << STEP_BITS) | step_in_range(step=step)


def step_in_range(**step: int) -> int:
    """A step that fits the stream word's 24 bits."""
    return _validate.integer(0, 2**STEP_BITS - 1, **step)
