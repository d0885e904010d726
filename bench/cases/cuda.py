"""The kernels on a CUDA device, against torch on the same device, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.case import Case, Contender, Rates
from bench.cases import clip, solve_labels
from leakcore import kernels

RATE, SIGMA, CLIP = 0.01, 1.0, 1.0


def cases(quick: bool) -> list[Case]:
    if quick:
        return [_mixture(10**5, 100), _clip(64, 10**5, 1), _solve_labels(1024)]
    return [
        *(_mixture(samples, steps) for samples, steps in ((10**6, 100), (10**6, 1000), (10**7, 100))),
        _tail(10**6, 1000),
        _clip(256, 10**6, 2),
        _clip(4096, 8000, 1),
        _clip(2048, 10**6, 2),
        _scores(4096, 10**5),
        _solve_labels(1024),
        _solve_labels(65_536),
    ]


def _step(x: Any) -> Any:
    return ((x / SIGMA - 0.5 / SIGMA**2).expm1() * RATE).log1p().sum(1)


def _mixture(samples: int, steps: int) -> Case:
    rows = max(1, min(samples, 2**28 // steps))  # one gigabyte of float32 at a time

    def ours(dtype: str) -> Callable[[Any], Callable[[], Any]]:
        def build(like: Any) -> Callable[[], Any]:
            return lambda: kernels.mixture_log_ratio(
                samples, noise_multiplier=SIGMA, sample_rate=RATE, steps=steps, dtype=dtype, like=like
            )

        return build

    def in_torch(name: str, compiled: bool) -> Callable[[Any], Callable[[], Any]]:
        def build(_: Any) -> Callable[[], Any]:
            import torch

            dtype = getattr(torch, name)

            def draw() -> Any:
                return _step(torch.randn(rows, steps, device="cuda", dtype=dtype))

            call = torch.compile(draw) if compiled else draw
            return lambda: [call() for _ in range(0, samples, rows)]

        return build

    return Case(
        "mixture",
        f"cuda N={samples:.0e} T={steps}".replace("e+0", "e"),
        _empty,
        (
            Contender("leakcore f64", ours("float64")),
            Contender("leakcore f32", ours("float32")),
            Contender("torch f32, compiled", in_torch("float32", True), against="leakcore f32"),
            Contender("torch f32, eager", in_torch("float32", False), against="leakcore f32"),
            Contender("torch f64, compiled", in_torch("float64", True), against="leakcore f64"),
        ),
        samples * steps,
        "sample·step",
        limit="issue rate, not measured here: judge by sample·steps per second",
    )


def _tail(samples: int, steps: int) -> Case:
    import numpy as np

    thresholds = np.linspace(-0.5, 2, 10)
    mixture = {"noise_multiplier": SIGMA, "sample_rate": RATE, "steps": steps}

    def counted(dtype: str) -> Callable[[Any], Callable[[], Any]]:
        return lambda like: lambda: kernels.mixture_tail(samples, thresholds, dtype=dtype, like=like, **mixture)

    return Case(
        "mixture_tail",
        f"cuda N={samples:.0e} T={steps}".replace("e+0", "e"),
        _empty,
        (Contender("leakcore f64", counted("float64")), Contender("leakcore f32", counted("float32"))),
        samples * steps,
        "sample·step",
    )


def _empty() -> Any:
    import torch

    return torch.empty(0, device="cuda")


def _compiled(build: Callable[[Any], Callable[[], Any]]) -> Callable[[Any], Callable[[], Any]]:
    def compile_and_bind(data: Any) -> Callable[[], Any]:
        import torch

        run: Callable[[], Any] = torch.compile(build(data))
        return run

    return compile_and_bind


def _clip(rows: int, columns: int, reads: int) -> Case:
    def data() -> Any:
        import torch

        return torch.randn(rows, columns, device="cuda")

    def eager(grads: Any) -> Callable[[], Any]:
        import torch

        def run() -> Any:
            factors = (CLIP / torch.linalg.vector_norm(grads, dim=1)).clamp(max=1)
            return factors @ grads + SIGMA * CLIP * torch.randn(columns, device=grads.device)

        return run

    def materialised(grads: Any) -> Callable[[], Any]:
        import torch

        def run() -> Any:
            factors = (CLIP / torch.linalg.vector_norm(grads, dim=1)).clamp(max=1)
            return (grads * factors[:, None]).sum(0) + SIGMA * CLIP * torch.randn(columns, device=grads.device)

        return run

    def opacus(grads: Any) -> Callable[[], Any]:
        return clip.opacus_flat([grads])

    return Case(
        "clip_and_noise",
        f"cuda ({rows}, {columns}) float32",
        data,
        (
            Contender("leakcore", lambda grads: lambda: kernels.clip_and_noise(grads, CLIP, SIGMA, seed=1)),
            Contender("torch, norm and product, eager", eager, against="leakcore"),
            Contender("torch, norm and product, compiled", _compiled(eager), against="leakcore"),
            Contender("torch, clipped copy, eager", materialised, against="leakcore"),
            Contender("torch, clipped copy, compiled", _compiled(materialised), against="leakcore"),
            Contender("Opacus flat", opacus, against="leakcore", needs=("opacus",)),
        ),
        rows * columns,
        "element",
        lambda rates: reads * rows * columns * 4 / rates["read"],
        f"every gradient read {'once' if reads == 1 else 'twice'}, at the measured bandwidth of a device copy",
    )


def _scores(rows: int, columns: int) -> Case:
    def data() -> Any:
        import torch

        return torch.randn(rows, columns, device="cuda"), torch.randn(4, columns, device="cuda")

    def eager(arrays: Any) -> Callable[[], Any]:
        import torch

        grads, observed = arrays
        return lambda: observed @ grads.T * (CLIP / torch.linalg.vector_norm(grads, dim=1)).clamp(max=1)

    return Case(
        "clip_scores",
        f"cuda ({rows}, {columns}) float32, 4 observed",
        data,
        (
            Contender("leakcore", lambda arrays: lambda: kernels.clip_scores(*arrays, CLIP)),
            Contender("torch, norm and product, eager", eager, against="leakcore"),
            Contender("torch, norm and product, compiled", _compiled(eager), against="leakcore"),
        ),
        rows * columns,
        "element",
        lambda rates: rows * columns * 4 / rates["read"],
        "every gradient read once, at the measured bandwidth of a device copy",
    )


def _solve_labels(count: int) -> Case:
    n, d = solve_labels.SAMPLES, solve_labels.WEIGHTS
    part = min(1.0, 1024 / count)  # torch's pinv loops over the batch, one decomposition after the other

    def data() -> Any:
        import torch

        jacobian = torch.randn(count, n, d, device="cuda", dtype=torch.float64)
        truth = torch.rand(count, n, device="cuda", dtype=torch.float64) * 2 - 1
        return jacobian, (truth[:, None] @ jacobian)[:, 0] / n

    def in_torch(method: Callable[[Any, Any], Any], share: float) -> Callable[[Any], Callable[[], Any]]:
        def build(arrays: Any) -> Callable[[], Any]:
            jacobian, gradient = (a[: int(count * share)] for a in arrays)
            return lambda: method(jacobian.mT, gradient[..., None])

        return build

    def floor(rates: Rates) -> float | None:
        return count * (d * n**2 / 2 + n**3 / 3) / rates["fma_f64"]

    return Case(
        "solve_labels",
        f"cuda {count} of {d}×{n} float64",
        data,
        (
            Contender("leakcore", lambda arrays: lambda: kernels.solve_labels(*arrays)),
            Contender("torch pinv", in_torch(solve_labels.pinv, part), against="leakcore", share=part),
            Contender(
                "torch Cholesky of CᵀC, leverages", in_torch(solve_labels.normal_inverse, 1.0), against="leakcore"
            ),
        ),
        count,
        "problem",
        floor,
        f"Gram dN²/2, Cholesky N³/6 and inverse N³/6 multiply-adds in float64, N={n}, d={d}, at the rate of a product",
    )
