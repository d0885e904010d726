"""A model of token ids as one of embeddings, for measures that differentiate by the input."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

_CHECKED = 4
"""Rows whose outputs must be the same through the embeddings as through the tokens."""


class _Stored(nn.Module):
    """Returns what the model that holds it was given, whatever it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.value: torch.Tensor | None = None

    def forward(self, *_: Any) -> Any:
        return self.value


class OnEmbeddings(nn.Module):
    """The model behind its token embedding, which no longer belongs to it: (B, T, E) embeddings to outputs."""

    def __init__(self, model: nn.Module, embedding: str) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)
        self._stored = _Stored()
        owner, _, name = embedding.rpartition(".")
        setattr(self.model.get_submodule(owner), name, self._stored)

    def forward(self, embeddings: torch.Tensor) -> Any:
        """Outputs for embeddings; the ids that the model is called with are all 0."""
        self._stored.value = embeddings
        try:
            return self.model(torch.zeros(embeddings.shape[:-1], dtype=torch.int64, device=embeddings.device))
        finally:
            self._stored.value = None


def reads_tokens(model: nn.Module, inputs: Any) -> bool:
    """Whether inputs are whole numbers and the model holds a table of embeddings."""
    tables = any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in model.modules())
    return tables and np.issubdtype(np.asarray(inputs).dtype, np.integer)


def on_embeddings(model: nn.Module, tokens: Any) -> tuple[nn.Module, torch.Tensor]:
    """(the model behind its embedding, the embeddings of the tokens).

    ValueError where that is another model: for tokens outside the table, for a model without a table of exactly these
    ids, and for one that reads them elsewhere as well, such as for a mask.
    """
    ids = torch.from_numpy(np.array(tokens, np.int64)).to(next(model.parameters()).device)
    if ids.ndim != 2 or ids.numel() == 0:
        raise ValueError(f"`data` must hold token ids of shape (rows, tokens), got {tuple(ids.shape)}")
    name = _table(model, ids[:_CHECKED])
    table = model.get_submodule(name)
    assert isinstance(table, nn.Embedding)
    if int(ids.min()) < 0 or int(ids.max()) >= table.num_embeddings:
        raise ValueError(
            f"`data` must hold token ids in [0, {table.num_embeddings - 1}], got {int(ids.min())} to {int(ids.max())}"
        )
    with torch.no_grad():
        embedded, behind = table(ids), OnEmbeddings(model, name)
        wanted, got = model(ids[:_CHECKED]), behind(embedded[:_CHECKED])
    if not torch.allclose(wanted, got, rtol=1e-4, atol=1e-6):
        raise ValueError(
            f"`model` must read its token ids in the embedding {name!r} alone: without them, its outputs differ (a "
            "mask of padding?); give a model of embeddings instead"
        )
    return behind, embedded


def _table(model: nn.Module, ids: torch.Tensor) -> str:
    """The name of the embedding that the ids themselves pass."""
    called: list[str] = []
    tables = {name: module for name, module in model.named_modules() if isinstance(module, nn.Embedding)}

    def noted(name: str) -> Callable[[nn.Module, Any], None]:
        def hook(_: nn.Module, arguments: Any) -> None:
            if isinstance(arguments[0], torch.Tensor) and torch.equal(arguments[0], ids):
                called.append(name)

        return hook

    hooks = [module.register_forward_pre_hook(noted(name)) for name, module in tables.items()]
    try:
        with torch.no_grad():
            model(ids)
    except (IndexError, RuntimeError) as error:
        raise ValueError(
            f"`data` must hold token ids that fit the model, whose tables have "
            f"{' and '.join(str(m.num_embeddings) for m in tables.values()) or 'no'} rows, got {int(ids.min())} to "
            f"{int(ids.max())} ({error})"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if len(called) != 1 or not called[0]:
        raise ValueError(
            f"`model` must pass its token ids to one nn.Embedding, got {', '.join(called) or 'none'}: give a model of "
            "embeddings instead"
        )
    return called[0]
