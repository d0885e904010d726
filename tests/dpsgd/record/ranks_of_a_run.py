"""Runs of several gloo processes, which `test_distributed.py` spawns: each process trains every case in turn."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

import leakcore
from leakcore.dpsgd.rows import distributed as processes
from tests.tolerances import HANG

STEPS = [
    [[0, 1, 2, 9], [3, 4], [11], [12, 13]],
    [[5, 14], [], [0, 1], [2]],  # one process without a row
    [[6, 7, 8], [10], [3, 4, 5, 15, 16], [17]],
    [[20], [21, 0], [22], [1]],
]
"""For each step, the rows of four processes; of fewer, the first has what is left."""
RATE, EXPECTED = 0.25, 8.0


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(32, 5, generator=torch.Generator().manual_seed(7), dtype=torch.float64), torch.arange(32) % 3


def candidates() -> tuple[torch.Tensor, torch.Tensor]:
    """Six rows of the data and three others."""
    x, y = rows()
    other = torch.randn(3, 5, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    return torch.cat([x[:6], other]), torch.cat([y[:6], torch.arange(3)])


class Batches:
    """A batch sampler with a list of batches."""

    def __init__(self, batches: list[list[int]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def of_rank(rank: int, world: int) -> list[list[int]]:
    """The batches of a process: of `world` processes, the last one has all rows of the processes that are missing."""
    return [step[rank] if rank < world - 1 else [i for part in step[rank:] for i in part] for step in STEPS]


def collate(batch: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = rows()
    kinds = [x[:0], y[:0]] if not batch else [torch.stack(column) for column in zip(*batch, strict=True)]
    return kinds[0], kinds[1]


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).to(dtype)


def private(world: int, parallel: Any = None, *, ghost: bool = False, dtype: torch.dtype = torch.float64) -> Any:
    """(model, optimizer, loss): what `make_private` would return, for rows that the caller distributes."""
    from opacus.accountants import RDPAccountant
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import get_optimizer_class
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    module = network(dtype)
    inner = module if parallel is None else parallel(module)
    model = GradSampleModuleFastGradientClipping(inner, max_grad_norm=0.4) if ghost else GradSampleModule(inner)
    kind = get_optimizer_class("flat", parallel is not None, "ghost" if ghost else "hooks")
    optimizer = kind(
        torch.optim.SGD(model.parameters(), lr=0.5), noise_multiplier=1.5, max_grad_norm=0.4,
        expected_batch_size=EXPECTED / world, generator=torch.Generator().manual_seed(3),
    )  # fmt: skip
    optimizer.attach_step_hook(RDPAccountant().get_optimizer_hook_fn(sample_rate=RATE))
    loss = nn.CrossEntropyLoss()
    return model, optimizer, DPLossFastGradientClipping(model, optimizer, loss) if ghost else loss


def trained(rank: int, world: int, parallel: Any = None, accumulated: int = 1, **settings: Any) -> Any:
    """The recorder of one run."""
    record = {key: settings.pop(key) for key in ("candidates", "members", "out", "sampling") if key in settings}
    dtype = settings.get("dtype", torch.float64)
    fused = settings.pop("fused", False)
    model, optimizer, loss = private(world, parallel, **settings)
    if fused:
        optimizer = leakcore.dpsgd.FusedDPOptimizer.replace(optimizer, model)
    x, y = candidates()
    arguments: dict[str, Any] = {"candidates": (x.to(dtype), y), "sampling": RATE, **record}
    loader = DataLoader(TensorDataset(*rows()), batch_sampler=Batches(of_rank(rank, world)), collate_fn=collate)
    with leakcore.record(optimizer, **arguments) as recorder:
        for number, (inputs, targets) in enumerate(loader, 1):
            loss(model(inputs.to(dtype)), targets).backward()
            if number % accumulated == 0:
                optimizer.step()
                optimizer.zero_grad()
    return recorder


def _in_parts(rank: int, world: int, parallel: Any = None, *, fused: bool = False) -> Any:
    """Batches in parts of two rows: processes compute different numbers of parts in a step."""
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    model, optimizer, loss = private(world, parallel)
    if fused:
        optimizer = leakcore.dpsgd.FusedDPOptimizer.replace(optimizer)
    loader = DataLoader(TensorDataset(*rows()), batch_sampler=Batches(of_rank(rank, world)), collate_fn=collate)
    with (
        leakcore.record(optimizer, candidates=candidates(), sampling=RATE) as recorder,
        BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=optimizer) as parts,
    ):
        for inputs, targets in parts:
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()
    return recorder


def in_parts_alone(*, fused: bool) -> Any:
    return _in_parts(0, 1, fused=fused)


def of_make_private(seed: int, out: str | None = None) -> Any:
    """One epoch of Opacus's own distributed sampling."""
    from opacus import PrivacyEngine

    module = _parallel()(network())
    model, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.5), noise_multiplier=1.5,
        max_grad_norm=0.4, data_loader=DataLoader(TensorDataset(*rows()), batch_size=16),
    )  # fmt: skip
    loss = nn.CrossEntropyLoss()
    torch.manual_seed(seed)
    with leakcore.record(optimizer, candidates=candidates(), out=out) as recorder:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()
    return recorder


