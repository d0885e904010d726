"""Attribute inference: gradients by layer, matched and disjoint batches, an attribute that shows and one hidden."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from leakcore.attacks import attributes


def _net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5), nn.Tanh(), nn.Linear(5, 3))


def test_layer_gradients():
    model = _net()
    x, y = torch.rand(5, 1, 6, 6), torch.tensor([0, 1, 2, 1, 0])
    result = attributes.layer_gradients(model, x, y)
    batches = np.array([[0, 3], [4, 1]])
    meant = attributes.layer_gradients(model, x, y, batches=batches, layers=["3"])
    shaped = attributes.layer_gradients(model, x, y, weights_only=True)
    assert list(result) == ["0", "3", "5"]
    assert list(meant) == ["3"]
    assert shaped["0"].shape == (5, 2, 1, 3, 3)
    for i in range(5):
        model.zero_grad()
        nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        for name in result:
            own = torch.cat([p.grad.flatten() for p in model[int(name)].parameters()])
            np.testing.assert_allclose(result[name][i], own.numpy(), rtol=1e-5, atol=1e-7)
            np.testing.assert_allclose(shaped[name][i], model[int(name)].weight.grad.numpy(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(meant["3"], result["3"][batches].mean(axis=1), rtol=1e-5, atol=1e-7)


def test_matched_batches():
    rng = np.random.default_rng(0)
    task = rng.integers(0, 4, 500)
    has = rng.random(500) < 0.2 + 0.15 * task  # the attribute goes with the task, which must not help
    result = attributes.matched_batches(has, task, size=3, seed=1)
    assert len(np.unique(result.rows)) == result.rows.size
    assert result.attribute.mean() == 0.5
    assert (has[result.rows] == result.attribute[:, None]).all()
    assert (task[result.rows] == result.targets[:, None]).all()
    for target in range(4):
        sides = result.attribute[result.targets == target]
        assert sides.mean() == 0.5
    few = attributes.matched_batches(has, task, size=3, limit=7, seed=1)
    assert few.rows.shape == (14, 3)
    assert few.rows.tolist() == attributes.matched_batches(has, task, size=3, limit=7, seed=1).rows.tolist()


def _sets(shift, seed=3, snapshots=2, limit=60):
    """An attribute that brightens the picture by `shift`, half of the rows for the attacker."""
    rng = np.random.default_rng(seed)
    has = rng.random(800) < 0.5
    x = torch.from_numpy(rng.random((800, 1, 6, 6)) + shift * has[:, None, None, None]).float()
    y = torch.from_numpy(rng.integers(0, 3, 800))
    models = [_net(i) for i in range(snapshots)]
    halves = []
    for part in (slice(0, 400), slice(400, 800)):
        batches = attributes.matched_batches(has[part], y[part].numpy(), size=2, limit=limit, seed=seed)
        halves.append(attributes.gradient_sets(models, x[part], y[part], batches))
    return halves


def test_attribute_inference():
    known, observed = _sets(1.0)
    assert known.gradients["0"].shape == (240, 20)
    assert known.joined().shape[1] == 20 + 165 + 18
    result = attributes.infer(known, observed, trees=40)
    assert result.chance == 0.5
    assert result.interval[0] > 0.8
    assert result.auc > 0.9
    assert result.batches == 120
    assert result.value == pytest.approx((result.named == result.attribute).mean())
    # 120 fair coins: outside the 99.9% interval with p ≤ 0.001.
    blind = attributes.infer(*_sets(0.0), trees=40, confidence=0.999)
    assert blind.interval[0] < 0.5 < blind.interval[1]


def test_one_layer_alone():
    known, observed = _sets(1.0, snapshots=1)
    last = attributes.infer(known, observed, layers=["5"], trees=20)
    assert "5" in last.method
    assert 0 <= last.value <= 1


def test_batch_numbers():
    known, observed = _sets(1.0, limit=20)
    chosen = observed.batch % 3 > 0
    part = dataclasses.replace(
        observed,
        gradients={name: g[chosen] for name, g in observed.gradients.items()},
        attribute=observed.attribute[chosen], batch=7 * observed.batch[chosen] - 50,
    )  # fmt: skip
    whole, some = (attributes.infer(known, sets, trees=20) for sets in (observed, part))
    numbers = np.unique(observed.batch[chosen])
    assert some.batches == len(numbers)
    np.testing.assert_array_equal(some.scores, whole.scores[numbers])
    np.testing.assert_array_equal(some.attribute, whole.attribute[numbers])


def test_bad_input():
    model, x, y = _net(), torch.rand(4, 1, 6, 6), torch.tensor([0, 1, 2, 1])
    with pytest.raises(ValueError, match=r"`batches` must lie in \[0, 3\], got values in \[0, 9\]"):
        attributes.layer_gradients(model, x, y, batches=np.array([[0, 9]]))
    with pytest.raises(ValueError, match="`layers` must be '0', '3' or '5', got '7'"):
        attributes.layer_gradients(model, x, y, layers=["7"])
    with pytest.raises(ValueError, match=r"layer 1 \(BatchNorm1d\) mixes samples"):
        attributes.layer_gradients(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), torch.rand(2, 4), y[:2])
    with pytest.raises(ValueError, match=r"`attribute` must leave at least.*, got 2 rows with and 2 without it"):
        attributes.matched_batches([0, 1, 0, 1], None, size=3, seed=0)
    with pytest.raises(ValueError, match="`attribute` must have shape"):
        attributes.matched_batches([0, 2, 0, 1], None, seed=0)
    with pytest.raises(ValueError, match="`snapshots` must hold"):
        attributes.gradient_sets([], x, y, attributes.matched_batches([0, 1, 0, 1], None, seed=0))
    known, observed = _sets(1.0, snapshots=1, limit=5)
    with pytest.raises(ValueError, match=r"`layers` must be in both sets \(known has 0, 3, 5\), got '9'"):
        attributes.infer(known, observed, layers=["9"])
    with pytest.raises(ValueError, match="`layers` must name at least one layer"):
        attributes.infer(known, observed, layers=[])
    mixed = dataclasses.replace(observed, batch=np.zeros_like(observed.batch))
    with pytest.raises(ValueError, match=r"`observed`: a batch has gradients with and without the attribute,"):
        attributes.infer(known, mixed)
    short = dataclasses.replace(known, batch=known.batch[1:])
    with pytest.raises(ValueError, match=r"`known`: 'batch' must have 10 rows, as attribute has, got 9"):
        attributes.infer(short, observed)


def test_non_finite_gradients():
    known, observed = _sets(0.2, limit=4)
    next(iter(observed.gradients.values()))[1, 0] = np.nan
    with pytest.raises(ValueError, match=r"`observed`: the gradients of layer '0' must be finite"):
        attributes.infer(known, observed)
