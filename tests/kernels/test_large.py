"""Arrays of more than 2³¹ elements: zero except a few rows at the far end, as unwritten pages take no memory."""

import numpy as np
import pytest

from leakcore import kernels

pytestmark = pytest.mark.slow

ROWS, COLUMNS = 2200, 1_000_000
FAR = [0, 2147, 2148, 2199]  # 2147.48 rows are 2³¹ elements


@pytest.fixture(scope="module")
def grads():
    try:
        grads = np.zeros((ROWS, COLUMNS), dtype=np.float32)
    except MemoryError:
        pytest.skip("8.8 GB of address space are not to be had")
    rng = np.random.default_rng(20)
    for row in FAR:
        grads[row, :1000] = rng.normal(size=1000)
        grads[row, -1000:] = rng.normal(size=1000)
    return grads


def test_clip_and_noise(grads):
    few = kernels.clip_and_noise(grads[FAR], 1.0)
    mask = np.ones(ROWS, dtype=bool)
    for result in (kernels.clip_and_noise(grads, 1.0), kernels.clip_and_noise(grads, 1.0, mask=mask)):
        np.testing.assert_allclose(result.sum, few.sum, rtol=1e-6, atol=1e-8)
        np.testing.assert_array_equal(result.norms[FAR], few.norms)
        assert np.count_nonzero(result.norms) == len(FAR)


def test_clip_and_noise_of_runs(grads):
    rows = grads.reshape(2, ROWS // 2, COLUMNS)
    result = kernels.clip_and_noise(rows, 1.0, runs=True)
    first, second = kernels.clip_and_noise(grads[:1], 1.0), kernels.clip_and_noise(grads[FAR[1:]], 1.0)
    np.testing.assert_allclose(result.sum, np.stack([first.sum, second.sum]), rtol=1e-6, atol=1e-8)


def test_clip_scores(grads):
    observed = np.stack([grads[0], grads[2199]])
    result = kernels.clip_scores(grads, observed, 1.0)
    few = kernels.clip_scores(grads[FAR], observed, 1.0)
    np.testing.assert_array_equal(result.dots[:, FAR], few.dots)
    np.testing.assert_array_equal(result.clipped_norms[FAR], few.clipped_norms)
    assert np.count_nonzero(result.clipped_norms) == len(FAR)


def test_solve_labels(grads):
    problems = grads.reshape(220_000, 50, 200)
    gradient = np.zeros((len(problems), 200), dtype=np.float32)
    one = np.random.default_rng(21).normal(size=(50, 200)).astype(np.float32)
    last = problems[-1].copy()
    try:
        problems[-1] = one
        gradient[-1] = one.mean(axis=0)
        result = kernels.solve_labels(problems, gradient)
        alone = kernels.solve_labels(one[None], gradient[-1:])
    finally:
        problems[-1] = last
    np.testing.assert_array_equal(result.residual[-1], alone.residual[0])
    np.testing.assert_allclose(result.residual[-1], 1.0, rtol=1e-3)
    assert result.identifiable[-1].all()


def test_mixture_of_many_steps():
    mechanism = {"noise_multiplier": 1.0, "sample_rate": 0.01, "steps": 1000}
    tail = kernels.mixture_tail(2_200_000, [0.0], seed=4, **mechanism)
    parts = [kernels.mixture_tail(1_100_000, [0.0], seed=4, first_sample=a, **mechanism) for a in (0, 1_100_000)]
    assert tail.counts[0] == sum(part.counts[0] for part in parts)
