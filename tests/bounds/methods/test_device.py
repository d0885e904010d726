"""Sampling on a device: asked for by name, refused with the reason where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from leakcore import bounds, kernels

SETTING = {"kappa": 0.1, "num_samples": 20_000}


def without_cuda() -> str:
    """Why this machine or build cannot sample on a GPU; empty where it can."""
    info = kernels.build_info()
    if not info["cuda"]:
        return "must be None or 'cpu' in a build of leakcore without CUDA kernels, got 'cuda'"
    return "" if info["devices"] else "must be one that torch or CuPy can use here, got 'cuda'"


@pytest.mark.parametrize("method", ["monte-carlo", "certified"])
def test_a_device_gives_the_same_bound_or_says_why_not(method: str) -> None:
    why = without_cuda()
    if why:
        with pytest.raises(ValueError, match=f"`device` {why}"):
            bounds.reconstruction(1.0, 0.1, 20, method=method, device="cuda", **SETTING)
        return
    there = bounds.reconstruction(1.0, 0.1, 20, method=method, device="cuda", **SETTING)
    here = bounds.reconstruction(1.0, 0.1, 20, method=method, **SETTING)
    np.testing.assert_allclose(there.value, here.value, rtol=1e-12)


def test_the_cpu_by_name_changes_nothing() -> None:
    named = bounds.reconstruction(1.0, 0.1, 20, method="certified", device="cpu", **SETTING)
    assert named.value == bounds.reconstruction(1.0, 0.1, 20, method="certified", **SETTING).value


@pytest.mark.parametrize("device", ["gpu", "cuda:x", 0, "cuda:"])
def test_other_names_are_refused(device: object) -> None:
    with pytest.raises(ValueError, match=f"`device` must be None, 'cpu', 'cuda' or 'cuda:N', got {device!r}"):
        bounds.reconstruction(1.0, 0.1, 20, kappa=0.1, method="certified", device=device)  # type: ignore[arg-type]


@pytest.mark.skipif(not kernels.build_info()["cuda"], reason="without CUDA kernels the device is refused before")
def test_methods_that_do_not_sample_refuse_a_device() -> None:
    with pytest.raises(
        ValueError, match=r"`device` .*method='exact'.*: only methods \('monte-carlo', 'certified'\) take it"
    ):
        bounds.reconstruction(1.0, 0.1, 20, kappa=0.1, method="exact", device="cuda")
