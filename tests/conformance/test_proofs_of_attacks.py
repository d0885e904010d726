"""What an attack calls proved or determined is so: random models and batches, and whatever a gradient went through.

Every scenario knows what was in the batch, and what its user may truthfully say of the gradient. Two things are held:
without a statement nothing is proved, and with true ones nothing false is. `SUITE` names the tests of every public
function that can prove or determine something.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from leakcore import bounds, defenses, leakage
from leakcore._base.results import Result
from leakcore.attacks import imprint, labels, text
from tests.attacks.text.networks import build, gradient, language_loss, texts
from tests.public import arrays, calls

DRAWS = 12
MANY = 150
SEEDS = [*range(DRAWS), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(DRAWS, MANY))]


# What a gradient goes through after it was computed. `exact`: whether every number is the gradient up to rounding.
@dataclasses.dataclass(frozen=True)
class Passage:
    apply: Callable[[torch.Tensor, int], torch.Tensor]
    exact: bool


def _quantised(g: torch.Tensor, levels: int, middle: float) -> torch.Tensor:
    """To whole multiples of a step, or to half ones (no level at 0)."""
    step = float(g.abs().max()) / levels or 1.0
    return (torch.floor(g / step + (0.5 if middle == 0 else 0.0)) + middle) * step


def _defended(defense: Any) -> Callable[[torch.Tensor, int], torch.Tensor]:
    return lambda g, seed: torch.as_tensor(np.asarray(defense.apply(g.flatten(), seed=seed))).reshape(g.shape).to(g)


PASSAGES = {
    "as computed": Passage(lambda g, _: g, True),
    "float16": Passage(lambda g, _: g.half(), True),
    "float16, passed as float32": Passage(lambda g, _: g.half().float(), True),
    "bfloat16, passed as float32": Passage(lambda g, _: g.bfloat16().float(), True),
    "bfloat16, passed as float64": Passage(lambda g, _: g.bfloat16().double(), True),
    "largest tenth kept": Passage(_defended(defenses.Prune(0.9)), False),
    "largest hundredth kept": Passage(_defended(defenses.Prune(0.99)), False),
    "eight bits": Passage(lambda g, _: _quantised(g, 127, 0.0), False),
    "two bits": Passage(lambda g, _: _quantised(g, 2, 0.0), False),
    "levels without 0": Passage(lambda g, _: _quantised(g, 8, 0.5), False),
    "signs": Passage(lambda g, _: g.sign(), False),
    "noise, then pruned": Passage(
        lambda g, seed: _defended(defenses.Prune(0.9))(_defended(defenses.GaussianNoise(1e-3))(g, seed), seed), False
    ),
}


# ---------------------------------------------------------------------------------------------------- attacks.text
class Words(nn.Module):
    """A small language model: mean of the words before, then an output layer that may share the embedding."""

    def __init__(
        self, seed: int, vocabulary: int, *, tied: bool, padding: int | None, sparse: bool, scale: float
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.words = nn.Embedding(vocabulary, 16, padding_idx=padding, sparse=sparse)
        self.middle, self.out = nn.Linear(16, 16), nn.Linear(16, vocabulary)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
        if tied:
            self.out.weight = self.words.weight
        self.scale = scale

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        mean = x.cumsum(1) / torch.arange(1, tokens.shape[1] + 1)[:, None]
        return self.scale * self.out(torch.tanh(self.middle(mean)))


def _sgd(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1)


OPTIMIZERS: dict[str, tuple[Callable[[nn.Module], Any], bool]] = {
    "SGD": (_sgd, True),
    "SGD with momentum": (lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), True),
    "Adam": (lambda m: torch.optim.Adam(m.parameters(), lr=0.01), True),
    "Adagrad": (lambda m: torch.optim.Adagrad(m.parameters(), lr=0.1), True),
    "SGD with weight decay": (lambda m: torch.optim.SGD(m.parameters(), lr=0.1, weight_decay=0.1), False),
    "AdamW": (lambda m: torch.optim.AdamW(m.parameters(), lr=0.01), False),
    "Adam with weight decay": (lambda m: torch.optim.Adam(m.parameters(), lr=0.01, weight_decay=1e-4), False),
}
"""Each with whether it leaves the weights alone on which the batch has no influence."""


@dataclasses.dataclass(frozen=True)
class Sent:
    """(V, d) array; inside: the tokens of its batches; says: the true statements, None where one would be false."""

    array: Any
    inside: set[int]
    says: dict[str, Any] | None
    plain: bool = False


def sent(seed: int) -> Iterator[tuple[str, Sent]]:
    """The embedding's gradients, and changes, of one random model."""
    rng = np.random.default_rng(seed)
    vocabulary, batch, length = int(rng.integers(40, 300)), int(rng.integers(1, 4)), int(rng.integers(2, 12))
    scale = float(rng.choice([0.5, 1.0, 3.0, 8.0]))
    for tied in (True, False):
        padding = int(rng.integers(vocabulary)) if rng.random() < 0.5 else None
        model = Words(seed, vocabulary, tied=tied, padding=padding, sparse=not tied and seed % 3 == 0, scale=scale)
        batches = [torch.from_numpy(rng.integers(vocabulary, size=(batch, length))) for _ in range(2)]
        smooth = float(rng.choice([0.0, 0.1]))

        def loss(tokens: torch.Tensor, model: nn.Module = model, smooth: float = smooth) -> torch.Tensor:
            after = torch.cat([tokens[:, 1:], torch.zeros(len(tokens), 1, dtype=torch.long)], 1)
            return functional.cross_entropy(model(tokens).flatten(0, 1), after.flatten(), label_smoothing=smooth)

        loss(batches[0]).backward()
        own = model.words.weight.grad
        assert own is not None
        inside = set(batches[0].flatten().tolist())
        says = None if tied else {"tied": False, "update": "gradient"}
        for name, passage in PASSAGES.items():
            # Rounding and pruning leave a zero a zero: the statement stays true. Noise and shifted levels do not.
            adds = name in ("levels without 0", "noise, then pruned")
            true = None if adds else says
            plain = name == "as computed" and padding is None and not tied
            yield f"tied={tied}, {name}", Sent(passage.apply(own.to_dense(), seed), inside, true, plain)
        penalty = own.to_dense() + 1e-4 * model.words.weight.detach()
        yield f"tied={tied}, penalty of the weights", Sent(penalty, inside, None)
        yield f"tied={tied}, penalty, float16", Sent((1e-4 * penalty).half().float(), inside, None)
        if model.words.sparse:
            continue
        for name, (make, leaves) in OPTIMIZERS.items():
            optimizer = make(model)
            before = model.words.weight.detach().clone()
            for tokens in batches:
                optimizer.zero_grad()
                loss(tokens).backward()
                optimizer.step()
            change = model.words.weight.detach() - before
            both = inside | set(batches[1].flatten().tolist())
            for passed in ("as computed", "float16, passed as float32", "largest tenth kept"):
                true = {"tied": False, "update": "steps"} if leaves and not tied else None
                yield f"tied={tied}, {name}, {passed}", Sent(PASSAGES[passed].apply(change, seed), both, true)


