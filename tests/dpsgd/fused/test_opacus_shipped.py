"""Opacus's own tests of its optimizer, as its package ships them, with FusedDPOptimizer in DPOptimizer's place."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import types
import unittest
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch.utils.data import Dataset

pytest.importorskip("opacus")
from opacus import privacy_engine
from opacus.optimizers import DPOptimizer, get_optimizer_class

from leakcore.dpsgd import FusedDPOptimizer

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


NOT_OURS = {
    "test_per_layer_clipping": "per-layer clipping is another optimizer's, and refused by ours",
    "test_sample_grad_aggregation": "sums p.grad_sample, which of known layers holds no rows",
    "test_noise_level of PrivacyEngineCustomLayer": "160 squared draws, 15% from their mean: 18% of all seeds miss",
    "test_make_private_with_epsilon of Text": "takes steps for rows (batch_first is not told), which ours refuses",
    "test_grad_sample_accumulation": "no DPOptimizer",
    "test_get_compatible_module_inaction": "no DPOptimizer",
    "test_model_validator": "no DPOptimizer: make_private refuses the model",
    "test_parameters_match": "no DPOptimizer: make_private refuses the parameters",
    "test_model_validator_after_fix": "no step, and needs torchvision's models",
    "test_validator_weight_update_check": "no step, and needs torchvision's models",
    "test_empty_batch": "has no body",
    "DataLoaderRandomnessTest": "no DPOptimizer",
    "DataLoaderSwitchRandomnessTest": "no DPOptimizer",
}
"""What does not apply, by the name of a test, a class, or both, and why."""

QUICK = (
    "randomness_test",
    "gradient_accumulation_test",
    "batch_memory_manager_test",
    "noise_scheduler_test",
    "grad_clip_scheduler_test",
    "PrivacyEngineConvNetTest",
)
"""The same tests with other models and other ways of making gradients are slow ones."""


def _applies(name: str) -> bool:
    _, kind, test = name.rsplit(".", 2)
    return not any(
        pattern in (kind, test)
        or (" of " in pattern and test == pattern.split(" of ")[0] and pattern.split()[-1] in kind)
        for pattern in NOT_OURS
    )


CASES = {name: case for name, case in collected(examples=3).items() if _applies(name)}


class Counted(FusedDPOptimizer):
    created = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        Counted.made += 1
        super().__init__(*args, **kwargs)


def _class(**arguments: Any) -> Any:
    optimizer_class = get_optimizer_class(**arguments)
    return Counted if optimizer_class is DPOptimizer else optimizer_class


@pytest.mark.full(keep=3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if any(part in QUICK for part in name.split(".")) else pytest.mark.slow)
        for name in CASES
    ],
)
def test_theirs_passes_with_ours(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy_engine, "get_optimizer_class", _class)
    monkeypatch.setattr("opacus.tests.randomness_test.DPOptimizer", Counted)
    Counted.made = 0
    result = unittest.TestResult()
    CASES[name].run(result)
    assert not [problem for _, problem in (*result.errors, *result.failures)]
    assert Counted.made > 0


def test_all_that_applies_of_opacus_1_6_is_run() -> None:
    from importlib.metadata import version

    if version("opacus") == "1.6.0":
        assert len(CASES) == 148
