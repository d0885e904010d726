"""A trained network as the frozen front of another: standardised outputs, and its state as text."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import torch

from leakcore.models._features import extract_features


def standardised(extractor: torch.nn.Module, images: Any) -> torch.nn.Sequential:
    """`extractor` followed by a fixed affine map: its features of `images` have mean 0 and variance 1 each.

    images: (rows, channels, height, width), public ones: mean and variance are the model's own afterwards. In
    evaluation mode. A feature that never varies stays near 0.
    """
    features = extract_features(extractor, images)
    standard = torch.nn.BatchNorm1d(features.shape[1], affine=False)
    for name, value in (("running_mean", features.mean(axis=0)), ("running_var", features.var(axis=0))):
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
    with np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False) as arrays:
        module.load_state_dict({name: torch.from_numpy(np.array(arrays[name])) for name in arrays.files})
