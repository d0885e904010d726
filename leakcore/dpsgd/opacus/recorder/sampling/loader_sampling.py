"""What a DataLoader's sampler does to a row: the scheme, or why none of the known ones describes it."""

from __future__ import annotations

from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from leakcore.dpsgd.trace.trace import Sampling, unknown


def sampling_of_loader(loader: DataLoader[Any]) -> Sampling:
    """The scheme of a loader that the caller names."""
    if isinstance(loader.dataset, IterableDataset):
        return _of_stream(loader.dataset)
    if loader.batch_sampler is None:
        return unknown("the DataLoader has batch_size=None, so that the loop or the data set makes the batches")
    return sampling_of_batches(loader.batch_sampler)


def sampling_of_iterator(iterator: Any) -> Sampling:
    """The scheme of the loader to which this iterator of torch's belongs."""
    if isinstance(iterator._dataset, IterableDataset):
        return _of_stream(iterator._dataset)
    if not iterator._auto_collation:
        return unknown("the DataLoader has batch_size=None, so that the loop or the data set makes the batches")
    return sampling_of_batches(iterator._index_sampler)


def is_of(iterator: Any, loader: DataLoader[Any]) -> bool:
    """Whether this iterator of torch's draws by the sampler of that loader, whole batches or parts."""
    own = _batch_sampler(iterator)
    return own is loader.batch_sampler or own is getattr(loader.batch_sampler, "sampler", loader.batch_sampler)


def is_divided(iterator: Any) -> bool:
    """Whether the sampler of the loader to which this iterator of torch's belongs draws from the share of a process."""
    from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler

    batches = _batch_sampler(iterator)
    rows = getattr(batches, "sampler", None)
    return isinstance(batches, DistributedUniformWithReplacementSampler) or isinstance(rows, DistributedSampler)


def draws_by_torch(iterator: Any) -> bool:
    """Whether that sampler draws by torch's own generator."""
    return getattr(_batch_sampler(iterator), "generator", None) is None


def _batch_sampler(iterator: Any) -> Any:
    from opacus.utils.batch_memory_manager import BatchSplittingSampler

    batches: Any = getattr(iterator, "_index_sampler", None)
    return batches.sampler if type(batches) is BatchSplittingSampler else batches


def sampling_of_batches(batches: Any) -> Sampling:
    """The scheme of a batch sampler. Types are compared exactly: a subclass may draw in another way."""
    from opacus.utils.batch_memory_manager import BatchSplittingSampler
    from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler

    if type(batches) is BatchSplittingSampler:  # parts of the batches behind it
        return sampling_of_batches(batches.sampler)
    if type(batches) is UniformWithReplacementSampler:
        return _poisson(batches, batches.num_samples)
    if type(batches) is DistributedUniformWithReplacementSampler:
        return _poisson(batches, batches.total_size)
    if type(batches) is BatchSampler:
        return _of_rows(batches)
    return unknown(f"the batch sampler is a {type(batches).__name__}, whose way of drawing is not known")


def _of_stream(dataset: Any) -> Sampling:
    return unknown(f"the data set is a stream ({type(dataset).__name__}), which decides the order of its rows itself")


def _poisson(sampler: Any, rows: int) -> Sampling:
    q = float(sampler.sample_rate)
    return Sampling(
        scheme="poisson",
        sample_rate=q,
        batch_size=round(q * rows),
        dataset_size=rows,
        evidence=f"{type(sampler).__name__}(sample_rate={q:.6g}) over {rows:,} rows",
    )


def _of_rows(batches: BatchSampler) -> Sampling:
    """The scheme of batches that are cut from the order of a sampler of rows."""
    sampler: Any = batches.sampler
    name = f"BatchSampler({type(sampler).__name__}, batch_size={batches.batch_size}, drop_last={batches.drop_last})"
    if type(sampler) is WeightedRandomSampler:
        return unknown(f"{name}: rows are drawn by weights, so that each has a rate of its own, up to several times")
    if type(sampler) is RandomSampler:
        total = len(sampler.data_source)
        if sampler.replacement:
            return unknown(f"{name}: rows are drawn with replacement, so that one can be in a batch several times")
        if sampler.num_samples > total:
            return unknown(f"{name}: {sampler.num_samples} rows of {total} a pass, so that some come several times")
        return _cut(batches, name, total, shuffles=True)
    if type(sampler) is SequentialSampler:
        return _cut(batches, name, len(sampler.data_source), shuffles=False)
    if type(sampler) is SubsetRandomSampler:
        if len({int(i) for i in sampler.indices}) < len(sampler.indices):
            return unknown(f"{name}: its indices hold a row several times")
        return _cut(batches, name, len(sampler.indices), shuffles=True)
    if type(sampler) is DistributedSampler:
        total, shares = len(sampler.dataset), sampler.num_replicas  # type: ignore[arg-type]
        if sampler.total_size > total:
            return unknown(
                f"{name}: {total:,} rows do not divide by {shares} processes, and some come twice in an epoch to fill "
                "up; use drop_last=True"
            )
        return _cut(batches, f"{name}, a share of each of {shares} processes", total, shuffles=False, shares=shares)
    return unknown(f"{name}: how {type(sampler).__name__} draws is not known")


def _cut(batches: BatchSampler, name: str, total: int, *, shuffles: bool, shares: int = 1) -> Sampling:
    """Each row is in at most one batch of a pass. A distributed sampler's order is fresh only if its epoch is set."""
    per_pass = len(batches)
    size = min(batches.batch_size, len(batches.sampler)) * shares  # type: ignore[arg-type]
    if per_pass == 0 or total == 0:
        return unknown(f"{name}: holds no batch")
    used = (batches.batch_size * per_pass if batches.drop_last else len(batches.sampler)) * shares  # type: ignore[arg-type]
    scheme: Any = "shuffled"
    if per_pass == 1 and used == total:
        scheme = "full-batch"
    elif per_pass == 1 and shuffles:
        scheme = "fixed-size"
    return Sampling(
        scheme=scheme,
        batch_size=size,
        dataset_size=total,
        batches=per_pass,
        all_rows=used == total,
        fresh=shuffles,
        evidence=f"{name} over {total:,} rows",
    )
