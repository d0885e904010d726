"""What is timed on a card: each row is a job, its least bytes or operations, and who else does it.

A row's limit is the bytes that must cross memory over the measured bandwidth of a copy, or its multiply-adds over the
measured rate of a product, or its instructions over the issue slots that the card's clock allows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

CLIP, SIGMA, RATE = 1.0, 1.0, 0.01
INSTRUCTIONS = 65  # per sample and step of the mixture in float32: csrc/README.md


@dataclasses.dataclass
class Work:
    """One row's calls, "leakcore" first. amount over limits[limit] is the least time; where says what was counted.

    host: timed until the call returns, not until the device is done. note: what happened instead of a time.
    """

    calls: dict[str, Callable[[], Any]]
    amount: float = 0.0
    limit: str = ""
    where: str = ""
    host: bool = False
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Row:
    """name; how its work is made at a place, small or at full size; seconds to time each call for."""

    name: str
    make: Callable[[Any, bool], Work]
    seconds: float = 3.0


def _clip(dtype: str) -> Callable[[Any, bool], Work]:
    def make(place: Any, small: bool) -> Work:
        from leakcore import kernels

        rows, columns = (8, 3000) if small else (256, 10**6)
        grads = place.normal(rows, columns, dtype=dtype)
        x = place.tensor(grads)

        def product() -> Any:
            import torch

            factors = (CLIP / torch.linalg.vector_norm(x, dim=1, dtype=torch.float32)).clamp(max=1)
            return factors.to(x.dtype) @ x + SIGMA * CLIP * torch.randn(columns, device=x.device)

        def copied() -> Any:
            import torch

            factors = (CLIP / torch.linalg.vector_norm(x, dim=1, dtype=torch.float32)).clamp(max=1)
            return (x * factors[:, None].to(x.dtype)).sum(0) + SIGMA * CLIP * torch.randn(columns, device=x.device)

        size = 4 if dtype == "float32" else 2
        return Work(
            {
                "leakcore": lambda: kernels.clip_and_noise(grads, CLIP, SIGMA, seed=1),
                "torch, norm and product": product,
                "torch, clipped copy": copied,
            },
            2 * rows * columns * size,
            "copy_bytes",
            "every gradient read twice",
        )

    return make


def _clip_list(place: Any, small: bool) -> Work:
    """The parameters of two layers of a transformer, twelve arrays each: 24 arrays, about 10⁶ numbers a row."""
    from leakcore import kernels

    width, rows = (8, 4) if small else (256, 256)
    layer = [(width, width), (width,)] * 4 + [(width, 2 * width), (width,), (2 * width, width), (width,)]
    grads = [place.normal(rows, *shape) for shape in layer * 2]
    xs = [place.tensor(g) for g in grads]
    elements = sum(x.numel() for x in xs)

    def in_torch() -> Any:
        import torch

        norms = torch.stack([torch.linalg.vector_norm(x.flatten(1), dim=1) for x in xs]).norm(dim=0)
        factors = (CLIP / norms).clamp(max=1)
        return [torch.einsum("b,b...->...", factors, x) + SIGMA * CLIP * torch.randn_like(x[0]) for x in xs]

    return Work(
        {"leakcore": lambda: kernels.clip_and_noise(grads, CLIP, SIGMA, seed=1), "torch, as Opacus does": in_torch},
        2 * elements * 4,
        "copy_bytes",
        "every gradient read twice",
    )


def _scores(observations: int) -> Callable[[Any, bool], Work]:
    def make(place: Any, small: bool) -> Work:
        from leakcore import kernels

        rows, columns = (8, 2000) if small else (4096, 10**5)
        grads, observed = place.normal(rows, columns), place.normal(observations, columns)
        x, o = place.tensor(grads), place.tensor(observed)

        def in_torch() -> Any:
            import torch

            return o @ x.T * (CLIP / torch.linalg.vector_norm(x, dim=1)).clamp(max=1)

        return Work(
            {"leakcore": lambda: kernels.clip_scores(grads, observed, CLIP), "torch, norm and product": in_torch},
            rows * columns * 4,
            "copy_bytes",
            "every gradient read once",
        )

    return make


def _mixture(small: bool) -> dict[str, Any]:
    return {"noise_multiplier": SIGMA, "sample_rate": RATE, "steps": 5 if small else 100}


def _tail(dtype: str) -> Callable[[Any, bool], Work]:
    def make(place: Any, small: bool) -> Work:
        from leakcore import kernels

        samples, mixture = 300 if small else 10**9, _mixture(small)
        levels = [-0.5, 0.0, 0.5, 1.0, 2.0]

        def ours() -> Any:
            return kernels.mixture_tail(samples, levels, dtype=dtype, like=place.like, **mixture)

        return _of_steps(ours, samples * mixture["steps"], dtype)

    return make


def _ratio(dtype: str) -> Callable[[Any, bool], Work]:
    def make(place: Any, small: bool) -> Work:
        from leakcore import kernels

        samples, mixture = 300 if small else 10**7, _mixture(small)
        rows = min(samples, 10**6)  # of torch's at a time: 400 MB in float32
        like = place.tensor(place.normal(1, dtype=dtype))

        def in_torch() -> None:
            import torch

            for _ in range(0, samples, rows):
                x = torch.randn(rows, mixture["steps"], device=like.device, dtype=like.dtype)
                ((x / SIGMA - 0.5 / SIGMA**2).expm1() * RATE).log1p().sum(1)

        def ours() -> Any:
            return kernels.mixture_log_ratio(samples, dtype=dtype, like=place.like, **mixture)

        work = _of_steps(ours, samples * mixture["steps"], dtype)
        work.calls["torch, eager"] = in_torch
        return work

    return make


def _of_steps(ours: Callable[[], Any], steps: int, dtype: str) -> Work:
    if dtype == "float64":  # its instructions have not been counted
        return Work({"leakcore": ours}, steps, "", "samples × steps; no limit is known")
    return Work(
        {"leakcore": ours}, INSTRUCTIONS * steps, "issue_slots", f"{INSTRUCTIONS} instructions a sample and step"
    )


def _solve_labels(place: Any, small: bool) -> Work:
    """Systems of 50 rows of 200 numbers, compared with a batched Cholesky factorisation by cuSOLVER."""
    from leakcore import kernels

    count, n, d = (3, 6, 20) if small else (65_536, 50, 200)
    jacobian = place.normal(count, n, d, dtype="float64")
    gradient = place.normal(count, d, dtype="float64")
    c, g = place.tensor(jacobian), place.tensor(gradient)

    def cholesky() -> Any:
        import torch

        if c.is_cuda:
            torch.backends.cuda.preferred_linalg_library("cusolver")
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(c @ c.mT))
        return n * inverse @ (c @ g[..., None]), inverse.diagonal(dim1=-2, dim2=-1)

    return Work(
        {"leakcore": lambda: kernels.solve_labels(jacobian, gradient), "torch, Cholesky by cuSOLVER": cholesky},
        count * (d * n**2 / 2 + n**3 / 3),
        "fma_float64",
        "Gram dN²/2, Cholesky N³/6 and inverse N³/6 multiply-adds",
    )


def _allocation(k: int, tail: bool) -> Callable[[Any, bool], Work]:
    def make(place: Any, small: bool) -> Work:
        from leakcore import kernels

        samples, bins = (200, 12) if small else (10**7 if k == 1 else 10**6, 100)
        pair = kernels.Allocation(SIGMA, bins, epochs=1, k=k)

        def ours() -> Any:
            if tail:
                return kernels.allocation_tail(pair, samples, [0.0, 1.0], like=place.like)
            return kernels.allocation_log_ratio(pair, samples, dtype="float32", like=place.like)

        return Work({"leakcore": ours}, samples * bins, "", "samples × bins; no limit is known")

    return make


def _ensemble(place: Any, small: bool) -> Work:
    """DP-SGD of many networks of 784-32-2, minibatches of 250: on the card through torch, and on the CPU."""
    import numpy as np

    from leakcore import dpsgd

    rows, runs, steps = (40, 3, 2) if small else (6000, 256, 24)
    rng = np.random.default_rng(0)
    features, labels = rng.random((rows, 784), dtype=np.float32), rng.integers(0, 2, rows)
    network = dpsgd.Network((784, 32, 2), "relu", initialisation="glorot")
    ensemble = dpsgd.Ensemble(
        network, noise_multiplier=SIGMA, max_grad_norm=CLIP, learning_rate=0.15, steps=steps,
        sample_rate=dpsgd.ShuffledBatches(20 if small else 250), seed=0,
    )  # fmt: skip

    def on(device: str) -> Callable[[], Any]:
        return lambda: ensemble.run(features, labels, runs=runs, execution=dpsgd.Execution(device=device))

    here = {} if place.emulated else {"leakcore": on("cuda")}
    return Work({**here, "leakcore on the CPU": on("cpu")}, runs * steps, "", "training steps; no limit is known")


def _launch(place: Any, small: bool) -> Work:
    """What a call costs until it returns: everything but the work, which is next to none."""
    from leakcore import kernels

    grads, x = place.normal(4, 8), None
    x = place.tensor(grads)

    def in_torch() -> Any:
        return x.norm(dim=1)

    return Work(
        {"leakcore": lambda: kernels.clip_and_noise(grads, CLIP), "torch, one norm": in_torch},
        where="Python, scratch and launches of a call on (4, 8)",
        host=True,
    )


def _graph(place: Any, small: bool) -> Work:
    """Kernels refuse by name to be captured: a graph would replay one seed's noise. torch's own replay is timed."""
    from leakcore import kernels

    grads = place.normal(64, 512)
    x = place.tensor(grads)
    kernels.clip_and_noise(grads, CLIP)
    place.wait()
    if place.emulated:
        return Work({}, note="the emulation has no graphs")
    try:
        place.captured(lambda: kernels.clip_and_noise(grads, CLIP))
    except RuntimeError as refused:
        note = f"refused: {str(refused).splitlines()[0][:100]}"
    else:
        raise AssertionError("a graph of clip_and_noise was captured, which must be refused")
    place.wait()
    return Work({"torch, a graph of one norm": place.captured(lambda: x.norm(dim=1))}, note=note)


ROWS = (
    Row("clip (256, 10⁶) float32", _clip("float32")),
    Row("clip (256, 10⁶) bfloat16", _clip("bfloat16")),
    Row("clip, list of 24 arrays", _clip_list),
    Row("clip_scores, 1 observation", _scores(1)),
    Row("clip_scores, 4 observations", _scores(4)),
    Row("tail, 10⁹ samples × 100 steps, float32", _tail("float32"), 6.0),
    Row("tail, 10⁹ samples × 100 steps, float64", _tail("float64"), 6.0),
    Row("log ratio, 10⁷ × 100, float32", _ratio("float32")),
    Row("log ratio, 10⁷ × 100, float64", _ratio("float64")),
    Row("solve_labels, 65,536 of 200×50", _solve_labels, 5.0),
    Row("allocation, log ratio, 1 of 100 bins", _allocation(1, False)),
    Row("allocation, log ratio, 10 of 100 bins", _allocation(10, False)),
    Row("allocation, tail, 1 of 100 bins", _allocation(1, True)),
    Row("ensemble, 784-32-2, minibatch", _ensemble, 5.0),
    Row("launch overhead", _launch),
    Row("graph capture", _graph),
)


def once() -> None:
    """Every row's work, small, a single time: what compute-sanitizer watches."""
    from bench.gpu.place import Card

    card = Card()
    for row in ROWS:
        if row.name != "graph capture":  # the sanitizer does not follow a capture that is refused
            work = row.make(card, True)
            next(iter(work.calls.values()))()
            card.wait()


if __name__ == "__main__":
    once()
