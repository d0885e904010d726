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
    "clip_and_noise": (GRADS, 1.0, 1.0, False, 3, 0, None, None, None, 0),
    "clip_and_noise of matrices": (PARAMS[0], 1.0, 1.0, False, 3, 0, None, None, None, 0),
    "clip_and_noise of runs": (PARAMS[0], 1.0, 1.0, True, 3, 0, None, None, None, 0),
    "clip_and_noise_list": (PARAMS, 1.0, 0.0, False, None, 0, None, KEPT, None, 0),
    "clip_and_noise_list of runs": ([PARAMS[0], PARAMS[0].cos()], 1.0, 0.0, True, None, 0, None, None, None, 0),
    "clip_scores": (GRADS, GRADS[:2].cos(), 1.0, False, "float32", None),
    "clip_scores of matrices": (PARAMS[0], PARAMS[0][:3].cos(), 1.0, False, "float64", None),
    "clip_scores of one matrix": (PARAMS[0], PARAMS[0][0].cos(), 1.0, False, "float64", None),
    "clip_scores of runs": (PARAMS[0], PARAMS[0][:, 0].cos(), 1.0, True, "float64", None),
    "solve_labels": (GRADS, GRADS[0].cos(), None, True),
    "mixture_log_ratio": (GRADS, 7, 1.0, 0.1, 3, "null", 0, 0, "float64"),
    "allocation_log_ratio": (GRADS, 1.0, 5, 2, 3, 7, "null", 0, 0, "float32"),
}
PAIR = kernels.Allocation(1.0, 5, epochs=2, k=3)


@pytest.mark.full(keep=2)
@pytest.mark.parametrize("name", CASES)
def test_opcheck(name):
    from leakcore.kernels import torch_operators as operators

    torch.library.opcheck(getattr(operators, name.partition(" ")[0]), CASES[name])


def clipped(grads):
    result = leakcore.clip_and_noise(grads * 2, 1.0, 1.0, seed=3)
    return result.sum + 1, result.norms


def clipped_parameters(grads):
    result = leakcore.clip_and_noise([grads[:, :8].reshape(5, 2, 4), grads[:, 8:]], 1.0, check_finite=False)
    return result.sum[0], result.sum[1], result.norms


def scored_and_solved(grads):
    single = kernels.clip_scores(grads, grads[0], 1.0, product_dtype=torch.float32)
    return kernels.clip_scores(grads, grads[0], 1.0).dots, single.dots, kernels.solve_labels(grads, grads[0]).residual


