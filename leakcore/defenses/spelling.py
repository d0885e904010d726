"""Defences in words, for configuration files and command lines: "local-steps:4,0.1 + prune:0.1"."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from leakcore.defenses.transforms import (
    DPSGD,
    Clip,
    ClipSamples,
    Compose,
    Defense,
    Dropout,
    GaussianNoise,
    Laplace,
    LocalSteps,
    Prune,
)

_Numbers = tuple[tuple[str, Callable[[str], float]], ...]
_Words = tuple[tuple[str, str, bool], ...]
_KINDS: dict[str, tuple[type[Any], _Numbers, _Words]] = {
    "local-steps": (LocalSteps, (("steps", int), ("learning_rate", float)), (("minibatches", "minibatches", True),)),
    "dropout": (Dropout, (("keep_probability", float),), (("shared", "per_sample", False),)),
    "clip-samples": (ClipSamples, (("max_grad_norm", float),), ()),
    "dp-sgd": (DPSGD, (("max_grad_norm", float), ("noise_multiplier", float), ("expected_batch_size", float)), ()),
    "clip": (Clip, (("max_grad_norm", float),), ()),
    "gaussian-noise": (GaussianNoise, (("std", float),), ()),
    "laplace": (Laplace, (("scale", float),), ()),
    "prune": (Prune, (("keep_fraction", float),), ()),
}
"""Name: class, its numbers in order, and words (word, field, its value)."""


def parse(text: str, *, learning_rate: float | None = None) -> Defense:
    """The defence that a text names.

    name:numbers and words, several joined by + in the order of their stages. The names are "clip:S", "clip-samples:C",
    "dp-sgd:C,σ" or "dp-sgd:C,σ,n", "dropout:KEEP" (or "dropout:KEEP,shared": one sub-network for the batch),
    "gaussian-noise:STD", "laplace:SCALE", "local-steps:K,RATE" (or "local-steps:K,RATE,minibatches") and "prune:KEEP".

    Args:
        text: the spelling.
        learning_rate: RATE where it is left out; None: it must not be.

    Returns:
        The `Defense`; `spell` is the inverse.

    Raises:
        ValueError: for an unknown name, or a value that is missing, superfluous or not allowed.
        TypeError: for anything but text.

    Guarantees:
        parse(spell(defense)) equals the defence.

    Example:
        >>> from leakcore import defenses
        >>> defenses.parse("clip:1 + gaussian-noise:0.1")
        Compose(Clip(max_grad_norm=1.0), GaussianNoise(std=0.1))
    """
    if not isinstance(text, str):
        raise TypeError(f"`defense` must be text, such as 'prune:0.1 + laplace:0.5', got {text!r}")
    parts = [_one(part.strip(), learning_rate) for part in re.split(r"\+(?=\s*[a-z]|\s*$)", text)]
    return parts[0] if len(parts) == 1 else Compose(*parts)


def _one(text: str, learning_rate: float | None) -> Defense:
    name, _, rest = text.partition(":")
    if name not in _KINDS:
        raise ValueError(f"`defense` must begin with one of {', '.join(_KINDS)}, got {text!r}")
    kind, numbers, words = _KINDS[name]
    options: dict[str, Any] = {}
    waiting = list(numbers)
    for entry in (e.strip() for e in rest.split(",") if e.strip()):
        word = next((w for w in words if w[0] == entry), None)
        if word is not None:
            options[word[1]] = word[2]
            continue
        if not waiting:
            raise ValueError(f"{_usage(name)}, got {text!r}: {entry!r} is superfluous")
        field, read = waiting.pop(0)
        try:
            options[field] = read(entry)
        except ValueError:
            raise ValueError(f"{_usage(name)}, got {text!r}: {field}={entry!r} is not a number") from None
    if kind is LocalSteps and learning_rate is not None:
        options.setdefault("learning_rate", learning_rate)
    required = [f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING]
    if missing := [field for field in required if field not in options]:
        raise ValueError(f"{_usage(name)}, got {text!r}: {missing[0]} is missing")
    try:
        out: Defense = kind(**options)
    except (ValueError, TypeError) as why:
        raise type(why)(f"`defense` must hold values that are allowed, got {text!r}: {why}") from why
    return out


def _usage(name: str) -> str:
    _, numbers, words = _KINDS[name]
    more = "".join(f"[,{word}]" for word, _, _ in words)
    return f"`defense` must be {name}:{','.join(field for field, _ in numbers)}{more}"


def spell(defense: Defense) -> str:
    """The text that `parse` turns back into the same defence.

    Args:
        defense: one of this package, or a `Compose` of them.

    Returns:
        The spelling.

    Raises:
        TypeError: for a defence of any other class.

    Guarantees:
        parse(spell(defense)) equals the defence.

    Example:
        >>> from leakcore import defenses
        >>> defenses.spell(defenses.Compose(defenses.LocalSteps(4, learning_rate=0.1), defenses.Prune(0.1)))
        'local-steps:4,0.1 + prune:0.1'
    """
    if not isinstance(defense, Defense):
        raise TypeError(f"`defense` must be a leakcore.defenses.Defense, got {type(defense).__name__}")
    return " + ".join(_spelt(part) for part in defense.parts)


def _spelt(part: Defense) -> str:
    for name, (kind, numbers, words) in _KINDS.items():
        if type(part) is kind:
            values = [getattr(part, field) for field, _ in numbers]
            plain = [value.item() if isinstance(value, np.generic) else value for value in values if value is not None]
            said = [repr(value).removesuffix(".0") for value in plain]
            said += [word for word, field, value in words if getattr(part, field) == value]
            return f"{name}:{','.join(said)}"
    raise TypeError(f"`defense` must be one of {', '.join(_KINDS)}, got {type(part).__name__}, which has no spelling")
