"""A defence on its own ground's edge: taken off out of turn, half precision, tokens, gradients without end."""

from __future__ import annotations

import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from leakcore import defenses  # noqa: E402
from leakcore.defenses import DPSGD, Clip, Dropout, LocalSteps, Prune  # noqa: E402


def _given() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(12, 6), torch.arange(12) % 3


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_under_opacus_each_defence_takes_off_only_itself(order: tuple[int, int]) -> None:
    opacus = pytest.importorskip("opacus")
    model, x, y = _given()
    data = torch.utils.data.TensorDataset(x, y)
    _, optimizer, _ = opacus.PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=6), noise_multiplier=0.5, max_grad_norm=1.0,
    )  # fmt: skip
    calls: list[str] = []
    optimizer.attach_step_hook(lambda _: calls.append("own"))
    own = optimizer.step_hook
    handles = [defenses.attach(optimizer, Prune(0.5)), defenses.attach(optimizer, Clip(1.0))]
    for name, handle in zip(("prune", "clip"), handles, strict=True):
        handle._defend = functools.partial(calls.append, name)  # type: ignore[method-assign]
    expected = ["clip", "prune", "own"]
    for gone in (None, *order):
        if gone is not None:
            handles[gone].remove()
            expected.remove(("prune", "clip")[gone])
        calls.clear()
        optimizer.step_hook(optimizer)
        assert calls == expected
    # Handles removed in the order of their making leave the last one's empty hook around the optimizer's own.
    assert (optimizer.step_hook is own) == (order != (0, 1))


def test_dp_sgd_keeps_the_type_of_half_precision() -> None:
    rows = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert DPSGD(1.0, 0.5).apply(rows, seed=0).dtype == torch.bfloat16
    halves = rows.float().numpy().astype(np.float16)
    assert DPSGD(1.0, 0.0, 2).apply(halves).dtype == np.float16


def test_a_release_of_no_finite_gradient_names_what_made_it() -> None:
    model, x, y = _given()
    with pytest.raises(ValueError, match=r"model: its gradient is not finite after 40 steps of 1e\+30 \(LocalSteps\)"):
        defenses.release(model, x, y, defense=LocalSteps(40, 1e30), loss=lambda out, _: out.square().mean())
    with pytest.raises(ValueError, match=r"`loss` must return one number for a batch, as.*, got shape \(12,\)"):
        defenses.release(model, x, y, loss=nn.CrossEntropyLoss(reduction="none"))


def test_a_release_of_a_model_of_tokens() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 2)).eval()
    ids, y = torch.randint(0, 7, (5, 3)), torch.arange(5) % 2
    nn.functional.cross_entropy(model(ids), y).backward()
    wanted = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(defenses.release(model, ids, y).gradient, wanted)
    pixels = torch.randint(0, 256, (5, 6), dtype=torch.uint8)
    assert defenses.release(nn.Linear(6, 2), pixels, y).gradient.dtype == torch.float32


def test_masks_of_two_layers_and_neighbouring_seeds_differ() -> None:
    """What feeds the second hidden layer under one seed is not what feeds the first under the next."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)).eval()
    for layer in (model[0], model[2]):  # nothing but a mask makes a unit 0
        layer.weight.data.abs_()
    x, y = torch.ones(1, 64), torch.tensor([0])
    masks = [
        [
            (defenses.release(model, x, y, defense=Dropout(0.5), seed=s).parts[f"{k}.weight"].abs().sum(0) > 0)
            for k in (2, 4)
        ]
        for s in (0, 1)
    ]
    assert all(20 < int(k.sum()) < 44 for pair in masks for k in pair)
    assert not torch.equal(masks[0][1], masks[1][0])


class _Joins(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.body(x).relu().reshape(-1, 8)
        out: torch.Tensor = self.head(rows).reshape(len(x), -1, 2).mean(1)
        return out


def test_dropout_of_rows_that_are_not_the_batch_says_so() -> None:
    torch.manual_seed(0)
    model = _Joins().eval()
    x, y = torch.randn(4, 3, 4), torch.tensor([0, 1, 0, 1])
    with pytest.raises(ValueError, match=r"hidden layer 0 receives 12 rows for a batch of 4.*per_sample=False"):
        defenses.release(model, x, y, defense=Dropout(0.5), seed=0)
    defenses.release(model, x, y, defense=Dropout(0.5, per_sample=False), seed=0)


def test_pruning_keeps_the_share_that_was_written() -> None:
    assert np.count_nonzero(Prune(0.55).apply(np.arange(1.0, 101.0))) == 55
    assert np.count_nonzero(Prune(0.551).apply(np.arange(1.0, 101.0))) == 56
