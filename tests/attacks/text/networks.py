"""Small transformers of plain torch, and batches with the gradients that a client would release."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """A layer of GPT-2's shape: layer norms first, then attention and a perceptron."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        n, length, width = x.shape
        y = self.before(x)
        q, k, v = (
            p(y).view(n, length, self.heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(width // self.heads)
        if self.causal:
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -1e9)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None], -1e9)
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, length, width))
        return x + self.narrow(functional.gelu(self.wide(self.after(x))))


class Transformer(nn.Module):
    """A language model, or (classes > 0) a classifier of the mean position."""

    def __init__(
        self, vocabulary: int = 120, width: int = 64, length: int = 16, heads: int = 4, causal: bool = True,
        positions: bool = True, tied: bool = False, dropout: float = 0.0, layers: int = 2, classes: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width) if positions else None
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, causal) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.classes = classes
        self.head = nn.Linear(width, classes or vocabulary, bias=not tied)
        nn.init.normal_(self.embedding.weight, std=0.2)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embedding(tokens)
        if self.position is not None:
            x = x + 0.2 * self.position(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, mask)
        x = self.norm(x)
        if self.classes:
            weights = torch.ones_like(x[..., :1]) if mask is None else mask[..., None].to(x)
            x = (x * weights).sum(1) / weights.sum(1)
        return self.head(x)


class Packaged(nn.Module):
    """The same idea with torch's own encoder layers, which norm last and hold one matrix of projections."""

    def __init__(self, batch_first: bool, vocabulary: int = 120, width: int = 64) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(vocabulary, width), nn.Embedding(16, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 96, dropout=0.0, batch_first=batch_first) for _ in range(2)
        )
        self.head, self.batch_first = nn.Linear(width, vocabulary), batch_first

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], dtype=x.dtype)
        x = x if self.batch_first else x.transpose(0, 1)
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return self.head(x if self.batch_first else x.transpose(0, 1))


def build(kind: type[nn.Module] = Transformer, seed: int = 0, **settings: Any) -> nn.Module:
    """A network of random weights, the same for a seed, in eval mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind(**settings).eval()


def texts(count: int, low: int, high: int, vocabulary: int = 120, seed: int = 1) -> list[list[int]]:
    """Different sequences of random tokens (from 1 on) of lengths within low and high."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(low, high + 1, (count,), generator=generator).tolist()
    return [torch.randint(1, vocabulary, (length,), generator=generator).tolist() for length in lengths]


def padded(sequences: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, L) tokens with zeros after the end, and which of them are real."""
    longest = max(map(len, sequences))
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in sequences])
    return tokens, torch.tensor([[i < len(row) for i in range(longest)] for row in sequences])


def language_loss(model: nn.Module, sequences: list[list[int]], end: int = 0) -> torch.Tensor:
    """Mean cross-entropy of every next token, the token `end` after the last one."""
    tokens, real = padded(sequences)
    labels = torch.full_like(tokens, -100)
    for row, sequence in zip(labels, sequences, strict=True):
        row[: len(sequence)] = torch.tensor([*sequence[1:], end])
    logits = model(tokens, real) if isinstance(model, Transformer) else model(tokens)
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def class_loss(model: nn.Module, sequences: list[list[int]]) -> torch.Tensor:
    """Mean cross-entropy of a class for each sequence."""
    return functional.cross_entropy(model(*padded(sequences)), torch.arange(len(sequences)) % 2)


def gradient(model: nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """By name."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(
        zip(names, torch.autograd.grad(loss, parameters, materialize_grads=True, allow_unused=True), strict=True)
    )
