"""Tokens from the embedding's gradient and label counts from the output layer's, compared with the true batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leakcore.attacks import labels, text
from tests.attacks.text.networks import build, gradient, language_loss, texts

STATED: dict = {"tied": False, "update": "gradient"}
COUNTED: dict = {"update": "gradient", "label_smoothing": 0.0}


def _batch(model, count, seed=1):
    sequences = texts(count, 3, 9, seed=seed)
    released = gradient(model, language_loss(model, sequences))
    after = [token for row in sequences for token in [*row[1:], 0]]
    return sequences, released, np.bincount(after, minlength=120)


@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_tokens_and_label_counts(batch):
    model = build()
    sequences, released, counts = _batch(model, batch)
    known = text.tokens(released["embedding.weight"], **STATED)
    assert known.present.nonzero()[0].tolist() == sorted({token for row in sequences for token in row})
    assert known.value == known.present.sum()
    assert known.kind == "lower"
    assert not known.dense
    bag = text.next_tokens(released["head.bias"], positions=int(counts.sum()), **COUNTED)
    assert (bag.lows <= counts).all()
    assert (counts <= bag.highs).all()
    assert (bag.lows == counts)[bag.determined].all()
    assert bag.value == bag.lows.sum() / counts.sum()
    assert bag.value > 0.9


def test_counts_with_small_probabilities():
    model = build()
    model.head.weight.data *= 0.01
    _, released, counts = _batch(model, 4)
    bag = text.next_tokens(released["head.bias"], positions=int(counts.sum()), **COUNTED)
    assert (bag.lows == counts).all()
    assert bag.determined.all()
    assert bag.value == 1.0


def test_counts_of_a_sure_model():
    """Every prediction right: the gradient is near 0 and proves little, yet never anything wrong."""
    probs = np.full((5, 4), 1e-9)
    answers = [0, 1, 1, 3, 3]
    probs[np.arange(5), answers] = 1 - 3e-9
    bag = text.next_tokens((probs - np.eye(4)[answers]).mean(axis=0), positions=5, **COUNTED)
    counts = np.bincount(answers, minlength=4)
    assert (bag.lows <= counts).all()
    assert (counts <= bag.highs).all()
    assert bag.value < 1


def test_limits_with_random_predictions():
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(300):
        classes, count = int(rng.integers(2, 12)), int(rng.integers(1, 9))
        probs = rng.dirichlet(np.full(classes, rng.choice([0.1, 1.0, 20.0])), size=count)
        answers = rng.integers(classes, size=count)
        counts = np.bincount(answers, minlength=classes)
        sums = (probs - np.eye(classes)[answers]).mean(axis=0)
        for values, clipped in ((sums, False), (0.3 * sums, True), (sums.astype(np.float32), False)):
            bag = text.next_tokens(values, positions=count, clipped=clipped, **COUNTED)
            assert (bag.lows <= counts).all()
            assert (counts <= bag.highs).all()
            shares.append(bag.value)
    assert 0.2 < np.mean(shares) < 1


def test_last_layer_norm():
    model = build().double()
    with torch.no_grad():
        model.norm.bias.copy_(torch.linspace(-0.2, 0.5, 64))
        model.norm.weight.copy_(torch.linspace(0.5, 1.5, 64))
    _, released, counts = _batch(model, 4)
    norm = (model.norm.weight.detach(), model.norm.bias.detach())
    through = text.next_tokens(
        released["head.weight"], positions=int(counts.sum()), layer_norm=norm, **COUNTED, tied=False
    )
    direct = text.next_tokens(released["head.bias"], positions=int(counts.sum()), **COUNTED)
    np.testing.assert_array_equal(through.lows, direct.lows)
    np.testing.assert_array_equal(through.highs, direct.highs)


def test_shared_weights():
    _, released, _ = _batch(build(tied=True), 2)
    known = text.tokens(released["embedding.weight"], update="gradient")
    assert known.dense
    assert known.kind == "estimate"
    assert known.value == 0
    assert "shares the embedding's weights" in known.assumptions.notes[1]


def test_padding():
    model = build()
    model.embedding.padding_idx = 5
    sequences = [[5, 6, 7], [5, 8, 6]]
    released = gradient(model, language_loss(model, sequences))
    assert text.tokens(released["embedding.weight"], **STATED).present.nonzero()[0].tolist() == [6, 7, 8]


def test_several_local_steps():
    """The change of the embedding in three steps of SGD shows the tokens of all three batches."""
    model = build()
    before = model.embedding.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    batches = [texts(2, 3, 6, seed=seed) for seed in range(3)]
    for sequences in batches:
        optimizer.zero_grad()
        language_loss(model, sequences).backward()
        optimizer.step()
    known = text.tokens(model.embedding.weight.detach() - before, tied=False, update="steps")
    assert known.present.nonzero()[0].tolist() == sorted({t for rows in batches for row in rows for t in row})


def test_known_noise():
    """No false token in any of 200 draws: at 99% all together, more than 8 failures have probability below 1e-3."""
    model = build()
    sequences, released, _ = _batch(model, 2)
    exact = released["embedding.weight"].numpy()
    true = np.zeros(120, bool)
    true[[token for row in sequences for token in row]] = True
    rng = np.random.default_rng(0)
    wrong, hits = 0, 0
    for _ in range(200):
        noisy = exact + 1e-3 * rng.normal(size=exact.shape)
        known = text.tokens(noisy, noise=labels.Noise(1e-3, confidence=0.99), **STATED)
        wrong += bool((known.present & ~true).any())
        hits += int((known.present & true).sum())
    assert known.confidence == 0.99
    assert wrong <= 8
    assert hits > 100 * true.sum()


def test_zero_gradient():
    assert text.tokens(np.zeros((4, 3))).value == 0
    bag = text.next_tokens(np.zeros(4), positions=2)
    assert bag.lows.sum() == 0
    assert bag.value == 0


def test_tiny_rows():
    assert text.tokens(np.array([[0.0, 0.0], [1e-200, 0.0]])).present.tolist() == [False, True]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: text.tokens(np.ones(3)), "embedding_gradient"),
        (lambda: text.tokens(np.full((2, 2), np.nan)), "embedding_gradient"),
        (lambda: text.tokens(np.zeros((2, 2)), update="change"), "`update` must be 'gradient' or 'steps'"),
        (lambda: text.next_tokens(np.zeros(4), positions=2, update="steps"), "`update` must be 'gradient'"),
        (lambda: text.next_tokens(np.zeros(4), positions=2, label_smoothing=1.0), "label_smoothing"),
        (lambda: text.next_tokens(np.zeros(4), positions=2, tied=False), "`tied` is allowed only with layer_norm"),
        (lambda: text.next_tokens(np.ones(4), positions=3), "sum to 0"),
        (lambda: text.next_tokens(np.ones((4, 3)), positions=3), "shape"),
        (lambda: text.next_tokens(np.zeros(4), positions=0), "positions"),
        (lambda: text.next_tokens(np.array([-0.5, 0.5]), positions=1, layer_norm=(np.ones(2), np.ones(2))), "shape"),
        (lambda: text.next_tokens(np.zeros((3, 2)), positions=1, layer_norm=(np.ones(2), np.zeros(2))), "other than 0"),
        (lambda: text.next_tokens(np.zeros((3, 2)), positions=1, layer_norm=(np.zeros(2), np.ones(2))), "not hold 0"),
        (lambda: text.next_tokens(np.array([-3.0, 3.0]), positions=1), "within"),
        (lambda: text.next_tokens(np.array([-0.5, -0.5, 1.0]), positions=1), "positions"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(ValueError, match=words):
        call()