def _parallel() -> Any:
    from opacus.distributed import DifferentiallyPrivateDistributedDataParallel

    return DifferentiallyPrivateDistributedDataParallel


def of_torch(module: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(module)


def _own_sampler(world: int) -> Any:
    """Each process draws a Poisson sample of all rows."""
    from opacus.data_loader import DPDataLoader

    model, optimizer, loss = private(world, _parallel())
    loader = DPDataLoader(TensorDataset(*rows()), sample_rate=RATE)
    with leakcore.record(optimizer, candidates=candidates()) as recorder:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()
    return recorder


def _other_rows(rank: int, world: int) -> Any:
    x, y = candidates()
    return trained(rank, world, _parallel(), candidates=(x + rank, y))


def _one_bad_argument(rank: int, world: int) -> Any:
    x, y = candidates()
    return trained(rank, world, _parallel(), candidates=(x, y), members=torch.ones(9 - rank, dtype=torch.bool))


def _existing_file(rank: int, world: int, out: str) -> Any:
    if rank == 0:
        Path(out).write_text("a file")
    distributed.barrier()
    return trained(rank, world, _parallel(), out=out)


def _other_settings(rank: int, world: int) -> Any:
    model, optimizer, loss = private(world, _parallel())
    optimizer.noise_multiplier += rank
    with leakcore.record(optimizer, candidates=candidates(), sampling=RATE):
        loss(model(rows()[0]), rows()[1]).backward()
        optimizer.step()


def _first_only(rank: int, world: int) -> Any:
    _, optimizer, _ = private(world, _parallel())
    if rank == 0:
        processes.PATIENCE, before = timedelta(seconds=2), processes.PATIENCE
        try:
            leakcore.record(optimizer, candidates=candidates())
        finally:
            processes.PATIENCE = before


def _wrong_targets(rank: int, world: int) -> Any:
    """Every process passes the loss other targets than the candidates'."""
    model, optimizer, loss = private(world, _parallel())
    x, y = rows()
    with leakcore.record(optimizer, candidates=candidates(), sampling=RATE):
        loss(model(x), (y + 1) % 3).backward()
        optimizer.step()


def _broken_now_and_then(rank: int, world: int) -> Any:
    """In the second step the last process changes its parameters between the forward pass and the step."""
    model, optimizer, loss = private(world, _parallel())
    with leakcore.record(optimizer, candidates=candidates(), sampling=RATE) as recorder:
        for step, batch in enumerate(of_rank(rank, world)):
            x, y = rows()[0][batch], rows()[1][batch]
            value = loss(model(x), y)
            if step == 1 and rank == world - 1:
                with torch.no_grad():
                    next(model.parameters()).add_(0)
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
    return recorder


def _plain_optimizer(rank: int, world: int) -> Any:
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model = GradSampleModule(_parallel()(network()))
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5), noise_multiplier=1.5, max_grad_norm=0.4, expected_batch_size=4
    )
    with leakcore.record(optimizer, candidates=candidates(), sampling=RATE):
        nn.functional.cross_entropy(model(rows()[0]), rows()[1]).backward()
        optimizer.step()


def _fused_in_torch(rank: int, world: int) -> Any:
    model, optimizer, _ = private(world, of_torch)
    leakcore.dpsgd.FusedDPOptimizer.replace(optimizer, model)


