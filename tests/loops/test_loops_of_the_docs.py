"""The loops of docs/how-to/loops.md, each run as it stands there: autograd gives the same scores, row by row."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from opacus import PrivacyEngine

from tests.dpsgd.opacus_remarks import IGNORED
from tests.loops.truth import Witness
from tests.tolerances import HANG

pytestmark = [
    *IGNORED, pytest.mark.loops, pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),  # of Lightning
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),  # of peft
]  # fmt: skip
PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/loops.md"


def _blocks() -> dict[str, str]:
    """The code of each section, by its title; of the first one, before all titles, by ""."""
    parts = re.split(r"^## (.*)$", PAGE.read_text(encoding="utf-8"), flags=re.M)
    titles = ["", *parts[1::2]]
    codes = ["\n".join(re.findall(r"```python\n(.*?)```", part, flags=re.S)) for part in parts[::2]]
    return {title: code for title, code in zip(titles, codes, strict=True) if code}


BLOCKS = _blocks()
_MODEL = "A language model that computes its loss"
_TEXTS = "A classifier of texts, with lengths of their own"
NEEDS = {
    "LoRA": [_MODEL], "HuggingFace's Trainer": [_MODEL], "Checkpoint and resume": [_MODEL],
    "A vision transformer": [_TEXTS],
}  # fmt: skip


def _vectors(factor: float = 1.0) -> Callable[[dict[str, Any], Any, int], torch.Tensor]:
    def loss(names: dict[str, Any], model: Any, i: int) -> torch.Tensor:
        x, y = names["candidates"]
        return functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]) * factor

    return loss


def _half(names: dict[str, Any], model: Any, i: int) -> torch.Tensor:
    x, y = names["candidates"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])


def _text(names: dict[str, Any], model: Any, i: int) -> torch.Tensor:
    ids = names["text_candidates"]["input_ids"][i]
    logits = model(input_ids=ids[None], position_ids=torch.arange(len(ids))[None]).logits[0]
    return functional.cross_entropy(logits[:-1], ids[1:])


def _classified(names: dict[str, Any], model: Any, i: int) -> torch.Tensor:
    row = names["classified"][30 + i]
    logits = model(input_ids=row["input_ids"][None], attention_mask=torch.ones(1, len(row["input_ids"]))).logits
    return functional.cross_entropy(logits, torch.tensor([row["label"]]))


def _picture(names: dict[str, Any], model: Any, i: int) -> torch.Tensor:
    row = names["pictures"][30 + i]
    return functional.cross_entropy(model(pixel_values=row["pixel_values"][None]).logits, row["labels"][None])


LOSSES: dict[str, Callable[[dict[str, Any], Any, int], torch.Tensor]] = {
    "A plain loop": _vectors(),
    "Gradient accumulation": _vectors(0.5),
    "BatchMemoryManager": _vectors(),
    "Ghost clipping": _vectors(),
    "Mixed precision": _half,
    "torch.compile": _vectors(),
    "A language model that computes its loss": _text,
    "A classifier of texts, with lengths of their own": _classified,
    "A vision transformer": _picture,
    "LoRA": _text,
    "HuggingFace's Trainer": _text,
    "Lightning": _vectors(),
    "Checkpoint and resume": _text,
}
DDP = "Several processes (DDP)"
"""Its code is a script for torchrun."""
FUSED = [_MODEL, _TEXTS, "A vision transformer", "LoRA", "Mixed precision"]


def _row(names: dict[str, Any], title: str, i: int) -> torch.Tensor:
    if LOSSES[title] is _text:
        return names["text_candidates"]["input_ids"][i]
    if LOSSES[title] is _picture:
        return names["pictures"][30 + i]["pixel_values"]
    return names["classified"][30 + i]["input_ids"] if LOSSES[title] is _classified else names["candidates"][0][i]


def test_every_loop_of_the_page_is_compared() -> None:
    assert set(BLOCKS) - {""} == {*LOSSES, DDP}


@pytest.mark.parametrize(("title", "fused"), [*((t, False) for t in LOSSES), *((t, True) for t in FUSED)])
def test_a_loop_of_the_page_scores_what_autograd_does(
    title: str, fused: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    witness = Witness(fused)
    monkeypatch.setattr(PrivacyEngine, "make_private", lambda *engine, **settings: witness.private(*engine, **settings))
    names: dict[str, Any] = {}
    for part in ("", *NEEDS.get(title, []), title):
        witness.clear()
        exec(compile(BLOCKS[part], f"{PAGE.name}: {part}", "exec"), names)
    trace = names["trace"] if "trace" in names else names["recorder"].trace()
    expected = witness.expected(20, lambda model, i: LOSSES[title](names, model, i), lambda i: _row(names, title, i))
    assert trace.steps == len(witness.steps) >= 2
    np.testing.assert_array_equal(trace.times_seen, expected["times_seen"])
    assert trace.times_seen[:10].any()
    assert not trace.times_seen[10:].any()
    error = 0.05 if LOSSES[title] is _half else 2e-3  # of a row's norm and its noise, in float32 and bfloat16
    for name in ("pair_sum", "membership_sum"):
        np.testing.assert_allclose(getattr(trace, name), expected[name], rtol=0, atol=error * trace.steps)
    report = leakcore.audit.from_trace(trace)
    assert report.passed
    assert not [r for r in caplog.records if "were not compared" in r.getMessage()], "the rows were checked"


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
