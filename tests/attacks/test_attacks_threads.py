"""Several threads may attack one model at once: it stays whole, and every answer is the one of a single thread."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from leakcore import defenses, leakage  # noqa: E402
from leakcore.attacks import attributes, inversion, labels  # noqa: E402
from leakcore.gradients.flat_module import FlatModule  # noqa: E402
from leakcore.gradients.functional import lock_of  # noqa: E402


def _last(model: Any, x: Any, y: Any) -> Any:
    return labels.last_layer(labels.KnownModel(model, x), torch.ones(2, 64), noise=labels.Noise(0)).residuals


def _general(model: Any, x: Any, y: Any) -> Any:
    return labels.general(labels.KnownModel(model, x[:3]), torch.ones(2, 64), parameters="2.weight").residuals


def _layers(model: Any, x: Any, y: Any) -> Any:
    return np.concatenate(list(attributes.layer_gradients(model, x, y).values()), 1)


def _gradient(model: Any, x: Any, y: Any) -> Any:
    return inversion.gradient(model, x, y)


def _l1(model: Any, x: Any, y: Any) -> Any:
    return leakage.l1_sensitivity(model, x, y).norms


def _jacobian(model: Any, x: Any, y: Any) -> Any:
    return leakage.sensitivity(model, x[:2], y[:2]).value


def _original(model: Any, x: Any, y: Any) -> Any:
    return leakage.v_information_original(model, x[:2], y[:2], inversion=leakage.PairInversion(iterations=3)).raw


def _dropout(model: Any, x: Any, y: Any) -> Any:
    return defenses.release(model, x, y, defense=defenses.Dropout(0.5), seed=1).gradient


@pytest.mark.full(keep=2)
@pytest.mark.parametrize("attack", [_last, _general, _layers, _gradient, _l1, _jacobian, _original, _dropout])
def test_model_with_threads(attack: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    parameters = [model[0].weight, model[0].bias, model[2].weight, model[2].bias]
    batches = [(torch.randn(8, 30), torch.randint(0, 2, (8,))) for _ in range(16)]
    alone = [np.asarray(attack(model, *batch)) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda batch: np.asarray(attack(model, *batch)), batches))
    now = [model[0].weight, model[0].bias, model[2].weight, model[2].bias]
    assert all(a is b for a, b in zip(parameters, now, strict=True))
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model)
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)


def test_lock_of_a_model() -> None:
    model = torch.nn.Linear(3, 2)
    assert lock_of(model) is lock_of(model)
    assert lock_of(model) is not lock_of(copy.deepcopy(model))
    flat = FlatModule(model)
    again = pickle.loads(pickle.dumps(flat))  # noqa: S301
    x = torch.ones(1, 3)
    assert torch.equal(flat.outputs(flat.theta, x), again.outputs(again.theta, x))
