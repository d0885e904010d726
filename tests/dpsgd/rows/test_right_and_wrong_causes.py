"""Right programs are trained and recorded, whatever their integers look like; a refusal names the cause that it has."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("opacus")
from opacus import PrivacyEngine

import leakcore
from leakcore.dpsgd import Canaries, FusedDPOptimizer
from tests.dpsgd.opacus_remarks import IGNORED

pytestmark = IGNORED
ROWS = 24


class _Forecast(nn.Module):
    """Five hours from features (B, 5, 3) and the number of the station (B,)."""

    def __init__(self) -> None:
        super().__init__()
        self.station, self.head = nn.Embedding(ROWS + 1, 3), nn.Linear(3, 1)

    def forward(self, hours: torch.Tensor, station: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(hours + self.station(station)[:, None]).squeeze(-1)
        return out


class _Answers(nn.Module):
    """A model that takes two positions of each row and returns its own loss, as question answering does."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(20, 6), nn.Linear(6, 2)

    def forward(self, words: torch.Tensor, start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        first, last = self.out(self.table(words)).unbind(-1)
        return (functional.cross_entropy(first, start) + functional.cross_entropy(last, end)) / 2


def _private(module: nn.Module, data: tuple[torch.Tensor, ...], **settings: Any) -> Any:
    torch.manual_seed(1)
    arguments = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, **settings}
    return PrivacyEngine(accountant="rdp").make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(*data), batch_size=8), **arguments,
    )  # fmt: skip


def _loop(module: Any, optimizer: Any, loader: Any, loss: Callable[..., torch.Tensor]) -> None:
    for a, b in loader:
        optimizer.zero_grad()
        loss(module(a), b).backward()
        optimizer.step()


INTEGERS = {
    "one station": torch.zeros(ROWS, dtype=torch.long),
    "sorted": torch.arange(ROWS) // 12,
    "each its own": torch.arange(ROWS),
    "not from 0": torch.arange(ROWS) // 4 + 1,
    "int32": (torch.arange(ROWS) // 8).int(),
}


@pytest.mark.full(keep=6)
@pytest.mark.parametrize("kind", ["fused", "record"])
@pytest.mark.parametrize("name", INTEGERS)
def test_sorted_integers_are_rows(name: str, kind: str) -> None:
    torch.manual_seed(0)
    hours, target, station = torch.randn(ROWS, 5, 3), torch.randn(ROWS, 5), INTEGERS[name]
    module, optimizer, loader = _private(_Forecast(), (hours, station, target))
    _run(
        kind,
        module,
        optimizer,
        loader,
        lambda h, s, t: functional.mse_loss(module(h, s), t),
        ((hours, station), target),
    )


@pytest.mark.parametrize("kind", ["fused", "record"])
def test_sorted_positions_of_a_models_own_loss_are_rows(kind: str) -> None:
    torch.manual_seed(0)
    words, start = torch.randint(0, 20, (ROWS, 7)), torch.arange(ROWS) // 6
    end = start + 1
    module, optimizer, loader = _private(_Answers(), (words, start, end))
    _run(kind, module, optimizer, loader, module, ({"words": words, "start": start, "end": end},))


def _run(kind: str, module: Any, optimizer: Any, loader: Any, loss: Callable[..., torch.Tensor], rows: Any) -> None:
    mse = nn.MSELoss()

    def train(optimizer: Any) -> int:
        steps = 0
        for batch in list(loader) + list(loader):
            optimizer.zero_grad()
            out = mse(module(*batch[:-1]), batch[-1]) if len(rows) == 2 else loss(*batch)
            out.backward()
            optimizer.step()
            steps += 1
        return steps

    if kind == "fused":
        assert train(FusedDPOptimizer.replace(optimizer, module)) == 6
        return
    candidates = rows if len(rows) == 2 else rows[0]
    with leakcore.record(
        optimizer, candidates=candidates, members=torch.ones(ROWS, dtype=torch.bool), sampling=loader
    ) as recorder:
        steps = train(optimizer)
    assert recorder.steps == steps == 6


class _Mixed(_Forecast):
    def forward(self, hours: torch.Tensor, station: torch.Tensor) -> torch.Tensor:
        return super().forward(hours, station) - hours.mean()


def test_a_model_that_mixes_rows_is_refused_with_sorted_integers_too() -> None:
    hours, target = torch.randn(ROWS, 5, 3), torch.randn(ROWS, 5)
    module, optimizer, loader = _private(_Mixed(), (hours, torch.zeros(ROWS, dtype=torch.long), target))
    with pytest.raises(ValueError, match="depends on the other rows of the batch"):
        _run("fused", module, optimizer, loader, module, (None, target))


class _Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wave, self.out = nn.Linear(6, 4, dtype=torch.cfloat), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.wave(x.to(torch.cfloat)).abs())
        return out


@pytest.mark.parametrize("kind", ["fused", "record", "canaries"])
def test_complex_parameters_are_refused_before_a_step(kind: str) -> None:
    x, y = torch.randn(ROWS, 6), torch.arange(ROWS) % 3
    module, optimizer, loader = _private(_Spectral(), (x, y))
    begin: dict[str, Callable[[], Any]] = {
        "fused": lambda: FusedDPOptimizer.replace(optimizer, module),
        "record": lambda: leakcore.record(optimizer, candidates=(x, y)),
        "canaries": lambda: leakcore.record(optimizer, canaries=Canaries(4), sampling=loader),
    }
    with pytest.raises(ValueError, match=r"must train real floating-point parameters, got .* of torch\.complex64"):
        begin[kind]()


