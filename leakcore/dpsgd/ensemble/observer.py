"""What an attacker sees of the runs while they train, and what an ensemble computes on the way for attacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from leakcore._base import validate as check
from leakcore.dpsgd.ensemble.block.block import Watch
from leakcore.dpsgd.ensemble.rows import Rows
from leakcore.dpsgd.ensemble.scorer import Scorer


@dataclasses.dataclass(frozen=True, eq=False)
class Observer:
    """An attacker who sees every released sum g_t (hence θ_t), and the points that he considers.

    Args:
        candidates: points that are *not* trained on (unless they are extra rows too) but scored in every step. `dots`
            and `norms` of the result are s_{t,i} = ⟨clip_C(∇ℓ(θ_t, z_i)), ḡ_t⟩ and ‖clip_C(∇ℓ(θ_t, z_i))‖,
            ḡ_t = g_t − Σ_{known z in B_t} clip_C(∇ℓ(θ_t, z)).
        subtract_known: the threat model of Hayes et al. 2023, Section 3.4: he knows the common rows and which of *them*
            are in B_t, and subtracts their clipped gradients; the extra rows, and whether they were sampled, he does
            not know. ḡ_t is then what the extra rows and the noise left, and is computed as that, without the
            cancellation. False: ḡ_t = g_t, the weaker attacker of their Appendix E.
        scorers: attacks carried along, by name: each step's scores go to them, and `scores` of the result holds what
            they end with.
        cosines: also report how close each candidate's gradient is to the nearest other's.
        keep_steps: False drops `dots` and `norms`, so that memory does not grow with steps.
        record: keep θ_t and ḡ_t of every step (`thetas`, `observed`): 2·steps·parameters numbers per run.

    Raises ValueError or TypeError that names the argument.
    """

    candidates: Rows | None = None
    subtract_known: bool = True
    scorers: Mapping[str, Scorer] | None = None
    cosines: bool = False
    keep_steps: bool = True
    record: bool = False

    def __post_init__(self) -> None:
        if self.candidates is not None:
            check.instance(Rows, candidates=self.candidates)
        for name in ("subtract_known", "cosines", "keep_steps", "record"):
            object.__setattr__(self, name, check.boolean(**{name: getattr(self, name)}))
        if self.candidates is None and (self.cosines or self.scorers or not (self.subtract_known or self.record)):
            raise ValueError("cosines, scorers, subtract_known: mean something only with candidates")
        if self.scorers is not None:
            check.instance(Mapping, scorers=self.scorers)
            for name, scorer in self.scorers.items():
                if not callable(getattr(scorer, "start", None)):
                    raise TypeError(f"scorers[{name!r}]={scorer!r}: must have a start(shape) method, see dpsgd.Scorer")

    def watch(self) -> Watch:
        """What the training loop needs of it."""
        return Watch(
            subtract_known=self.subtract_known, keep_steps=self.keep_steps, cosines=self.cosines, record=self.record,
            scorers=dict(self.scorers or {}),
        )  # fmt: skip
