"""Training's native loops add in one order on every instruction tier: vectors of another width change no bit."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from leakcore import dpsgd
from leakcore.kernels.ensemble import EnsembleRows, EnsembleSums
from tests.kernels.layouts import normals
from tests.kernels.tiers.test_tiers import TIERS, in_tier

NETWORKS = ((1, 2), (5, 3), (50, 1), (17, 5), (70, 6), (33, 7), (40, 8), (19, 20))
"""Outputs on both sides of every number of lanes: 4, 8 and 16."""


def exact_products():
    """Sums over rows whose features are powers of two, none of them clipped: every product is exact, so fusing it with
    the sum changes nothing, and any other order of adding does."""
    out = hashlib.sha256()
    for number, layers in enumerate(NETWORKS):
        inputs, outputs = layers
        signs = np.sign(normals(number, 90, inputs))
        features = (signs * 2.0 ** np.round(2 * normals(number + 50, 90, inputs))).astype(np.float32)
        rows = EnsembleRows.of(features, np.arange(90) % max(outputs, 2))
        weights = [normals(number + 100, 3, outputs, inputs + 1, dtype="float32")]
        sums = [np.zeros_like(weights[0])]
        addresses = ([w.ctypes.data for w in weights], [s.ctypes.data for s in sums])
        one = EnsembleSums(3, layers, "relu", "float32", max_grad_norm=1e30, slack=0.0)
        one.add(addresses[0], rows, None, addresses[1], [s.ctypes.data for s in sums])
        out.update(sums[0].tobytes())
    return out.hexdigest()


def trained():
    """Parameters of whole runs, over activations and both types."""
    out = hashlib.sha256()
    features, labels = normals(1, 40, 21), np.arange(40) % 3
    for layers in ((21, 3), (21, 5, 3), (21, 20, 6, 3)):
        for activation in ("relu", "elu", "tanh"):
            for dtype in ("float32", "float64"):
                run = dpsgd.Ensemble(
                    dpsgd.Network(layers, activation, dtype=dtype),
                    noise_multiplier=1.0,
                    max_grad_norm=1.0,
                    learning_rate=0.5,
                    steps=4,
                    sample_rate=0.3,
                    seed=1,
                ).run(features, labels, runs=5)
                out.update(run.parameters.tobytes())
    return out.hexdigest()


def _of_all(tiers, function):
    program = f"from tests.kernels.tiers import test_ensemble as t\nprint(t.{function}())"
    runs = {tier: in_tier(tier, program) for tier in tiers}
    assert all(r.returncode == 0 for r in runs.values()), [r.stderr for r in runs.values()]
    return {r.stdout for r in runs.values()}


def test_order_of_sums():
    assert len(_of_all(TIERS, "exact_products")) == 1


@pytest.mark.skipif("avx512" not in TIERS, reason="needs AVX-512")
def test_fused_multiply_add():
    assert len(_of_all([t for t in TIERS if t != "baseline"], "trained")) == 1
