"""Jobs that train or read models: a claim's audit, a recording, layers, an inverted image, a report."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.jobs.job import Call, Doer, Job

SIGMA = 6.1
"""About ε = 4 at δ = 10⁻⁵ after 24 full batches."""


def _claim(size: Mapping[str, int]) -> Call:
    from leakcore import audit

    config = {
        "data": {"name": "fashion-mnist", "num_rows": size["rows"]},
        "mechanism": {"noise_multiplier": SIGMA, "steps": size["steps"]},
        "audit": {"trials": size["models"] // 2, "k": [1]},
    }
    audit.claim({**config, "audit": {"trials": 20, "k": [1]}})  # reads the data
    return lambda: float(audit.claim(config).epsilon)


def _opacus_trainings(size: Mapping[str, int], count: int = 10) -> Call:
    import torch
    from opacus import PrivacyEngine
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from leakcore import datasets

    warnings.filterwarnings("ignore")
    data = datasets.fashion_mnist()
    features, labels = torch.as_tensor(data.features[: size["rows"]]), torch.as_tensor(data.labels[: size["rows"]])
    rows = TensorDataset(features.float().reshape(len(labels), -1), labels.long())

    def train() -> float:
        module: Any = nn.Linear(784, 10)
        module, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
            module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.15), noise_multiplier=SIGMA,
            max_grad_norm=1.0, data_loader=DataLoader(rows, batch_size=len(rows)), poisson_sampling=False,
        )  # fmt: skip
        for _ in range(size["steps"]):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(x), y).backward()
                optimizer.step()
        return float(sum(p.sum() for p in module.parameters()))

    train()
    return lambda: sum(train() for _ in range(count)) / count


def _recorded(size: Mapping[str, int]) -> Call:
    return _training(size, "record")


def _not_recorded(size: Mapping[str, int]) -> Call:
    return _training(size, "")


def _scored_by_hand(size: Mapping[str, int]) -> Call:
    return _training(size, "vmap")


def _training(size: Mapping[str, int], scored: str) -> Call:
    """Opacus's loop on its own network for MNIST; scored: who takes ⟨gradient, release⟩ of the candidates."""
    import torch
    from opacus import PrivacyEngine
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    import leakcore
    from bench.recorded_step import BATCH, network, rows

    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    x, y = rows(10 * BATCH)
    candidates, labels = rows(size["candidates"])
    members = torch.arange(size["candidates"]) < 0

    def trained(steps: int) -> float:
        module: Any = network()
        plain = network()
        module, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
            module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), noise_multiplier=1.0,
            max_grad_norm=1.0, data_loader=DataLoader(TensorDataset(x, y), batch_size=BATCH),
        )  # fmt: skip
        recorder: Any = contextlib.nullcontext()
        if scored == "record":
            recorder = leakcore.record(optimizer, candidates=(candidates, labels), members=members)

        def loss(parameters: dict[str, torch.Tensor], row: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            outputs = torch.func.functional_call(plain, parameters, (row[None],))
            return nn.functional.cross_entropy(outputs, label[None])

        every = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
        sums, done = torch.zeros(size["candidates"]), 0
        with recorder:
            while done < steps:
                for images, targets in loader:
                    if done == steps:
                        break
                    optimizer.zero_grad()
                    nn.CrossEntropyLoss()(module(images), targets).backward()
                    now = {name: p.detach().clone() for name, p in module._module.named_parameters()}
                    optimizer.step()
                    done += 1
                    if scored == "vmap":
                        gradients = every(now, candidates, labels)
                        flat = torch.cat([g.flatten(1) for g in gradients.values()], dim=1)
                        flat *= (1 / flat.norm(dim=1).clamp(min=1.0))[:, None]
                        sums += flat @ torch.cat([p.grad.flatten() for p in module.parameters()])
        return float(sums.sum())

    trained(1)
    return lambda: trained(size["steps"])


def _layers(size: Mapping[str, int]) -> Call:
    import numpy as np
    import torch

    from leakcore import leakage, models

    torch.manual_seed(0)
    model, inputs = models.lenet(10, shape=(1, 28, 28)).eval(), torch.rand(size["rows"], 1, 28, 28)

    def measured(rows: int) -> list[float]:
        layers = leakage.sensitivity(model, inputs[:rows], torch.arange(rows) % 10, norms=("F",))
        return [float(f"{float(v):.4g}") for v in np.ravel(layers.means["F"])]

    measured(1)
    return lambda: measured(size["rows"])


def _layers_by_torch(size: Mapping[str, int]) -> Call:
    import torch

    from leakcore import models

    torch.manual_seed(0)
    model, inputs = models.lenet(10, shape=(1, 28, 28)).eval(), torch.rand(size["rows"], 1, 28, 28)
    parameters = dict(model.named_parameters())

    def gradient(row: torch.Tensor, label: torch.Tensor) -> dict[str, torch.Tensor]:
        def loss(at: dict[str, torch.Tensor]) -> torch.Tensor:
            outputs = torch.func.functional_call(model, at, (row[None],))
            return torch.nn.functional.cross_entropy(outputs, label[None])

        return torch.func.grad(loss)({name: p.detach() for name, p in parameters.items()})

    def measured(rows: int) -> list[float]:
        norms = dict.fromkeys(parameters, 0.0)
        for row, label in zip(inputs[:rows], torch.arange(rows) % 10, strict=True):
            jacobian = torch.func.jacfwd(gradient)(row, label)
            for name, j in jacobian.items():
                norms[name] += float(j.norm())
        return [float(f"{v / rows:.4g}") for v in norms.values()]

    measured(1)
    return lambda: measured(size["rows"])


def _inversion(size: Mapping[str, int]) -> Call:
    import torch

    from leakcore.attacks import inversion

    model, image, label = _secret()
    released = inversion.gradient(model, image, label)

    def error(iterations: int) -> float:
        how = inversion.SignedAdam(iterations=iterations, restarts=1, patience=iterations)
        objective = inversion.Cosine(box=(0.0, 1.0), total_variation=1e-4)
        inverted = inversion.invert(model, released, (3, 32, 32), labels=label, objective=objective, optimizer=how)
        return float(f"{float(((torch.as_tensor(inverted.reconstructions) - image) ** 2).mean()):.3g}")

    error(1)
    return lambda: error(size["iterations"])


def _secret() -> tuple[Any, Any, list[int]]:
    import torch
    from torch import nn

    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, padding=1), nn.ReLU(),
        nn.Conv2d(64, 64, 3, 2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4096, 10),
    )  # fmt: skip
    return model, torch.rand(1, 3, 32, 32), [3]


