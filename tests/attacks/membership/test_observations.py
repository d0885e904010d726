"""Questions to torch modules: their answers are torch's own, no module changes, and bad ones are named."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from leakcore.attacks import membership

_RNG = np.random.default_rng(0)
X, Y = _RNG.normal(size=(12, 3, 4)).astype(np.float32), _RNG.integers(0, 5, 12)


def _module(classes: int = 5) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, classes)).eval()


def test_losses_against_torch():
    modules = [_module(), _module()]
    before = [{k: v.clone() for k, v in m.state_dict().items()} for m in modules]
    observed = membership.observe(modules, X, Y)
    for module, losses in zip(modules, observed.losses, strict=True):
        with torch.no_grad():
            wanted = nn.functional.cross_entropy(module(torch.from_numpy(X)), torch.from_numpy(Y), reduction="none")
        np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    assert observed.checkpoint_losses is observed.population_losses is observed.features is None
    assert all(
        torch.equal(v, m.state_dict()[k]) for m, own in zip(modules, before, strict=True) for k, v in own.items()
    )


def test_one_logit():
    module, labels = _module(1), Y % 2
    observed = membership.observe([module], X, labels, queries=membership.Queries(copies=X[None]))
    with torch.no_grad():
        logits = module(torch.from_numpy(X))[:, 0]
        wanted = nn.functional.binary_cross_entropy_with_logits(
            logits, torch.from_numpy(labels).float(), reduction="none"
        )
    np.testing.assert_allclose(observed.losses[0], wanted, rtol=1e-5)
    np.testing.assert_array_equal(observed.copies_right[0], (logits > 0).numpy() == labels)


def test_loss_of_a_sure_answer():
    module = nn.Linear(1, 2, bias=False).double()
    module.weight.data = torch.tensor([[0.0], [30.0]], dtype=torch.float64)
    losses = membership.observe([module], np.ones((1, 1)), np.array([1])).losses
    np.testing.assert_allclose(losses, np.log1p(np.exp(-30)), rtol=1e-2)


def test_checkpoints():
    first, last = _module(), _module()
    observed = membership.observe([(first, last), (last, first)], X, Y)
    np.testing.assert_array_equal(observed.losses, membership.observe([last, first], X, Y).losses)
    np.testing.assert_array_equal(observed.checkpoint_losses[0], observed.checkpoint_losses[1, ::-1])


def test_noisy_copies():
    rows = _RNG.normal(size=(200, 30)) * np.linspace(0.5, 3, 30)
    copies = membership.noisy_copies(rows, scales=(0.5, 2.0), count=3, seed=1)
    assert copies.shape == (7, 200, 30)
    np.testing.assert_array_equal(copies[0], rows)
    for i, scale in zip(range(1, 7), (0.5,) * 3 + (2.0,) * 3, strict=True):
        standard = (copies[i] - rows) / rows.std(axis=0) / scale
        assert stats.kstest(standard.ravel(), "norm").pvalue > 1e-4
    assert not (copies[1] == copies[2]).any()
    again = membership.noisy_copies(rows, scales=(0.5,), count=3, seed=1)
    np.testing.assert_allclose(again, copies[:4], rtol=1e-12)


def test_accuracy_on_copies():
    """One feature, boundary at 0, noise of one standard deviation s: a copy is right with probability Φ(x/s)."""
    module = nn.Linear(1, 1, bias=False).double()
    module.weight.data.fill_(1.0)
    rows = np.array([[0.1], [1.0], [4.0], [-0.5]])
    copies = membership.noisy_copies(rows, scales=(1.0,), count=4000, seed=0)
    observed = membership.observe([module], rows, np.array([1, 1, 1, 1]), queries=membership.Queries(copies=copies[1:]))
    hits = (observed.copies_right[0] * 4000).round().astype(int)
    for x, hit in zip(rows[:, 0], hits, strict=True):
        assert stats.binomtest(hit, 4000, stats.norm.cdf(x / rows.std())).pvalue > 1e-4


def test_bad_questions():
    module = _module()
    for arguments, message in (
        (([module], X[:0], Y[:0]), r"`features` must have shape \(rows, ...\), at least 1 each, got \(0, 3, 4\)"),
        (([module], X, Y[:3]), r"`labels` must be class numbers, integers, of shape \(12,\), got int64 of .* \(3,\)"),
        (([module], X, Y + 3), r"`labels` must be classes of the model, in \[0, 4\], got values from 3 to 7"),
        (([], X, Y), "`models` must be modules, or equally many checkpoints of each, got none"),
        (([(module, module), module], X, Y), r"`models` must be modules, or equally many .*, got \[1, 2\]"),
        (([module], X[:, :2], Y), r"`features` must fit the models, got shape \(12, 2, 4\)"),
        (([nn.Identity()], X, Y), r"`models` must return logits of shape \(12, classes\), got \(12, 3, 4\)"),
        (([_module().train()], X, Y), r"layer 2 \(BatchNorm1d\) mixes samples: call model.eval\(\)"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            membership.observe(*arguments)
    with pytest.raises(TypeError, match=r"`models` must hold torch.nn.Module, got function"):
        membership.observe([lambda x: x], X, Y)
    with pytest.raises(TypeError, match="`models` must be a sequence of torch modules, got Sequential"):
        membership.observe(module, X, Y)
    for queries, message in (
        (
            membership.Queries(population=(X[:, :2], Y)),
            r"`population` must have shapes \(others, 3, 4\) and \(others,\)",
        ),
        (
            membership.Queries(copies=X),
            r"`copies` must have shape \(copies, 12, 3, 4\), at least one, got \(12, 3, 4\)",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            membership.observe([module], X, Y, queries=queries)
    with pytest.raises(TypeError, match=r"`population` must be a pair \(features, labels\) or None, got ndarray"):
        membership.observe([module], X, Y, queries=membership.Queries(population=X))
    with pytest.raises(TypeError, match="`features` must be floating, got int64"):
        membership.noisy_copies(np.ones((2, 2), int), scales=(1.0,), count=1, seed=0)
    with pytest.raises(ValueError, match=r"`scales\[0\]` must be above 0 and finite, got 0.0"):
        membership.noisy_copies(np.ones((2, 2)), scales=(0.0,), count=1, seed=0)
