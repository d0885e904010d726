"""What only a GPU has: streams, memory that is handed back, graphs; and that the tests put arrays there as they lie."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from leakcore import kernels
from leakcore.kernels import arrays, mixture
from tests.kernels import devices, layouts

torch = pytest.importorskip("torch")
MIXTURE = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 8}


@pytest.fixture
def cuda(device):
    if device != "cuda":
        pytest.skip("needs a GPU")


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
@pytest.mark.parametrize("dtype", layouts.DTYPES)
def test_tensor_layouts(layout, dtype):
    x = layouts.laid_out(layouts.normals(0, 5, 7, dtype=dtype), layout)
    there = devices.strided(x, "cpu")
    np.testing.assert_array_equal(there.numpy(), x)
    if layout != "reversed":
        assert tuple(s * x.itemsize for s in there.stride()) == x.strides
        assert (there.storage_offset() * x.itemsize - x.ctypes.data) % 64 == 0


def test_scratch_memory():
    """No cycle holds it until a collection, and a call that is cut into several uses it again."""
    library = devices.EmulatedLibrary(0, 0)
    gc.disable()
    try:
        first = library.place.scratch(100)
        assert library.place.scratch(50) == first
        reference = weakref.ref(library._held)
        assert reference() is not None
        del library
        assert reference() is None
    finally:
        gc.enable()


def test_samples_of_one_call():
    schedules = mixture._read_schedules(1.0, 0.1, 1000)
    assert mixture._shards(schedules, 10**6, "a GPU") == [(0, 10**6)]
    assert len(mixture._shards(schedules, 10**6, arrays.CPU)) > 10
    many = mixture._shards(mixture._read_schedules(1.0, 0.1, 1), 2**33, "a GPU")
    assert all(length < 2**31 for _, length in many)
    assert many[-1][0] + many[-1][1] == 2**33


def test_other_streams(cuda):
    grads = torch.randn(64, 5000, device="cuda")
    wanted = kernels.clip_and_noise(grads, 1.0, 1.0, seed=1).sum
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(20):
            result = kernels.clip_and_noise(grads, 1.0, 1.0, seed=1).sum
            ratios = kernels.mixture_log_ratio(1000, seed=2, like=grads, **MIXTURE)
    side.synchronize()
    assert torch.equal(result, wanted)
    np.testing.assert_array_equal(ratios.cpu().numpy(), kernels.mixture_log_ratio(1000, seed=2, **MIXTURE))


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # refused before anything is captured
def test_captured_graph(cuda):
    """It would replay one seed's noise, and read small tables where they no longer are."""
    grads = torch.randn(8, 300, device="cuda")
    kernels.clip_and_noise(grads, 1.0, 1.0, seed=1)
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="captur"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        kernels.clip_and_noise(grads, 1.0, 1.0, seed=1)


def test_second_device(cuda):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    grads = torch.randn(8, 300, device="cuda:1")
    result = kernels.clip_and_noise(grads, 1.0, 1.0, seed=1)
    assert result.sum.device == grads.device
    assert torch.cuda.current_device() == 0
