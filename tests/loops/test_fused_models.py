"""Steps of FusedDPOptimizer on models of transformers and peft: autograd's rows in float64, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

pytest.importorskip("opacus")
pytest.importorskip("transformers")
pytest.importorskip("peft")
import peft
import transformers
from opacus import GradSampleModule

from leakcore.dpsgd import FusedDPOptimizer
from leakcore.dpsgd.fused.row_gradients import Dense
from leakcore.dpsgd.fused.shared_parameters import Tied
from tests.dpsgd.fused.row_truth import clipped_rows, error_of, some
from tests.dpsgd.fused.test_row_gradients import ROUNDING
from tests.dpsgd.opacus_models import made
from tests.dpsgd.opacus_remarks import IGNORED

pytestmark = [
    *IGNORED, pytest.mark.loops, pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),  # of peft
]  # fmt: skip

ROWS, STEPS = 5, 8
_WORDS = torch.randint(1, 50, (ROWS, STEPS), generator=torch.Generator().manual_seed(0))
_PLACES, _LABELS = torch.arange(STEPS).expand(ROWS, STEPS), torch.arange(ROWS) % 3
TEXT = {"input_ids": _WORDS, "position_ids": _PLACES}
_SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
_QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _gpt2(**settings: Any) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=STEPS, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, **settings,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).train()  # type: ignore[no-any-return]


def _bert() -> nn.Module:
    config = transformers.BertConfig(vocab_size=50, num_labels=3, **_SIZE, **_QUIET)
    return transformers.BertForSequenceClassification(config).train()  # type: ignore[no-any-return]


def _vit() -> nn.Module:
    config = transformers.ViTConfig(num_labels=3, **_SIZE, **_QUIET, image_size=8, patch_size=4)
    return transformers.ViTForImageClassification(config).train()  # type: ignore[no-any-return]


def _llama() -> nn.Module:
    config = transformers.LlamaConfig(vocab_size=50, num_key_value_heads=1, max_position_embeddings=STEPS, **_SIZE)
    return transformers.LlamaForCausalLM(config).train()  # type: ignore[no-any-return]


def _t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config).train()  # type: ignore[no-any-return]


def _adapted(model: nn.Module, **settings: Any) -> nn.Module:
    """Both matrices of the adapters are random: as they begin, one is zero, and so is half of the gradient."""
    return peft.get_peft_model(model, peft.LoraConfig(r=2, init_lora_weights=False, **settings)).train()  # type: ignore[no-any-return]


_PICTURES = {"pixel_values": torch.randn(ROWS, 3, 8, 8, generator=torch.Generator().manual_seed(1))}
MODELS: dict[str, tuple[Callable[[], nn.Module], dict[str, torch.Tensor]]] = {
    "GPT-2": (_gpt2, TEXT),
    "GPT-2, untied, eager": (lambda: _gpt2(tie_word_embeddings=False, attn_implementation="eager"), TEXT),
    "BERT": (_bert, TEXT),
    "ViT": (_vit, _PICTURES),
    "Llama": (_llama, TEXT),
    "LoRA of Conv1D": (lambda: _adapted(_gpt2(), target_modules=["c_attn", "c_proj"], fan_in_fan_out=True), TEXT),
    "LoRA, head trained": (
        lambda: _adapted(_bert(), target_modules=["query", "value"], modules_to_save=["classifier"]), TEXT,
    ),
    "LoRA, biases": (lambda: _adapted(_bert(), target_modules=["query"], bias="lora_only", use_rslora=True), TEXT),
    "LoRA of a convolution": (lambda: _adapted(_vit(), target_modules=["projection"]), _PICTURES),
}  # fmt: skip


def _loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """A mean of the rows' losses, in float64: the models' own are computed in float32."""
    logits = model(**batch["inputs"]).logits.double()
    if logits.ndim == 2:
        return functional.cross_entropy(logits, batch["labels"])
    return functional.cross_entropy(logits[:, :-1].transpose(1, 2), batch["inputs"]["input_ids"][:, 1:])


def _narrowed(batch: Any, dtype: torch.dtype) -> Any:
    if isinstance(batch, dict):
        return {name: _narrowed(values, dtype) for name, values in batch.items()}
    return batch.to(dtype) if batch.dtype.is_floating_point else batch


def _prepared(model: nn.Module, dtype: torch.dtype, rows: int = ROWS, **settings: Any) -> tuple[Any, Any]:
    module = GradSampleModule(copy.deepcopy(model).to(dtype), strict=False)  # rotary embeddings have buffers
    return module, made(FusedDPOptimizer, module, expected_batch_size=rows, **settings)


def _released(optimizer: Any) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in optimizer.params])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_clipped_sums_equal_autograds_row_by_row(name: str, dtype: torch.dtype) -> None:
    network, inputs = MODELS[name]
    torch.manual_seed(0)
    plain = network().to(dtype)
    whole = {"inputs": inputs, "labels": _LABELS}
    for norm, rows in ((0.5, ROWS), (1e3, 3), (0.5, 1)):
        batch = _narrowed(some(whole, slice(0, rows)), dtype)
        truth = clipped_rows(plain, _loss, batch, rows, norm)
        module, optimizer = _prepared(plain, dtype, rows, max_grad_norm=norm)
        _loss(module, batch).backward()
        optimizer.clip_and_accumulate()
        total = torch.cat([p.summed_grad.flatten() for p in optimizer.params])
        assert error_of(total, truth) < max(ROUNDING[dtype], 1e-7 if name == "Llama" else 0)  # float32 in its norms


@pytest.mark.parametrize("name", ["GPT-2", "BERT", "LoRA, head trained"])
def test_parts_of_a_batch_are_one_sum(name: str) -> None:
    network, inputs = MODELS[name]
    torch.manual_seed(0)
    plain, batch = network().double(), {"inputs": inputs, "labels": _LABELS}
    truth = clipped_rows(plain, _loss, batch, ROWS, 0.5)
    module, optimizer = _prepared(plain, torch.float64, max_grad_norm=0.5)
    for rows in (slice(0, 3), slice(3, ROWS)):
        optimizer.signal_skip_step(do_skip=rows.stop < ROWS)
        optimizer.zero_grad()
        _loss(module, some(batch, rows)).backward()
        optimizer.pre_step()
    assert error_of(_released(optimizer) * ROWS, truth) < 1e-14


def test_no_rows_of_gpt2s_large_matrices_are_made() -> None:
    """Opacus makes those of Conv1D and of the tied table."""
    config = {"vocab_size": 997, "n_positions": 4, "n_embd": 16, "n_layer": 1, "n_head": 2}
    torch.manual_seed(0)
    plain = transformers.GPT2LMHeadModel(transformers.GPT2Config(**config, bos_token_id=0, eos_token_id=0)).train()
    module, optimizer = _prepared(plain, torch.float32)
    _loss(module, {"inputs": some(TEXT, (slice(None), slice(0, 4)))}).backward()
    uses = {p: p.grad_sample[0]._live() for p in optimizer.params}
    large = [use for p, use in uses.items() if p.numel() >= 16 * 48]
    assert len(large) == 4
    assert not any(isinstance(use, Dense) for use in large)
    assert isinstance(uses[module._module.lm_head.weight], Tied)
    optimizer.step()


@pytest.mark.parametrize(
    ("network", "inputs", "message"),
    [
        (_gpt2, {"input_ids": _WORDS}, r"got \[1, 5\] \(1 of transformer.wpe.weight, 5 of "),
        (_t5, {"input_ids": _WORDS, "labels": _WORDS}, r"got \[5, 8\] .* 8 of .*relative_attention_bias.weight"),
        (lambda: _adapted(_gpt2(), target_modules=["wte"]), TEXT, r"a ParameterDict holds default \(2, 50\): freeze"),
        (
            lambda: _adapted(_bert(), target_modules=["query"], use_dora=True), TEXT,
            "a DoraLinearLayer must take one input",
        ),
    ],
)  # fmt: skip
def test_what_has_no_rows_is_refused_by_name_before_a_step(
    network: Callable[[], nn.Module], inputs: dict[str, torch.Tensor], message: str
) -> None:
    torch.manual_seed(0)
    module, optimizer = _prepared(network(), torch.float32)
    before = [p.detach().clone() for p in optimizer.params]

    def step() -> None:
        _loss(module, {"inputs": inputs, "labels": _LABELS}).backward()
        optimizer.step()

    with pytest.raises(ValueError, match=message):
        step()
    assert all(torch.equal(a, b) for a, b in zip(before, optimizer.params, strict=True))
