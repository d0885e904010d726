"""Sequences from spans, compared with the true ones, which the attack never sees."""

from __future__ import annotations

import pytest
import torch

from leakcore import defenses
from leakcore.attacks import text
from tests.attacks.text.networks import Packaged, Transformer, build, class_loss, gradient, language_loss, texts


def _recovered(model, sequences, released=None, **settings):
    released = gradient(model, language_loss(model, sequences)) if released is None else released
    settings = {"batch_size": len(sequences), "length": 16} | settings
    return text.sequences(model, released, **settings)


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 8])
def test_decoder_with_a_ragged_batch(batch):
    model, sequences = build(), texts(batch, 3, 10)
    assert sum(map(len, sequences)) < 64
    recovery = _recovered(model, sequences)
    assert recovery.exact(sequences).all()
    assert recovery.value == 1.0
    assert recovery.causal
    assert recovery.complete
    assert recovery.kind == "estimate"
    # As many directions as there are different prefixes, and at most as there are different tokens at a position.
    tokens = {(i, token) for row in sequences for i, token in enumerate(row)}
    prefixes = {tuple(row[: i + 1]) for row in sequences for i in range(len(row))}
    assert recovery.ranks[0] <= len(tokens)
    assert recovery.ranks[1] == len(prefixes)
    assert (recovery.distances <= recovery.tolerances).all()
    assert (recovery.tolerances < 0.01).all()


@pytest.mark.parametrize("settings", [{"tied": True}, {"positions": False}, {"layers": 3}], ids=str)
def test_other_decoders(settings):
    model, sequences = build(**settings), texts(3, 4, 8)
    assert _recovered(model, sequences).exact(sequences).all()


@pytest.mark.parametrize("batch_first", [True, False])
def test_torch_layers_with_one_projection(batch_first):
    model, sequences = build(Packaged, batch_first=batch_first), texts(3, 7, 7)
    assert _recovered(model, sequences).exact(sequences).all()


def test_repeated_tokens():
    model, sequences = build(), [[7, 7, 7, 7, 3], [7, 3, 7, 3, 7], [3, 3, 3, 3, 3]]
    assert _recovered(model, sequences).exact(sequences).all()


def test_equal_sequences_and_prefixes():
    model = build()
    twice = _recovered(model, [[4, 5, 6], [4, 5, 6]])
    assert twice.value == 0.5
    assert twice.exact([[4, 5, 6], [4, 5, 6]]).all()
    prefix = _recovered(model, [[4, 5, 6, 9], [4, 5, 6]])
    assert prefix.exact([[4, 5, 6, 9], [4, 5, 6]]).tolist() == [True, False]


def test_undetermined_part_of_the_batch():
    """Without its last tokens the vocabulary gives sequences that are cut short, and the span shows that."""
    model, sequences = build(), texts(3, 5, 8)
    left = sorted(set(range(120)) - {sequences[0][-1]})
    recovery = _recovered(model, sequences, vocabulary=left)
    assert len(recovery.sequences) == 3
    assert not recovery.exact(sequences)[0]
    assert not recovery.determined.any()
    assert "cut short" in recovery.assumptions.notes[0]


def test_gradient_forms_and_precisions():
    model, sequences = build(), texts(3, 4, 8)
    by_name = gradient(model, language_loss(model, sequences))
    listed = list(by_name.values())
    alone = {name: part for name, part in by_name.items() if "_proj" in name}
    vector = torch.cat([part.flatten() for part in listed])
    for released in (by_name, listed, alone, vector, vector.numpy(), {n: p.double() for n, p in by_name.items()}):
        assert _recovered(model, sequences, released).exact(sequences).all()
    wide = build().double()
    exact = _recovered(wide, sequences)
    assert exact.exact(sequences).all()
    assert (exact.tolerances < 1e-9).all()
    # A float32 gradient of a float64 model is read at float32's precision.
    narrow = {n: p.float() for n, p in gradient(wide, language_loss(wide, sequences)).items()}
    assert _recovered(wide, sequences, narrow).exact(sequences).all()


