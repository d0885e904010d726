"""Arrays of every library: no copies, back as the same kind, refused by the kernel's name where none can serve."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leakcore import _C, kernels
from tests.kernels.layouts import normals

torch = pytest.importorskip("torch")

GRADS = normals(1, 5, 12, dtype="float32")
MIXTURE = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 3}


def tensors(result):
    return [v for v in vars(result).values() if isinstance(v, torch.Tensor)]


def test_torch_against_numpy():
    grads = torch.from_numpy(GRADS)
    clipped = kernels.clip_and_noise(grads, 1.0, 1.0, seed=1)
    plain = kernels.clip_and_noise(GRADS, 1.0, 1.0, seed=1)
    assert isinstance(clipped.sum, torch.Tensor)
    assert clipped.sum.dtype == clipped.norms.dtype == torch.float32
    np.testing.assert_array_equal(clipped.sum.numpy(), plain.sum)
    scores = kernels.clip_scores(grads, grads[0], 1.0)
    assert len(tensors(scores)) == 2
    solved = kernels.solve_labels(grads, grads[0])
    assert len(tensors(solved)) == 5
    assert solved.identifiable.dtype == torch.bool
    assert solved.rank.dtype == torch.int64
    several = kernels.clip_and_noise([grads, grads[:, :3]], 1.0)
    assert [type(s) for s in several.sum] == [torch.Tensor, torch.Tensor]


def test_like():
    like = torch.zeros(1)
    ratios = kernels.mixture_log_ratio(10, like=like, **MIXTURE)
    assert isinstance(ratios, torch.Tensor)
    np.testing.assert_array_equal(ratios.numpy(), kernels.mixture_log_ratio(10, **MIXTURE))
    tail = kernels.mixture_tail(10, [0.0], like=like, **MIXTURE)
    merged = tail + kernels.mixture_tail(10, [0.0], first_sample=10, **MIXTURE)
    assert isinstance(merged.sums, torch.Tensor)
    assert isinstance(merged.counts, torch.Tensor)
    np.testing.assert_array_equal(merged.sums.numpy(), kernels.mixture_tail(20, [0.0], **MIXTURE).sums)
    assert isinstance(kernels.standard_normal((2, 3), seed=1, purpose="init", like=like), torch.Tensor)
    np.testing.assert_array_equal(kernels.mixture_log_ratio(2, dtype=torch.float32, **MIXTURE).dtype, np.float32)


def test_strided_tensors_and_out():
    base = torch.from_numpy(normals(2, 12, 10))
    view = base.t()[::2]
    out = torch.zeros(12, dtype=torch.float64)
    result = kernels.clip_and_noise(view, 1.0, out=out)
    assert result.sum is out
    np.testing.assert_array_equal(out.numpy(), kernels.clip_and_noise(view.numpy().copy(), 1.0).sum)


def test_negated_views():
    """Its memory holds the other sign (`Tensor.is_neg`): what is written there would be lost."""
    pairs = torch.from_numpy(normals(3, 4, 6)).reshape(4, 3, 2)
    view = torch.view_as_complex(pairs).conj().imag
    assert view.is_neg()
    torch.testing.assert_close(kernels.clip_and_noise(view, 1.0).sum, kernels.clip_and_noise(view.clone(), 1.0).sum)
    with pytest.raises(ValueError, match="clip_and_noise: `out` must be an array of its own, got a negated view"):
        kernels.clip_and_noise(torch.ones(5, 3, dtype=torch.float64), 1.0, out=view[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_tensors(dtype):
    grads = torch.from_numpy(GRADS).to(getattr(torch, dtype))
    result = kernels.clip_and_noise(grads, 1.0)
    assert result.sum.dtype == torch.float32
    wide = kernels.clip_and_noise(grads.float(), 1.0)
    np.testing.assert_allclose(result.norms.numpy(), wide.norms.numpy(), rtol=2e-7)
    np.testing.assert_allclose(result.sum.numpy(), wide.sum.numpy(), atol=1e-6)
    if dtype == "float16":
        np.testing.assert_array_equal(result.sum.numpy(), kernels.clip_and_noise(grads.numpy(), 1.0).sum)


def test_bfloat16_values():
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    finite = every[torch.isfinite(every)]
    result = kernels.clip_and_noise(finite[None, :], 1e39, check_finite=False)
    small = finite.float().abs() < 1e30
    np.testing.assert_array_equal(result.sum[small].numpy() != 0, finite.float()[small].numpy() != 0)
    tame = finite[small]
    np.testing.assert_array_equal(kernels.clip_and_noise(tame[None, :], 1e35).sum.numpy(), tame.float().numpy())


class FromElsewhere:
    """An array of a third library: nothing but the DLPack and array-API protocols."""

    def __init__(self, values, device=(1, 0)):
        self.values, self.device = values, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **_):
        return self.values.__dlpack__()

    def __array_namespace__(self):
        return self

    def from_dlpack(self, values):
        return FromElsewhere(np.from_dlpack(values))


def test_dlpack():
    result = kernels.clip_and_noise(FromElsewhere(GRADS), 1.0)
    assert isinstance(result.sum, FromElsewhere)
    np.testing.assert_array_equal(result.sum.values, kernels.clip_and_noise(GRADS, 1.0).sum)


CALLS = {
    "clip_and_noise": lambda x: kernels.clip_and_noise(x, 1.0),
    "clip_scores": lambda x: kernels.clip_scores(x, GRADS, 1.0),
    "solve_labels": lambda x: kernels.solve_labels(x, GRADS[0]),
    "mixture_log_ratio": lambda x: kernels.mixture_log_ratio(3, like=x, **MIXTURE),
    "mixture_tail": lambda x: kernels.mixture_tail(3, [0.0], like=x, **MIXTURE),
    "standard_normal": lambda x: kernels.standard_normal((1, 1), seed=1, purpose="init", like=x),
}


@pytest.mark.parametrize("kernel", CALLS)
def test_cuda_arrays(kernel, monkeypatch):
    on_device = FromElsewhere(GRADS, device=(2, 1))
    monkeypatch.setattr(_C, "with_cuda", False)
    message = rf"{kernel}: `\w+` is on cuda:1, but .* no CUDA kernels: rebuild it with LEAKCORE_CUDA=1"
    with pytest.raises(ValueError, match=message):
        CALLS[kernel](on_device)
    monkeypatch.setattr(_C, "with_cuda", True)
    with pytest.raises(TypeError, match=rf"{kernel}: `\w+`, a FromElsewhere on cuda:1, cannot be read: neither CuPy"):
        CALLS[kernel](on_device)


@pytest.mark.parametrize("kernel", CALLS)
def test_bad_tensors(kernel):
    call = CALLS[kernel]
    with pytest.raises(ValueError, match=rf"{kernel}: `\w+` must be on the CPU or a CUDA device, got device 'meta'"):
        call(torch.empty(5, 12, device="meta"))
    with pytest.raises(TypeError, match=rf"{kernel}: `\w+` must be a dense .*, got layout torch.sparse_coo"):
        call(torch.eye(5).to_sparse())
    with pytest.raises(
        ValueError, match=rf"{kernel}: `(\w+)` must not require grad, for kernels have no derivative: pass \1.detach"
    ):
        call(torch.from_numpy(GRADS).requires_grad_())
    with pytest.raises(TypeError, match=rf"{kernel}: `\w+` must be of type float16, .*, got float8_e4m3fn"):
        call(torch.zeros(5, 12, dtype=torch.float8_e4m3fn))
    with pytest.raises(ValueError, match=rf"{kernel}: `\w+` must be on the CPU or a CUDA device, got DLPack device 7"):
        call(FromElsewhere(GRADS, device=(7, 0)))


def test_schedules_that_require_grad():
    rates = torch.full((3,), 0.1, requires_grad=True)
    with pytest.raises(ValueError, match=r"`sample_rate` must not require grad: pass sample_rate.detach\(\)"):
        kernels.mixture_log_ratio(5, **{**MIXTURE, "sample_rate": rates})


def test_mixed_libraries():
    with pytest.raises(TypeError, match=r"`grads` and `observed` must come from the.*, got Tensor and ndarray"):
        kernels.clip_scores(torch.from_numpy(GRADS), GRADS, 1.0)
    with pytest.raises(TypeError, match=r"`grads\[0\]` and `grads\[1\]` must come from.*, got ndarray and Tensor"):
        kernels.clip_and_noise([GRADS, torch.from_numpy(GRADS)], 1.0)


@pytest.mark.skipif(_C.with_cuda, reason="this build has the kernels")
def test_native_stubs():
    """Past Python's own check: a CUDA place reaches the stub, which names its kernel."""
    rows = _C.Rows.by_stride(data=0, dtype=3, run_stride=0, row_stride=0, columns=0, column_stride=1)
    mixture: dict[str, Any] = {
        "seed": 0, "first_sample": 0, "num_samples": 0, "alternative": False, "single": False, "configs": 0, "steps": 0,
        "noise_multiplier": 0, "sample_rate": 0,
    }  # fmt: skip
    where: dict[str, Any] = {
        "place": _C.Place.cuda(device=0, stream=0, scratch=lambda size: 0),
        "schedule": _C.Schedule.of(num_threads=1, chunk=0),
    }
    calls = {
        "clip_and_noise": lambda: _C.clip_and_noise(
            grads=[], sums=[], num_runs=0, num_rows=0, norms=0, mask=0, mask_run_stride=0, mask_row_stride=0,
            max_grad_norm=1.0, noise_scale=0.0, noise=[], seed=0, step=0, first_run=0, check_finite=True, **where,
        ),
        "clip_scores": lambda: _C.clip_scores(
            grads=rows, observed=rows, num_runs=0, num_rows=0, num_observed=0, dots=0, norms=0, max_grad_norm=1.0,
            float_products=False, check_finite=True, **where,
        ),
        "solve_labels": lambda: _C.solve_labels(
            jacobian=rows, gradient=rows, num_problems=0, num_samples=0, num_outputs=0, rcond=0.0, unit=0.0, lost=0.0,
            largest=0.0, residual=0, error=0, leverage=0, identifiable=0, rank=0, **where,
        ),
        "mixture_log_ratio": lambda: _C.mixture_log_ratio(**mixture, out=0, config_stride=0, written=False, **where),
        "mixture_tail": lambda: _C.mixture_tail(**mixture, num_thresholds=0, thresholds=0, counts=0, sums=0, **where),
    }  # fmt: skip
    for kernel, call in calls.items():
        with pytest.raises(ValueError, match=rf"{kernel}: .*CUDA"):
            call()


def test_too_many_dimensions():
    awkward = np.zeros((2,) + (4,) * 7)[(slice(None),) + (slice(None, None, 2),) * 7]
    with pytest.raises(
        ValueError, match=r"`grads\[0\]` has more than 6 dimensions that do not lie in line: pass a contiguous copy"
    ):
        kernels.clip_and_noise([awkward], 1.0)
