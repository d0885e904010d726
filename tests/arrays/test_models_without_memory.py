"""Models whose parameters were freed, as FSDP does between uses, or never made: refused by name, at every door."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tolerances import HANG

torch = pytest.importorskip("torch")


def _freed() -> Any:
    model = _whole()
    model[0].weight.untyped_storage().resize_(0)
    return model


def _whole() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Sigmoid(), torch.nn.Linear(3, 2)).double()


def _lazy() -> Any:
    return torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.Linear(3, 2)).double()


def _meta() -> Any:
    return _whole().to("meta")


def _buffer() -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)).double().eval()
    model[1].running_var.untyped_storage().resize_(0)
    return model


MODELS = {"freed": _freed, "freed buffer": _buffer, "lazy": _lazy, "meta": _meta}


def _calls() -> dict[str, Callable[[Any], Any]]:
    from leakcore import attacks, defenses, dpsgd, leakage

    x, y = torch.ones(6, 4, dtype=torch.float64), torch.arange(6) % 2
    return {
        "sensitivity": lambda m: leakage.sensitivity(m, x, y),
        "l1_sensitivity": lambda m: leakage.l1_sensitivity(m, x, y, adjacency="replace"),
        "v_information_original": lambda m: leakage.v_information_original(
            m, x, y, inversion=leakage.PairInversion(iterations=1), seed=0
        ),
        "layer_gradients": lambda m: attacks.attributes.layer_gradients(m, x, y),
        "inversion.gradient": lambda m: attacks.inversion.gradient(m, x[:1], y[:1]),
        "inversion.closed_form": lambda m: attacks.inversion.closed_form(m, torch.ones(23), (4,)),
        "inversion.invert": lambda m: attacks.inversion.invert(
            m, torch.ones(23), (4,), optimizer=attacks.inversion.LBFGS(iterations=1), seed=0
        ),
        "labels.general": lambda m: attacks.labels.general(attacks.labels.KnownModel(m, x), torch.ones(23)),
        "labels.last_layer": lambda m: attacks.labels.last_layer(attacks.labels.KnownModel(m, x), torch.ones(2, 4)),
        "labels.malicious_input": lambda m: attacks.labels.malicious_input(model=m, batch_size=1, seed=0),
        "release": lambda m: defenses.release(m, x, y, defense=defenses.GaussianNoise(0.1), seed=0),
        "ModuleNetwork": lambda m: dpsgd.Ensemble(
            dpsgd.ModuleNetwork(m, (4,)), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.1, steps=1, seed=0
        ),
    }


def main() -> None:
    for name, call in _calls().items():
        for state, make in MODELS.items():
            try:
                call(make())
            except (TypeError, ValueError) as refusal:
                error = refusal
            else:
                raise AssertionError(f"{name} accepts a model that is {state}")
            if not re.search(
                "`(model|module)[.].*` must be |`.*[.].*` reaches over|on meta, as the model is", str(error)
            ):
                raise AssertionError(f"{name}, {state}: {error}")


def test_models_without_values_are_refused_by_name() -> None:
    """In a process of its own, which reading freed memory may end."""
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.arrays.test_models_without_memory"], cwd=root, text=True,
        capture_output=True, timeout=HANG, check=False,
    )  # fmt: skip
    assert run.returncode == 0, f"exit code {run.returncode}: {run.stderr[-1500:]}"


if __name__ == "__main__":
    main()
