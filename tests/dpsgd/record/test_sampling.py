"""How the steps of a recorded loop were sampled."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    dataloader,
)

import leakcore
from leakcore.dpsgd import Sampling, Trace, joined
from leakcore.dpsgd.trace import trace as _trace

pytest.importorskip("opacus")
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler

from tests.dpsgd.opacus_remarks import IGNORED
from tests.dpsgd.record.recorded_runs import candidates, data, loop, recorded

pytestmark = IGNORED
ROWS = 40


def _data() -> TensorDataset:
    return TensorDataset(*data())


def _prepared(loader: DataLoader[Any], *, poisson: bool = False) -> Any:
    torch.manual_seed(0)
    plain = nn.Linear(5, 3)
    return PrivacyEngine(accountant="rdp").make_private(
        module=plain, optimizer=torch.optim.SGD(plain.parameters(), lr=0.1), data_loader=loader,
        noise_multiplier=1.5, max_grad_norm=0.4, poisson_sampling=poisson,
    )  # fmt: skip


def _step(module: Any, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(module(x), y).backward()
    optimizer.step()


def _recorder(optimizer: Any, **settings: Any) -> Any:
    return leakcore.record(optimizer, candidates=candidates(), criterion=nn.CrossEntropyLoss(), **settings)


def _sampling(loader: DataLoader[Any], *, poisson: bool = False, epochs: int = 2) -> Sampling:
    module, optimizer, loader = _prepared(loader, poisson=poisson)
    with _recorder(optimizer) as recorder:
        for _ in range(epochs):
            for x, y in loader:
                _step(module, optimizer, x, y)
    sampling: Sampling = recorder.trace().sampling
    return sampling


class _Weird(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([0, 0, 1, 2] * 10)

    def __len__(self) -> int:
        return ROWS


class _Shuffling(RandomSampler):
    """A subclass, which may draw in any way."""


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(_data())

    def __len__(self) -> int:
        return ROWS


def _sampled_by(sampler: Any, **settings: Any) -> DataLoader[Any]:
    return DataLoader(_data(), batch_size=8, sampler=sampler, **settings)


def _share(**settings: Any) -> DistributedSampler[Any]:
    return DistributedSampler(_data(), num_replicas=2, rank=1, **settings)


def test_poisson_sampling_is_named_by_its_sampler() -> None:
    sampling = _sampling(DataLoader(_data(), batch_size=8), poisson=True)
    assert (sampling.scheme, sampling.sample_rate, sampling.dataset_size) == ("poisson", 0.2, ROWS)
    assert sampling.evidence == "UniformWithReplacementSampler(sample_rate=0.2) over 40 rows"
    own = DPDataLoader(_data(), sample_rate=0.3)
    assert _sampling(own).sample_rate == 0.3, "the loader's own rate, not that of Opacus's hook, 1/3"
    by_hand = DataLoader(_data(), batch_sampler=UniformWithReplacementSampler(num_samples=ROWS, sample_rate=0.25))
    assert _sampling(by_hand).scheme == "poisson"


def test_opacus_distributed_sampler_is_poisson(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    sampler = DistributedUniformWithReplacementSampler(total_size=ROWS, sample_rate=0.5)
    sampling = _sampling(DataLoader(_data(), batch_sampler=sampler))
    assert (sampling.scheme, sampling.sample_rate, sampling.dataset_size) == ("poisson", 0.5, ROWS)


@pytest.mark.full(keep=6)
@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        (lambda: DataLoader(_data(), batch_size=8, shuffle=True), {"fresh": True}),
        (lambda: DataLoader(_data(), batch_size=7, shuffle=True), {"batch_size": 7, "batches": 6, "fresh": True}),
        (lambda: DataLoader(_data(), batch_size=7, shuffle=True, drop_last=True),
         {"batch_size": 7, "all_rows": False, "fresh": True}),
        (lambda: DataLoader(_data(), batch_size=8), {}),
        (lambda: DataLoader(_data(), batch_size=40, shuffle=True),
         {"scheme": "full-batch", "batch_size": 40, "batches": 1, "fresh": True}),
        (lambda: DataLoader(_data(), batch_size=64), {"scheme": "full-batch", "batch_size": 40, "batches": 1}),
        (lambda: DataLoader(_data(), batch_size=30, shuffle=True, drop_last=True),
         {"scheme": "fixed-size", "batch_size": 30, "batches": 1, "all_rows": False, "fresh": True}),
        (lambda: _sampled_by(RandomSampler(_data(), num_samples=8)),
         {"scheme": "fixed-size", "batches": 1, "all_rows": False, "fresh": True}),
        (lambda: _sampled_by(RandomSampler(_data(), num_samples=24)),
         {"batches": 3, "all_rows": False, "fresh": True}),
        (lambda: DataLoader(_data(), batch_size=30, drop_last=True),
         {"batch_size": 30, "batches": 1, "all_rows": False}),
        (lambda: _sampled_by(SubsetRandomSampler(range(16))), {"dataset_size": 16, "batches": 2, "fresh": True}),
        (lambda: _sampled_by(_share()), {"batch_size": 16, "batches": 3}),
        (lambda: DataLoader(_data(), batch_sampler=BatchSampler(SequentialSampler(_data()), 8, False)), {}),
    ],
)  # fmt: skip
def test_what_cuts_the_rows_is_shuffled(loader: Callable[[], DataLoader[Any]], expected: dict[str, Any]) -> None:
    sampling = _sampling(loader())
    usual = {
        "scheme": "shuffled", "batch_size": 8, "dataset_size": ROWS, "batches": 5, "all_rows": True, "fresh": False,
        "passes": 2, "sample_rate": None, "violation": "", "left_out": 0,
    }  # fmt: skip
    said = dataclasses.asdict(sampling)
    assert said.pop("evidence").startswith("BatchSampler(")
    assert said == {**usual, **expected}


@pytest.mark.full(keep=5)
@pytest.mark.parametrize(
    ("loader", "why"),
    [
        (lambda: _sampled_by(WeightedRandomSampler(np.linspace(1, 2, ROWS).tolist(), ROWS)), "drawn by weights"),
        (lambda: _sampled_by(RandomSampler(_data(), replacement=True)), "drawn with replacement"),
        (lambda: _sampled_by(RandomSampler(_data(), num_samples=48)), "48 rows of 40 a pass"),
        (lambda: _sampled_by(SubsetRandomSampler([0, 1, 1, 2])), "its indices hold a row several times"),
        (lambda: _sampled_by(_Weird()), "how _Weird draws is not known"),
        (lambda: _sampled_by(_Shuffling(_data())), "how _Shuffling draws is not known"),
        (lambda: DataLoader(_data(), batch_sampler=[[0, 1, 2], [2, 3, 4]]), "batch sampler is a list"),
        (lambda: DataLoader(_Stream(), batch_size=8), r"the data set is a stream \(_Stream\)"),
        (lambda: _sampled_by(DistributedSampler(_data(), num_replicas=3, rank=0)), "do not divide by 3 processes"),
    ],
)  # fmt: skip
def test_other_samplers_are_not_named_and_the_trace_says_why(loader: Callable[[], DataLoader[Any]], why: str) -> None:
    sampling = _sampling(loader())
    assert not sampling.is_known
    assert why.replace("\\", "") in sampling.evidence


def test_parts_of_batches_are_the_batches_behind_them() -> None:
    module, optimizer, loader = _prepared(DataLoader(_data(), batch_size=8, shuffle=True))
    with _recorder(optimizer) as recorder:
        for _ in range(2):
            with BatchMemoryManager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as parts:
                for x, y in parts:
                    _step(module, optimizer, x, y)
    sampling = recorder.trace().sampling
    assert (sampling.scheme, sampling.batches, sampling.passes, recorder.steps) == ("shuffled", 5, 2, 10)


def test_passes_count_epochs_that_a_loop_cuts_short() -> None:
    module, optimizer, loader = _prepared(DataLoader(_data(), batch_size=8, shuffle=True))
    with _recorder(optimizer) as recorder:
        for _ in range(4):
            for x, y in loader:
                _step(module, optimizer, x, y)
                break
    assert (recorder.steps, recorder.trace().sampling.passes) == (4, 4)


@pytest.mark.parametrize("changed", [False, True])
def test_an_evaluation_between_steps_is_not_what_was_trained_on(changed: bool) -> None:
    """With inputs that change on the way nobody can tell which of two loaders a batch came from."""
    other = DataLoader(TensorDataset(*candidates()), batch_size=4)
    module, optimizer, loader = _prepared(DataLoader(_data(), batch_size=8, shuffle=True))
    with _recorder(optimizer, members=np.arange(11) < 6) as recorder:
        for x, y in loader:
            _step(module, optimizer, x + 0.25 * changed, y)
            module.eval()
            for x, _ in other:
                module(x)
            module.train()
    sampling = recorder.trace().sampling
    assert sampling.scheme == ("unknown" if changed else "shuffled")
    assert not changed or "changed in the loop while several loaders ran" in sampling.evidence


def test_inputs_that_change_on_the_way_are_followed_where_one_loader_runs() -> None:
    module, optimizer, loader = _prepared(DataLoader(_data(), batch_size=8, shuffle=True))
    with _recorder(optimizer, members=np.arange(11) < 6) as recorder:
        for x, y in loader:
            _step(module, optimizer, x.flip(1) + 1.0, y)
    assert (recorder.trace().sampling.scheme, recorder.trace().sampling.passes) == ("shuffled", 1)


def test_a_batch_that_is_used_twice_is_not_what_the_loader_does() -> None:
    module, optimizer, loader = _prepared(DataLoader(_data(), batch_size=8, shuffle=True))
    with _recorder(optimizer) as recorder:
        for x, y in loader:
            _step(module, optimizer, x, y)
            _step(module, optimizer, x, y)
    sampling = recorder.trace().sampling
    assert "a batch used twice" in sampling.evidence
    assert sampling.violation == "sampling"


def test_a_loop_of_its_own_is_not_named_unless_it_says_so() -> None:
    x, y = data()
    for stated in (None, 0.2):
        module, optimizer, _ = _prepared(DataLoader(_data(), batch_size=8), poisson=True)
        with _recorder(optimizer, sampling=stated) as recorder:
            for _ in range(3):
                rows = torch.rand(ROWS) < 0.2
                _step(module, optimizer, x[rows], y[rows])
        sampling = recorder.trace().sampling
        assert sampling.scheme == ("unknown" if stated is None else "poisson")
    assert sampling.evidence == "the caller says so: sampling=0.2"


def test_a_rate_that_the_loader_contradicts_is_not_believed() -> None:
    module, optimizer, loader = _prepared(DataLoader(_data(), batch_size=8, shuffle=True))
    with _recorder(optimizer, sampling=0.2) as recorder:
        for x, y in loader:
            _step(module, optimizer, x, y)
    assert recorder.trace().sampling.evidence.startswith("the caller says Poisson at q = 0.2, and steps were fed by")


def test_a_loader_that_is_named_must_have_fed_the_steps() -> None:
    """It tells its batches from batches of other loaders, also where they are changed on the way."""
    other = DataLoader(TensorDataset(*candidates()), batch_size=8)
    for source in ("changed", "its sampler", "another"):
        module, optimizer, loader = _prepared(DataLoader(_data(), batch_size=8, shuffle=True))
        x, y = data()
        batches: Any = {"changed": loader, "its sampler": loader.batch_sampler, "another": other}[source]
        with _recorder(optimizer, sampling=loader, members=np.arange(11) < 6) as recorder:
            for batch in batches:
                if source == "its sampler":
                    _step(module, optimizer, x[batch], y[batch])
                    continue
                _step(module, optimizer, batch[0] + 0.25, batch[1])
                module.eval()
                for rows, _ in other:
                    module(rows)
                module.train()
        sampling = recorder.trace().sampling
        assert sampling.scheme == ("shuffled" if source == "changed" else "unknown"), source
        assert source == "changed" or "not one that the DataLoader of sampling= gave" in sampling.evidence
    with pytest.raises(TypeError, match="sampling"):
        _recorder(optimizer, sampling="shuffled")


def test_steps_that_accumulate_all_batches_are_full_batches() -> None:
    module, optimizer, loader = _prepared(DataLoader(_data(), batch_size=8, shuffle=True))
    with _recorder(optimizer) as recorder:
        for _ in range(2):
            optimizer.zero_grad()
            for x, y in loader:
                nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
    sampling = recorder.trace().sampling
    assert (sampling.scheme, sampling.batch_size) == ("full-batch", ROWS)
    assert sampling.evidence.startswith("all 5 batches of BatchSampler(RandomSampler")


def test_torch_is_put_back_and_two_recorders_can_listen() -> None:
    own = dataloader._BaseDataLoaderIter.__next__
    module, optimizer, loader = _prepared(DataLoader(_data(), batch_size=8, shuffle=True))
    with _recorder(optimizer) as outer, _recorder(optimizer) as inner:
        for x, y in loader:
            _step(module, optimizer, x, y)
    assert inner.trace().sampling == outer.trace().sampling
    assert inner.trace().sampling.scheme == "shuffled"
    assert dataloader._BaseDataLoaderIter.__next__ is own


def _parts() -> list[Trace]:
    module, optimizer, loader = _prepared(DataLoader(_data(), batch_size=8, shuffle=True))
    parts = []
    for _ in range(2):
        with _recorder(optimizer, members=np.arange(11) < 6) as recorder:
            for x, y in loader:
                _step(module, optimizer, x, y)
        parts.append(recorder.trace())
    return parts


def test_parts_of_a_run_add_their_passes_and_must_agree(tmp_path: Any) -> None:
    first, later = _parts()
    assert joined(first, later).sampling == dataclasses.replace(first.sampling, passes=2)
    poisson = Sampling(scheme="poisson", sample_rate=0.2, evidence="another")
    other = joined(first, dataclasses.replace(later, sampling=poisson)).sampling
    assert other.evidence.startswith("the parts of the run were sampled in different ways")
    first.save(tmp_path / "t.npz")
    assert Trace.load(tmp_path / "t.npz").sampling == first.sampling
    for wrong in (
        {"batches": None}, {"batches": 0}, {"scheme": "poisson"}, {"passes": -1}, {"sample_rate": 1.5},
        {"scheme": "fixed-size", "batch_size": 41},
    ):  # fmt: skip
        broken = dataclasses.replace(first, sampling=dataclasses.replace(first.sampling, **wrong))
        broken.save(tmp_path / "t.npz")
        with pytest.raises(ValueError, match=r"sampling|scheme"):
            Trace.load(tmp_path / "t.npz")
    with pytest.raises(ValueError, match="`scheme` must be 'poisson'"):
        dataclasses.replace(first.sampling, scheme="any")


def _sized(rows: list[int], q: float | None = 0.2, expected: float | None = 8.0) -> Trace:
    return dataclasses.replace(
        _recorded_once(), batch_rows=np.array(rows), sample_rate=q, expected_batch_size=expected,
        noise_multiplier=np.ones(len(rows)), max_grad_norm=np.ones(len(rows)),
    )  # fmt: skip


@functools.cache
def _recorded_once() -> Trace:
    return recorded(nn.CrossEntropyLoss())


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("epochs", [2, 4])
@pytest.mark.parametrize(("poisson", "rows"), [(True, 40), (False, 40), (False, 37)])
def test_shuffled_batches_are_told_from_poisson_samples(poisson: bool, rows: int, epochs: int) -> None:
    """With 37 rows each epoch's last batch is short. 10 steps are enough for 40 rows: 0.156^9 = 5e-8."""
    torch.manual_seed(0)
    x, y = (t[:rows] for t in data())
    plain = nn.Linear(5, 3)
    module, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
        module=plain, optimizer=torch.optim.SGD(plain.parameters(), lr=0.5), poisson_sampling=poisson,
        data_loader=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8, shuffle=True),
        noise_multiplier=1.5, max_grad_norm=0.4,
    )  # fmt: skip
    with (
        leakcore.record(optimizer, candidates=candidates()) as recorder,
        BatchMemoryManager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as parts,
    ):
        loop(module, optimizer, parts, nn.CrossEntropyLoss(), epochs)
    said = recorder.trace().not_poisson
    if poisson:
        assert said == ""
    elif rows == 40:
        assert said.startswith(f"all {5 * epochs} batches have 8 rows, as Poisson sampling at q = 0.2 would")
    else:
        assert said.startswith("16 of 20 batches have 8 rows") == (epochs == 4)