def _inversion_by_hand(size: Mapping[str, int]) -> Call:
    """Geiping et al.'s loop in plain torch, with the settings that breaching calls invertinggradients."""
    import torch
    from torch import nn

    model, image, label = _secret()
    target = torch.tensor(label)
    parameters = list(model.parameters())
    released = torch.autograd.grad(nn.functional.cross_entropy(model(image), target), parameters)
    size_of = torch.sqrt(sum((g**2).sum() for g in released))  # type: ignore[arg-type]

    def error(total: int) -> float:
        guess = torch.rand(1, 3, 32, 32, requires_grad=True)
        optimizer = torch.optim.Adam([guess], lr=0.1)
        falls = [int(total / 2.667), int(total / 1.6), int(total / 1.142)]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, falls, gamma=0.1)
        for _ in range(total):
            optimizer.zero_grad()
            own = torch.autograd.grad(nn.functional.cross_entropy(model(guess), target), parameters, create_graph=True)
            inner = sum((a * b).sum() for a, b in zip(own, released, strict=True))
            norm = torch.sqrt(sum((g**2).sum() for g in own))  # type: ignore[arg-type]
            variation = torch.diff(guess, dim=-1).abs().mean() + torch.diff(guess, dim=-2).abs().mean()
            (1 - inner / (norm * size_of) + 1e-4 * variation).backward()
            guess.grad.sign_()  # type: ignore[union-attr]
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                guess.clamp_(0, 1)
        return float(f"{float(((guess.detach() - image) ** 2).mean()):.3g}")

    error(1)
    return lambda: error(size["iterations"])


def _report(size: Mapping[str, int]) -> Call:
    import numpy as np

    from leakcore import audit

    rng = np.random.default_rng(0)
    members, others = rng.normal(1.0, size=size["a_side"]), rng.normal(size=size["a_side"])
    folder = Path(tempfile.mkdtemp())

    def written(count: int) -> int:
        report = audit.from_scores(
            members[:count],
            others[:count],
            retrained=True,
            claimed_epsilon=2.0,
            claimed_adjacency="replace",
            adjacency="replace",
        )
        report.to_json(folder / "report.json")
        return len(report.to_html(folder / "report.html").read_bytes())

    written(100)
    return lambda: written(size["a_side"])


JOBS = {
    "claim": Job(
        "audit of a claim: 2,000 models on Fashion-MNIST",
        {
            "leakcore": Doer(_claim),
            "Opacus, one after another": Doer(
                _opacus_trainings, "the trainings alone; 10 of them, times 200", 10 / 2_000
            ),
        },
        {"models": 2_000, "rows": 500, "steps": 24},
        {"models": (500, 1_000, 2_000, 4_000), "rows": (125, 250, 500, 1_000), "steps": (6, 12, 24, 48)},
    ),
    "record": Job(
        "40 recorded steps of an Opacus training, 500 candidates",
        {
            "leakcore": Doer(_recorded),
            "vmap, by hand": Doer(_scored_by_hand, "the products alone, no file and no checks"),
            "not recorded": Doer(_not_recorded, "the training alone", least=True),
        },
        {"candidates": 500, "steps": 40},
        {"candidates": (125, 250, 500, 1_000), "steps": (10, 20, 40)},
    ),
    "layers": Job(
        "sensitivity of every layer of LeNet, 16 images",
        {"leakcore": Doer(_layers), "torch.func.jacfwd": Doer(_layers_by_torch)},
        {"rows": 16},
        {"rows": (4, 8, 16, 32)},
    ),
    "inversion": Job(
        "inversion of one image, 500 iterations of signed Adam",
        {"leakcore": Doer(_inversion), "Geiping et al.'s loop in torch": Doer(_inversion_by_hand)},
        {"iterations": 500},
        {"iterations": (125, 250, 500)},
    ),
    "report": Job(
        "a report from 10⁵ scores a side: audit, page, JSON",
        {"leakcore": Doer(_report)},
        {"a_side": 100_000},
        {"a_side": (1_000, 10_000, 100_000)},
    ),
}