@pytest.mark.parametrize("seed", SEEDS)
def test_tokens_that_are_proved_are_in_the_batch(seed: int) -> None:
    for name, case in sent(seed):
        every = [{}] if case.says is None else [{}, case.says]
        for said in every:
            result = text.tokens(case.array, **said)
            named = set(np.asarray(result.present).nonzero()[0].tolist())
            if result.kind == "lower":
                assert said, f"{name}: proved without a statement"
                assert named <= case.inside, f"{name}: {sorted(named - case.inside)} are not in the batch"
        if case.plain:
            assert result.kind == "lower"
            assert named == case.inside, name


def test_tokens_are_proved_under_stated_noise_only_where_the_rest_is_stated() -> None:
    wrong, rng = 0, np.random.default_rng(0)
    truth = np.zeros((200, 8))
    truth[3:6] = 0.1
    for _ in range(60):
        noisy = (truth + 0.01 * rng.standard_normal(truth.shape)).astype(np.float16)
        noise = labels.Noise(0.01, confidence=0.9)
        assert text.tokens(noisy, noise=noise).kind == "estimate"
        result = text.tokens(noisy, noise=noise, tied=False, update="gradient")
        assert (result.kind, result.confidence) == ("lower", 0.9)
        wrong += bool(result.present[6:].any() or result.present[:3].any())
    assert wrong <= 15  # of 60 at 10%: P(more) < 1e-4


@pytest.mark.parametrize("tied", [None, True])
@pytest.mark.parametrize("update", [None, "gradient", "steps"])
def test_tokens_of_a_model_whose_weights_may_be_shared_are_not_proved(tied: bool | None, update: Any) -> None:
    rows = np.zeros((9, 3))
    rows[4] = 1.0
    assert text.tokens(rows, tied=tied, update=update).kind == "estimate"
    assert text.tokens(rows, tied=False).kind == "estimate"


