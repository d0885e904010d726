"""Clipping: the noised sum of DP-SGD, and the scores of the prior-aware attacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench import limits
from bench.case import Case, Contender
from leakcore import kernels

CLIP, SIGMA = 1.0, 1.0
LAYERS, WIDTH, BATCH = 12, 64, 512


def cases(quick: bool) -> list[Case]:
    if quick:
        return [_matrix(64, 20_000, "float32", 1), _list(16), _scores(64, 20_000, 4)]
    return [
        _matrix(256, 10**6, "float32", 2),
        _matrix(4096, 8000, "float32", 1),
        _matrix(256, 10**6, "bfloat16", 2),
        _matrix(4096, 8000, "bfloat16", 1),
        _list(BATCH),
        _step(BATCH),
        _scores(512, 200_000, 1),
        _scores(512, 200_000, 4),
    ]


def _gradients(rows: int, columns: int, dtype: str) -> Any:
    """A torch tensor, filled block by block so that making it leaves no mark on the peak of memory."""
    import torch

    out = torch.empty(rows, columns, dtype=getattr(torch, dtype))
    generator = torch.Generator().manual_seed(0)
    for a in range(0, rows, 64):
        out[a : a + 64] = torch.randn(min(64, rows - a), columns, generator=generator)
    return out


ONCE = "every gradient read once, as fast as these arrays can be"


def _reader(threads: int, arrays: Callable[[Any], list[Any]]) -> Contender:
    more = "" if threads == 1 else ", 2 threads"
    return Contender(f"one read{more}", lambda data: limits.reading(arrays(data), threads), threads, least=True)


def opacus_flat(grads: list[Any]) -> Callable[[], Any]:
    """What Opacus does with per-sample gradients in `DPOptimizer.pre_step`: norms, factors, sum, noise."""
    import torch
    from opacus.optimizers import DPOptimizer

    params = [torch.nn.Parameter(torch.zeros(g.shape[1:])) for g in grads]
    for p, g in zip(params, grads, strict=True):
        p.grad_sample = g
    optimizer = DPOptimizer(
        torch.optim.SGD(params, lr=0.1),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
        expected_batch_size=len(grads[0]),
        loss_reduction="sum",
    )

    def run() -> object:
        for p in params:
            p.summed_grad = None
            if hasattr(p.grad_sample, "_processed"):
                del p.grad_sample._processed  # its guard against using a gradient twice, which is what a benchmark does
        optimizer.clip_and_accumulate()
        optimizer.add_noise()
        return params[0].grad

    return run


def _matrix(rows: int, columns: int, dtype: str, reads: int) -> Case:
    def ours(sigma: float) -> Callable[[Any], Callable[[], Any]]:
        seed = 1 if sigma else None
        return lambda grads: lambda: kernels.clip_and_noise(grads, CLIP, sigma, seed=seed)

    def in_numpy(grads: Any) -> Callable[[], Any]:
        values, rng = grads.numpy(), np.random.default_rng(1)

        def run() -> object:
            norms = np.sqrt(np.einsum("ij,ij->i", values, values))
            noise = rng.standard_normal(columns, dtype=np.float32)
            return np.minimum(1, CLIP / norms).astype(np.float32) @ values + SIGMA * CLIP * noise

        return run

    def in_torch(grads: Any) -> Callable[[], Any]:
        import torch

        def run() -> object:
            factors = (CLIP / torch.linalg.vector_norm(grads, dim=1, dtype=torch.float32)).clamp(max=1)
            return factors.to(grads.dtype) @ grads + SIGMA * CLIP * torch.randn(columns)

        return run

    def materialised(grads: Any) -> Callable[[], Any]:
        import torch

        def run() -> object:
            factors = (CLIP / torch.linalg.vector_norm(grads, dim=1, dtype=torch.float32)).clamp(max=1)
            return (grads * factors[:, None]).sum(0) + SIGMA * CLIP * torch.randn(columns)

        return run

    contenders = []
    for threads in (1, 2):
        more = "" if threads == 1 else ", 2 threads"
        reference = f"leakcore{more}"
        contenders += [
            Contender(f"leakcore{more}", ours(SIGMA), threads),
            Contender(f"leakcore, no noise{more}", ours(0.0), threads, against=reference),
            Contender(
                f"Opacus flat{more}", lambda grads: opacus_flat([grads]), threads, against=reference, needs=("opacus",)
            ),
            Contender(f"torch, norm and product{more}", in_torch, threads, against=reference),
            Contender(f"torch, clipped copy{more}", materialised, threads, against=reference),
        ]
        if dtype == "float32":
            contenders.append(Contender(f"NumPy, norm and product{more}", in_numpy, threads, against=reference))
        contenders.append(_reader(threads, lambda grads: [grads]))
    twice = "twice that: a row's norm is known only at its end, and the batch is larger than the cache"
    return Case(
        "clip_and_noise",
        f"({rows}, {columns}) {dtype}",
        lambda: _gradients(rows, columns, dtype),
        tuple(contenders),
        rows * columns,
        "element",
        limit=ONCE if reads == 1 else f"{ONCE}; at ({rows}, {columns}) {twice}",
        least=reads,
        memory=True,
        seconds=12,
    )


def _shapes() -> list[tuple[int, ...]]:
    return [shape for _ in range(LAYERS) for shape in ((WIDTH, WIDTH), (WIDTH,))]


def _list(rows: int) -> Case:
    columns = sum(int(np.prod(shape)) for shape in _shapes())

    def data() -> Any:
        import torch

        generator = torch.Generator().manual_seed(0)
        return [torch.randn(rows, *shape, generator=generator) for shape in _shapes()]

    def in_torch(grads: Any) -> Callable[[], Any]:
        import torch

        def run() -> object:
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads], 1).norm(dim=1)
            factors = (CLIP / norms).clamp(max=1)
            return [torch.einsum("i,i...", factors, g) + SIGMA * CLIP * torch.randn(g.shape[1:]) for g in grads]

        return run

    def concatenated(grads: Any) -> Callable[[], Any]:
        import torch

        def run() -> object:
            flat = torch.cat([g.flatten(1) for g in grads], 1)
            factors = (CLIP / torch.linalg.vector_norm(flat, dim=1)).clamp(max=1)
            return factors @ flat + SIGMA * CLIP * torch.randn(columns)

        return run

    contenders = []
    for threads in (1, 2):
        more = "" if threads == 1 else ", 2 threads"
        reference = f"leakcore{more}"
        contenders += [
            Contender(
                f"leakcore{more}", lambda grads: lambda: kernels.clip_and_noise(grads, CLIP, SIGMA, seed=1), threads
            ),
            Contender(f"Opacus flat{more}", opacus_flat, threads, against=reference, needs=("opacus",)),
            Contender(f"torch, layer by layer{more}", in_torch, threads, against=reference),
            Contender(f"torch, concatenated{more}", concatenated, threads, against=reference),
            _reader(threads, lambda grads: grads),
        ]
    return Case(
        "clip_and_noise",
        f"list of {len(_shapes())} arrays ({LAYERS}-layer MLP) B={rows} float32",
        data,
        tuple(contenders),
        rows * columns,
        "element",
        limit=ONCE,
        least=1,
        memory=True,
        seconds=8,
    )


def _step(rows: int) -> Case:
    """From a batch to its noised gradient, so that ghost clipping, which never forms the gradients, can be compared."""

    def model() -> Any:
        import torch

        torch.manual_seed(0)
        layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())]
        return torch.nn.Sequential(*layers[:-1])

    def data() -> Any:
        import torch

        torch.manual_seed(1)
        return torch.randn(rows, WIDTH), torch.randint(0, WIDTH, (rows,))

    def per_sample(batch: Any) -> tuple[Any, Callable[[], None]]:
        """Opacus' gradients of every sample, with which two contenders begin."""
        import torch
        from opacus.grad_sample import GradSampleModule

        wrapped = GradSampleModule(model(), loss_reduction="sum")
        inputs, labels = batch

        def backward() -> None:
            for p in wrapped.parameters():
                p.grad = p.grad_sample = p.summed_grad = None
            torch.nn.functional.cross_entropy(wrapped(inputs), labels, reduction="sum").backward()

        return wrapped, backward

    def ours(batch: Any) -> Callable[[], Any]:
        wrapped, backward = per_sample(batch)

        def run() -> object:
            backward()
            return kernels.clip_and_noise([p.grad_sample for p in wrapped.parameters()], CLIP, SIGMA, seed=1)

        return run

    def flat(batch: Any) -> Callable[[], Any]:
        import torch
        from opacus.optimizers import DPOptimizer

        wrapped, backward = per_sample(batch)
        optimizer = DPOptimizer(
            torch.optim.SGD(wrapped.parameters(), lr=0.1),
            noise_multiplier=SIGMA,
            max_grad_norm=CLIP,
            expected_batch_size=rows,
            loss_reduction="sum",
        )

        def run() -> None:
            backward()
            optimizer.clip_and_accumulate()
            optimizer.add_noise()

        return run

    def ghost(batch: Any) -> Callable[[], Any]:
        import torch
        from opacus.grad_sample import GradSampleModuleFastGradientClipping
        from opacus.optimizers import DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

        wrapped = GradSampleModuleFastGradientClipping(model(), max_grad_norm=CLIP, loss_reduction="sum")
        optimizer = DPOptimizerFastGradientClipping(
            torch.optim.SGD(wrapped.parameters(), lr=0.1),
            noise_multiplier=SIGMA,
            max_grad_norm=CLIP,
            expected_batch_size=rows,
            loss_reduction="sum",
        )
        criterion = DPLossFastGradientClipping(
            wrapped, optimizer, torch.nn.CrossEntropyLoss(reduction="sum"), loss_reduction="sum"
        )
        inputs, labels = batch

        def run() -> None:
            optimizer.zero_grad()
            criterion(wrapped(inputs), labels).backward()
            optimizer.accumulate()
            optimizer.add_noise()

        return run

    contenders = []
    for threads in (1, 2):
        more = "" if threads == 1 else ", 2 threads"
        name = f"leakcore on Opacus' gradients{more}"
        contenders += [
            Contender(name, ours, threads, needs=("opacus",)),
            Contender(f"Opacus flat{more}", flat, threads, against=name, needs=("opacus",)),
            Contender(f"Opacus ghost{more}", ghost, threads, against=name, needs=("opacus",)),
        ]
    columns = sum(int(np.prod(shape)) for shape in _shapes())
    return Case(
        "clip_and_noise",
        f"whole step, {LAYERS}-layer MLP B={rows}: forward, backward, clip, noise",
        data,
        tuple(contenders),
        rows * columns,
        "element",
        limit="none: the network's own work, in torch, is part of every row",
        seconds=8,
    )