class _Block(nn.Module):
    """`deep`: the layer sees four dimensions. `use`: how the forward pass uses the layer."""

    def __init__(self, use: str = "always") -> None:
        super().__init__()
        self.conv, self.point, self.head = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(4, 4), nn.Linear(4, 3)
        self.use = use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv(x).permute(0, 2, 3, 1)
        if self.use == "always":
            h = self.point(h)
        elif self.use == "unused":
            self.point(h)
        out: torch.Tensor = self.head(torch.tanh(h).mean((1, 2)))
        return out


CAUSES: dict[str, tuple[str, str]] = {
    "unfrozen": ("fused record", "no hooks of Opacus, because it was frozen"),
    "evaluation": ("record", "called in evaluation mode"),
    "never": ("record", "never called"),
    "unused": ("fused record", "its output unused"),
    "ghost": ("record", "ghost clipping has no norms for a Linear whose input has more than 3 dimensions, got 4"),
}


@pytest.mark.parametrize(
    ("case", "kind"), [(case, kind) for case, (kinds, _) in CAUSES.items() for kind in kinds.split()]
)
def test_the_cause_of_missing_rows_is_the_one_there_is(case: str, kind: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(ROWS, 2, 6, 6), torch.arange(ROWS) % 3
    net = _Block(case if case in ("never", "unused") else "always")
    net.point.requires_grad_(case != "unfrozen")
    ghost = {"grad_sample_mode": "ghost", "criterion": nn.CrossEntropyLoss()} if case == "ghost" else {}
    module, optimizer, *rest = _private(net, (x, y), **ghost)
    loader, loss = rest[-1], rest[0] if ghost else nn.CrossEntropyLoss()
    if kind == "fused":
        optimizer = FusedDPOptimizer.replace(optimizer, module)
    net.point.requires_grad_(True)
    if case == "evaluation":
        net.point.eval()
    recording = leakcore.record(optimizer, candidates=(x[:4], y[:4]), members=torch.ones(4, dtype=torch.bool))

    def train() -> None:
        with contextlib.nullcontext() if kind == "fused" else recording:
            _loop(module, optimizer, loader, loss)

    with pytest.raises(ValueError, match=rf"of point.*: .*{CAUSES[case][1]}"):
        train()


class _Head(nn.Module):
    """As the heads of masked language models: a bias that the decoder holds as well, and the table's weight."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.decoder = nn.Linear(4, 9)
        self.decoder.weight, self.bias = table.weight, self.decoder.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.decoder(x)
        return out


def _masked() -> nn.Module:
    table = nn.Embedding(9, 4, padding_idx=0)
    model = nn.Sequential()
    model.table, model.predictions = table, _Head(table)
    model.forward = lambda words: model.predictions(model.table(words)).mean(1)  # type: ignore[method-assign]
    return model


def test_a_layer_that_another_one_holds_is_said_with_its_remedy() -> None:
    words, y = torch.randint(1, 9, (ROWS, 5)), torch.arange(ROWS) % 9
    model = _masked()
    module, optimizer, _ = _private(model, (words, y))
    with pytest.raises(ValueError, match=r"also used in predictions \(_Head\).*del model\.predictions\.bias"):
        FusedDPOptimizer.replace(optimizer, module)
    model = _masked()
    del model.predictions.bias
    module, optimizer, loader = _private(model, (words, y))
    optimizer = FusedDPOptimizer.replace(optimizer, module)
    _loop(module, optimizer, loader, functional.cross_entropy)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_after_a_batch_with_nan_the_criterion_is_not_blamed(scale: float, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    x, y, loss = torch.randn(40, 6), torch.arange(40) % 3, nn.CrossEntropyLoss()
    x[17] = float("nan")
    net = nn.Linear(6, 3)
    module, optimizer, loader = _private(net, (x, y))
    with (
        caplog.at_level(logging.WARNING, "leakcore"),
        leakcore.record(optimizer, candidates=(x[:6], y[:6]), members=torch.ones(6, dtype=torch.bool)),
    ):
        for _ in range(4):
            _loop(module, optimizer, loader, lambda outputs, targets: loss(outputs, targets) * scale)
    text = caplog.text
    assert "the loop's loss (CrossEntropyLoss) is nan in this step" in text
    assert "criterion" not in text


def test_a_candidate_with_nan_is_named() -> None:
    torch.manual_seed(0)
    x, y, loss = torch.randn(40, 6), torch.arange(40) % 3, nn.CrossEntropyLoss()
    module, optimizer, loader = _private(nn.Linear(6, 3), (x, y))
    rows = x[:6].clone()
    rows[4, 2] = float("nan")
    recording = leakcore.record(optimizer, candidates=(rows, y[:6]), members=torch.ones(6, dtype=torch.bool))
    with pytest.raises(ValueError, match="the gradient of candidate 4 is not finite"), recording:
        _loop(module, optimizer, loader, loss)
