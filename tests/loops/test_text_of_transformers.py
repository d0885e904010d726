"""Sequences from gradients of GPT-2, Llama, BERT and DistilBERT of random weights, as transformers builds them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

pytest.importorskip("transformers")
import transformers

from leakcore.attacks import text

pytestmark = [pytest.mark.loops, pytest.mark.filterwarnings("ignore::UserWarning")]
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
DECODERS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=300, n_positions=16, n_embd=96, n_layer=2, n_head=4, **TOKENS)
    ),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=300, hidden_size=96, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, **TOKENS,
        )
    ),
}  # fmt: skip
ENCODERS = {
    "bert": lambda: transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=300, hidden_size=96, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128,
            max_position_embeddings=16,
        )
    ),
    "distilbert": lambda: transformers.DistilBertForSequenceClassification(
        transformers.DistilBertConfig(
            vocab_size=300, dim=96, n_layers=3, n_heads=4, hidden_dim=128, max_position_embeddings=16
        )
    ),
}  # fmt: skip


def _built(build: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build().eval()


def _batch(lengths: list[int]) -> tuple[list[list[int]], torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(3, 300, (length,), generator=generator).tolist() for length in lengths]
    longest = max(lengths)
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    return rows, tokens, torch.tensor([[i < len(row) for i in range(longest)] for row in rows]).long()


def _gradient(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("lengths", [[9], [8, 5, 8, 7]])
def test_a_decoder(name: str, lengths: list[int]) -> None:
    model = _built(DECODERS[name])
    rows, tokens, mask = _batch(lengths)
    labels = tokens.masked_fill(mask == 0, -100).roll(-1, 1)
    labels[:, -1] = -100
    labels[torch.arange(len(rows)), torch.tensor(lengths) - 1] = 2  # the end token follows
    logits = model(input_ids=tokens, attention_mask=mask).logits
    loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    recovery = text.sequences(model, _gradient(model, loss), batch_size=len(rows), length=12)
    assert recovery.exact(rows).all()
    assert recovery.determined.all()
    assert recovery.causal


def test_the_models_own_loss_hides_the_last_token() -> None:
    """It is a label and never an input whose output counts."""
    model = _built(DECODERS["gpt2"])
    rows, tokens, _ = _batch([8, 8])
    released = _gradient(model, model(input_ids=tokens, labels=tokens).loss)
    recovery = text.sequences(model, released, batch_size=2, length=12)
    assert recovery.exact([row[:-1] for row in rows]).all()


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("lengths", [[9], [8, 6, 7]])
def test_an_encoder(name: str, lengths: list[int]) -> None:
    model = _built(ENCODERS[name])
    rows, tokens, mask = _batch(lengths)
    loss = model(input_ids=tokens, attention_mask=mask, labels=torch.arange(len(rows)) % 2).loss
    recovery = text.sequences(model, _gradient(model, loss), batch_size=len(rows), length=12)
    assert recovery.exact(rows).all()
    assert not recovery.causal
