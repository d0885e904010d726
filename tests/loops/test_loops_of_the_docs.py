"""The loops of docs/how-to/loops.md: each is run as it stands there, and autograd gives the same scores, row by row."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import leakcore

pytest.importorskip("opacus")
pytest.importorskip("transformers")
pytest.importorskip("peft")
pytest.importorskip("lightning")
from opacus import PrivacyEngine

from tests.dpsgd.opacus_remarks import IGNORED
from tests.loops.truth import Witness

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
"""Its code is a script for torchrun: test_ddp_of_the_docs.py runs it."""
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
