from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from leakcore import models


@pytest.mark.parametrize(
    ("factory", "sizes", "activation"),
    [
        (models.digits_mlp, (64, 10, 10), torch.nn.ELU),
        (models.mnist_mlp, (784, 10, 10), torch.nn.ELU),
        (models.breast_cancer_mlp, (30, 64, 1), torch.nn.ReLU),
    ],
)
def test_the_papers_models(factory, sizes, activation) -> None:
    module = factory()
    assert [type(m) for m in module] == [torch.nn.Linear, activation, torch.nn.Linear]
    assert sum(p.numel() for p in module.parameters()) == models.num_parameters(sizes)
    assert module(torch.zeros(5, sizes[0])).shape == (5, sizes[-1])


@pytest.mark.parametrize("activation", models.ACTIVATIONS)
def test_every_activation_by_name(activation) -> None:
    module = models.mlp((2, 3, 4, 1), activation)
    assert type(module[1]).__name__.lower() == activation.replace("_", "")
    assert len(module) == 5


def test_two_sizes_are_a_linear_model() -> None:
    assert [type(m) for m in models.mlp((3, 2))] == [torch.nn.Linear]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (((3,),), ValueError, r"layers=\(3,\): must be \(inputs, hidden..., outputs\), at least two sizes"),
        (((3, 0),), ValueError, r"layers=0: must be an integer in \[1, inf\]"),
        (((3, 2.5),), TypeError, "layers=2.5: must be an integer"),
        (((3, 2), "swish"), ValueError, "activation='swish': must be one of 'elu', 'relu'"),
    ],
)
def test_errors(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        models.mlp(*arguments)


def test_importing_does_not_import_torch() -> None:
    code = "import sys; from leakcore import models, datasets, dpsgd, attacks; attacks.prior_aware; datasets.Dataset; "
    code += "models.num_parameters((3, 2)); assert 'torch' not in sys.modules and 'sklearn' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
