"""The gradient attack over ε on both image sets: what Figures 1, 6 and 12 share."""

from __future__ import annotations

from leakcore.experiments.context import Context
from leakcore.experiments.reconstruction.setting import data, games, oblivious


def epsilons(context: Context) -> tuple[float, ...]:
    """Values of ε, from hopeless to legible."""
    legible = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0)
    return context.pick("values of ε", tiny=(100.0,), quick=legible, paper=(1.0, 3.0, *legible))


def settings(context: Context) -> list[tuple[str, data.Split, tuple[int, ...], float]]:
    """(name, split, hidden layers, C) of MNIST and CIFAR-10 as in Table 1 of the text, both read before any work."""
    return [
        ("MNIST", data.mnist(context, context.pick("known rows", tiny=49, quick=999, paper=999)), (10,), 0.1),
        ("CIFAR-10", data.cifar10(context, context.pick("known rows", tiny=49, quick=499, paper=499)), (), 1.0),
    ]


def attacked(
    context: Context,
    split: data.Split,
    hidden: tuple[int, ...],
    clip: float,
    epsilons: tuple[float, ...],
    targets: int,
    step: float = 1.0,
) -> list[oblivious.Reconstructions]:
    """The reconstructions at each ε."""
    return [
        oblivious.attack(
            context,
            split,
            setting(epsilon, hidden, clip, step),
            targets=targets,
        )
        for epsilon in epsilons
    ]


def setting(epsilon: float, hidden: tuple[int, ...], clip: float, step: float = 1.0) -> games.GameSetting:
    """The initial parameters are fixed, as the model-based attack needs them."""
    return games.GameSetting(epsilon=epsilon, hidden=hidden, max_grad_norm=clip, step=step, initialisation="fixed")
