"""What is stored of a transformer's steps, what the docs say of it, and that a point can be measured."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from bench import claims, fused_memory, kept_page
from tests.project.script import load

ROOT = Path(__file__).resolve().parents[2]
OURS, GHOST = fused_memory.METHODS["fused"], fused_memory.METHODS["ghost"]


@pytest.fixture
def stored() -> dict[str, Any]:
    result: dict[str, Any] = json.loads((ROOT / "bench/results/fused-memory.json").read_text(encoding="utf-8"))
    return result


def test_the_page_and_the_picture_say_what_the_stored_result_says(stored: dict[str, Any]) -> None:
    page = (ROOT / "docs/how-to/fused-optimizer.md").read_text(encoding="utf-8")
    assert all(page.count(mark) == 1 for mark in fused_memory.MARKS)
    assert kept_page.between(page, fused_memory.MARKS, fused_memory.text(stored)) == page
    hook = load("docs/hooks/fused_memory.py")
    assert hook.carried(hook.PICTURE) == hook.points(stored)


def test_the_model_and_the_methods_are_as_the_page_says(stored: dict[str, Any]) -> None:
    assert stored["parameters"] == sum(p.numel() for p in fused_memory.network().parameters()) > 20_000_000
    assert all(set(case["contenders"]) == set(fused_memory.METHODS.values()) for case in stored["cases"])
    assert stored["claims"] == claims.judge(stored["cases"], "transformer")
    assert all(claim["met"] is not None for claim in stored["claims"])


@pytest.mark.parametrize(
    ("peak", "check", "seconds", "words"),
    [
        (0.5, 0.6, 0.5, ["less.", "Still less.", "Which one**: `FusedDPOptimizer`."]),
        (0.5, 1.5, 0.5, ["less.", "Not better than ghost clipping there", "`BatchMemoryManager`"]),
        (2.0, 2.5, 0.5, ["more.", "Not better", "fits only with it"]),
        (2.0, 2.5, 1.5, ["more.", "the one that is faster on your model"]),
    ],
)
def test_the_advice_follows_the_numbers(
    stored: dict[str, Any], peak: float, check: float, seconds: float, words: list[str]
) -> None:
    other = copy.deepcopy(stored)
    for case in other["cases"]:
        rows = case["contenders"]
        rows[OURS]["peak_bytes"] = peak * rows[GHOST]["peak_bytes"]
        rows[OURS]["check_bytes"] = check * rows[GHOST]["peak_bytes"]
        rows[OURS]["median"] = seconds * rows[GHOST]["median"]
    said = fused_memory.text(other)
    assert all(word in said for word in words)


@pytest.mark.slow
@pytest.mark.parametrize("method", fused_memory.METHODS)
def test_a_point_is_measured_in_a_process_of_its_own(method: str) -> None:
    point = fused_memory.measured(method, 1, "memory")
    assert point["peak_bytes"] > 2 * 4 * point["parameters"]  # parameters and gradients