def test_clipping():
    model, sequences = build(), texts(4, 3, 8)
    own = [gradient(model, language_loss(model, [sequence])) for sequence in sequences]
    norms = [torch.cat([part.flatten() for part in parts.values()]).norm() for parts in own]
    clipped = {
        name: sum(parts[name] * (0.01 / norm) for parts, norm in zip(own, norms, strict=True)) for name in own[0]
    }
    assert _recovered(model, sequences, clipped).exact(sequences).all()
    whole = {name: 1e-6 * part for name, part in gradient(model, language_loss(model, sequences)).items()}
    assert _recovered(model, sequences, whole).exact(sequences).all()


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_encoder(batch):
    model, sequences = build(causal=False, layers=3, classes=2, width=80), texts(batch, 5, 8)
    recovery = _recovered(model, sequences, gradient(model, class_loss(model, sequences)))
    assert recovery.exact(sequences).all()
    assert not recovery.causal


def test_repetition_without_positions():
    """The layers receive the same for A, A as for A: a repetition shows only in what follows it."""
    model = build(positions=False)
    for sequences in ([[7, 7, 9, 5], [8, 6]], [[7], [8, 6, 8]]):
        assert _recovered(model, sequences).exact(sequences).all()
    for sequence, answer in (([7, 7], [7]), ([8, 6, 8, 6], [8, 6, 8])):
        assert _recovered(model, [sequence]).exact([answer]).all()


def test_as_many_positions_as_dimensions():
    model, sequences = build(width=32), texts(8, 6, 6)
    recovery = _recovered(model, sequences)
    assert recovery.value == 0.0
    assert len(recovery.sequences) == 0
    assert recovery.width == 31  # a layer norm's outputs sum to 0
    assert "rank reaches the width 31" in recovery.assumptions.notes[0]


def test_layer_of_one_position():
    class First(Transformer):
        def forward(self, tokens, mask=None):
            x = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1]))
            for block in self.blocks:
                x = block(x, mask)
            return self.head(x[:, 0])

    model, sequences = build(First, causal=False, classes=2, heads=2), [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14]]
    loss = torch.nn.functional.cross_entropy(model(torch.tensor(sequences)), torch.tensor([1]))
    recovery = _recovered(model, sequences, gradient(model, loss))
    assert recovery.ranks[1] < recovery.ranks[0]
    assert "does not hold every position" in recovery.assumptions.notes[0]
    assert recovery.value == 0.0


def test_noise():
    model, sequences = build(), texts(2, 4, 6)
    exact = gradient(model, language_loss(model, sequences))
    generator = torch.Generator().manual_seed(0)
    shares = []
    for std in (1e-9, 1e-6, 1e-1):
        noisy = {n: p + std * torch.randn(p.shape, generator=generator) for n, p in exact.items()}
        recovery = _recovered(model, sequences, noisy, noise_std=std)
        shares.append(recovery.exact(sequences).mean())
        assert {tuple(r[r >= 0]) for r in recovery.sequences} <= {tuple(s[:k]) for s in sequences for k in range(1, 8)}
    assert shares == [1.0, 1.0, 0.0]
    # Noise that is not stated fills the whole space.
    assert _recovered(model, sequences, noisy).value == 0.0


def test_smaller_vocabulary():
    model, sequences = build(), texts(3, 4, 8)
    released = gradient(model, language_loss(model, sequences))
    known = text.tokens(released["embedding.weight"]).present.nonzero()[0]
    assert sorted(known) == sorted({token for row in sequences for token in row})
    assert _recovered(model, sequences, released, vocabulary=known).exact(sequences).all()
    assert not _recovered(model, sequences, released, vocabulary=[0, 1]).exact(sequences).any()


def test_more_sequences_than_the_batch():
    model, sequences = build(), texts(3, 4, 8)
    recovery = _recovered(model, sequences, batch_size=2)
    assert len(recovery.sequences) == 2
    assert recovery.exact(sequences).sum() == 2
    assert recovery.value == 0.0
    assert recovery.assumptions.notes[0].startswith("3 sequences pass")
    assert not recovery.determined.any()


