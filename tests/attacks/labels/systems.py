"""Activations, labels and their gradient, and what holds for every recovery of labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import special
from sklearn.datasets import load_breast_cancer

from leakcore.attacks import labels

DTYPES = [np.float32, np.float64]


def system(
    n: int, d: int, dtype: type = np.float64, seed: int = 0, scale: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Activations, labels and the averaged gradient, all computed in `dtype`."""
    rng = np.random.default_rng(seed)
    activations = rng.normal(size=(n, d)).astype(dtype)
    probs = special.expit(scale * rng.normal(size=n)).astype(dtype)
    truth = rng.integers(0, 2, n)
    gradient = activations.T @ (probs - truth.astype(dtype)) / dtype(n)
    return activations, truth, gradient


def check(result: labels.LabelRecovery, truth: np.ndarray) -> None:
    """What must hold for every result: determined labels right, undetermined −1, nothing NaN."""
    np.testing.assert_array_equal(result.labels[result.determined], truth[result.determined])
    assert (result.labels[~result.determined] == -1).all()
    assert not (result.determined & ~result.identifiable).any()
    assert np.isfinite(result.residuals).all()
    assert not np.isnan(result.tolerance).any()
    assert result.labels.dtype == np.int64
    assert result.value == result.determined.mean()


def breast_cancer() -> tuple[np.ndarray, np.ndarray]:
    data = load_breast_cancer()
    return (data.data - data.data.mean(axis=0)) / data.data.std(axis=0), data.target


def mlp(seed: int = 0, sizes: tuple[int, int] = (30, 64)) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(*sizes), torch.nn.ReLU(), torch.nn.Linear(sizes[1], 1))


def attacked(
    attack: Callable[..., labels.LabelRecovery], model: Any, x: Any, observation: Any, **how: Any
) -> labels.LabelRecovery:
    """What an attack finds in a gradient without noise of a model that it knows."""
    return attack(labels.KnownModel(model, x), observation, noise=labels.Noise(0), **how)
