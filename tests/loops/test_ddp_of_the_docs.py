"""The DDP loop of docs/how-to/loops.md under torchrun, in two processes and four: autograd gives the same scores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import leakcore
from leakcore.dpsgd import Trace

pytest.importorskip("opacus")
pytest.importorskip("transformers")
pytest.importorskip("peft")
pytest.importorskip("lightning")

from tests.dpsgd.opacus_remarks import IGNORED
from tests.loops.test_loops_of_the_docs import BLOCKS, DDP
from tests.tolerances import HANG

pytestmark = [*IGNORED, pytest.mark.loops]
BEFORE = """
import os
from opacus import PrivacyEngine
from tests.loops.truth import Witness

witness, original = Witness(False), PrivacyEngine.make_private
PrivacyEngine.make_private = lambda *engine, **settings: witness.private(*engine, **settings)
"""
AFTER = """
import numpy, torch
rank = os.environ["RANK"]
trace = recorder.trace()
numpy.savez(f"trace-{rank}.npz", pair_sum=trace.pair_sum, membership_likelihood=trace.membership_likelihood)
torch.save({"steps": witness.steps, "releases": witness.releases, "x": x, "y": y}, f"steps-{rank}.pt")
"""


def _clipped(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    gradients = torch.autograd.grad(functional.cross_entropy(model(x[None]), y[None]), list(model.parameters()))
    g = torch.cat([part.flatten() for part in gradients]).double()
    return g * min(1.0, 1.0 / float(g.norm()))


@pytest.mark.parametrize("world", [2, 4])
def test_the_ddp_loop_of_the_page_scores_what_autograd_does(world: int, tmp_path: Path) -> None:
    """The noise is what the wrapped optimizer received less the clipped gradients of all rows of all processes."""
    code = "\n".join([BEFORE, BLOCKS[""], BLOCKS[DDP], AFTER])
    # Of batches of two rows per process some are empty, which Opacus's sampler skips: processes would lose step.
    code = code.replace("batch_size=8", "batch_size=16") if world == 4 else code
    (tmp_path / "train.py").write_text(code, encoding="utf-8")
    root = str(Path(leakcore.__file__).parents[1])
    variables = os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", "train.py"]
    subprocess.run(command, cwd=tmp_path, env=variables, check=True, timeout=HANG)
    trace = Trace.load(tmp_path / "trace.npz")
    parts = [torch.load(tmp_path / f"steps-{rank}.pt") for rank in range(world)]
    x, y = parts[0]["x"], parts[0]["y"]

    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    pairs, sums, times = np.zeros((20, 20)), np.zeros(20), np.zeros(20, dtype=np.int64)
    for t, steps in enumerate(zip(*(part["steps"] for part in parts), strict=True)):
        for p, value, *others in zip(model.parameters(), *(parameters for parameters, _, _ in steps), strict=True):
            assert all(torch.equal(value, other) for other in others), "one model"
            p.data.copy_(value)
        every = torch.stack([_clipped(model, x[i], y[i]) for i in range(len(x))])
        fed = torch.cat([batch for _, _, batches in steps for batch in batches])
        batch = [int((x == row).all(1).nonzero()) for row in fed]
        assert len(set(batch)) == len(batch), "no row twice"
        noise = parts[0]["releases"][t] * world - every[batch].sum(0)
        inside, clipped = [i - 30 for i in batch if i >= 30], every[30:50]
        alone = torch.stack([noise + (clipped[i] if i in inside else 0) for i in range(20)])
        pairs += (alone @ clipped.T).numpy()
        sums += (clipped @ (noise + clipped[inside].sum(0))).numpy()
        times[inside] += 1
    assert trace.steps == len(parts[0]["steps"]) >= 2
    np.testing.assert_array_equal(trace.times_seen, times)
    assert trace.times_seen[:10].sum() > 5
    np.testing.assert_allclose(trace.pair_sum, pairs, rtol=0, atol=2e-3 * trace.steps)
    np.testing.assert_allclose(trace.membership_sum, sums, rtol=0, atol=2e-3 * trace.steps)
    for rank in range(world):
        other = np.load(tmp_path / f"trace-{rank}.npz")
        np.testing.assert_array_equal(other["pair_sum"], trace.pair_sum)
        np.testing.assert_array_equal(other["membership_likelihood"], trace.membership_likelihood)
    assert trace.sampling.scheme == "poisson"
    assert leakcore.audit.from_trace(trace).passed
