"""The two routes of solve_labels agree, and neither is less accurate than a pivoted QR."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

from tests import tolerances
from tests.kernels.devices import kernels
from tests.kernels.layouts import checked, seeds
from tests.kernels.solve_labels.systems import gradient_of

pytestmark = pytest.mark.usefixtures("device")


OUT_OF_RANGE = 2.0**-300
"""Exact, and it sends a float64 system past the normal equations to the rank-revealing route."""


def conditioned(rng, n, d, condition):
    """Singular values from 1 down to 1/condition, evenly in the logarithm."""
    u, _ = np.linalg.qr(rng.standard_normal((d, n)))
    v, _ = np.linalg.qr(rng.standard_normal((n, n)))
    return v @ (u * np.geomspace(1, 1 / condition, n)).T


def both_routes(jacobian, gradient, rcond=None):
    slow = kernels.solve_labels(OUT_OF_RANGE * jacobian, OUT_OF_RANGE * gradient, rcond=rcond)
    return kernels.solve_labels(jacobian, gradient, rcond=rcond), slow


def agree(fast, slow):
    assert int(fast.rank) == int(slow.rank)
    np.testing.assert_array_equal(fast.identifiable, slow.identifiable)
    known = fast.identifiable
    assert (np.abs(fast.residual - slow.residual)[known] <= (fast.error + slow.error)[known]).all()


@checked
@given(seeds, st.integers(1, 70), st.integers(0, 90), st.floats(0, 9), st.one_of(st.none(), st.integers(1, 3)))
def test_the_two_routes_agree(seed, n, extra, log_condition, outputs):
    rng = np.random.default_rng(seed)
    jacobian = conditioned(rng, n, n + extra, 10**log_condition) * 10 ** rng.uniform(-2, 2, (n, 1))
    gradient = rng.standard_normal((n + extra, *([] if outputs is None else [outputs])))
    fast, slow = both_routes(jacobian, gradient)
    agree(fast, slow)
    scale = OUT_OF_RANGE**2
    relative = tolerances.normal_leverage(*jacobian.shape, jacobian, fast.leverage)
    np.testing.assert_allclose(fast.leverage, slow.leverage * scale, rtol=relative)


@pytest.mark.parametrize("offset", [-1e-3, -1e-6, -1e-9, 1e-9, 1e-6, 1e-3])
@pytest.mark.parametrize("condition", [3.0, 300.0])
def test_the_routes_agree_near_the_cut(offset, condition):
    """rcond just below and above 1/(‖C‖·‖C⁺‖), where the proof ends, and 1/κ, where the rank falls."""
    jacobian = conditioned(np.random.default_rng(10), 20, 30, condition)
    gradient = gradient_of(jacobian, np.full(20, 0.5))
    s = np.linalg.svd(jacobian, compute_uv=False)
    proof = 1 / (np.linalg.norm(s) * np.linalg.norm(1 / s))
    for rcond in (proof * (1 + offset), (1 + offset) / condition):
        fast, slow = both_routes(jacobian, gradient, rcond)
        agree(fast, slow)
        assert int(fast.rank) == (s > rcond * s[0]).sum()


def in_longdouble(jacobian, gradient):
    """Residuals and leverages of a batch by Gram–Schmidt, every vector orthogonalised twice, in 64 bits of mantissa."""
    q = jacobian.swapaxes(-1, -2).astype(np.longdouble)
    batch, n = len(q), q.shape[-1]
    r, inverse = np.zeros((batch, n, n), np.longdouble), np.tile(np.eye(n, dtype=np.longdouble), (batch, 1, 1))
    for k in range(n):
        for _ in range(2):
            h = (q[:, :, :k] * q[:, :, k, None]).sum(axis=1)
            q[:, :, k] -= (q[:, :, :k] * h[:, None]).sum(axis=2)
            r[:, :k, k] += h
        r[:, k, k] = np.sqrt((q[:, :, k] ** 2).sum(axis=1))
        q[:, :, k] /= r[:, k, k, None]
    for i in range(n - 1, -1, -1):
        inverse[:, i] -= (r[:, i, i + 1 :, None] * inverse[:, i + 1 :]).sum(axis=1)
        inverse[:, i] /= r[:, i, i, None]
    projected = (q * (n * gradient.astype(np.longdouble))[:, :, None]).sum(axis=1)
    return (inverse * projected[:, None]).sum(axis=2), (inverse**2).sum(axis=2)


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="needs a long double longer than a double")
@pytest.mark.parametrize("outside", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("log_condition", range(8))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_less_accurate_than_pivoted_qr(dtype, log_condition, outside):
    """LAPACK's gelsy in the input's type, no singular value cut by either. Single errors scatter by a factor of two
    either way, so what is held to gelsy is the geometric mean over 24 systems, at five of its standard errors."""
    rng = np.random.default_rng(13)
    jacobian = np.stack([conditioned(rng, 20, 50, 10.0**log_condition) for _ in range(24)])
    terms = jacobian * rng.uniform(-1, 1, (24, 20, 1))
    gradient = ((terms.sum(axis=1) + outside * rng.standard_normal((24, 50))) / 20).astype(dtype)
    jacobian = jacobian.astype(dtype)
    truth, leverage = in_longdouble(jacobian, gradient)
    result = kernels.solve_labels(jacobian, gradient, rcond=1e-12)
    assert result.identifiable.all()
    assert (np.abs(result.residual - truth) <= result.error).all()
    rounding = tolerances.rounding(np.dtype(dtype))
    np.testing.assert_allclose(result.leverage, leverage.astype(np.float64), rtol=1e-8 + rounding)
    logs = []
    for i in range(24):
        peer = scipy.linalg.lstsq(jacobian[i].T, 20 * gradient[i], cond=1e-12, lapack_driver="gelsy")[0]
        ours, theirs = (np.linalg.norm((x - truth[i]).astype(np.float64)) for x in (result.residual[i], peer))
        logs.append(np.log(ours / theirs))
    assert np.mean(logs) <= 5 * np.std(logs) / len(logs) ** 0.5
