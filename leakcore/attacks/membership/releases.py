"""Attacks on what training releases step by step: a DP-SGD trace, or the server's updates in federated learning."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from leakcore import kernels
from leakcore._base import validate
from leakcore._base.array_record import ArrayRecord
from leakcore.attacks.reconstruction.prior_aware import prior_aware

if TYPE_CHECKING:
    from leakcore.dpsgd import Trace


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Releases(ArrayRecord):
    """Products of rows' clipped gradients with released updates.

    Args:
        dots: (models, steps, rows), ⟨clip_C(∇ℓ(θ_t, z)), ḡ_t⟩, with ḡ_t the released sum, less the known rows' clipped
            gradients where the attacker knows them. As in `dpsgd.EnsembleRun`.
        clipped_norms: (models, steps, rows), ‖clip_C(∇ℓ(θ_t, z))‖; required by "likelihood".
        max_grad_norm: C.
        sample_rate: q in (0, 1].
        noise_multiplier: σ; required by "likelihood".

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import membership
        >>> releases = membership.Releases(dots=np.array([[[0.9, 0.1], [1.1, -0.1]]]), max_grad_norm=1.0)
        >>> membership.scores("sum", releases).tolist()
        [[2.0, 0.0]]
    """

    dots: np.ndarray
    clipped_norms: np.ndarray | None = None
    max_grad_norm: float
    sample_rate: float = 1.0
    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        for name in ("dots", "clipped_norms"):
            value = getattr(self, name)
            if value is None and name == "clipped_norms":
                continue
            array = validate.plain_array(**{name: value})
            if array.ndim != 3 or 0 in array.shape:
                raise ValueError(f"`{name}` must have shape (models, steps, rows), at least 1 each, got {array.shape}")
            object.__setattr__(self, name, array)
        object.__setattr__(self, "max_grad_norm", validate.positive(max_grad_norm=self.max_grad_norm))

    @classmethod
    def of(
        cls,
        gradients: Iterable[Any],
        updates: Any,
        *,
        max_grad_norm: float,
        sample_rate: float = 1.0,
        noise_multiplier: float | None = None,
    ) -> Releases:
        """One model's releases, from updates and rows' gradients.

        Args:
            gradients: for each step (rows, parameters), the rows' gradients at the parameters before it. They are read
                one step at a time.
            updates: (steps, parameters), each released sum of clipped gradients (or the change of the parameters, with
                the sign of a gradient), less what the attacker knows of it.
            max_grad_norm: C, to which the gradients are clipped.
            sample_rate: q in (0, 1].
            noise_multiplier: σ.

        Returns:
            `Releases` of one model.
        """
        norm = validate.positive(max_grad_norm=max_grad_norm)
        sums = validate.squarable(updates=updates)
        if sums.ndim != 2 or 0 in sums.shape:
            raise ValueError(f"`updates` must have shape (steps, parameters), at least 1 each, got {sums.shape}")
        pairs = []
        for step, own in enumerate(gradients):
            if step == len(sums):
                raise ValueError(f"`gradients` must be of {len(sums)} steps, as `updates`, got more")
            rows = validate.squarable(**{f"gradients[{step}]": own})
            if rows.ndim != 2 or rows.shape[1] != sums.shape[1]:
                raise ValueError(
                    f"`gradients[{step}]` must have shape (rows, {sums.shape[1]}), as `updates`, got {rows.shape}"
                )
            pairs.append(kernels.clip_scores(rows, sums[step], norm))
        if len(pairs) != len(sums):
            raise ValueError(f"`gradients` must be of {len(sums)} steps, as `updates`, got {len(pairs)}")
        return cls(
            dots=np.stack([pair.dots for pair in pairs])[None],
            clipped_norms=np.stack([pair.clipped_norms for pair in pairs])[None],
            max_grad_norm=norm,
            sample_rate=sample_rate,
            noise_multiplier=noise_multiplier,
        )


@dataclasses.dataclass(frozen=True)
class ReleasedProducts:
    """Scores from what every step released: the attacker of DP-SGD's threat model, and of federated learning.

    Args:
        method: "sum": Σ_t ⟨clip_C(∇ℓ(θ_t, z)), ḡ_t⟩/C². "likelihood": Σ_t log(1 − q + q·exp((2⟨·, ·⟩ − ‖·‖²)/(2σ²C²))),
            the log likelihood ratio of "in" to "out" where the attacker knows all other rows.
    """

    method: Literal["sum", "likelihood"] = "likelihood"

    def __post_init__(self) -> None:
        validate.one_of("sum", "likelihood", method=self.method)

    def score(self, target: Releases | Trace | Any) -> np.ndarray:
        """(models, rows) scores; one model for a trace."""
        from leakcore.dpsgd import Trace

        validate.instance(Releases, Trace, target=target)
        if isinstance(target, Releases):
            guessed = prior_aware(
                target.dots,
                target.clipped_norms,
                max_grad_norm=target.max_grad_norm,
                sample_rate=target.sample_rate,
                noise_multiplier=target.noise_multiplier,
                method=self.method,
            )
            return guessed.scores
        own = target.membership_sum if self.method == "sum" else target.membership_likelihood
        if not np.isfinite(own).all():
            raise ValueError(
                f"`target` must have a likelihood for {self}, got a trace without a sample rate or without noise: use "
                "'sum'"
            )
        return np.array(own, np.float64)[None]
