"""Which defences an audit of DP-SGD can take, and why its bounds hold under each of them."""

from __future__ import annotations

import math
from typing import Any

from leakcore.defenses import Clip, Defense, Dropout, GaussianNoise, Laplace, LocalSteps, Prune, parse, spell

_TAKEN = (LocalSteps, Dropout, Clip, GaussianNoise, Laplace, Prune)


def checked(
    defense: Any,
    *,
    learning_rate: float,
    steps: int | None,
    sample_rate: float | None,
    hidden: tuple[int, ...],
    sampling: str,
) -> str | None:
    """A `Defense` or its spelling, checked against the training that it goes with, and spelt in full; None for None."""
    if defense is None:
        return None
    if sampling not in ("poisson", "full"):
        raise ValueError(
            f"`sampling` must be 'full', or 'poisson' with sample_rate=1, with a defense, got {sampling!r}"
        )
    if isinstance(defense, str):
        defense = parse(defense, learning_rate=learning_rate)
    text = spell(defense)
    if not defense.parts:
        raise ValueError("`defense` must have a part, got none: None is the audit without a defence")
    for part in defense.parts:
        if not isinstance(part, _TAKEN):
            raise ValueError(
                f"`defense` must not have {type(part).__name__}, the audited mechanism itself, got {text!r}: set "
                "max_grad_norm and epsilon or noise_multiplier"
            )
        if isinstance(part, LocalSteps):
            if part.minibatches or part.learning_rate != learning_rate:
                raise ValueError(
                    "`defense` must have local steps of the audited training (full batches, learning_rate="
                    f"{learning_rate:g}), got {text!r}"
                )
            if steps is None or steps % part.steps:
                raise ValueError(
                    f"`steps` must be a multiple of the {part.steps} local steps of defense={text!r}, got {steps}"
                )
    if sample_rate not in (None, 1):
        raise ValueError(f"`sample_rate` must be 1 with defense={text!r}, got {sample_rate:g}")
    if not hidden and any(isinstance(part, Dropout) for part in defense.parts):
        raise ValueError(f"`hidden` must not be empty with defense={text!r}, got (): there are no units to drop")
    return text


def parsed(defense: str | Defense | None) -> Defense | None:
    """The defence of a checked configuration, which spells it."""
    return parse(defense) if isinstance(defense, str) else defense


def why_bounds_hold(defense: Defense) -> str:
    """The argument, part by part."""
    after = [part for part in defense.parts if not isinstance(part, Dropout)]
    said = []
    if any(isinstance(part, Dropout) for part in defense.parts):
        said.append(
            "dropout draws its masks without the data, and whatever they are, every gradient is clipped to C before "
            "the noise"
        )
    if after:
        said.append(
            f"{spell_all(after)} acts on what DP-SGD has clipped and noised and looks at no data again "
            "(post-processing), and later steps follow from it alone"
        )
    return "; ".join(said)


def spell_all(parts: list[Defense]) -> str:
    """Several, as `spell` writes them."""
    return " + ".join(spell(part) for part in parts)


def noise_multiplier(defense: Defense | None, noise: float, num_rows: int, max_grad_norm: float) -> float | None:
    """σ of the release if Gaussian noise is the first thing added to each noisy mean: √(σ² + (scale·B/C)²).

    That is DP-SGD with more noise. None if nothing beyond σ is known.
    """
    parts = [] if defense is None else [part for part in defense.parts if not isinstance(part, Dropout)]
    if not parts or not isinstance(parts[0], GaussianNoise):
        return None
    return math.hypot(noise, parts[0].std * num_rows / max_grad_norm)
