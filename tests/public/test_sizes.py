"""No size argument of a public function takes memory that the answer does not need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from leakcore import bounds
from leakcore.bounds import laplace

ROOT = Path(__file__).resolve().parents[2]
QUICK = [
    "bounds.methods.DKW", "bounds.methods.Certified", "bounds.SampledInformation",
    "bounds.orthogonal_success", "bounds.label_success",
    "bounds.fano_advantage", "bounds.mse_lower_bound", "bounds.kappa_pixels", "bounds.laplace.compose",
    "bounds.extrapolate_label_epsilon", "numerics.simultaneous_lower_limits", "kernels.mixture_log_ratio",
    "kernels.allocation_log_ratio", "kernels.Allocation",
    "kernels.standard_normal", "kernels.uniform", "attacks.membership.canaries", "attacks.membership.coins",
    "attacks.membership.canary_coins", "attacks.membership.play", "dpsgd.secure_normal", "dpsgd.Ensemble.run",
    "leakage.subspace_distance", "datasets.uniform_noise", "attacks.inversion.invert",
]  # fmt: skip
"""Those that answer at once and do not only count repetitions."""


def _faults(names: list[str]) -> list[list[object]]:
    run = subprocess.run(
        [sys.executable, "-m", "tests.public.sizes", *names], cwd=ROOT, text=True, capture_output=True, timeout=2500,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    last = {tuple(row[:3]): row for row in map(json.loads, run.stdout.splitlines())}
    assert {row[0] for row in last.values()} == set(names) or run.returncode != 0
    return [row for row in last.values() if row[3] is not None] + ([[run.stderr[-800:]]] if run.returncode else [])


def test_memory_ceiling() -> None:
    assert _faults(QUICK) == []


@pytest.mark.slow
@pytest.mark.timeout(2600)
def test_memory_ceiling_of_every_size() -> None:
    from tests.public.sizes import CALLS, sizes_of

    assert _faults([name for name in CALLS if name not in QUICK and sizes_of(name)]) == []


def test_many_laplace_mechanisms() -> None:
    """By Rényi divergences: never below the distribution's own, at most a tenth above, and rising with the count."""
    pytest.importorskip("dp_accounting")
    for epsilon, count, delta in ((0.1, 100, 1e-6), (1.0, 50, 1e-8), (0.01, 2000, 1e-5), ([0.1, 0.4, 1.0], 20, 1e-6)):
        exact = laplace.compose(epsilon, count=count, delta=delta, method="pld").value
        above = laplace.compose(epsilon, count=count, delta=delta, method="rdp").value
        assert exact <= above <= 1.1 * exact
        assert laplace.compose(epsilon, count=count, delta=delta).value == min(exact, above)
    values = [laplace.compose(0.1, count=10**k, delta=1e-6, method="rdp").value for k in range(2, 19)]
    assert (np.diff(values) > 0).all()
    many = laplace.compose(0.1, count=10**9, delta=1e-6)
    assert many.method == "rdp"
    # Far below the sum, and above k·KL, below which no composition of this many goes.
    mean = 10**9 * (0.1 - 1 + np.exp(-0.1))
    assert mean < many.value < 1.01 * mean < many.basic
    with pytest.raises(
        ValueError, match=r"`count` must be smaller with method='pld', got 1000000000: .* need about 5e\+11 points"
    ):
        laplace.compose(0.1, count=10**9, delta=1e-6, method="pld")


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-300, 1e-6), (1e-9, 1e-300), (1e9, 1e-300), (0.1, 0.999)])
def test_degenerate_compositions(epsilon: float, delta: float) -> None:
    result = laplace.compose(epsilon, count=2**62, delta=delta)
    assert 0 <= result.value <= result.basic
    # δ(0) of the composition is at most its δ at the answer plus the answer itself: 0 needs a total variation below δ.
    if result.value == 0:
        assert result.basic / 2 <= delta


def test_equally_likely_candidates() -> None:
    for n in (1, 2, 7, 1000):
        for information in ("rdp", "analytic"):
            one = bounds.fano_advantage(2.0, 1.0, 3, num_candidates=n, information=information)
            same = bounds.fano_advantage(2.0, 1.0, 3, prior=np.full(n, 1 / n), information=information)
            np.testing.assert_allclose(
                [one.value, one.success, one.mutual_information], [same.value, same.success, same.mutual_information],
                rtol=1e-9, atol=1e-12,
            )  # fmt: skip
        one = bounds.label_success(1.0, 0.5, 3, num_classes=n)
        same = bounds.label_success(1.0, 0.5, 3, prior=np.full(n, 1 / n))
        np.testing.assert_allclose([one.value, one.blind], [same.value, same.blind], rtol=1e-9)
    far = bounds.fano_advantage(1.0, 1.0, 1, num_candidates=10**9)
    assert 0 < far.success < 0.05
    assert bounds.label_success(1.0, 0.5, 3, num_classes=10**9).value < 1e-3
    with pytest.raises(
        ValueError,
        match=r"`num_candidates` must be at most 4194304, .* got 1000000000 and num_samples=100000; use 'analytic'",
    ):
        bounds.fano_advantage(1.0, 1.0, 1, num_candidates=10**9, information="monte-carlo")


def test_laplace_renyi_divergence() -> None:
    mpmath = pytest.importorskip("mpmath")
    from leakcore.bounds.laplace.compose import _renyi

    with mpmath.workdps(60):
        for epsilon in (1e-12, 1e-7, 1e-5, 1e-3, 0.1, 1.0, 20.0, 400.0, 1e4):
            for over in (1e-9, 1e-5, 1e-3, 0.1, 1.0, 30.0, 1e4, 1e9):
                e, a = mpmath.mpf(epsilon), 1 + mpmath.mpf(over)
                up, down = a / (2 * a - 1) * mpmath.exp((a - 1) * e), (a - 1) / (2 * a - 1) * mpmath.exp(-a * e)
                exact = mpmath.log(up + down) / (a - 1)
                result = float(_renyi(np.array([epsilon]), np.array([over]))[0])
                assert exact <= result <= exact * 1.01, (epsilon, over)