def counted(seed: int) -> Iterator[tuple[str, np.ndarray, dict[str, Any], dict[str, Any] | None, np.ndarray]]:
    """(name, array, arguments, true statements or None, the true counts) of an output layer's bias."""
    rng = np.random.default_rng(seed)
    classes, count = int(rng.integers(2, 80)), int(rng.integers(1, 30))
    logits = torch.from_numpy(rng.normal(size=(count, classes)) * rng.choice([0.1, 1.0, 6.0])).float()
    answers = torch.from_numpy(rng.integers(classes, size=count))
    for smooth in (0.0, 0.1, 0.6):
        for weights in (None, torch.from_numpy(rng.random(classes) + 0.1).float()):
            bias = torch.zeros(classes, requires_grad=True)
            ignored = torch.from_numpy(rng.random(count) < 0.2)
            if bool(ignored.all()):
                ignored[:] = False
            target = answers.masked_fill(ignored, -100)
            loss = functional.cross_entropy(
                logits + bias, target, weight=weights, label_smoothing=smooth, ignore_index=-100
            )
            (own,) = torch.autograd.grad(loss, bias)
            counts = np.bincount(answers[~ignored], minlength=classes)
            positions = {"positions": int(counts.sum())}
            for name, passage in PASSAGES.items():
                true = {"update": "gradient", "label_smoothing": smooth}
                says = true if passage.exact and weights is None else None
                array = passage.apply(own, seed)
                yield f"{smooth}, {weights is None}, {name}", array, positions, says, counts
            says = {"update": "gradient", "label_smoothing": smooth} if weights is None else None
            yield f"{smooth}, clipped", 0.3 * own, {**positions, "clipped": True}, says, counts
            decayed = own + 0.05 * torch.from_numpy(rng.normal(size=classes)).float()
            yield f"{smooth}, decayed", decayed - decayed.mean(), positions, None, counts


@pytest.mark.parametrize("seed", SEEDS)
def test_label_counts_that_are_proved_hold(seed: int) -> None:
    proofs = 0
    for name, array, arguments, says, counts in counted(seed):
        few = len(array) < 5
        for said in [{}] if says is None else [{}, says]:
            try:
                bag = text.next_tokens(array, **arguments, **said)
            except ValueError as refused:
                # Smoothing that was not stated, or two or three numbers that do not show their rounding: both named.
                named = ("label_smoothing" in str(refused) and not said) or ("precision" in str(refused) and few)
                if says is not None and not named:
                    raise
                continue
            if bag.kind == "lower":
                assert said, f"{name}: proved without a statement"
                assert (bag.lows <= counts).all(), name
                assert (counts <= bag.highs).all(), name
                assert (bag.lows == counts)[bag.determined].all(), name
                proofs += 1
    assert proofs >= 10


def test_label_counts_through_a_layer_norm_ask_whether_the_weights_are_shared() -> None:
    torch.manual_seed(0)
    norm, out = nn.LayerNorm(8), nn.Linear(8, 5, bias=False)
    nn.init.uniform_(norm.bias, 0.1, 0.5)
    answers = torch.tensor([0, 3, 3])
    loss = functional.cross_entropy(out(norm(torch.randn(3, 8))).double(), answers)
    (own,) = torch.autograd.grad(loss, out.weight)
    pair = (norm.weight.detach(), norm.bias.detach())
    said = {"positions": 3, "layer_norm": pair, "update": "gradient", "label_smoothing": 0.0}
    assert text.next_tokens(own, **said).kind == "estimate"
    assert text.next_tokens(own, **said, tied=True).kind == "estimate"
    bag = text.next_tokens(own, **said, tied=False)
    assert bag.kind == "lower"
    assert (bag.lows <= np.bincount(answers, minlength=5)).all()


@pytest.mark.parametrize("seed", SEEDS[:3] + SEEDS[DRAWS : DRAWS + 20])
def test_sequences_that_are_determined_are_in_the_batch(seed: int) -> None:
    """Also of what the attack was not told: half precision, pruning, quantising, another batch in a momentum."""
    model = build(seed=seed, tied=seed % 2 == 0, vocabulary=60, width=32)
    batches = [texts(2, 2, 5, vocabulary=60, seed=2 * seed + k) for k in (1, 2)]
    own, other = (gradient(model, language_loss(model, batch)) for batch in batches)
    released = {name: {key: p.apply(g, seed) for key, g in own.items()} for name, p in PASSAGES.items()}
    released["momentum"] = {key: g + 0.9 * other[key] for key, g in own.items()}
    released["weight decay"] = {
        key: g + 0.01 * p.detach() for (key, g), p in zip(own.items(), model.parameters(), strict=True)
    }
    inside = {tuple(row) for batch in batches for row in batch}
    for name, sequences in released.items():
        result = text.sequences(model, sequences, batch_size=2, length=6, vocabulary=torch.arange(0, 60, 2 - seed % 2))
        assert result.kind == "estimate"
        for row in result.sequences[result.determined]:
            assert tuple(int(t) for t in row if t >= 0) in inside, name
        said = " ".join(result.assumptions.notes)
        assert "nothing was added" in said
        assert "pruned" in said


