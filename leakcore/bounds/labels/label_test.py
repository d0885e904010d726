"""The tests by which `label_epsilon` tells two labels apart: three, each with its own option."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from leakcore._base import validate

_SOURCE = "Yuan, Xue, Wang and Shen (2022), Algorithm 2"


@dataclasses.dataclass(frozen=True)
class LabelTest:
    """What the attacker computes from the noisy gradient.

    name: by which `label_epsilon(test=)` finds it; method, attacker, provenance: what the result says of it.
    """

    name: ClassVar[str]
    method: ClassVar[str]
    attacker: ClassVar[str]
    provenance: ClassVar[str]

    @property
    def composes(self) -> bool:
        """Whether the jacobian's first dimension counts steps."""
        return False


@dataclasses.dataclass(frozen=True)
class SignTest(LabelTest):
    """The sign of the projected residual, as the paper has it: "paper".

    Args:
        complement: also use the complementary event, which the flipped label makes likelier: the larger of LB_r and
            log((Φ(|u′_r|/w_r) − δ)/Φ(−|u_r|/w_r)). It costs nothing, since the probabilities are exact, but is not in
            the printed algorithm.

    Raises:
        TypeError: for an option that is not a truth value.

    Example:
        >>> from leakcore import bounds
        >>> test = bounds.SignTest(complement=True)
        >>> test.name, test.composes
        ('paper', False)
    """

    complement: bool = False
    name: ClassVar[str] = "paper"
    method: ClassVar[str] = "sign of the projected residual"
    attacker: ClassVar[str] = (
        "sees the noisy gradient and knows every dZ_r/dW; solves for the residuals and takes the row's sign"
    )
    provenance: ClassVar[str] = f"{_SOURCE}, in closed form"

    def __post_init__(self) -> None:
        validate.boolean(complement=self.complement)


@dataclasses.dataclass(frozen=True)
class _SeparationTest(LabelTest):
    compose: bool = False

    def __post_init__(self) -> None:
        validate.boolean(compose=self.compose)

    @property
    def composes(self) -> bool:
        """Whether the jacobian's first dimension counts steps."""
        return self.compose


@dataclasses.dataclass(frozen=True)
class ThresholdTest(_SeparationTest):
    """The best threshold on the projected residual: "optimal".

    Args:
        compose: the first dimension of the jacobian counts steps with independent noise, and row r is the same sample
            in all of them (a zero row where it is not in the batch). Separations combine to √(Σ_t m_t²). Membership is
            known, so sampling amplifies nothing. For two steps or more the result is of kind "estimate": later weights
            depend on earlier noise, so under the other label the separations would differ. It is a lower bound where
            the weights of all steps are fixed beforehand.

    Raises:
        TypeError: for an option that is not a truth value.

    Example:
        >>> from leakcore import bounds
        >>> bounds.ThresholdTest(compose=True).composes
        True
    """

    name: ClassVar[str] = "optimal"
    method: ClassVar[str] = "best threshold on the projected residual"
    attacker: ClassVar[str] = (
        "sees the noisy gradient and knows every dZ_r/dW, and the row's two possible clipped residuals"
    )
    provenance: ClassVar[str] = f"{_SOURCE}, with the best threshold"


@dataclasses.dataclass(frozen=True)
class LikelihoodRatioTest(_SeparationTest):
    """The likelihood ratio between the two gradients, which no test beats: "likelihood-ratio".

    Args:
        compose: as in `ThresholdTest`.

    Raises:
        TypeError: for an option that is not a truth value.

    Example:
        >>> from leakcore import bounds
        >>> bounds.LikelihoodRatioTest().name
        'likelihood-ratio'
    """

    name: ClassVar[str] = "likelihood-ratio"
    method: ClassVar[str] = "likelihood ratio between the two gradients"
    attacker: ClassVar[str] = "sees the noisy gradient and knows everything but the one label, as in the definition"
    provenance: ClassVar[str] = f"{_SOURCE}, with the Neyman–Pearson test in place of the projection"


TESTS: dict[str, type[LabelTest]] = {kind.name: kind for kind in (SignTest, ThresholdTest, LikelihoodRatioTest)}


def label_test(test: str | LabelTest) -> LabelTest:
    """The test of that name, without options, or the object itself."""
    return test if isinstance(test, LabelTest) else TESTS[validate.one_of(*TESTS, test=test)]()
