"""The row check while a run is recorded: what Opacus gets wrong is refused, and the loop notices nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

pytest.importorskip("opacus")
from opacus import PrivacyEngine

import leakcore
from leakcore.dpsgd import FusedDPOptimizer
from tests.dpsgd.opacus_models import made
from tests.dpsgd.opacus_remarks import IGNORED
from tests.dpsgd.rows.layer_models import EXAMPLES, Then, dense
from tests.dpsgd.rows.training import ROWS, Y, fused, take_step

pytestmark = IGNORED


_WAYS: dict[str, tuple[str, str]] = {
    "DPLSTM, sorted within": ("hooks", "are not the rows'"),
    "one layer in another order": ("ghost", "are not the rows'"),
    "mean of the batch": ("functorch", "depends on the other rows"),
    "all steps first, as many": ("hooks", "are not the rows'|rows went in"),
    "DPGRU, unsorted": ("hooks", r"DPGRU has a packed sequence .* FusedDPOptimizer\.replace"),
    "bag, sum, ragged, []": ("hooks", "record does not take EmbeddingBag"),
    "embedding, norm": ("hooks", "max_norm=1.0, which shortens"),
    "wrong sampler": ("hooks", "are not the rows'"),
}


def _recorded(plain: nn.Module, rows: Callable[[int], torch.Tensor], mode: str) -> leakcore.Trace:
    x, y = rows(60), torch.arange(60) % 4
    settings = {} if mode != "ghost" else {"criterion": nn.CrossEntropyLoss()}
    parts = PrivacyEngine(accountant="rdp").make_private(
        module=plain, optimizer=torch.optim.SGD(plain.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=20),
        noise_multiplier=1.0, max_grad_norm=1.0, grad_sample_mode=mode, **settings,
    )  # fmt: skip
    module, optimizer, *loss, loader = parts
    criterion = loss[0] if loss else nn.CrossEntropyLoss()
    members = torch.ones(10, dtype=torch.bool)
    with leakcore.record(optimizer, candidates=(x[:10], y[:10]), members=members) as recorder:
        for a, b in loader:
            optimizer.zero_grad()
            criterion(module(a), b).backward()
            optimizer.step()
    return recorder.trace()


@pytest.mark.parametrize("name", _WAYS)
def test_recording_refuses_what_opacus_gets_wrong(name: str) -> None:
    """In the first step, whichever way Opacus makes rows, or norms."""
    mode, refused = _WAYS[name]
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=refused):
        _recorded(EXAMPLES[name].model().double(), EXAMPLES[name].rows, mode)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("mode", ["hooks", "ghost", "functorch", "ew"])
def test_recording_takes_what_opacus_gets_right(mode: str) -> None:
    torch.manual_seed(0)
    plain = Then(lambda x, a, drop: drop(a(x)), 6, nn.Linear(6, 6), nn.Dropout(0.2)).double()
    assert len(_recorded(plain, dense(6), mode).batch_rows) == 3


class _Grows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.not_yet, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.first(x).tanh())
        return output


def test_a_layer_that_is_never_called_is_named() -> None:
    module, optimizer = fused(_Grows())
    with pytest.raises(ValueError, match=r"no row has a gradient of not_yet\.weight, not_yet\.bias"):
        take_step(module, optimizer, torch.randn(ROWS, 6))
    for mode in ("hooks", "ghost"):
        with pytest.raises(ValueError, match=r"no row has a gradient of not_yet\.weight, not_yet\.bias"):
            _recorded(_Grows(), lambda n: torch.randn(n, 6), mode)


def test_errors_of_the_loop_stay_what_they_are_while_it_is_recorded() -> None:
    class Fails(_Grows):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("of the loop")

    with pytest.raises(KeyError, match="of the loop"):
        _recorded(Fails(), lambda n: torch.randn(n, 6), "hooks")


def test_it_stands_in_no_state_and_no_copy() -> None:
    """A module is copied between checked steps, and the copy knows nothing of leakcore."""
    module, optimizer = fused(_Grows())
    module._module.not_yet.requires_grad_(False)
    optimizer = made(FusedDPOptimizer, module)
    for _ in range(2):
        take_step(module, optimizer, torch.randn(ROWS, 6))
    for network in copy.deepcopy(module.to_standard_module()).modules():
        hooks = [*network._forward_hooks.values(), *network._forward_pre_hooks.values()]
        assert not any(type(hook).__module__.startswith("leakcore") for hook in hooks)


def test_a_penalty_on_activations_is_not_a_fault_of_the_layers(caplog: pytest.LogCaptureFixture) -> None:
    """The rows are right, and the gradient that comes back to the outputs is not all of them."""

    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(6, 6), nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.hidden = self.first(x).tanh()
            output: torch.Tensor = self.head(self.hidden)
            return output

    module, optimizer = fused(Keeps())
    for _ in range(2):
        optimizer.zero_grad()
        outputs = module(torch.randn(ROWS, 6))
        (functional.cross_entropy(outputs, Y) + module._module.hidden.square().mean()).backward()
        optimizer.step()
    assert "also goes back to its layers around its outputs" in caplog.text