# -------------------------------------------------------------------------------------------------- attacks.labels
@dataclasses.dataclass(frozen=True)
class Batch:
    """How the batch's last-layer gradient is passed, what may be said of it, and its labels."""

    x: torch.Tensor
    y: torch.Tensor
    gradient: torch.Tensor
    true: bool
    classes: int


def label_batches(seed: int) -> Iterator[tuple[str, Batch]]:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 12))
    width = n + int(rng.choice([0, 0, 1, 25]))  # without a spare column nothing contradicts a wrong statement
    classes = int(rng.choice([1, 2, 4]))
    sure = float(rng.choice([0.3, 2.0, 6.0]))
    size = float(rng.choice([1.0, 1e-2, 1e-3]))
    x = torch.from_numpy(rng.normal(size=(n, width)) * size).float()
    y = torch.from_numpy(rng.integers(max(classes, 2), size=n))
    weight = torch.from_numpy(rng.normal(size=(classes, width)) * sure / (size * math.sqrt(width))).float()

    def own(
        dtype: torch.dtype, smooth: float = 0.0, weights: torch.Tensor | None = None, autocast: bool = False
    ) -> Any:
        w = weight.to(dtype, copy=True).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            logits = x.to(dtype) @ w.T
        if classes == 1:
            target = (y * (1 - smooth) + smooth / 2).to(logits.dtype)
            loss = functional.binary_cross_entropy_with_logits(logits[:, 0], target)
        else:
            loss = functional.cross_entropy(logits, y, weight=weights, label_smoothing=smooth)
        return torch.autograd.grad(loss, w)[0]

    exact = own(torch.float32)
    for name, passage in PASSAGES.items():
        yield name, Batch(x, y, passage.apply(exact, seed), passage.exact, classes)
    yield "a model in float16", Batch(x, y, own(torch.float16), True, classes)
    yield "a model in float16, as float32", Batch(x, y, own(torch.float16).float(), True, classes)
    yield "a model in bfloat16, as float32", Batch(x, y, own(torch.bfloat16).float(), True, classes)
    yield "autocast", Batch(x, y, own(torch.float32, autocast=True), True, classes)
    yield "label smoothing", Batch(x, y, own(torch.float32, smooth=0.4), False, classes)
    yield "a penalty of the weights", Batch(x, y, exact + 0.1 * weight, False, classes)
    if classes > 1:
        skewed = torch.from_numpy(rng.random(classes) + 0.05).float()
        yield "weights of classes", Batch(x, y, own(torch.float32, weights=skewed), False, classes)


@pytest.mark.full(keep=7)
@pytest.mark.parametrize("seed", SEEDS)
def test_labels_that_are_proved_are_right(seed: int) -> None:
    named = 0
    for name, batch in label_batches(seed):
        x, y = batch.x, batch.y.numpy()
        jacobian = batch.gradient if batch.classes > 1 else batch.gradient[0]
        for attack in (labels.last_layer, labels.general):
            assert attack(x, jacobian).kind == "estimate", f"{name}: proved without a statement"
            result = attack(x, jacobian, noise=labels.Noise(0))
            if batch.true and result.kind == "lower":
                wrong = result.determined & (result.labels != y)
                assert not wrong.any(), f"{name}, {attack.__name__}: rows {wrong.nonzero()[0].tolist()}"
                named += int(result.determined.sum())
                joined = labels.combine([result, attack(x, jacobian, noise=labels.Noise(0))])
                assert not (joined.determined & (joined.labels != y)).any(), name
            said = " ".join(result.assumptions.notes)
            for premise in ("not smoothed", "no weights", "pruned", "penalty", "rounded"):
                assert premise in said, f"{name}: {premise!r} is not among the assumptions"
    assert named > 0


