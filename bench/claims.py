"""The claims of speed, each with what is wanted of it: a report, never a gate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from bench.harness import ratio

Cases = list[dict[str, Any]]
FUSED = "leakcore FusedDPOptimizer"
Found = Iterator[tuple[float, str]]
"""(value, where), one per size and number of threads; the worst one counts."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """text; the figure wanted; whether more is better; the values found in a report."""

    text: str
    wanted: float
    find: Callable[[Cases], Found]
    more: bool = True
    shown: str = "{:.2f}×"

    def judge(self, cases: Cases) -> dict[str, Any]:
        """The claim with its worst value in these cases; `met` is None where nothing was measured."""
        measured = list(self.find(cases))
        head = {"claim": self.text, "wanted": ("≥ " if self.more else "≤ ") + self.shown.format(self.wanted)}
        if not measured:
            return {**head, "measured": None, "best": None, "met": None, "where": "not measured"}
        value, where = min(measured) if self.more else max(measured)
        best, _ = max(measured) if self.more else min(measured)
        met = value >= self.wanted if self.more else value <= self.wanted
        return {
            **head,
            "measured": self.shown.format(value),
            "best": self.shown.format(best),
            "met": met,
            "where": where,
        }


def _seconds(case: dict[str, Any], name: str) -> list[float] | None:
    seconds: list[float] | None = case["contenders"].get(name, {}).get("seconds")
    return seconds


def _chosen(cases: Cases, kernel: str, size: str) -> Iterator[dict[str, Any]]:
    for case in cases:
        if case["kernel"] == kernel and size in case["size"]:
            yield case


def _faster(
    kernel: str, size: str, theirs: str, ours: str, threads: tuple[int, ...] = (1,)
) -> Callable[[Cases], Found]:
    """theirs ÷ ours, paired by round."""

    def find(cases: Cases) -> Found:
        for case in _chosen(cases, kernel, size):
            for n in threads:
                more = "" if n == 1 else f", {n} threads"
                a, b = _seconds(case, theirs + more), _seconds(case, ours + more)
                if a and b:
                    yield ratio(a, b), f"{case['size']}, {n} thread{'s' if n > 1 else ''}"

    return find


def _of_limit(kernel: str, size: str, ours: str = "leakcore") -> Callable[[Cases], Found]:
    def find(cases: Cases) -> Found:
        for case in _chosen(cases, kernel, size):
            for more in ("", ", 2 threads"):
                share = case["contenders"].get(ours + more, {}).get("of_limit")
                if share is not None:
                    yield 100 * share, case["size"] + (more or ", 1 thread")

    return find


def _per_unit(kernel: str, size: str, ours: str, scale: float) -> Callable[[Cases], Found]:
    def find(cases: Cases) -> Found:
        for case in _chosen(cases, kernel, size):
            if "per_unit" in case["contenders"].get(ours, {}):
                yield case["contenders"][ours]["per_unit"] * scale, case["size"]

    return find


def _rate(kernel: str, size: str, ours: str) -> Callable[[Cases], Found]:
    def find(cases: Cases) -> Found:
        for value, where in _per_unit(kernel, size, ours, 1.0)(cases):
            yield 1 / value, where

    return find


def _peak(cases: Cases) -> Found:
    for case in _chosen(cases, "clip_and_noise", ""):
        ours, theirs = case["contenders"].get("leakcore", {}), case["contenders"].get("torch, clipped copy", {})
        if ours.get("peak_bytes") is not None and theirs.get("peak_bytes"):
            yield 100 * ours["peak_bytes"] / theirs["peak_bytes"], case["size"]


def _peak_of(theirs: str) -> Callable[[Cases], Found]:
    def find(cases: Cases) -> Found:
        for case in _chosen(cases, "transformer step", ""):
            rows = case["contenders"]
            yield 100 * rows[FUSED]["peak_bytes"] / rows[theirs]["peak_bytes"], case["size"]

    return find


def _accuracy(cases: Cases) -> Found:
    for case in _chosen(cases, "solve_labels", ""):
        for row in case["extra"][1:]:
            yield float(row[5]), f"{case['size']}, condition {row[0]}"


BOTH = (1, 2)
PERCENT = "{:.0f}%"
NANOSECONDS = "{:.2f} ns"

ON_CPU = (
    Claim("mixture f64 against NumPy f64, blocked", 6, _faster("mixture", "", "NumPy f64, blocked", "leakcore f64")),
    Claim("mixture f32 against NumPy f64, blocked", 14, _faster("mixture", "", "NumPy f64, blocked", "leakcore f32")),
    Claim("mixture f32 against torch f32, blocked", 5, _faster("mixture", "", "torch f32, blocked", "leakcore f32")),
    Claim(
        "mixture f64 on AVX2 against NumPy f64", 4, _faster("mixture", "", "NumPy f64, blocked", "leakcore f64, avx2")
    ),
    Claim(
        "mixture f32 on AVX2 against NumPy f64", 8, _faster("mixture", "", "NumPy f64, blocked", "leakcore f32, avx2")
    ),
    Claim("mixture f64, one thread ÷ two", 1.8, _faster("mixture", "", "leakcore f64", "leakcore f64, 2 threads")),
    Claim("mixture f32, one thread ÷ two", 1.8, _faster("mixture", "", "leakcore f32", "leakcore f32, 2 threads")),
    Claim(
        "mixture f64 per sample·step, T=100",
        1.98,
        _per_unit("mixture", "T=100", "leakcore f64", 1e9),
        False,
        NANOSECONDS,
    ),
    Claim(
        "mixture f32 per sample·step, T=100",
        0.89,
        _per_unit("mixture", "T=100", "leakcore f32", 1e9),
        False,
        NANOSECONDS,
    ),
    Claim(
        "allocation b=100 f64, of normals and exponentials",
        50,
        _of_limit("allocation", "b=100 N", "leakcore f64"),
        shown=PERCENT,
    ),
    Claim(
        "allocation b=100 f64 against NumPy f64, blocked",
        10,
        _faster("allocation", "b=100 N", "NumPy f64, blocked", "leakcore f64"),
    ),
    Claim(
        "allocation b=100 f32 against NumPy f32, blocked",
        10,
        _faster("allocation", "b=100 N", "NumPy f32, blocked", "leakcore f32"),
    ),
    Claim(
        "allocation b=100 f64 against jax_privacy", 5, _faster("allocation", "b=100 N", "jax_privacy", "leakcore f64")
    ),
    Claim(
        "clip (256, 10⁶) against Opacus",
        1,
        _faster("clip_and_noise", "(256, 1000000) f", "Opacus flat", "leakcore", BOTH),
    ),
    Claim(
        "clip (256, 10⁶) against a clipped copy",
        4,
        _faster("clip_and_noise", "(256, 1000000) f", "torch, clipped copy", "leakcore", BOTH),
    ),
    Claim("clip (256, 10⁶), of two reads", 85, _of_limit("clip_and_noise", "(256, 1000000) f"), shown=PERCENT),
    Claim(
        "clip (4096, 8000) against Opacus",
        1.6,
        _faster("clip_and_noise", "(4096, 8000) f", "Opacus flat", "leakcore", BOTH),
    ),
    Claim("clip (4096, 8000), of one read", 75, _of_limit("clip_and_noise", "(4096, 8000) f"), shown=PERCENT),
    Claim(
        "clip, list of an MLP, against Opacus", 1.6, _faster("clip_and_noise", "list", "Opacus flat", "leakcore", BOTH)
    ),
    Claim("clip, list of an MLP, of one read", 75, _of_limit("clip_and_noise", "list"), shown=PERCENT),
    Claim(
        "clip without noise ÷ with it",
        0.97,
        _faster("clip_and_noise", "float32", "leakcore, no noise", "leakcore", BOTH),
    ),
    Claim("clip, peak memory of a clipped copy's", 10, _peak, False, PERCENT),
    Claim("clip_scores, of one read", 85, _of_limit("clip_scores", ""), shown=PERCENT),
    Claim(
        "clip_scores with float32 products, of one read",
        85,
        _of_limit("clip_scores", "", "leakcore, float32 products"),
        shown=PERCENT,
    ),
    Claim("solve_labels against torch pinv", 30, _faster("solve_labels", "float64", "torch pinv", "leakcore", BOTH)),
    Claim(
        "solve_labels f32 against torch pinv", 30, _faster("solve_labels", "float32", "torch pinv", "leakcore", BOTH)
    ),
    Claim(
        "solve_labels against Cholesky of CᵀC",
        1.8,
        _faster("solve_labels", "", "torch Cholesky of CᵀC (no leverages)", "leakcore", BOTH),
    ),
    Claim("solve_labels, of the arithmetic floor", 50, _of_limit("solve_labels", ""), shown=PERCENT),
    Claim("solve_labels, error ÷ gelsy's", 1, _accuracy, False),
    Claim(
        "label bound against Algorithm 2 as printed",
        100,
        _faster("label bound", "", "Algorithm 2 as printed", "leakcore"),
    ),
    Claim(
        "label bound against Algorithm 2, inverse hoisted",
        30,
        _faster("label bound", "", "Algorithm 2, inverse hoisted", "leakcore", BOTH),
    ),
    Claim(
        "reconstructions against one model at a time, two threads",
        60,
        _faster("reconstructions", "", "one model at a time, vmap(grad)", "leakcore", (2,)),
    ),
    Claim(
        "training step against Opacus, FNN-32 minibatch", 30, _faster("ensemble", "FNN-32, mini", "Opacus", "leakcore")
    ),
    Claim(
        "training step against Opacus, LR minibatch",
        5,
        _faster("ensemble", "logistic regression, mini", "Opacus", "leakcore"),
    ),
    Claim(
        "training step against Opacus, LR full batch",
        100,
        _faster("ensemble", "logistic regression, full", "Opacus", "leakcore"),
    ),
    Claim(
        "sensitivity of LeNet against chunked jacfwd (extrapolated)",
        1.5,
        _faster("sensitivity", "LeNet", "torch jacfwd, 192 of 3072 columns, extrapolated", "leakcore, all three norms"),
    ),
    Claim(
        "sensitivity of LeNet against chunked jacrev on all rows (extrapolated)",
        15,
        _faster("sensitivity", "LeNet", "torch jacrev, 64 of 62006 rows, extrapolated", "leakcore, all three norms"),
    ),
)

ON_CUDA = (
    Claim("mixture f32, sample·steps per second", 4e11, _rate("mixture", "cuda", "leakcore f32"), shown="{:.2e}"),
    Claim(
        "mixture_tail f32, sample·steps per second", 4e11, _rate("mixture_tail", "cuda", "leakcore f32"), shown="{:.2e}"
    ),
    Claim("mixture f32 against torch compiled", 3, _faster("mixture", "cuda", "torch f32, compiled", "leakcore f32")),
    Claim("clip, of the floor by copy bandwidth", 80, _of_limit("clip_and_noise", "cuda"), shown=PERCENT),
    Claim(
        "clip against torch eager", 3, _faster("clip_and_noise", "cuda", "torch, norm and product, eager", "leakcore")
    ),
    Claim(
        "clip against a clipped copy, eager",
        3,
        _faster("clip_and_noise", "cuda", "torch, clipped copy, eager", "leakcore"),
    ),
    Claim(
        "solve_labels 65,536 against torch pinv", 10, _faster("solve_labels", "cuda 65536", "torch pinv", "leakcore")
    ),
)

ON_A_TRANSFORMER = (
    Claim("a transformer's step against Opacus ghost", 1.2, _faster("transformer step", "", "Opacus ghost", FUSED)),
    Claim(
        "a transformer's step against fast gradient clipping",
        1.5,
        _faster("transformer step", "", "Opacus fast gradient clipping", FUSED),
    ),
    Claim("a transformer's step against Opacus flat", 1.5, _faster("transformer step", "", "Opacus flat", FUSED)),
    Claim("a transformer's step, no privacy ÷ ours", 0.7, _faster("transformer step", "", "no privacy", FUSED)),
    Claim("a transformer's peak memory, of Opacus ghost's", 100, _peak_of("Opacus ghost"), False, PERCENT),
    Claim("a transformer's peak memory, of Opacus flat's", 100, _peak_of("Opacus flat"), False, PERCENT),
    Claim("a transformer's peak memory, of no privacy's", 150, _peak_of("no privacy"), False, PERCENT),
)
"""Judged by the result of bench/fused_memory.py."""


def judge(cases: Cases, device: str) -> list[dict[str, Any]]:
    """Every claim about a device ("cpu", "cuda"), or about a transformer's steps, judged by these cases."""
    chosen = {"cuda": ON_CUDA, "transformer": ON_A_TRANSFORMER}.get(device, ON_CPU)
    return [claim.judge(cases) for claim in chosen]
