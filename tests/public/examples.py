"""Small models, rows and runs that the public calls are made with."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tests.dpsgd.ensemble import flat_arguments as flat
from tests.public.calls import rng


@functools.cache
def model() -> Any:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Sigmoid(), torch.nn.Linear(3, 2)).double()


def normed(batches: int = 0) -> Any:
    """A batch norm that has seen so many batches."""
    import torch

    layer = torch.nn.Sequential(torch.nn.BatchNorm1d(4)).double().train()
    for _ in range(batches):
        layer(torch.from_numpy(rng().random((5, 4))))
    return layer


def rows(n: int = 6) -> dict[str, Any]:
    import torch

    return {"inputs": torch.from_numpy(rng().random((n, 4))), "targets": torch.arange(n) % 2}


def ensemble(**change: Any) -> Any:
    return flat.ensemble((4, 2), **MECHANISM | {"seed": 0, "expected_batch_size": 6.0} | change)


MECHANISM = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "learning_rate": 0.1, "steps": 2}


@functools.cache
def run() -> Any:
    from leakcore import dpsgd

    return ensemble().run(
        rng().random((6, 4)),
        np.arange(6) % 2,
        runs=3,
        observer=dpsgd.Observer(dpsgd.Rows(rng().random((2, 4)), [0, 1]), record=True),
    )


def data(n: int = 6) -> dict[str, Any]:
    return {"features": rng().random((n, 4)), "labels": np.arange(n) % 2}


def dataset() -> Any:
    from leakcore import datasets

    return datasets.Dataset(**dataset_fields())


def dataset_fields() -> dict[str, Any]:
    return {**data(), "num_classes": 2, "name": "a", "scaling": "b", "source": "c", "licence": "d"}


def sets() -> Any:
    from leakcore.attacks import attributes

    return attributes.gradient_sets(model(), **rows(12), batches=batches())


@functools.cache
def batches() -> Any:
    from leakcore.attacks import attributes

    return attributes.matched_batches(np.arange(12) % 3 == 0, np.arange(12) % 2, seed=0)


def defense(name: str = "GaussianNoise", *args: Any) -> Any:
    from leakcore import defenses

    return getattr(defenses, name)(*(args or (0.1,)))


def gradient() -> Any:
    from leakcore.attacks import inversion

    x = rows(1)
    return inversion.gradient(model(), x["inputs"], x["targets"])


def poisoning() -> Any:
    from leakcore.attacks import poisoning

    return poisoning.ZeroInput().poison(**data(), k=1, adjacency="replace", seed=0)


def weights() -> Any:
    from leakcore.attacks import tensor

    return tensor.GaussianWeights(64, 3, 0)


def tensor() -> dict[str, Any]:
    from leakcore.attacks import tensor

    x = np.eye(3)[:2]
    return {"inputs": x, "residuals": np.ones(2), "weights": weights(), "activation": "tanh"} if tensor else {}


@functools.cache
def recovery() -> Any:
    from leakcore.attacks import labels

    return labels.last_layer(rng().random((2, 5)), rng().normal(size=(2, 5)) / 9)


@functools.cache
def planted() -> Any:
    from leakcore.attacks import imprint

    return imprint.plant(model(), rng().random((20, 4)), bins=4)


def planted_gradient() -> Any:
    import torch

    x = rows(2)
    loss = torch.nn.functional.cross_entropy(planted()(x["inputs"]), x["targets"])
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(planted().parameters()))])


@functools.cache
def decoder() -> Any:
    from tests.attacks.text.networks import build

    return build(vocabulary=20, width=16, length=6, heads=2)


def released_text() -> Any:
    import torch

    from tests.attacks.text.networks import gradient as by_name
    from tests.attacks.text.networks import language_loss

    parts = by_name(decoder(), language_loss(decoder(), [[3, 7, 5]]))
    return torch.cat([part.flatten() for part in parts.values()])


def hidden_layer() -> Any:
    from leakcore.attacks import labels

    return labels.KnownHiddenLayer(rng().random((2, 5)), rng().random((2, 3)))


def reconstructor_training() -> Any:
    from leakcore import attacks

    return attacks.ReconstructorTraining(hidden=(4,), epochs=1, batch_size=4, held_out=0.25)


def descent() -> Any:
    from leakcore import attacks

    return attacks.Descent(iterations=2, restarts=1)


def lbfgs() -> Any:
    from leakcore.attacks import inversion

    return inversion.LBFGS(iterations=2, restarts=1)


def sgd() -> Any:
    from leakcore.attacks import labels

    return labels.SGD(0.1)


def pair() -> Any:
    from leakcore import kernels

    return kernels.Allocation(1.0, 5, epochs=2)


def purpose() -> Any:
    return "batch"


def quality(result: Any) -> bool:
    return bool(np.isfinite(np.asarray(result, dtype=float)).all())


SEEDS = {"seed": 0}


@functools.cache
def one_logit() -> Any:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Sigmoid(), torch.nn.Linear(2, 1)).double()


def images() -> Any:
    import torch

    return torch.from_numpy(rng().random((2, 1, 12, 12)))


def small_module() -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(4, 2))


def optimizer() -> Any:
    import torch

    return torch.optim.SGD(small_module().parameters(), lr=0.1)