def _losses(rng: np.random.Generator, y: torch.Tensor, classes: int) -> dict[str, Callable[[torch.Tensor], Any]]:
    """Losses that are not the cross-entropy of hard labels, or not its gradient, as a program may have them."""
    hard = functional.one_hot(y, classes).float()
    mixed = 0.6 * hard + 0.4 * hard.roll(1, dims=1)
    weights = torch.from_numpy(rng.random(classes) + 0.05).float()
    shift = torch.from_numpy(2 * rng.normal(size=classes)).float()
    bad = torch.from_numpy(rng.normal(size=len(y))).float()

    def focal(z: torch.Tensor) -> torch.Tensor:
        return (
            (1 - z.softmax(1)[torch.arange(len(y)), y]) ** 2 * functional.cross_entropy(z, y, reduction="none")
        ).mean()

    return {
        "smoothed": lambda z: functional.cross_entropy(z, y, label_smoothing=0.2),
        "mixed": lambda z: functional.cross_entropy(z, mixed),
        "weights of classes": lambda z: functional.cross_entropy(z, y, weight=weights),
        "weights of rows, some negative": lambda z: (bad * functional.cross_entropy(z, y, reduction="none")).mean(),
        "negative": lambda z: -functional.cross_entropy(z, y),
        "negative logits": lambda z: functional.cross_entropy(-z, y),
        "adjusted logits": lambda z: functional.cross_entropy(z + shift, y),
        "temperature": lambda z: functional.cross_entropy(z / 4, y),
        "focal": focal,
        "entropy rewarded": lambda z: (
            functional.cross_entropy(z, y) + 0.3 * (z.softmax(1) * z.log_softmax(1)).sum(1).mean()
        ),
        "margin": lambda z: functional.multi_margin_loss(z, y),
        "squared": lambda z: functional.mse_loss(z, hard),
        "each class by itself": lambda z: functional.binary_cross_entropy_with_logits(z, hard),
    }


SCALING = ("weights of classes", "weights of rows, some negative", "focal")
"""Losses that may multiply each row's gradient by a factor in [0, 1], as clipping does: then the labels are right."""


@pytest.mark.full(keep=5)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_gradient_that_the_known_model_cannot_have_proves_no_label(seed: int) -> None:
    """The attacker holds the model: residuals that are not a multiple of its p − y belong to another loss."""
    rng = np.random.default_rng([seed, 7])
    torch.manual_seed(seed)
    n, width, classes = int(rng.integers(3, 9)), 10, int(rng.choice([3, 4, 6]))
    x, y = torch.randn(n, width), torch.from_numpy(rng.integers(classes, size=n))
    model = nn.Linear(width, classes)
    known = labels.KnownModel(model, x)
    (own,) = torch.autograd.grad(functional.cross_entropy(model(x), y), model.weight)
    result = labels.last_layer(known, own, noise=labels.Noise(0))
    assert (result.kind, result.labels.tolist()) == ("lower", y.tolist())
    # Each row's gradient by itself, clipped: any factor in [0, 1] for each row.
    shares = torch.from_numpy(rng.random(n) * 0.9 + 0.1).float()
    (cut,) = torch.autograd.grad(
        (shares * functional.cross_entropy(model(x), y, reduction="none")).mean(), model.weight
    )
    result = labels.last_layer(known, cut, noise=labels.Noise(0))
    assert (result.kind, result.labels.tolist()) == ("lower", y.tolist())
    for name, loss in _losses(rng, y, classes).items():
        (other,) = torch.autograd.grad(loss(model(x)), model.weight)
        for result in (
            labels.last_layer(known, other, noise=labels.Noise(0)),
            labels.general(known, other, noise=labels.Noise(0), parameters="weight"),
        ):
            if name in SCALING and result.kind == "lower":
                assert not (result.determined & (result.labels != y.numpy())).any(), name
            else:
                assert (result.kind, int(result.determined.sum())) == ("estimate", 0), name


@pytest.mark.parametrize("seed", SEEDS[:4] + SEEDS[DRAWS : DRAWS + 40])
def test_labels_of_a_known_model_with_one_logit_are_bounded_by_its_probabilities(seed: int) -> None:
    rng = np.random.default_rng([seed, 8])
    torch.manual_seed(seed)
    x, model = torch.randn(6, 9), nn.Linear(9, 1)
    y = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0, 1.0])
    known = labels.KnownModel(model, x)
    loss = functional.binary_cross_entropy_with_logits(model(x)[:, 0], y)
    (own,) = torch.autograd.grad(loss, model.weight)
    for noise in (labels.Noise(0), labels.Noise(1e-4, confidence=0.99)):
        std = noise.std
        noisy = own + std * torch.from_numpy(rng.normal(size=own.shape)).float()
        result = labels.last_layer(known, noisy, noise=noise)
        assert result.kind == "lower"
        assert not (result.determined & (result.labels != y.numpy())).any()
        # A step of SGD in the place of a gradient: at learning rate 1 it is the gradient's negative. It shows where the
        # model is wrong about a row: the residual's size is then above what the other label's could be.
        wrong = (model(x)[:, 0].detach() * (2 * y - 1)) < -0.1
        result = labels.last_layer(known, -noisy, noise=noise)
        if wrong.any():
            assert (result.kind, int(result.determined.sum())) == ("estimate", 0)


