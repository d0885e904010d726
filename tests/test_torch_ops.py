"""The torch operators: torch's own checks of them, and kernels by their usual names inside compiled functions."""

from __future__ import annotations

import pytest

import leakcore
from leakcore import kernels

torch = pytest.importorskip("torch", minversion="2.4")

# torch's own modules use what newer Pythons deprecate
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

GRADS = torch.arange(60, dtype=torch.float32).reshape(5, 12).sin()
PARAMS = [GRADS[:, :8].reshape(5, 2, 4), GRADS[:, 8:]]
KEPT = torch.tensor([True, False, True, True, False])
CASES = {
    "clip_and_noise": (GRADS, 1.0, 1.0, 3, 0, None, None, None, 0),
    "clip_and_noise_list": (PARAMS, 1.0, 0.0, None, 0, None, KEPT, None, 0),
    "clip_scores": (GRADS, GRADS[:2].cos(), 1.0, None, "float32"),
    "solve_labels": (GRADS, GRADS[0].cos(), None),
    "mixture_log_ratio": (GRADS, 7, 1.0, 0.1, 3, "null", 0, 0, "float64"),
}


@pytest.mark.parametrize("name", CASES)
def test_torch_accepts_the_operator(name):
    from leakcore import torch_ops

    torch.library.opcheck(getattr(torch_ops, name), CASES[name])


def clipped(grads):
    result = leakcore.clip_and_noise(grads * 2, 1.0, 1.0, seed=3)
    return result.sum + 1, result.norms


def clipped_parameters(grads):
    result = leakcore.clip_and_noise([grads[:, :8].reshape(5, 2, 4), grads[:, 8:]], 1.0, check_finite=False)
    return result.sum[0], result.sum[1], result.norms


def scored_and_solved(grads):
    single = kernels.clip_scores(grads, grads[0], 1.0, product_dtype=torch.float32)
    return kernels.clip_scores(grads, grads[0], 1.0).dots, single.dots, kernels.solve_labels(grads, grads[0]).residual


@pytest.mark.parametrize("function", [clipped, clipped_parameters, scored_and_solved])
def test_a_whole_graph_with_kernels_compiles(function):
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")(GRADS)
    for got, wanted in zip(compiled, function(GRADS), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_fake_and_meta_tensors_have_shapes():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        result = leakcore.clip_and_noise(torch.empty(2, 5, 12), 1.0)
        assert result.sum.shape == (2, 12)
        assert result.norms.shape == (2, 5)
    from leakcore import torch_ops

    total, _ = torch_ops.clip_and_noise(GRADS.to("meta"), 1.0, 0.0, None, 0, None, None, None, 0)
    assert total.device.type == "meta"