def test_nothing_is_said_of_batches_that_poisson_sampling_may_give() -> None:
    assert _sized([8] * 10).not_poisson
    assert not _sized([8] * 5).not_poisson
    assert not _sized([8] * 10, q=1.0).not_poisson
    assert not _sized([8] * 10, q=None).not_poisson
    assert not _sized([8] * 10, q=0.0).not_poisson
    assert not _sized([8] * 10, expected=None).not_poisson
    assert not _sized([0] * 10).not_poisson  # inputs other than tensors are not counted
    assert not _sized([1] * 1000, q=1 - 1e-9, expected=1.0).not_poisson
    assert not _sized([8] * 10, q=5e-324, expected=2.0**53 - 1).not_poisson
    assert _sized([8] * 9 + [5, 8, 8]).not_poisson.startswith("11 of 12 batches")


@pytest.mark.parametrize(("rows", "q", "steps"), [(40, 0.2, 12), (3, 0.3, 60), (10_000, 1e-3, 15)])
def test_the_probability_is_no_less_than_poisson_sampling_has(
    rows: int, q: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 20% in place of 1e-6, over 2,000 runs: no more than 20% are refused."""
    monkeypatch.setattr(_trace, "_CHANCE", 0.2)
    rng = np.random.default_rng(0)
    drawn = rng.binomial(rows, q, size=(2000, steps))
    said = [_sized(list(run), q, rows * q).not_poisson != "" for run in drawn]
    assert np.mean(said) < 0.2 + 3 * np.sqrt(0.16 / 2000)