@pytest.mark.full(keep=2)
@pytest.mark.parametrize("seed", SEEDS[:4] + SEEDS[DRAWS : DRAWS + 40])
def test_labels_behind_a_hidden_layer_that_are_proved_are_right(seed: int) -> None:
    """Algorithms 4 and 5, in half precision as well; the prior is right."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 9))
    y = np.zeros(n)
    y[: max(1, (n - 1) // 3)] = 1.0
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(30, 4), nn.Tanh(), nn.Linear(4, 1))
    crafted = labels.malicious_input(model, batch_size=n, seed=seed)
    for features, attack in (
        (torch.randn(n, 30), lambda x, g, **k: labels.second_last_layer(labels.KnownModel(model, x), g, **k)),
        (crafted.features, lambda x, g, **k: crafted.recover(g, **k)),
    ):
        target = torch.from_numpy(y).float()
        loss = functional.binary_cross_entropy_with_logits(model(features)[:, 0], target)
        (own,) = torch.autograd.grad(loss, model[0].weight)
        for name, passage in PASSAGES.items():
            passed = passage.apply(own, seed)
            assert attack(features, passed, positive_ratio=0.3).kind == "estimate"
            result = attack(features, passed, positive_ratio=0.3, noise=labels.Noise(0))
            if passage.exact and result.kind == "lower":
                assert not (result.determined & (result.labels != y)).any(), name


@pytest.mark.parametrize("seed", SEEDS[:6] + SEEDS[DRAWS:])
def test_labels_from_a_step_are_right_or_refused(seed: int) -> None:
    """The change of the weights by each optimizer, as its user would pass it."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 8))
    x, y = torch.from_numpy(rng.normal(size=(n, 12))).float(), rng.integers(2, size=n)
    for name, (make, _) in OPTIMIZERS.items():
        torch.manual_seed(seed)
        model = nn.Linear(12, 1, bias=False)
        before, optimizer = model.weight.detach().clone(), make(model)
        functional.binary_cross_entropy_with_logits(model(x)[:, 0], torch.from_numpy(y).float()).backward()
        optimizer.step()
        change = (model.weight.detach() - before)[0]
        if not isinstance(optimizer, torch.optim.SGD):
            with pytest.raises(TypeError, match="optimizer"):
                labels.WeightDifference(change, optimizer)
            continue
        step = labels.SGD.of(optimizer, momentum_buffer="first" if optimizer.defaults["momentum"] else None)
        moved = labels.WeightDifference(change, step, weights=before[0])
        result = labels.last_layer(x, moved, noise=labels.Noise(0))
        assert not (result.determined & (result.labels != y)).any(), name
        assert labels.last_layer(x, labels.WeightDifference(change, labels.SGD(0.1)), noise=labels.Noise(0)).kind == (
            "estimate"
        )


def test_rules_for_single_examples_prove_nothing() -> None:
    rng = np.random.default_rng(0)
    assert labels.idlg(rng.normal(size=(4, 3, 5))).kind == "estimate"
    assert labels.gradient_norm(rng.normal(size=(4, 5)), positive_ratio=0.3).kind == "estimate"


# ------------------------------------------------------------------------------------------------- attacks.imprint
@pytest.mark.parametrize("seed", SEEDS[:3] + SEEDS[DRAWS : DRAWS + 30])
def test_rows_of_an_imprint_are_estimates_and_say_what_they_need(seed: int) -> None:
    torch.manual_seed(seed)
    planted = imprint.plant(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), torch.rand(200, 6), bins=32)
    rows = torch.rand(4, 6)
    loss = functional.cross_entropy(planted(rows), torch.arange(4) % 3)
    own = torch.autograd.grad(loss, planted.parameters())
    for name, passage in PASSAGES.items():
        result = imprint.read(planted, [passage.apply(g, seed) for g in own], batch_size=4)
        assert result.kind == "estimate"
        assert "determined" not in result.quantity
        assert "pruned" in " ".join(result.assumptions.notes)
        if passage.exact:
            for row, error in zip(result.rows, result.errors, strict=True):
                away = float(np.abs(rows.numpy() - row).max(axis=1).min())
                assert away <= error + 1e-6, name


