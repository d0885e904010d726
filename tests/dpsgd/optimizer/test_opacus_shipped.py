"""Opacus's own tests of its optimizer, as its package ships them, with FusedDPOptimizer in DPOptimizer's place."""

from __future__ import annotations

import unittest
from typing import Any

import pytest

pytest.importorskip("opacus")
from opacus import privacy_engine
from opacus.optimizers import DPOptimizer, get_optimizer_class

from leakcore.dpsgd import FusedDPOptimizer
from tests.dpsgd.optimizer.opacus_shipped import collected

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
