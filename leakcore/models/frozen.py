"""A trained network as the frozen front of another: standardised outputs, and its state as text."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import torch

from leakcore._base.files.npz_file import read_npz
from leakcore.models.features import extract_features

_ROUNDING = 2.0**-21
"""Of a feature's size: what an extractor's own rounding may make it vary by."""


def standardised(extractor: torch.nn.Module, images: Any) -> torch.nn.Sequential:
    """`extractor` followed by a fixed affine map: its features of `images` have mean 0 and variance 1 each.

    images: (rows, channels, height, width), public ones: mean and variance are the model's own afterwards. Returned in
    evaluation mode, which `extractor`, a part of it, is left in. A feature that varies by no more than float32 rounds
    keeps its size, near 0.
    """
    features = extract_features(extractor, images)
    # No eps: beside a small feature's variance it is no small number.
    standard = torch.nn.BatchNorm1d(features.shape[1], affine=False, eps=0.0)
    mean, variance = features.mean(axis=0, dtype=np.float64), features.var(axis=0, dtype=np.float64)
    variance[variance <= np.maximum((_ROUNDING * mean) ** 2, np.finfo(np.float32).tiny)] = 1
    for name, value in (("running_mean", mean), ("running_var", variance)):
        standard.get_buffer(name).copy_(torch.from_numpy(value))
    return torch.nn.Sequential(extractor, standard).eval()


def state_text(module: torch.nn.Module) -> str:
    """All parameters and buffers (a batch norm's running moments among them) as text; nothing is pickled."""
    out = io.BytesIO()
    arrays: dict[str, Any] = {name: value.detach().cpu().numpy() for name, value in module.state_dict().items()}
    np.savez(out, **arrays)
    return base64.b64encode(out.getvalue()).decode()


def load_state_text(module: torch.nn.Module, text: str) -> None:
    """Back from `state_text`, to the bit; RuntimeError where names or shapes differ."""
    arrays = read_npz(io.BytesIO(base64.b64decode(text)))
    module.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