# -------------------------------------------------------------------------------------------------------- leakage
@pytest.mark.full(keep=2)
@pytest.mark.parametrize("seed", SEEDS[:6] + SEEDS[DRAWS:])
def test_both_ends_of_mutual_information_hold(seed: int) -> None:
    """Few rows, many classes, and some do not occur: no end counts on the others alone."""
    rng = np.random.default_rng(seed)
    small, n = leakage.MineNetwork(hidden=8, steps=20), int(rng.integers(50, 150))
    classes = int(rng.choice([2, 3, 30, 1000, 10**6]))
    drawn = rng.integers(classes, size=n)
    for first, truth in ((drawn, math.log(classes)), (rng.normal(size=(n, 2)), 0.0)):
        for stated in ({}, {"num_classes": classes}):
            result = leakage.mutual_information(first, drawn, permutations=0, seed=seed, network=small, **stated)
            low, high = result.interval
            assert high == (math.log(classes) if stated else math.inf)
            assert low <= truth <= high, (classes, stated)
            assert "rows are independent draws" in " ".join(result.assumptions.notes)
    with pytest.raises(ValueError, match="num_classes"):
        leakage.mutual_information(drawn, drawn, network=small, num_classes=1)


@pytest.mark.full
def test_the_lower_end_of_mutual_information_covers_where_classes_are_missing() -> None:
    """30 frequent classes and a tail that hardly occurs, at 60%: no more misses of I = 0 than that allows."""
    small, misses = leakage.MineNetwork(hidden=8, steps=20), 0
    for seed in range(40):
        rng = np.random.default_rng([seed, 3])
        drawn = np.where(rng.random(60) < 0.5, rng.integers(3, size=60), rng.integers(3, 10**6, size=60))
        result = leakage.mutual_information(
            rng.normal(size=(60, 1)), drawn, permutations=0, seed=seed, network=small, confidence=0.6
        )
        misses += result.interval[0] > 0.0
    assert misses <= 27  # of 40 at 40%: P(more) < 1e-4


def test_v_information_names_what_its_upper_end_takes_for_granted() -> None:
    p = np.arange(60) % 3
    result = leakage.v_information(np.random.default_rng(0).normal(size=(60, 2)), p, permutations=0)
    assert result.kind == "estimate"
    assert "no other class exists" in " ".join(result.assumptions.notes)


@pytest.mark.parametrize("seed", SEEDS[:6])
@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_a_measured_sensitivity_is_reached_by_candidates(seed: int, relation: str) -> None:
    """float32 against float64, within what the result says of rounding."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    x, y = torch.randn(7, 5), torch.arange(7) % 3
    measured = leakage.l1_sensitivity(model, x, y, adjacency=relation)
    model.double()
    grads = []
    for row, label in zip(x.double(), y, strict=True):
        loss = functional.cross_entropy(model(row[None]), label[None])
        grads.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, model.parameters())]))
    stack = torch.stack(grads)
    pairs = torch.cdist(stack, stack, p=1).max() if relation == "replace" else stack.abs().sum(1).max()
    assert measured.kind == "lower"
    assert float(measured.value) <= float(pairs) * (1 + 1e-5)
    said = " ".join(measured.assumptions.notes)
    assert "rounding" in said
    assert "every candidate" in said


# ---------------------------------------------------------------------------------------------------- bounds.labels
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("test", ["paper", "optimal", "likelihood-ratio"])
def test_the_label_bound_is_below_the_gaussian_pair_of_its_two_batches(seed: int, test: str) -> None:
    """The releases of a batch and of the one with a flipped label are two Gaussians, computed here row by row."""
    rng = np.random.default_rng(seed)
    n, d, sigma, clip = 4, int(rng.integers(2, 9)), float(rng.uniform(0.3, 3)), float(rng.uniform(0.2, 3))
    rows, probs, own = rng.normal(size=(n, d)), rng.random(n), rng.integers(2, size=n)
    spent = bounds.label_epsilon(rows, probs, own, noise_multiplier=sigma, max_grad_norm=clip, delta=1e-5, test=test)

    def release(y: np.ndarray) -> np.ndarray:
        g = (probs - y)[:, None] * rows
        return np.asarray((g * np.minimum(1, clip / np.linalg.norm(g, axis=1))[:, None]).sum(0))

    for r in range(n):
        flipped = own.copy()
        flipped[r] = 1 - flipped[r]
        apart = float(np.linalg.norm(release(own) - release(flipped))) / (sigma * clip)
        assert spent.per_row[r] <= _gaussian(apart) * (1 + 1e-9) + 1e-12
    assert spent.kind == "lower"
    assert "noise" in " ".join(spent.assumptions.notes)


def _gaussian(apart: float) -> float:
    """ε at δ = 1e-5 of two Gaussians so many deviations apart, by bisection of Balle and Wang's formula."""
    from scipy.special import log_ndtr

    def delta(e: float) -> float:
        return math.exp(log_ndtr(apart / 2 - e / apart)) - math.exp(e + log_ndtr(-apart / 2 - e / apart))

    low, high = 0.0, 10.0 + apart**2 + 20 * apart
    if delta(0.0) <= 1e-5:
        return 0.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if delta(middle) > 1e-5 else (low, middle)
    return high


