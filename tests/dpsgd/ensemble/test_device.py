"""Where an ensemble is computed: the same random numbers everywhere, and a device that is not there is refused."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import pytest
import torch

from leakcore import attacks, datasets, dpsgd

KNOWN, REST = datasets.digits().split(99, seed=0)
needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available() and not os.environ.get("LEAKCORE_REQUIRE_CUDA"), reason="torch sees no CUDA device"
)


def _run(device: str, sample_rate: float, dtype: str = "float64") -> dpsgd.EnsembleRun:
    ensemble = dpsgd.Ensemble(
        dpsgd.Network((64, 8, 10), dtype=dtype),
        noise_multiplier=1.0,
        max_grad_norm=0.5,
        learning_rate=0.5,
        steps=20,
        sample_rate=sample_rate,
        seed=7,
    )
    return ensemble.run(
        KNOWN.features,
        KNOWN.labels,
        runs=40,
        per_run=dpsgd.PerRun(dpsgd.Rows(REST.features[:1], REST.labels[:1])),
        observer=dpsgd.Observer(dpsgd.Rows(REST.features[:5], REST.labels[:5]), cosines=True, record=True),
        execution=dpsgd.Execution(device=device),
    )


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", "", None, torch.device("cpu")])
def test_an_unknown_device_is_named(device: Any) -> None:
    with pytest.raises(
        ValueError, match=re.escape(f"`device` must be 'cpu', 'cuda' or 'cuda:0', 'cuda:1', …, got {device!r}")
    ):
        _run(device, 1.0)


@pytest.mark.parametrize("device", ["cuda:64"] if torch.cuda.is_available() else ["cuda", "cuda:0"])
def test_a_device_that_is_not_there_is_refused_before_any_work(device: str) -> None:
    with pytest.raises(
        ValueError, match=rf"`device` must be one of the \d+ CUDA devices that torch has here, got '{device}'"
    ):
        _run(device, 1.0)
    ensemble = dpsgd.Ensemble((64, 10), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=1.0, steps=1, seed=0)
    with pytest.raises(ValueError, match=rf"`device` must be one of the \d+ CUDA devices .*, got '{device}'"):
        attacks.reconstruction_game(
            ensemble,
            dpsgd.Rows(KNOWN.features, KNOWN.labels),
            dpsgd.Rows(REST.features, REST.labels),
            runs=1,
            execution=dpsgd.Execution(device=device),
        )


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("sample_rate", [1.0, 0.5, 0.05])
def test_cuda_draws_the_same_numbers_and_agrees_to_rounding(sample_rate: float) -> None:
    """float64: 20 steps of a contraction-free recursion lose a few digits; a wrong draw would show in the first."""
    here, there = _run("cpu", sample_rate), _run("cuda", sample_rate)
    for name in ("thetas", "observed", "parameters", "dots", "clipped_norms", "cosine"):
        np.testing.assert_allclose(getattr(there, name), getattr(here, name), rtol=1e-7, atol=1e-9, err_msg=name)
    again = _run("cuda:0", sample_rate)
    np.testing.assert_allclose(again.parameters, there.parameters, rtol=1e-7, atol=1e-9)


@pytest.mark.cuda
@needs_cuda
def test_games_on_cuda_have_the_cpu_s_success() -> None:
    """The same runs in float32: fewer than 2% of guesses may change by rounding."""
    ensemble = dpsgd.Ensemble((64, 10), noise_multiplier=2.0, max_grad_norm=1.0, learning_rate=1.0, steps=40, seed=3)
    here, there = (
        attacks.reconstruction_game(ensemble, KNOWN, REST, runs=512, execution=dpsgd.Execution(device=d))
        for d in ("cpu", "cuda")
    )
    assert abs(here.hits - there.hits) <= 10