def test_model_state_and_repeatability():
    model, sequences = build(), texts(2, 4, 8)
    released = gradient(model, language_loss(model, sequences))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first, again = (_recovered(model, sequences, released) for _ in range(2))
    assert first == again
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_refusals():
    model, sequences = build(), texts(2, 4, 8)
    released = gradient(model, language_loss(model, sequences))
    zero = {name: torch.zeros_like(part) for name, part in released.items()}
    settings = {"batch_size": 2, "length": 16}
    for change, words in (
        ({"gradient": zero}, "zero throughout"),
        ({"gradient": {"norm.weight": released["norm.weight"]}}, "hold the weight of one of"),
        ({"gradient": {"nothing": torch.ones(3)}}, "parameters of the model"),
        ({"gradient": torch.ones(3)}, "must have shape"),
        ({"gradient": [torch.ones(3)]}, "one per parameter"),
        ({"gradient": released | {"norm.weight": torch.full((64,), torch.nan)}}, "finite"),
        ({"gradient": released | {"norm.weight": torch.ones(3)}}, "parameter's shape"),
        ({"batch_size": 0}, "batch_size"),
        ({"length": 17}, "length"),
        ({"noise_std": -1.0}, "noise_std"),
        ({"vocabulary": [120]}, "vocabulary"),
        ({"vocabulary": [0.5]}, "vocabulary"),
        ({"layers": [["blocks.0.q_proj"]]}, "two layers"),
        ({"layers": [["blocks.0.nothing"], ["blocks.1.q_proj"]]}, "have a weight"),
        ({"layers": [["blocks.1.q_proj"], ["blocks.1.k_proj"]]}, "first layer"),
        ({"model": build(dropout=0.1).train()}, "dropout|random"),
        ({"model": torch.nn.Linear(2, 2), "gradient": torch.ones(6)}, "layers"),
    ):
        with pytest.raises(ValueError, match=words):
            text.sequences(**{"model": model, "gradient": released} | settings | change)


def test_layers_by_name():
    model, sequences = build(), texts(3, 4, 8)
    released = gradient(model, language_loss(model, sequences))
    names = [[f"blocks.{i}.{kind}_proj" for kind in "qkv"] for i in (0, 1)]
    assert _recovered(model, sequences, released, layers=names) == _recovered(model, sequences, released)
    keys = [[f"blocks.{i}.v_proj"] for i in (0, 1)]
    assert _recovered(model, sequences, released, layers=keys).exact(sequences).all()


def test_progress():
    model, sequences = build(), texts(2, 5, 5)
    calls = []
    _recovered(model, sequences, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(i, 5) for i in range(5)]


def test_token_without_input():
    model, sequences = build(positions=False), texts(2, 4, 6)
    with torch.no_grad():
        model.embedding.weight[0] = 0
        for block in model.blocks:
            block.before.bias.zero_()
    assert _recovered(model, sequences).exact(sequences).all()


@pytest.mark.parametrize(("rate", "steps"), [(0.1, 1), (1e-4, 3)])
def test_federated_averaging(rate, steps):
    """A difference of float32 weights is off by their rounding, about 1e-8 here; at a small rate steps add up."""
    model, sequences = build(), texts(3, 5, 9)
    client = build()
    optimizer = torch.optim.SGD(client.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        language_loss(client, sequences).backward()
        optimizer.step()
    change = [(old - new).detach() for old, new in zip(model.parameters(), client.parameters(), strict=True)]
    assert _recovered(model, sequences, change, noise_std=1e-8).exact(sequences).all()


def test_defences():
    model, sequences = build(), texts(3, 5, 9)
    exact = torch.cat([part.flatten() for part in gradient(model, language_loss(model, sequences)).values()])
    assert _recovered(model, sequences, defenses.Clip(0.1).apply(exact)).exact(sequences).all()
    for defense in (defenses.Prune(0.9), defenses.Prune(0.1), defenses.Laplace(1e-3)):
        recovery = _recovered(model, sequences, defense.apply(exact, seed=0))
        assert not recovery.exact(sequences).any()
        assert not recovery.determined.any()


@pytest.mark.full
def test_sequences_near_the_noise():
    """Over 30 draws at each level, no determined sequence is wrong."""
    model, sequences = build(), texts(2, 4, 6)
    exact = gradient(model, language_loss(model, sequences))
    generator = torch.Generator().manual_seed(0)
    determined, exacts = 0, 0
    for std in (1e-6, 3e-4, 1e-3, 3e-3):
        for _ in range(30):
            noisy = {n: p + std * torch.randn(p.shape, generator=generator) for n, p in exact.items() if "proj" in n}
            recovery = _recovered(model, sequences, noisy, noise_std=std)
            sure = [row[row >= 0].tolist() for row in recovery.sequences[recovery.determined]]
            assert all(row in sequences for row in sure)
            determined += len(sure)
            exacts += int(recovery.exact(sequences).sum())
    assert 60 <= determined <= exacts < 240
