"""Predictive families: what a bounded attacker can read from a gradient. Any object with fit and log_prob is a family.

    fit(gradients, labels)   gradients (n, d) float64, labels (n,) int64 in [0, classes); forgets earlier fits
    log_prob(gradients)      (m, classes) natural logarithms of the predicted probabilities

Optional: `prepare(gradients)` maps rows (n, d) to rows before anything else. Two more members save work:
`rotation_invariant = True` says that an orthogonal map of standardised gradients changes nothing, so the family
receives their coordinates in their own span (at most n of them); `held_out_log_prob()` returns predictions for the rows
of the last fit from parts of the model that did not use them. A third member bounds V-information from above:
`best_log_prob(gradients, labels)` returns the predictions of the member of the family with the largest likelihood on
these very rows, or None where there is none.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from leakcore import kernels
from leakcore._base import validate
from leakcore._base.columns import ColumnScaler
from leakcore._base.process_wide import one_thread, quiet


@runtime_checkable
class Family(Protocol):
    """The protocol that `v_information` needs of a family: `fit` and `log_prob`.

    Example:
        >>> import numpy as np
        >>> from leakcore import leakage
        >>> class Frequencies:  # ignores the gradients
        ...     def fit(self, gradients, labels):
        ...         self.log_share = np.log(np.bincount(labels) / len(labels))
        ...         return self
        ...     def log_prob(self, gradients):
        ...         return np.tile(self.log_share, (len(gradients), 1))
        >>> isinstance(Frequencies(), leakage.Family)
        True
    """

    def fit(self, gradients: np.ndarray, labels: np.ndarray) -> Any:
        """Learn from gradients (n, d) with labels (n,)."""

    def log_prob(self, gradients: np.ndarray) -> np.ndarray:
        """(m, classes) log probabilities for gradients (m, d)."""


class Logistic:
    """Multinomial logistic regression with a ridge penalty. Deterministic.

    The penalty ‖w‖²/(2·strength) is added to the summed log loss.

    Args:
        strength: inverse weight of the penalty, > 0.
        magnitudes: read |g| instead of g. The target flips signs in a gradient (every entry is a residual times an
            activation), which hides from a linear reader what the magnitudes show.

    Example:
        >>> import numpy as np
        >>> from leakcore import leakage
        >>> g, p = np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.array([0, 0, 1, 1])
        >>> leakage.Logistic().fit(g, p).log_prob(g).argmax(axis=1).tolist()
        [0, 0, 1, 1]
    """

    rotation_invariant = True

    def __init__(self, strength: float = 10.0, *, magnitudes: bool = False) -> None:
        self._strength = validate.positive(strength=strength)
        self._magnitudes = bool(magnitudes)

    def prepare(self, gradients: np.ndarray) -> np.ndarray:
        """The rows, or their absolute values."""
        return np.abs(gradients) if self._magnitudes else gradients

    def fit(self, gradients: np.ndarray, labels: np.ndarray) -> Logistic:
        """See `Family`."""
        from sklearn.linear_model import LogisticRegression

        self._model = LogisticRegression(C=self._strength, max_iter=500, tol=1e-4)
        self._model.fit(gradients, labels)
        return self

    def log_prob(self, gradients: np.ndarray) -> np.ndarray:
        """See `Family`."""
        return _log_prob_of_logits(self._model, gradients)

    def best_log_prob(self, gradients: np.ndarray, labels: np.ndarray) -> np.ndarray | None:
        """Predictions for these rows with the penalty reduced to a share 1e-6 of itself.

        None where there are as many columns as rows: planes can then separate any labels, so that the likelihood has no
        maximum.
        """
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        if gradients.shape[1] >= len(gradients) - 1:
            return None
        model = LogisticRegression(C=1e6 * self._strength, max_iter=10_000, tol=1e-8, solver="newton-cholesky")
        with quiet(category=ConvergenceWarning):  # near separation the likelihood is within 1e-3 of its largest
            model.fit(gradients, labels)
        return _log_prob_of_logits(model, gradients)


def _log_prob_of_logits(model: Any, gradients: np.ndarray) -> np.ndarray:
    """(m, classes). From the logits: a probability that rounds to 0 has a finite logarithm."""
    logits = np.asarray(model.decision_function(gradients))
    if logits.ndim == 1:
        logits = np.stack([np.zeros_like(logits), logits], axis=1)
    return np.asarray(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))


MAX_TREES = 100_000
"""A tree takes tens of kilobytes."""


class RandomForest:
    """A random forest with √d columns at a split: the paper's family. Deterministic by seed.

    It may predict 0, hence a log loss of ∞; `v_information` mixes every family with the prior, which Definition 1 of
    the text allows. Each column is scaled to the range that it has where the forest learns, so a factor of the
    gradients changes nothing.

    Args:
        trees: at least 2.
        seed: 64-bit seed of the forest.

    Example:
        >>> import numpy as np
        >>> from leakcore import leakage
        >>> g, p = np.arange(20.0)[:, None], np.arange(20) // 10
        >>> forest = leakage.RandomForest(10, seed=0).fit(g, p)
        >>> forest.log_prob(g[[0, -1]]).argmax(axis=1).tolist()
        [0, 1]
    """

    rotation_invariant = False

    def __init__(self, trees: int = 100, *, seed: int = 0) -> None:
        self._trees = validate.integer(2, MAX_TREES, trees=trees)
        self._seed = validate.seed(seed=seed)

    def fit(self, gradients: np.ndarray, labels: np.ndarray) -> RandomForest:
        """See `Family`."""
        from sklearn.ensemble import RandomForestClassifier

        key = kernels.subseed(self._seed, kernels.Stream.FAMILY_FOREST, bits=32)
        self._model = RandomForestClassifier(self._trees, random_state=key, oob_score=True)
        with quiet("Some inputs do not have OOB scores"):  # with few trees a row may be in all of them
            self._ready = ColumnScaler(gradients)
            self._model.fit(self._ready(gradients), labels)
        return self

    def log_prob(self, gradients: np.ndarray) -> np.ndarray:
        """See `Family`."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self._model.predict_proba(self._ready(gradients))))

    def held_out_log_prob(self) -> np.ndarray:
        """Predictions of the trees that did not use the row; a row that all trees used gets equal probabilities."""
        shares = self._model.oob_decision_function_
        shares = np.where(np.isfinite(shares), shares, 1 / shares.shape[1])
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(shares))