def _scores(rows: int, columns: int, observed: int) -> Case:
    def data() -> Any:
        import torch

        generator = torch.Generator().manual_seed(1)
        return _gradients(rows, columns, "float32"), torch.randn(observed, columns, generator=generator)

    def ours(arrays: Any) -> Callable[[], Any]:
        grads, vectors = arrays
        return lambda: kernels.clip_scores(grads, vectors, CLIP)

    def in_single(arrays: Any) -> Callable[[], Any]:
        grads, vectors = arrays
        return lambda: kernels.clip_scores(grads, vectors, CLIP, product_dtype="float32")

    def in_numpy(arrays: Any) -> Callable[[], Any]:
        grads, vectors = (a.numpy() for a in arrays)
        return lambda: vectors @ grads.T * np.minimum(1, CLIP / np.sqrt(np.einsum("ij,ij->i", grads, grads)))

    def in_torch(arrays: Any) -> Callable[[], Any]:
        import torch

        grads, vectors = arrays
        return lambda: vectors @ grads.T * (CLIP / torch.linalg.vector_norm(grads, dim=1)).clamp(max=1)

    contenders = []
    for threads in (1, 2):
        more = "" if threads == 1 else ", 2 threads"
        reference = f"leakcore{more}"
        contenders += [
            Contender(f"leakcore{more}", ours, threads),
            Contender(f"leakcore, float32 products{more}", in_single, threads, against=reference),
            Contender(f"NumPy, norm and product{more}", in_numpy, threads, against=reference),
            Contender(f"torch, norm and product{more}", in_torch, threads, against=reference),
            _reader(threads, lambda arrays: [arrays[0]]),
        ]
    return Case(
        "clip_scores",
        f"({rows}, {columns}) float32, {observed} observed",
        data,
        tuple(contenders),
        rows * columns,
        "element",
        limit=ONCE,
        least=1,
        memory=True,
        seconds=8,
    )
