"""The paper's own interval is wider than the certificate and than importance sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leakcore import bounds
from leakcore.bounds.methods import DKW

KAPPA = np.array([1e-6, 1e-3, 0.01, 0.1, 0.5])


@pytest.mark.parametrize("setting", [(1.0, 0.1, 10), (10.0, 1.0, 100), (0.5905018365, 0.01, 100)])
def test_every_interval_holds_the_truth_and_the_certificate_is_the_narrower(setting: tuple[float, float, int]) -> None:
    truth = bounds.reconstruction(*setting, kappa=KAPPA).value
    widths = {}
    for name, bound in {
        "dkw": bounds.reconstruction(*setting, kappa=KAPPA, method="dkw-bennett", num_samples=200_000),
        "certified": bounds.reconstruction(*setting, kappa=KAPPA, method="certified", num_samples=200_000),
        "importance": bounds.reconstruction(*setting, kappa=KAPPA, method="importance", num_samples=200_000),
    }.items():
        low, high = bound.interval
        assert (low <= truth).all(), name
        assert (truth <= high).all(), name
        widths[name] = high - low
    assert (widths["certified"] < widths["dkw"]).all()
    assert (widths["importance"] < widths["dkw"]).all()
    assert widths["importance"][0] < 0.1 * truth[0]
    # Vacuous from below at κ = 1e-3: η is larger than κ.
    eta = math.sqrt(math.log(4 / 0.001) / 400_000)
    assert eta > 1e-3
    vacuous = bounds.reconstruction(*setting, kappa=1e-3, method="dkw-bennett", num_samples=200_000)
    assert vacuous.interval[0] <= 1e-3


def test_dkw_limits_and_errors() -> None:
    bound = bounds.reconstruction(math.inf, 0.1, 3, kappa=[0.1, 1.0], method=DKW(1000))
    assert bound.kind == "estimate"
    assert bound.interval[1][1] == 1.0
    assert bound.value[0] == pytest.approx(0.1)
    # Draws of ν that never meet the mass of μ: the interval says nothing, rather than something false.
    wild = bounds.reconstruction(0.9466991403, 1.0, 100, kappa=0.1, method=DKW(10_000))
    assert wild.interval[1] == 1.0
    with pytest.raises(ValueError, match="`noise_multiplier` must be positive, got 0"):
        bounds.reconstruction(0.0, 0.1, 3, kappa=0.1, method=DKW())
    with pytest.raises(ValueError, match=r"`num_samples` must be in \[2, 67108864\], got 67108865"):
        DKW((1 << 26) + 1)


def test_its_own_name_gives_what_the_method_gives() -> None:
    named = bounds.reconstruction_dkw(1.0, 0.3, 5, kappa=0.1, num_samples=5000, confidence=0.99, seed=3)
    method = bounds.methods.DKW(num_samples=5000, confidence=0.99, seed=3)
    assert named.to_dict() == bounds.reconstruction(1.0, 0.3, 5, kappa=0.1, method=method).to_dict()