# -------------------------------------------------------------------------------------------------- who is in here
SUITE = {
    "attacks.text.tokens": test_tokens_that_are_proved_are_in_the_batch,
    "attacks.text.next_tokens": test_label_counts_that_are_proved_hold,
    "attacks.text.sequences": test_sequences_that_are_determined_are_in_the_batch,
    "attacks.labels.last_layer": test_labels_that_are_proved_are_right,
    "attacks.labels.general": test_labels_that_are_proved_are_right,
    "attacks.labels.combine": test_labels_that_are_proved_are_right,
    "attacks.labels.second_last_layer": test_labels_behind_a_hidden_layer_that_are_proved_are_right,
    "attacks.labels.malicious_input": test_labels_behind_a_hidden_layer_that_are_proved_are_right,
    "attacks.labels.MaliciousInput.recover": test_labels_behind_a_hidden_layer_that_are_proved_are_right,
    "attacks.labels.idlg": test_rules_for_single_examples_prove_nothing,
    "attacks.labels.gradient_norm": test_rules_for_single_examples_prove_nothing,
    "attacks.imprint.read": test_rows_of_an_imprint_are_estimates_and_say_what_they_need,
    "leakage.mutual_information": test_both_ends_of_mutual_information_hold,
    "leakage.v_information": test_v_information_names_what_its_upper_end_takes_for_granted,
    "leakage.l1_sensitivity": test_a_measured_sensitivity_is_reached_by_candidates,
    "bounds.label_epsilon": test_the_label_bound_is_below_the_gaussian_pair_of_its_two_batches,
}

ESTIMATES = (
    "attacks.attributes.infer", "attacks.inversion.invert", "attacks.nearest_prior", "attacks.pixel_success",
    "attacks.reconstruction_game", "attacks.tensor.reconstruct", "leakage.sensitivity",
    "leakage.subspace_distance", "leakage.v_information_original", "bounds.extrapolate_label_epsilon",
)  # fmt: skip
"""Functions whose results are estimates whatever they are given, and name nothing as certain."""
OF_ESTIMATES = (
    "attacks.inversion.Inversion.compared_with", "attacks.ReconstructionGame.merge", "attacks.reconstruction_games",
)  # fmt: skip
"""What joins or completes results of the ones above."""
CERTAIN = {"determined", "identifiable", "present", "proved", "certified", "lows", "highs"}


def _kinds_of_results() -> dict[str, type[Result]]:
    """The classes of results of attacks, leakage and bounds of labels, by name."""
    rest, out = [Result], {}
    while rest:
        for one in rest.pop().__subclasses__():
            rest.append(one)
            if one.__module__.startswith(("leakcore.attacks", "leakcore.leakage", "leakcore.bounds.labels")):
                out[one.__name__] = one
    return out


def _functions() -> Iterator[tuple[str, Any]]:
    """Every public function, and method of a public class, that returns one of them."""
    public = [(name, member) for name, member in calls.public() if name.startswith(("attacks.", "leakage.", "bounds."))]
    kinds = _kinds_of_results()
    for name, member in public:
        own = [(name, member)]
        if inspect.isclass(member):
            own = [(f"{name}.{n}", f) for n, f in vars(member).items() if inspect.isfunction(f) and n[0] != "_"]
        for called, function in own:
            returned = str(inspect.signature(function).return_annotation)
            if set(re.findall(r"\w+", returned)) & kinds.keys():
                yield called, function


def test_every_function_that_can_prove_or_determine_is_in_this_suite() -> None:
    names = {name for name, _ in _functions()}
    listed = {*SUITE, *ESTIMATES, *OF_ESTIMATES}
    assert len(names) > 20
    assert names - listed == set(), "add a test of what it proves, or list it as an estimate"
    assert all(test.__name__ in globals() for test in SUITE.values())


@pytest.mark.parametrize("name", ESTIMATES)
def test_what_is_listed_as_an_estimate_is_one(name: str) -> None:
    result = arrays.resolve(name)(**arrays.CALLS[name].arguments())
    for one in result if isinstance(result, list | tuple) else [result]:
        assert one.kind == "estimate"
        assert CERTAIN.isdisjoint(field.name for field in dataclasses.fields(one))
