"""Scores of members and of non-members."""

from __future__ import annotations

import numpy as np

RNG = np.random.default_rng(0)
INSIDE, OUTSIDE = RNG.normal(1, 1, 300), RNG.normal(0, 1, 280)
BOTH = np.concatenate([INSIDE, OUTSIDE])
LABELS = np.arange(580) < 300
