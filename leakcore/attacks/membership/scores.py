"""Every attack by one call or by its class, scores larger for likelier members, and guesses by the clearest scores."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from scipy import special

from leakcore import kernels
from leakcore._base import memory_limit, validate
from leakcore._base.array_record import ArrayRecord
from leakcore._base.score_arrays import ascending
from leakcore._base.version import need
from leakcore.attacks.membership.observations import Observations, References, confidence, numbers
from leakcore.attacks.membership.releases import ReleasedProducts, Releases

if TYPE_CHECKING:
    from leakcore.dpsgd import Trace


@dataclasses.dataclass(frozen=True)
class LossThreshold:
    """The scores threshold − loss: positive where a row is called a member (Yeom et al. 2018).

    Args:
        threshold: a number; or None for the reference models' mean loss at the rows that they were trained on, and for
            0 where there are none, which leaves the order of the rows and nothing to guess by. The text takes each
            attacked model's own training loss, which DP-SGD does not release.

    Example:
        >>> from leakcore.attacks import membership
        >>> observed = membership.Observations(losses=[[0.25, 1.0]])
        >>> membership.scores(membership.LossThreshold(0.5), observed).tolist()
        [[0.25, -0.5]]
    """

    threshold: float | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None:
            limit = validate.real(threshold=self.threshold)
            if not np.isfinite(limit):
                raise ValueError(f"`threshold` must be finite, got {limit}")
            object.__setattr__(self, "threshold", limit)

    def score(self, target: Observations, references: References | None) -> np.ndarray:
        """(models, rows) scores."""
        limit = 0.0 if self.threshold is None else self.threshold
        if self.threshold is None and references is not None and references.included.any():
            trained = references.included.any(axis=1)
            limit = float(mean_training_loss(references)[trained].mean())
        return np.asarray(limit - target.losses)


def mean_training_loss(models: References) -> np.ndarray:
    """(models,), each model's mean loss at the rows that it was trained on; 0 without any."""
    inside = models.included
    return np.asarray((models.losses * inside).sum(axis=1) / np.maximum(inside.sum(axis=1), 1))


_LEAST_SPREAD = 1e-6


