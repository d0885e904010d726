"""Every attack by one call: scores of rows, larger for likelier members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from leakcore._base import validate
from leakcore.attacks.membership.label_only import LabelOnly
from leakcore.attacks.membership.lira import LiRA
from leakcore.attacks.membership.loss import LossThreshold
from leakcore.attacks.membership.observations import Observations, References
from leakcore.attacks.membership.quantile import QuantileRegression
from leakcore.attacks.membership.releases import ReleasedProducts, Releases
from leakcore.attacks.membership.rmia import RMIA
from leakcore.attacks.membership.trajectory import LossTrajectory

if TYPE_CHECKING:
    from leakcore.dpsgd import Trace

AttackName = Literal[
    "loss", "lira", "lira-offline", "rmia", "loss-trajectory", "label-only", "quantile", "sum", "likelihood"
]
Attack = LossThreshold | LiRA | RMIA | LossTrajectory | LabelOnly | QuantileRegression | ReleasedProducts
ATTACKS: dict[str, Attack] = {
    "loss": LossThreshold(),
    "lira": LiRA(),
    "lira-offline": LiRA(offline=True),
    "rmia": RMIA(),
    "loss-trajectory": LossTrajectory(),
    "label-only": LabelOnly(),
    "quantile": QuantileRegression(),
    "sum": ReleasedProducts("sum"),
    "likelihood": ReleasedProducts("likelihood"),
}
_BY_REFERENCES = (LiRA, RMIA, LossTrajectory)


def scores(
    attack: AttackName | Attack, target: Observations | Releases | Trace, *, references: References | None = None
) -> np.ndarray:
    """Score rows by how likely it is that a model was trained on them.

    Args:
        attack: its name, or an object with its settings: "loss" (`LossThreshold`), "lira" and "lira-offline" (`LiRA`),
            "rmia" (`RMIA`), "loss-trajectory" (`LossTrajectory`), "label-only" (`LabelOnly`), "quantile"
            (`QuantileRegression`); "sum" and "likelihood" (`ReleasedProducts`) where every release was observed.
        target: what is observed of the attacked models, from `observe`, `play` or elsewhere; `Releases` or a recorded
            `dpsgd.Trace` for the last two. Whether a target knows its members plays no part.
        references: models whose members the attacker knows, observed at the same rows. Required by "lira", "rmia" and
            "loss-trajectory"; "loss" takes its threshold from them.

    Returns:
        (models, rows) float64, larger for likelier members; one model for a trace. Only "loss" with a threshold,
        "lira", "loss-trajectory" and "likelihood" have a meaningful sign, which `guess` needs.

    Raises:
        ValueError: names what is missing or does not fit.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic. `audit.from_scores` says what scores prove, from how members were chosen.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import membership
        >>> included = np.array([[True, False], [False, True], [True, False], [False, True]])
        >>> losses = np.where(included, 0.1, 1.0) + np.array([[0.02], [0.0], [0.0], [0.02]])
        >>> references = membership.References(losses=losses, included=included)
        >>> scores = membership.scores("lira", membership.Observations(losses=[[0.1, 1.0]]), references=references)
        >>> (scores > 0).tolist()  # the first row was trained on, the second was not
        [[True, False]]
    """
    own = _attack(attack)
    if isinstance(own, ReleasedProducts):
        if references is not None:
            raise ValueError(f"`references` must be None for {own}, which scores releases, got References")
        return own.score(target)
    validate.instance(Observations, target=target)
    assert isinstance(target, Observations)
    if references is not None:
        validate.instance(References, references=references)
        if references.losses.shape[1] != target.losses.shape[1]:
            raise ValueError(
                f"`references` must be observed at the {target.losses.shape[1]} rows of `target`, got "
                f"{references.losses.shape[1]} rows"
            )
    if isinstance(own, _BY_REFERENCES):
        if references is None:
            raise ValueError(f"`references` must be given for {own}, got None")
        return own.score(target, references)
    return own.score(target, references)


def _attack(attack: Any) -> Attack:
    if isinstance(attack, get_args(Attack)):
        return attack  # type: ignore[no-any-return]
    if not isinstance(attack, str):
        raise TypeError(
            f"`attack` must be an attack's name or object, as 'rmia' or RMIA(), got {type(attack).__name__}"
        )
    return ATTACKS[validate.one_of(*ATTACKS, attack=attack)]