class MLP:
    """One hidden layer of ReLU units, trained by full-batch Adam with weight decay.

    It reads the leading coordinates of the gradients' span. Deterministic by seed, for a machine and torch build.

    Args:
        hidden: units, at least 1.
        components: leading coordinates that it reads, at least 1.
        steps: steps of Adam, at least 1.
        learning_rate: > 0.
        weight_decay: at least 0.
        seed: 64-bit seed of the initial weights.

    Example:
        >>> import numpy as np
        >>> from leakcore import leakage
        >>> g, p = np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.array([0, 1, 1, 0])  # not linear in g
        >>> leakage.MLP(seed=0).fit(g, p).log_prob(g).argmax(axis=1).tolist()
        [0, 1, 1, 0]
    """

    rotation_invariant = True

    def __init__(
        self,
        hidden: int = 32,
        *,
        components: int = 64,
        steps: int = 150,
        learning_rate: float = 0.02,
        weight_decay: float = 0.01,
        seed: int = 0,
    ) -> None:
        self._hidden = validate.integer(1, None, hidden=hidden)
        self._components = validate.integer(1, None, components=components)
        self._steps = validate.integer(1, None, steps=steps)
        self._rate = validate.positive(learning_rate=learning_rate)
        self._decay = validate.non_negative(weight_decay=weight_decay)
        self._seed = validate.seed(seed=seed)

    def fit(self, gradients: np.ndarray, labels: np.ndarray) -> MLP:
        """See `Family`."""
        import torch

        leading = gradients[:, : self._components]
        self._centre = leading.mean(axis=0)
        # One scale for all: the coordinates come in order of their spread, which shows which of them are noise.
        self._scale = float(np.sqrt(((leading - self._centre) ** 2).sum(axis=1).mean() / leading.shape[1])) or 1.0
        x, y = self._ready(gradients), torch.from_numpy(labels)
        rng = kernels.generator(self._seed, kernels.Stream.FAMILY_MLP)
        sizes = (x.shape[1], self._hidden, int(labels.max()) + 1)
        self._weights, self._biases = initial_layers(sizes, rng)
        with one_thread():
            optimiser = torch.optim.AdamW([*self._weights, *self._biases], lr=self._rate, weight_decay=self._decay)
            for _ in range(self._steps):
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(self._logits(x), y).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        return self

    def log_prob(self, gradients: np.ndarray) -> np.ndarray:
        """See `Family`."""
        with one_thread():
            logits = self._logits(self._ready(gradients)).detach().double()
        return np.asarray(logits.log_softmax(1).numpy())

    def _ready(self, gradients: np.ndarray) -> Any:
        import torch

        scaled = (gradients[:, : self._components] - self._centre) / self._scale
        return torch.from_numpy(np.ascontiguousarray(scaled)).float()

    def _logits(self, x: Any) -> Any:
        hidden = (x @ self._weights[0] + self._biases[0]).relu()
        return hidden @ self._weights[1] + self._biases[1]


def initial_layers(sizes: Sequence[int], rng: np.random.Generator) -> tuple[list[Any], list[Any]]:
    """Weights and biases of a perceptron of ReLU units as torch tensors, where its training begins."""
    import torch

    weights = [
        torch.from_numpy(rng.normal(size=(m, k)) * (2 / m) ** 0.5).float().requires_grad_()
        for m, k in itertools.pairwise(sizes)
    ]
    return weights, [torch.zeros(k, requires_grad=True) for k in sizes[1:]]


FAMILIES = ("logistic", "magnitudes", "random-forest", "mlp")
"""Names that `v_information` takes for the families here with their default settings; "magnitudes" is logistic
regression on absolute values."""


def family_of(family: Any, seed: int) -> tuple[str, Any]:
    """(name, object) of a name, or of an object with fit and log_prob."""
    if isinstance(family, str):
        name = validate.one_of(*FAMILIES, family=family)
        if name in ("logistic", "magnitudes"):
            return name, Logistic(magnitudes=name == "magnitudes")
        return name, RandomForest(seed=seed) if name == "random-forest" else MLP(seed=seed)
    if not callable(getattr(family, "fit", None)) or not callable(getattr(family, "log_prob", None)):
        raise TypeError(
            f"`family` must be one of {', '.join(map(repr, FAMILIES))}, or an object with fit and log_prob, "
            f"got {type(family).__name__}"
        )
    return str(getattr(family, "name", type(family).__name__)), family
