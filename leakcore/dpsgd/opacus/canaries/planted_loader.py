"""A DataLoader of Poisson samples with more rows: copies of its own, which its sampler draws like all others."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset


class PlantedDataset:
    """A data set followed by copies of its rows; in all else it is the data set itself, its length included."""

    def __init__(self, dataset: Any, copies: int) -> None:
        self.dataset, self.copies = dataset, copies

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self._own(index)]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        own = [self._own(i) for i in indices]
        several = getattr(self.dataset, "__getitems__", None)
        return several(own) if several is not None else [self.dataset[i] for i in own]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def _own(self, index: int) -> int:
        return index % len(self.dataset)


class PlantedLoader:
    """A loader of Opacus's, between `plant` and `remove` with more rows in its data set and for its sampler.

    Args:
        loader: what `make_private` returned, or a `BatchMemoryManager`'s.

    Raises:
        TypeError: for anything but a DataLoader.
        ValueError: unless its batches are Poisson samples of a data set with rows by number.
    """

    def __init__(self, loader: Any) -> None:
        from opacus.utils.batch_memory_manager import BatchSplittingSampler
        from opacus.utils.uniform_sampler import UniformWithReplacementSampler

        if not isinstance(loader, DataLoader):
            raise TypeError(
                f"`sampling` must be the DataLoader that the loop iterates over, got {type(loader).__name__}"
            )
        if isinstance(loader.dataset, IterableDataset):
            raise ValueError("`sampling` must have a data set with rows by number, got a stream")
        if isinstance(loader.dataset, PlantedDataset):
            raise ValueError("`sampling` must not hold canaries already: another recording has planted some")
        sampler: Any = loader.batch_sampler
        if type(sampler) is BatchSplittingSampler:
            sampler = sampler.sampler
        if type(sampler) is not UniformWithReplacementSampler:
            raise ValueError(
                "`sampling` must draw Poisson samples (make_private(..., poisson_sampling=True)), got batches of "
                f"{type(sampler).__name__}"
            )
        if not getattr(loader, "in_order", True):
            raise ValueError("`sampling` must give batches in the order in which they were drawn, got in_order=False")
        if sampler.num_samples != len(loader.dataset):  # type: ignore[arg-type]
            raise ValueError(
                f"`sampling` must sample all {len(loader.dataset):,} rows of its data set, "  # type: ignore[arg-type]
                f"got {sampler.num_samples:,}"
            )
        self._loader, self._sampler, self._dataset = loader, sampler, loader.dataset
        self.rows = int(sampler.num_samples)
        self.sample_rate = float(sampler.sample_rate)
        self.planted: PlantedDataset | None = None

    def plant(self, copies: int) -> None:
        """Add this number of rows."""
        if getattr(self._loader, "_iterator", None) is not None:
            raise ValueError("`sampling` must not have workers yet, got one with persistent workers that were started")
        self.planted = PlantedDataset(self._dataset, copies)
        self._loader.__dict__["dataset"] = self.planted  # its own setter refuses another data set
        self._sampler.num_samples = self.rows + copies

    def remove(self) -> None:
        """Restore the loader."""
        self._loader.__dict__["dataset"] = self._dataset
        self._sampler.num_samples = self.rows
        self.planted = None