def drawn(grads):
    large = leakcore.clip_and_noise(grads, 1.0, 1.0, seed=2**64 - 3).sum
    ratios = leakcore.mixture_log_ratio(
        9, noise_multiplier=1.0, sample_rate=0.1, steps=3, seed=2**63 + 1, dtype="float32", like=grads
    )
    return large, ratios, kernels.allocation_log_ratio(PAIR, 9, seed=2**63 + 1, like=grads)


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("function", [clipped, clipped_parameters, scored_and_solved, drawn])
def test_compiled_graph(function):
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")(GRADS)
    for got, wanted in zip(compiled, function(GRADS), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_factor_outside_the_graph():
    from torch.fx.experimental.proxy_tensor import make_fx

    pair = kernels.Allocation(1.0, 2, factor=[[1.0], [0.5]])
    with pytest.raises(ValueError, match="allocation has a factor, which torch cannot trace"):
        make_fx(lambda grads: kernels.allocation_log_ratio(pair, 3, like=grads))(GRADS)


def test_fake_and_meta_tensors():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        result = leakcore.clip_and_noise(torch.empty(2, 5, 12), 1.0, runs=True)
        assert result.sum.shape == (2, 12)
        assert result.norms.shape == (2, 5)
        result = leakcore.clip_and_noise(torch.empty(2, 5, 12), 1.0)
        assert result.sum.shape == (5, 12)
        assert result.norms.shape == (2,)
    from leakcore.kernels import torch_operators as operators

    total, _ = operators.clip_and_noise(GRADS.to("meta"), 1.0, 0.0, False, None, 0, None, None, None, 0)
    assert total.device.type == "meta"


def test_recorded_calls():
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(grads):
        return leakcore.clip_and_noise(grads, 1.0).sum

    other = GRADS.cos()
    torch.testing.assert_close(make_fx(function)(GRADS)(other), function(other), rtol=0, atol=0)
    torch.testing.assert_close(torch.jit.trace(function, (GRADS,))(other), function(other), rtol=0, atol=0)


def test_forward_mode():
    from leakcore.kernels import torch_operators as operators

    def operator(grads):
        return operators.clip_and_noise(grads, 1.0, 0.0, False, None, 0, None, None, None, 0)[0]

    for function in (operator, lambda grads: leakcore.clip_and_noise(grads, 1.0).sum):
        with pytest.raises(ValueError, match=r"forward-mode|`grads` must not have a tangent, for kernels have no"):
            torch.func.jvp(function, (GRADS,), (GRADS,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(GRADS, GRADS)
        with pytest.raises(ValueError, match="solve_labels: `jacobian` must not have a tangent, for"):
            kernels.solve_labels(dual, GRADS[0])
        assert leakcore.clip_and_noise(GRADS, 1.0).sum.shape == (12,)


@pytest.mark.skipif(not hasattr(torch.library.CustomOpDef, "register_vmap"), reason="torch 2.5")
def test_vmap_calls_and_noise():
    batches = torch.stack([GRADS, GRADS.cos(), GRADS.tan()])

    def clip(grads, noise):
        return leakcore.clip_and_noise(grads, 1.0, 0.5, noise=noise).sum

    noise = torch.arange(12.0)
    wanted = torch.stack([clip(b, noise) for b in batches])
    torch.testing.assert_close(torch.func.vmap(clip, (0, None))(batches, noise), wanted, rtol=0, atol=0)
    lists = torch.func.vmap(lambda a, b: leakcore.clip_and_noise([a, b], 1.0).sum, (0, 2))
    got = lists(batches[..., :8], batches[..., 8:].movedim(0, 2))
    wanted = [leakcore.clip_and_noise([b[:, :8], b[:, 8:]], 1.0).sum for b in batches]
    for part, parts in zip(got, zip(*wanted, strict=True), strict=True):
        torch.testing.assert_close(part, torch.stack(parts), rtol=0, atol=0)
    with pytest.raises(ValueError, match="every element would get the same noise"):
        torch.func.vmap(lambda b: leakcore.clip_and_noise(b, 1.0, 1.0, seed=3).sum)(batches)


@pytest.mark.skipif(not hasattr(torch.library.CustomOpDef, "register_vmap"), reason="torch 2.5")
def test_vmap_axes():
    observed, masks, parts = torch.randn(3, 12), torch.rand(3, len(GRADS)) < 0.5, torch.randn(3, len(GRADS), 2)
    for over, call in (
        (observed, lambda x: leakcore.clip_scores(GRADS, x, 1.0).dots),
        (observed, lambda x: leakcore.solve_labels(GRADS, x).residual),
        (observed, lambda x: leakcore.clip_and_noise(GRADS, 1.0, 1.0, noise=x).sum),
        (masks, lambda x: leakcore.clip_and_noise(GRADS, 1.0, mask=x).sum),
        (parts, lambda x: leakcore.clip_and_noise([GRADS, x], 1.0).norms),
    ):
        wanted = torch.stack([call(x) for x in over])
        torch.testing.assert_close(torch.func.vmap(call)(over), wanted, rtol=0, atol=0)
    with pytest.raises(ValueError, match="solve_labels: called under vmap over no elements"):
        torch.func.vmap(lambda x: leakcore.solve_labels(GRADS, x).residual)(observed[:0])


def test_functional_tensors():
    """Their own memory holds anything at all (torch 2.13)."""
    observed = torch.randn(3, 12)
    for over, call in (
        (GRADS, lambda x: leakcore.clip_and_noise(x, 1.0).sum),
        (GRADS, lambda x: leakcore.solve_labels(x, observed[0]).residual),
        (observed, lambda x: leakcore.clip_scores(GRADS, x, 1.0).dots),
    ):
        torch.testing.assert_close(torch.func.functionalize(call)(over), call(over), rtol=0, atol=0)


def test_constants_inside_grad():
    for grads in (GRADS, GRADS.bfloat16()):
        wanted = leakcore.clip_and_noise(grads, 1.0).sum
        result = torch.func.grad(lambda w, g=grads: (w * leakcore.clip_and_noise(g, 1.0).sum).sum())(torch.ones(12))
        torch.testing.assert_close(result, wanted, rtol=0, atol=0)
    with pytest.raises(ValueError, match="clip_and_noise: `grads` must not require grad, for kernels have"):
        torch.func.grad(lambda g: leakcore.clip_and_noise(g, 1.0).sum.sum())(GRADS)
    with pytest.raises(TypeError, match="clip_and_noise: `grads` cannot be read here: it is a tensor of"):
        torch.func.grad(lambda w: (leakcore.clip_and_noise((GRADS * w).detach(), 1.0).sum * w).sum())(torch.ones(12))


def test_refusals_while_tracing():
    with pytest.raises(TypeError, match="`check_finite` must be True, False or None, got 'x'"):
        kernels.solve_labels(GRADS, GRADS[0], check_finite="x")
    with pytest.raises(Exception, match=r"`seed` must be in \[0, 18446744073709551615\], got -1"):
        torch.compile(lambda g: leakcore.clip_and_noise(g, 1.0, 1.0, seed=-1).sum, fullgraph=True, backend="eager")(
            GRADS
        )