@dataclasses.dataclass(frozen=True)
class LiRA:
    """The likelihood-ratio attack (Carlini et al. 2022): a normal law of φ = log(p/(1 − p)) for each row.

    Online, the score is log N(φ; μ_in, s_in²) − log N(φ; μ_out, s_out²): positive where a row looks trained on. Offline
    it is (φ − μ_out)/s_out, the normal score of the text's one-sided test 1 − Pr[Z > φ].

    Args:
        offline: True needs each row out of one reference model; False in one and out of one.
        spread: "shared": one standard deviation for all rows, one in and one out, for few references (some row must be
            in two, and some row out of two). "row": each row's own, for many (at least two in and two out).
    """

    offline: bool = False
    spread: Literal["shared", "row"] = "shared"

    def __post_init__(self) -> None:
        validate.boolean(offline=self.offline)
        validate.one_of("shared", "row", spread=self.spread)

    def score(self, target: Observations, references: References) -> np.ndarray:
        """(models, rows) scores."""
        attack, least = f"{self}", 1 if self.spread == "shared" else 2
        references.require(0 if self.offline else least, least, attack=attack)
        attacked, known = confidence(target.losses), confidence(references.losses)
        mean, deviation = self._law(known, ~references.included, "out of")
        standard = (attacked - mean) / deviation
        if self.offline:
            return np.asarray(standard)
        scores = 0.5 * standard**2 + np.log(deviation)
        mean, deviation = self._law(known, references.included, "in")
        return np.asarray(scores - 0.5 * ((attacked - mean) / deviation) ** 2 - np.log(deviation))

    def _law(self, known: np.ndarray, who: np.ndarray, side: str) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of φ over the models that `who` names for each row."""
        number = who.sum(axis=0)
        if self.spread == "shared" and number.sum() == len(number):
            raise ValueError(
                f"`references.included` must have a row {side} two models for {self}, since one shows no spread: pass "
                "more models"
            )
        mean = (known * who).sum(axis=0) / number
        squares = ((known - mean) ** 2 * who).sum(axis=0)
        # One mean per row was fitted.
        variance = squares / (number - 1) if self.spread == "row" else squares.sum() / (number.sum() - len(number))
        return mean, np.maximum(np.sqrt(variance), _LEAST_SPREAD)


@dataclasses.dataclass(frozen=True)
class RMIA:
    """RMIA (Zarifzadeh, Liu and Shokri 2024), which works with one or two reference models.

    A row x and a population row z are compared by LR(x, z) = [P(x|θ)/P(x)]/[P(z|θ)/P(z)]; the score is the share of the
    population with LR(x, z) ≥ γ. P(x|θ) is the attacked model's probability of x's label, e^{−loss}, and P(x) its mean
    over models. Rows of equal share stand in the order of r = P(x|θ)/P(x): the score is (count + r/(1 + r))/(others +
    1).

    Args:
        gamma: γ, at least 1. The text takes 2; the authors' later tool takes 1, which tells more of rows that differ
            little.
        a: in [0, 1], the slope by which P_in is guessed from P_out offline: P(x) = ½((1 + a)·P_out(x) + 1 − a). The
            best value depends on the data.
        online: P(x) = ½(P_in(x) + P_out(x)), which needs each row in one reference model and out of one, and P(z) =
            P_out(z). False uses models that were not trained on the row; each row must be out of one.
    """

    gamma: float = 1.0
    a: float = 0.3
    online: bool = False

    def __post_init__(self) -> None:
        gamma = validate.positive(gamma=self.gamma)
        if gamma < 1:
            raise ValueError(f"`gamma` must be at least 1, got {gamma}")
        object.__setattr__(self, "gamma", gamma)
        object.__setattr__(self, "a", validate.probability(a=self.a))
        validate.boolean(online=self.online)

    def score(self, target: Observations, references: References) -> np.ndarray:
        """(models, rows) scores in [0, 1]."""
        attack = f"{self}"
        population = target.need("population_losses", attack=attack, role="target")
        reference = references.need("population_losses", attack=attack, role="references")
        if reference.shape[1] != population.shape[1]:
            raise ValueError(
                f"`references.population_losses` must be at the {population.shape[1]} population rows of `target`, got "
                f"shape {reference.shape}"
            )
        references.require(1 if self.online else 0, 1, attack=attack)
        outside = _log_mean(references.losses, ~references.included)
        everywhere = _log_mean(reference, np.ones(reference.shape, bool))
        if self.online:
            own = np.logaddexp(outside, _log_mean(references.losses, references.included)) - np.log(2)
            others = everywhere
        else:
            own, others = self._guessed(outside), self._guessed(everywhere)
        ratios = -target.losses - own
        within = special.expit(ratios)
        scores: np.ndarray = np.empty_like(ratios)
        for model, limits in enumerate(np.sort(-population - others, axis=1)):
            count = np.searchsorted(limits, ratios[model] - np.log(self.gamma), side="right")
            scores[model] = (count + within[model]) / (len(limits) + 1)
        return scores

    def _guessed(self, outside: np.ndarray) -> np.ndarray:
        """log of ½((1 + a)·P_out + 1 − a)."""
        with np.errstate(divide="ignore"):  # log 0 where a = 1
            return np.asarray(np.logaddexp(outside + np.log((1 + self.a) / 2), np.log((1 - self.a) / 2)))


def _log_mean(losses: np.ndarray, who: np.ndarray) -> np.ndarray:
    """log of the mean of e^{−loss} over the models that `who` names for each row."""
    return np.asarray(special.logsumexp(-losses, b=who, axis=0) - np.log(who.sum(axis=0)))


_LEAVES = 8


@dataclasses.dataclass(frozen=True)
class QuantileRegression:
    """Confidence in units of non-members' (Bertran et al. 2023); it needs no reference model.

    For each attacked model scikit-learn's boosted trees learn two quantiles of φ = log(p/(1 − p)) as functions of a
    population row's features: the median m(x) and an upper quantile u(x). The score is (φ − m)/(u − m).

    Args:
        quantile: the upper one, in (0.5, 1). Near 1 it needs a large population.
        iterations: trees of each regression, of 8 leaves.
    """

    quantile: float = 0.9
    iterations: int = 30

    def __post_init__(self) -> None:
        upper = validate.open_probability(quantile=self.quantile)
        if upper <= 0.5:
            raise ValueError(f"`quantile` must be in (0.5, 1), got {upper}")
        object.__setattr__(self, "quantile", upper)
        object.__setattr__(self, "iterations", validate.integer(1, 10_000, iterations=self.iterations))

    def score(self, target: Observations, references: References | None) -> np.ndarray:
        """(models, rows) scores."""
        attack = f"{self}"
        names = ("features", "population_features", "population_losses")
        features, population, losses = (target.need(name, attack=attack, role="target") for name in names)
        scores = np.empty(target.losses.shape)
        for model, (own, others) in enumerate(zip(confidence(target.losses), confidence(losses), strict=True)):
            middle, upper = (self._predicted(q, population, others, features) for q in (0.5, self.quantile))
            spread = upper - middle
            # Two separate regressions may cross, and a leaf may hold equal values.
            least = np.median(spread[spread > 0]) / 10 if (spread > 0).any() else 1.0
            scores[model] = (own - middle) / np.maximum(spread, least)
        return scores

    def _predicted(self, quantile: float, rows: np.ndarray, values: np.ndarray, asked: np.ndarray) -> np.ndarray:
        need("sklearn")
        from sklearn.ensemble import HistGradientBoostingRegressor

        state = kernels.subseed(0, kernels.Stream.QUANTILE_TREES, bits=32)  # bins of more than 200,000 rows
        regressor = HistGradientBoostingRegressor(
            loss="quantile",
            quantile=quantile,
            max_iter=self.iterations,
            max_leaf_nodes=_LEAVES,
            early_stopping=False,
            random_state=state,
        )
        return np.asarray(regressor.fit(rows, values).predict(asked), np.float64)


@dataclasses.dataclass(frozen=True)
class LossTrajectory:
    """Log odds of a logistic regression on φ = log(p/(1 − p)) at each checkpoint (after Liu et al. 2022).

    The regression is fitted on the reference models' rows, whose membership is known. Columns are standardised. The
    text distils the trajectory from the final model and fits a network; here the attacker has the checkpoints, as a
    server of federated learning does.

    Args:
        strength: inverse weight of the ridge penalty, above 0.
    """

    strength: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", validate.positive(strength=self.strength))

    def score(self, target: Observations, references: References) -> np.ndarray:
        """(models, rows) scores, positive where a row looks trained on."""
        need("sklearn")
        from sklearn.linear_model import LogisticRegression

        attack = f"{self}"
        attacked = target.need("checkpoint_losses", attack=attack, role="target")
        known = references.need("checkpoint_losses", attack=attack, role="references")
        if known.shape[1] != attacked.shape[1]:
            raise ValueError(
                f"`references.checkpoint_losses` must be at the {attacked.shape[1]} checkpoints of `target`, got shape "
                f"{known.shape}"
            )
        answers = references.included.ravel()
        if answers.all() or not answers.any():
            raise ValueError(
                f"`references.included` must have rows in and rows out of models for {attack}, got all "
                f"{'in' if answers.all() else 'out'}"
            )
        columns, asked = _columns(known), _columns(attacked)
        mean, spread = columns.mean(axis=0), columns.std(axis=0)
        spread[spread == 0] = 1.0
        model = LogisticRegression(C=self.strength, max_iter=1000).fit((columns - mean) / spread, answers)
        odds = model.decision_function((asked - mean) / spread)
        return np.asarray(odds.reshape(target.losses.shape))


def _columns(losses: np.ndarray) -> np.ndarray:
    """(models·rows, checkpoints)."""
    return np.moveaxis(confidence(losses), 1, 2).reshape(-1, losses.shape[1])


@dataclasses.dataclass(frozen=True)
class LabelOnly:
    """The share of a row's noisy copies that the model gives the row's label (Choquette-Choo et al. 2021).

    It reads labels alone, no probabilities. With copies at several noise levels the share grows with the distance to
    the decision boundary.

    Example:
        >>> from leakcore.attacks import membership
        >>> observed = membership.Observations(losses=[[0.2, 0.3]], copies_right=[[1.0, 0.25]])
        >>> membership.scores("label-only", observed).tolist()
        [[1.0, 0.25]]
    """

    def score(self, target: Observations, references: References | None) -> np.ndarray:
        """(models, rows) scores in [0, 1]."""
        return np.array(target.need("copies_right", attack=f"{self}", role="target"))


def noisy_copies(features: Any, *, scales: Sequence[float], count: int, seed: int) -> np.ndarray:
    """Copies of rows with normal noise, for the label-only attack (`Queries.copies`).

    Args:
        features: (rows, ...) floating.
        scales: standard deviations of the noise in units of each feature's own standard deviation over the rows.
        count: copies at each scale.
        seed: seed of the noise.

    Returns:
        (copies, rows, ...) of the features' type: the rows themselves first, then `count` copies at each scale.

    Guarantees:
        A pure function of the seed, the same on every machine to rounding. ValueError or TypeError names an argument
        that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import membership
        >>> copies = membership.noisy_copies(np.eye(3), scales=(0.5, 1.0), count=4, seed=0)
        >>> copies.shape, bool((copies[0] == np.eye(3)).all())
        ((9, 3, 3), True)
    """
    rows = validate.real_array("finite", np.isfinite, features=features)
    kind = validate.plain_array(features=features).dtype
    if kind.kind != "f":
        raise TypeError(f"`features` must be floating, got {kind}: integers cannot hold noise")
    if rows.ndim < 2 or 0 in rows.shape:
        raise ValueError(f"`features` must have shape (rows, ...), at least 1 each, got {rows.shape}")
    levels = validate.real_array("above 0 and finite", lambda v: (v > 0) & np.isfinite(v), scales=scales)
    if levels.ndim != 1 or not len(levels):
        raise ValueError(f"`scales` must be at least one number, got shape {levels.shape}")
    each, key = validate.integer(1, None, count=count), validate.seed(seed=seed)
    number = each * len(levels)
    memory_limit.require(24 * (number + 1) * rows.size, count=each)
    uniform = kernels.uniform((number, rows.size), seed=key, purpose=kernels.Stream.NOISY_COPIES)
    noise = special.ndtri(uniform).reshape(number, *rows.shape) * rows.std(axis=0)
    noise *= np.repeat(levels, each).reshape(-1, *(1,) * rows.ndim)
    return np.concatenate([rows[None], rows + noise]).astype(kind)


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

    Guarantees:
        Deterministic. `audit.from_scores` says what scores prove, from how members were chosen. ValueError or TypeError
        names an argument that does not fit.

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
    if not isinstance(own, _BY_REFERENCES):
        return own.score(target, references)
    if references is None:
        raise ValueError(f"`references` must be given for {own}, got None")
    return own.score(target, references)


def _attack(attack: Any) -> Attack:
    if isinstance(attack, get_args(Attack)):
        return attack  # type: ignore[no-any-return]
    if not isinstance(attack, str):
        raise TypeError(
            f"`attack` must be an attack's name or object, as 'rmia' or RMIA(), got {type(attack).__name__}"
        )
    return ATTACKS[validate.one_of(*ATTACKS, attack=attack)]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Guesses(ArrayRecord):
    """Guesses at who was in each model's training set.

    Args:
        guess: (runs, rows) int8, 1 "was trained on", −1 "was not", 0 no guess.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import membership
        >>> guesses = membership.Guesses(np.array([[1, -1, 0, 1]], np.int8))
        >>> guesses.tally(np.array([[True, False, True, False]]))  # two of three guesses are right
        (2, 3)
    """

    guess: np.ndarray

    def tally(self, included: Any) -> tuple[int, int]:
        """Number of right guesses and of all guesses.

        `included` is (runs, rows) bool, True for rows that were in the training set.
        """
        there = validate.even_array(included=included)
        if there.shape != self.guess.shape or there.dtype != bool:
            raise ValueError(
                f"`included` must be bool of shape {self.guess.shape}, got {there.dtype} of shape {there.shape}"
            )
        right = int(((self.guess == 1) & there).sum() + ((self.guess == -1) & ~there).sum())
        return right, int((self.guess != 0).sum())


def guess(scores: Any, *, share: float = 1.0, seed: int = 0) -> Guesses:
    """Guess where the scores are clearest: for each model, the share of rows with the largest |score|, by its sign.

    Args:
        scores: (runs, rows), positive for "was trained on".
        share: share of the rows to guess, in (0, 1]; at least one row per model.
        seed: seed of the order of equally clear scores. The rows' own order could tell who is a member.

    Returns:
        `Guesses`. A score of 0 is guessed "was not".

    Guarantees:
        Deterministic. ValueError or TypeError names an argument that does not fit.

    Example:
        >>> from leakcore.attacks import membership
        >>> membership.guess([[0.1, -3.0, 2.0, 0.5]], share=0.5).guess.tolist()
        [[0, -1, 1, 0]]
    """
    values = numbers(scores=scores)
    if values.ndim != 2 or 0 in values.shape:
        raise ValueError(f"`scores` must have shape (runs, rows), at least 1 each, got {values.shape}")
    part, start = validate.probability(share=share), validate.seed(seed=seed)
    if part == 0:
        raise ValueError("`share` must be in (0, 1], got 0")
    wanted = part * values.shape[1]
    # 0.29·100 rounds to just below 29, although 29 is meant.
    near = round(wanted)
    taken = max(1, near if abs(wanted - near) <= 4 * math.ulp(wanted) else math.floor(wanted))
    out = np.zeros(values.shape, np.int8)
    clearest = ascending(-np.abs(values), kernels.generator(start, kernels.Stream.GUESS_TIES))[:, :taken]
    signs = np.where(np.take_along_axis(values, clearest, axis=1) > 0, 1, -1).astype(np.int8)
    np.put_along_axis(out, clearest, signs, axis=1)
    return Guesses(out)