def _fused_narrow(rank: int, world: int) -> Any:
    model, optimizer, _ = private(world, _parallel(), dtype=torch.bfloat16)
    leakcore.dpsgd.FusedDPOptimizer.replace(optimizer, model)


def _fused_not_finite(rank: int, world: int) -> Any:
    """Only the last process has a row that is not finite."""
    model, optimizer, loss = private(world, _parallel())
    optimizer = leakcore.dpsgd.FusedDPOptimizer.replace(optimizer)
    x, y = rows()
    loss(model(x * (torch.nan if rank == world - 1 else 1.0)), y).backward()
    optimizer.step()


def _fused_alone(rank: int, world: int) -> Any:
    from opacus.grad_sample import GradSampleModule

    model = GradSampleModule(_parallel()(network()))
    leakcore.dpsgd.FusedDPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5), module=model, noise_multiplier=1.5, max_grad_norm=0.4,
        expected_batch_size=4,
    )  # fmt: skip


def _canaries(rank: int, world: int) -> Any:
    _, optimizer, _ = private(world, _parallel())
    loader = DataLoader(TensorDataset(*rows()), batch_size=4)
    leakcore.record(optimizer, canaries=4, sampling=loader)


def traces(world: int, folder: str) -> dict[str, Callable[[int], Any]]:
    """Runs that end with a trace, by name."""
    return {
        "opacus": lambda rank: trained(rank, world, _parallel(), out=f"{folder}/{world}.npz"),
        "torch": lambda rank: trained(rank, world, of_torch),
        "ghost": lambda rank: trained(rank, world, _parallel(), ghost=True),
        "fused": lambda rank: trained(rank, world, _parallel(), fused=True),
        "fused parts": lambda rank: _in_parts(rank, world, _parallel(), fused=True),
        "accumulated": lambda rank: trained(rank, world, _parallel(), accumulated=2),
        "bfloat16": lambda rank: trained(rank, world, _parallel(), dtype=torch.bfloat16),
        "members": lambda rank: trained(rank, world, _parallel(), members=torch.arange(9) < 6),
        "make_private": lambda rank: of_make_private(10 + rank, f"{folder}/private-{world}.npz"),
        "one seed": lambda rank: of_make_private(3),
        "parts": lambda rank: _in_parts(rank, world, _parallel()),
        "own loaders": lambda rank: _own_sampler(world),
        "broken": lambda rank: _broken_now_and_then(rank, world),
    }


def refusals(world: int, folder: str) -> dict[str, Callable[[int], Any]]:
    """Runs that every process must refuse with one text, by name."""
    return {
        "other candidates": lambda rank: _other_rows(rank, world),
        "bad argument of one": lambda rank: _one_bad_argument(rank, world),
        "existing file": lambda rank: _existing_file(rank, world, f"{folder}/taken.npz"),
        "other settings": lambda rank: _other_settings(rank, world),
        "wrong targets": lambda rank: _wrong_targets(rank, world),
        "plain optimizer": lambda rank: _plain_optimizer(rank, world),
        "fused in torch": lambda rank: _fused_in_torch(rank, world),
        "fused, narrow": lambda rank: _fused_narrow(rank, world),
        "fused, not finite": lambda rank: _fused_not_finite(rank, world),
        "fused alone": lambda rank: _fused_alone(rank, world),
        "canaries": lambda rank: _canaries(rank, world),
    }


def run_all(rank: int, world: int, folder: str) -> None:
    """Every case in this process: its trace to a file, or its error to a JSON file."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world, timeout=timedelta(seconds=HANG)
    )
    logs: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logs.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("leakcore").addHandler(handler)
    said: dict[str, str] = {}
    for name, case in traces(world, folder).items():
        logs.clear()
        case(rank).trace().save(f"{folder}/{name}-{rank}.npz")
        said[name] = "\n".join(logs)
    for name, case in refusals(world, folder).items():
        try:
            case(rank)
            said[name] = "not refused"
        except (TypeError, ValueError) as error:
            said[name] = f"{type(error).__name__}: {error}"
    distributed.barrier()
    try:
        _first_only(rank, world)
    except RuntimeError as error:
        said["first only"] = str(error)
    Path(f"{folder}/said-{rank}.json").write_text(json.dumps(said), encoding="utf-8")
    distributed.barrier()
    distributed.destroy_process_group()
