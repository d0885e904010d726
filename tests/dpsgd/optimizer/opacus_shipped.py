"""The tests that Opacus ships of its optimizer, read from the installed package."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import types
import unittest
from collections.abc import Iterator
from typing import Any

import torch
from hypothesis import settings
from torch.utils.data import Dataset

MODULES = (
    "randomness_test",
    "gradient_accumulation_test",
    "batch_memory_manager_test",
    "privacy_engine_test",
    "schedulers.noise_scheduler_test",
    "schedulers.grad_clip_scheduler_test",
)
"""Those whose tests step with a `DPOptimizer`, and need no second GPU and no CUDA."""


class _FakeData(Dataset[Any]):
    """torchvision's data set of noise, as its transforms leave it: the one thing these tests take from that package."""

    def __init__(self, size: int, image_size: tuple[int, ...], num_classes: int, transform: Any) -> None:
        self.size, self.image_size, self.num_classes = size, image_size, num_classes

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index >= self.size:
            raise IndexError(index)
        generator = torch.Generator().manual_seed(index)
        image = (torch.rand(self.image_size, generator=generator) - 0.1307) / 0.3081
        return image, int(torch.randint(self.num_classes, (), generator=generator))


@contextlib.contextmanager
def _torchvision() -> Iterator[None]:
    """Something by this name while the modules are imported, where it is not installed."""
    if importlib.util.find_spec("torchvision") is not None:
        yield
        return
    whole: Any = types.ModuleType("torchvision")
    whole.datasets = types.ModuleType("torchvision.datasets")
    whole.datasets.FakeData = _FakeData
    whole.models = types.SimpleNamespace()
    whole.transforms = types.SimpleNamespace(Compose=list, ToTensor=int, Normalize=lambda mean, std: None)
    stand_ins = {"torchvision": whole, "torchvision.datasets": whole.datasets}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name in stand_ins:
            del sys.modules[name]


def collected(examples: int) -> dict[str, unittest.TestCase]:
    """Their test cases by name; hypothesis draws `examples` each, the same ones every time. Empty where they are not
    shipped. Without those that Opacus itself skips."""
    before = settings.get_current_profile_name()
    settings.register_profile("shipped", max_examples=examples, derandomize=True, database=None, deadline=None)
    settings.load_profile("shipped")
    try:
        with _torchvision():
            modules = [importlib.import_module(f"opacus.tests.{name}") for name in MODULES]
    except ModuleNotFoundError:
        return {}
    finally:
        settings.load_profile(before)
    cases = {}
    for module in modules:
        for case in _flat(unittest.defaultTestLoader.loadTestsFromModule(module)):
            if _skipped(type(case)) or _skipped(getattr(case, case._testMethodName)):
                continue
            cases[case.id().removeprefix("opacus.tests.")] = case
    return cases


def _skipped(what: object) -> bool:
    return bool(getattr(what, "__unittest_skip__", False))


def _flat(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from _flat(item)
        else:
            yield item
