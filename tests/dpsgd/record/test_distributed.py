"""`leakcore.record` in two and four processes of one run: the trace of one process, or one refusal in all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import leakcore
from leakcore.dpsgd import Trace

pytest.importorskip("opacus")

from tests.dpsgd.opacus_remarks import IGNORED
from tests.dpsgd.record import ranks_of_a_run as ranks

pytestmark = IGNORED
ROUNDING = 1e-9
"""Of a score in units of C², over all steps, in float64: sums of gradients are taken in another order."""


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(ranks.run_all, args=(request.param, str(folder)), nprocs=request.param)
    return request.param, folder


def _loaded(world: tuple[int, Path], name: str) -> list[Trace]:
    return [Trace.load(world[1] / f"{name}-{rank}.npz") for rank in range(world[0])]


def _said(world: tuple[int, Path], name: str) -> list[str]:
    return [json.loads((world[1] / f"said-{rank}.json").read_text())[name] for rank in range(world[0])]


def _require_same(trace: Trace, other: Trace, rounding: float) -> None:
    for name in ("noise_multiplier", "max_grad_norm", "batch_rows", "members", "times_seen", "clipped_share"):
        np.testing.assert_array_equal(getattr(trace, name), getattr(other, name), err_msg=name)
    for name in ("membership_sum", "pair_sum", "membership_likelihood", "pair_likelihood"):
        np.testing.assert_allclose(
            getattr(trace, name), getattr(other, name), rtol=0, atol=rounding * trace.steps, err_msg=name
        )
    for name in ("sample_rate", "expected_batch_size", "members_given", "unrecorded", "complete"):
        assert getattr(trace, name) == getattr(other, name), name


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "settings", "rounding"),
    [
        ("opacus", {}, ROUNDING), ("torch", {}, ROUNDING), ("ghost", {"ghost": True}, ROUNDING),
        ("fused", {"fused": True}, ROUNDING),
        ("accumulated", {"accumulated": 2}, ROUNDING), ("members", {"members": torch.arange(9) < 6}, ROUNDING),
        ("bfloat16", {"dtype": torch.bfloat16}, 0.15),
    ],
)  # fmt: skip
def test_the_trace_of_several_processes_is_that_of_one(
    world: tuple[int, Path], name: str, settings: dict[str, Any], rounding: float
) -> None:
    alone = ranks.trained(0, 1, **settings).trace()
    first, *others = _loaded(world, name)
    assert alone.times_seen.sum() > 4
    _require_same(first, alone, rounding)
    for other in others:  # to the bit
        _require_same(other, first, 0)
        assert other.sampling == first.sampling
        assert other.origin == first.origin


@pytest.mark.full
@pytest.mark.parametrize(("name", "fused"), [("parts", False), ("fused parts", True)])
def test_batches_in_parts(world: tuple[int, Path], name: str, fused: bool) -> None:
    alone = ranks.in_parts_alone(fused=fused).trace()
    for trace in _loaded(world, name):
        _require_same(trace, alone, ROUNDING)


@pytest.mark.full
def test_the_sampling_is_unknown_where_processes_draw_by_the_same_coins(world: tuple[int, Path]) -> None:
    for trace in _loaded(world, "one seed"):
        assert trace.sampling.scheme == "unknown"
        assert trace.sampling.evidence.startswith("torch's generator begins in the same state on ranks 0 and 1")


def test_a_distributed_optimizer_in_one_process(tmp_path: Path) -> None:
    """No process to wait for: nothing is exchanged."""
    from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as Parallel

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/one", rank=0, world_size=1)
    try:
        traces = [ranks.trained(0, 1, Parallel, fused=fused).trace() for fused in (False, True)]
    finally:
        torch.distributed.destroy_process_group()
    for trace, fused in zip(traces, (False, True), strict=True):
        _require_same(trace, ranks.trained(0, 1, fused=fused).trace(), ROUNDING)


def test_the_first_process_writes_the_file(world: tuple[int, Path]) -> None:
    written = Trace.load(world[1] / f"{world[0]}.npz")
    _require_same(written, _loaded(world, "opacus")[0], 0)


def test_a_run_of_make_private_is_poisson_sampled_and_reported(world: tuple[int, Path]) -> None:
    traces = _loaded(world, "make_private")
    for trace in traces:
        _require_same(trace, traces[0], 0)
        assert trace.sampling.scheme == "poisson"
        assert trace.sample_rate == trace.sampling.sample_rate == 0.5
        assert trace.expected_batch_size == 16
        assert trace.steps == 2
        assert trace.complete
    assert leakcore.audit.from_trace(world[1] / f"private-{world[0]}.npz").epsilon.value > 0


def test_the_sampling_is_unknown_where_samplers_do_not_divide_the_rows(world: tuple[int, Path]) -> None:
    for trace in _loaded(world, "own loaders"):
        assert trace.sampling.scheme == "unknown"
        assert trace.sampling.evidence.startswith("several processes train, and the sampler of each draws from all")


def test_a_step_that_one_process_cannot_record_is_left_out_in_all(world: tuple[int, Path]) -> None:
    traces, last = _loaded(world, "broken"), world[0] - 1
    for trace, said in zip(traces, _said(world, "broken"), strict=True):
        _require_same(trace, traces[0], 0)
        assert trace.steps == len(ranks.STEPS) - 1
        assert [stretch.steps for stretch in trace.unrecorded] == [1]
        assert f"step 2: rank {last}: model: its parameters were changed" in said


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("other candidates", "ValueError: `candidates` must be the same in every process, got "),
        ("bad argument of one", "ValueError: rank 1: `members` must be bool of shape (9,)"),
        ("existing file", "ValueError: rank 0: `out` must not exist already"),
        ("other settings", "ValueError: optimizer: (noise_multiplier, max_grad_norm, sample rate, accumulated"),
        ("wrong targets", "WrongRowsError: candidates: the target of row 0 is 0"),
        ("plain optimizer", "ValueError: `optimizer` must be a distributed one"),
        ("fused in torch", "TypeError: `module` must be wrapped in Opacus's DifferentiallyPrivateDistributed"),
        ("fused, narrow", "TypeError: `module` must have parameters of float32 or float64 in several processes, got"),
        ("fused, not finite", "ValueError: rank {last}: the gradient of row 0 must be finite, got norm nan"),
        ("fused alone", "TypeError: `module` must not be a DifferentiallyPrivateDistributedDataParallel"),
        ("canaries", "TypeError: `optimizer` must be Opacus's DPOptimizer of a run in one process"),
    ],
)  # fmt: skip
def test_what_is_refused_is_refused_in_every_process_in_the_same_words(
    world: tuple[int, Path], name: str, text: str
) -> None:
    said = _said(world, name)
    assert said[0].startswith(text.format(last=world[0] - 1)), said[0]
    assert set(said) == {said[0]}


def test_a_recording_in_one_process_only_is_an_error_and_no_endless_wait(world: tuple[int, Path]) -> None:
    assert (
        "every process of the run must call record" in json.loads((world[1] / "said-0.json").read_text())["first only"]
    )
