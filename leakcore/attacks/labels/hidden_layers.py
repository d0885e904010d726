"""Labels up to a sign that a prior fixes: from the layer before the last (Algorithm 4) or a crafted input (5)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy import special

from leakcore._base import validate
from leakcore._base.results import attack_guarantee
from leakcore.attacks.labels import forward_rounding
from leakcore.attacks.labels.knowledge import KnownHiddenLayer, KnownModel, known_of_hidden_layer
from leakcore.attacks.labels.linear_system import BLIND, HARD, MISFIT, noise_notes, read_conditions, solve
from leakcore.attacks.labels.observation import (
    Noise,
    ObservedGradient,
    Precision,
    observe,
    read_observation,
    read_precision,
)
from leakcore.attacks.labels.result import CONTRADICTION, UNDETERMINED, LabelRecovery, worst_condition
from leakcore.gradients import locked
from leakcore.kernels import Stream, standard_normal

_SIGN_TEST = 1e-3


@dataclasses.dataclass(frozen=True, eq=False)
class NeuronRows:
    """One unit's rows (N, d), which are dZ_r/dW up to one factor; forward as in `solve`; number: which unit it is."""

    number: int
    rows: np.ndarray
    forward: np.ndarray


def prior_below_half(positive_ratio: float) -> bool:
    """Whether positives are the rarer class; a ratio of one half says nothing and is refused."""
    ratio = validate.open_probability(positive_ratio=positive_ratio)
    if ratio == 0.5:
        raise ValueError("`positive_ratio` must differ from 0.5, or it cannot resolve the sign")
    return ratio < 0.5


def recover_up_to_sign(
    neurons: list[NeuronRows],
    observed: ObservedGradient,
    *,
    positive_ratio: float,
    noise: Noise | None,
    precision: Precision,
    roundoff: float,
    attacker: str,
    method: str,
    provenance: str,
    proofs: bool = True,
) -> LabelRecovery:
    """Solve each neuron's system, align their signs, let the neurons vote, and choose the sign that fits the prior.

    The sign of a system is that of an unknown weight. Two systems that determine a common row agree on it or
    disagree on it, which tells their relative sign; the set of systems so connected that determines the most rows is
    kept. A row's label is the majority of its votes (exact gradients never contradict each other), −1 in a tie. Then
    one global sign is left: the one under which positives are rarer (or more frequent) among the rows with a vote.

    The prior is an assumption about this batch: where it is wrong, every determined label is the opposite one, and a
    result of kind "lower" holds under it alone. It *decides* the sign if the opposite one would put at least half of
    the whole batch into the rarer class. If it does not, because votes are missing, the sign counts only under two
    conditions. Rows whose residual is lost in rounding are those the model is sure of, mostly of the frequent class:
    the opposite sign must put at least half of all rows that are seen into the rarer class whatever the lost ones are.
    Rows that no neuron sees (U = 0) are taken to be missing at random, and the votes must be so lopsided that the
    opposite sign would show them with probability at most 1/1000 (sign test). Else, and in a tie, nothing is
    determined.
    """
    below = prior_below_half(positive_ratio)
    shape = neurons[0].rows.shape
    divisor = observed.source.divisor(shape[0])
    how = read_conditions(
        max(shape), roundoff=max(roundoff, observed.roundoff), divisor=divisor, noise=noise, precision=precision
    )
    each = how.shared(len(neurons))
    blind = observed.stored is None
    solutions = [
        solve(
            n.rows,
            divisor * observed.values[0, n.number, :, None],
            each,
            stored=None if observed.stored is None else divisor * observed.stored[0, n.number, :, None],
            forward=n.forward * how.coarser_than(roundoff),
            unit_scale=False,
        )
        for n in neurons
    ]
    residuals = np.stack([s.residuals[:, 0] for s in solutions])
    tolerance = np.stack([s.tolerance[:, 0] for s in solutions])
    signs = np.where(np.abs(residuals) > tolerance, np.sign(residuals), 0.0).astype(np.int64)
    turn = align(signs)
    votes = turn @ signs
    ones, zeros = int((votes < 0).sum()), int((votes > 0).sum())
    flip = 1 if ones == zeros or (ones < zeros) == below else -1
    in_sight = np.any([s.identifiable for s, t in zip(solutions, turn, strict=True) if t], axis=0)
    many = max(ones, zeros)
    certain = 2 * many >= len(votes) and ones != zeros
    lopsided = many > 0 and float(special.bdtrc(many - 1, ones + zeros, 0.5)) <= _SIGN_TEST
    resolved = certain or (2 * many >= int(in_sight.sum()) and lopsided)
    fits = blind or all(s.fits for s in solutions)
    determined = (votes != 0) & resolved & fits
    labels = np.where(determined, flip * votes < 0, UNDETERMINED).astype(np.int64)
    contradicted = bool((np.abs(votes) < np.abs(turn[:, None] * signs).sum(axis=0)).any())
    assumed = any(
        (~s.identifiable & (np.linalg.norm(n.rows, axis=1) > 0)).any()
        for s, n, t in zip(solutions, neurons, turn, strict=True)
        if t
    )
    exact = how.noise is not None and not blind and not assumed and certain and proofs and fits and not contradicted
    notes = ["binary labels, logistic loss, one logit", HARD, *noise_notes(how)]
    prior = f"assumed: {'fewer' if below else 'more'} than half of the batch's labels are 1 (positive_ratio)"
    if resolved:
        decided = "the sign follows from it" if certain else "it chose, but does not prove, the sign"
        notes.append(f"{prior}; {decided}, and were it wrong, every determined label would be the opposite one")
    else:
        notes.append(f"{prior}; it leaves the sign open")
    if assumed:
        notes.append(
            "rows that a system does not determine are taken to be at most ten times the largest that it does: their "
            "rounding is in the tolerance under this assumption, so nothing is proved"
        )
    if not fits:
        notes.append(MISFIT + (", or undetermined rows are larger than taken" if assumed else ""))
    if contradicted:
        notes.append(CONTRADICTION)
    if blind:
        notes.append(BLIND)
    best = (np.abs(residuals) / np.maximum(tolerance, np.finfo(float).tiny) * (turn != 0)[:, None]).argmax(axis=0)
    at = (best, np.arange(len(votes)))
    return LabelRecovery(
        value=float(determined.mean()),
        method=f"{method}; {int((turn != 0).sum())} of {len(neurons)} neurons aligned",
        **attack_guarantee(
            f"{attacker}; knows which label is the rarer one in this batch",
            notes=notes,
            kind="lower" if exact else "estimate",
            confidence=how.level if exact and how.noise else None,
        ),
        provenance=provenance,
        labels=labels,
        residuals=flip * np.where(turn[best] == 0, 1, turn[best]) * residuals[at],
        identifiable=np.any([s.identifiable for s in solutions], axis=0),
        determined=determined,
        tolerance=tolerance[at],
        rank=max(s.rank for s in solutions),
        condition=worst_condition([s.condition for s in solutions]),
    )


def align(signs: np.ndarray) -> np.ndarray:
    """(J,) ±1 by which the (J, N) signs agree along a tree of clearest overlaps; 0 outside the best connected set."""
    agreement = signs @ signs.T
    left = set(range(len(signs)))
    best, covered = np.zeros(len(signs), dtype=np.int64), -1
    while left:
        start = max(left, key=lambda j: (int(np.abs(signs[j]).sum()), -j))
        turn = np.zeros(len(signs), dtype=np.int64)
        turn[start] = 1
        link = agreement[start].copy()
        while True:
            clear = np.where(turn == 0, np.abs(link), 0)
            j = int(clear.argmax())
            if clear[j] == 0:
                break
            turn[j] = np.sign(link[j])
            link = np.where(np.abs(agreement[j]) > np.abs(link), turn[j] * agreement[j], link)
        rows = int((np.abs(signs[turn != 0]).sum(axis=0) > 0).sum())
        if rows > covered:
            best, covered = turn, rows
        left -= set(np.flatnonzero(turn).tolist())
    return best


def neuron_indices(neurons: Any, count: int) -> list[int]:
    """The indices of the neurons to use: all by default, else one index or several, checked."""
    if neurons is None:
        return list(range(count))
    if not isinstance(neurons, (int, np.integer)) and not np.iterable(neurons):
        raise TypeError(f"`neurons` must be an integer, several of them, or None, got {neurons!r}")
    listed = [neurons] if isinstance(neurons, (int, np.integer)) else list(neurons)
    if not listed:
        raise ValueError("`neurons` must name at least one neuron")
    return [validate.integer(0, count - 1, neurons=j) for j in listed]


def second_last_layer(
    knowledge: KnownModel | KnownHiddenLayer,
    observation: Any,
    *,
    positive_ratio: float,
    neurons: int | Sequence[int] | None = None,
    noise: Noise | None = None,
    precision: Precision | None = None,
) -> LabelRecovery:
    """Binary labels of a batch from the aggregated gradient of the layer before a hidden last layer.

    For the weights W into neuron J of that layer, dZ_r/dW = W_J^L·U_J[r]·X[r], with X[r] its inputs and U_J[r] =
    A′(Z_J[r]) the derivative of its activation (Yuan et al. 2022, Algorithm 4 and equation 4). The output weight W_J^L
    is unknown, so each neuron yields e up to one factor, whose sign the prior resolves. With ReLU, rows with U_J[r] = 0
    are undetermined; neurons are aligned by the rows they share, then resolved together.

    Args:
        knowledge: a `KnownModel` with an elementwise activation between its last two linear layers, or a
            `KnownHiddenLayer`.
        observation: a `GradientObservation`, a `WeightDifference` or a mean gradient, (p, d) of all p neurons
            (whichever are used), or (d,) of one.
        positive_ratio: the prior, the share of label 1 in the batch, in (0, 1), not 0.5. Only its side of 0.5 matters.
        neurons: indices of the neurons to use; None: all.
        noise: as in `last_layer`; a confidence holds for all neurons together.
        precision: as in `last_layer`.

    Returns:
        `LabelRecovery`. Its residuals, |W_J^L|·(p − y), come from the neuron that determines the row most clearly. It
        is "lower" only if the prior also decides the sign, and assumes the prior to be right; a wrong prior inverts
        every determined label.

    Raises:
        ValueError: for bad shapes, neurons out of range and activations that are not elementwise.

    Guarantees:
        As `last_layer`. More: docs/explanation/attacks.md.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import labels
        >>> rng = np.random.default_rng(0)
        >>> x, slopes = rng.standard_normal((5, 9)), rng.uniform(0.5, 1, (5, 2))
        >>> y = np.array([0, 1, 0, 0, 0])
        >>> gradient = np.stack([w * (slopes[:, j] * (0.5 - y)) @ x / 5 for j, w in enumerate((2.0, -1.0))])
        >>> hidden = labels.KnownHiddenLayer(x, slopes)
        >>> labels.second_last_layer(hidden, gradient, positive_ratio=0.2, noise=labels.Noise(0)).labels.tolist()
        [0, 1, 0, 0, 0]
    """
    arithmetic = read_precision(precision)
    prior_below_half(positive_ratio)
    known = known_of_hidden_layer(knowledge)
    rows, count = known.rows, known.slope.shape[1]
    observed = observe(
        observation, rows.shape[1], known_weights=known.weights, weights_roundoff=arithmetic.stored(known.roundoff)
    )
    if observed.values.shape[1] != count:
        raise ValueError(f"`gradient` must be of the layer's {count} neurons, got {observed.values.shape[1]}")
    if observed.with_bias:
        rows = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
    lengths = np.linalg.norm(rows, axis=1)
    used = neuron_indices(neurons, count)
    return recover_up_to_sign(
        [
            NeuronRows(
                number=j,
                rows=rows * known.slope[:, [j]],
                forward=np.abs(known.slope[:, j]) * known.row_error + known.slope_error[:, j] * lengths,
            )
            for j in used
        ],
        observed,
        positive_ratio=positive_ratio,
        noise=noise,
        precision=arithmetic,
        roundoff=known.roundoff,
        attacker=f"knows {known.who}; sees {observed.what} of the layer before the last, of {len(used)} neurons",
        method="signs of the minimum-norm solutions of the neurons' linear systems, up to a sign that the prior fixes",
        provenance="Yuan, Xue, Wang and Shen (2022), Algorithm 4",
    )


_NEURONS = 5
"""Neurons used by default: those of the largest gradients, the others being nearest to rounding and noise."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class MaliciousInput:
    """Features that make every row of a batch look alike from the first hidden layer on.

    Attributes:
        features: (N, p₁), a torch tensor of the model's type and device, or a NumPy array where weights were passed.
        target: (p₂,) the common W·x, without the bias.
        deviation: largest |W·x_r − target|, which comes from rounding the features.
        condition: condition number of the features as a matrix.
        verified: whether the construction was checked on a model: its logits agree to within `logit_spread`, and so do
            the derivatives of its first hidden layer.
        logit_spread: largest difference between the rows' logits; None without a model.
        weights: (p₂, p₁) of the first layer, float64.
        bias: (p₂,) of the first layer, zeros where it has none.
        usable: (p₂,) bool, the neurons whose factor has one sign over all rows.
        roundoff: unit roundoff of the weights' type.
    """

    features: Any
    target: np.ndarray
    deviation: float
    condition: float
    verified: bool
    logit_spread: float | None
    weights: np.ndarray
    bias: np.ndarray
    usable: np.ndarray
    roundoff: float

    def recover(
        self,
        observation: Any,
        *,
        positive_ratio: float,
        neurons: int | Sequence[int] | None = None,
        noise: Noise | None = None,
        precision: Precision | None = None,
    ) -> LabelRecovery:
        """Binary labels of the batch trained on `features`, from the first layer's aggregated gradient.

        dL/dW_J = (g_J/N)·Σ_r (p_r − y_r)·x_r with one unknown factor g_J per neuron of the first hidden layer (Yuan et
        al. 2022, equation 7), so the solution is e up to a sign, which the prior resolves.

        Args:
            observation: a `GradientObservation` or a `WeightDifference` of shape (p₂, p₁), of the first layer's weights
                alone; an array is a mean gradient. The weights before the step are known.
            positive_ratio: as in `second_last_layer`.
            neurons: which of the p₂ neurons to use, among the `usable` ones; None: the five with the largest gradients.
            noise: as in `second_last_layer`.
            precision: as in `second_last_layer`.

        Returns:
            `LabelRecovery`, "lower" if the prior proves the sign and the features were verified on a model.

        Guarantees:
            Deterministic.
        """
        arithmetic = read_precision(precision)
        observed = observe(
            read_observation(
                observation, without=("bias_gradient", "bias_difference", "weights"), why="not read by this attack"
            ),
            self.weights.shape[1],
            known_weights=np.c_[self.weights, self.bias][None],
            weights_roundoff=arithmetic.stored(self.roundoff),
        )
        count = len(self.weights)
        if observed.values.shape[1] != count:
            raise ValueError(f"`gradient` must be of the first layer's {count} neurons, got {observed.values.shape[1]}")
        rows, _ = validate.host_array(features=self.features)
        exact = np.zeros(len(rows))
        return recover_up_to_sign(
            [NeuronRows(number=j, rows=rows, forward=exact) for j in self._neurons(neurons, observed.values[0])],
            observed,
            positive_ratio=positive_ratio,
            noise=noise,
            precision=arithmetic,
            roundoff=self.roundoff,
            attacker=f"chooses the batch's features and knows the first layer; sees {observed.what} of it",
            method="signs of the features' linear system, up to a sign that the prior fixes",
            provenance="Yuan, Xue, Wang and Shen (2022), Algorithm 5",
            proofs=self.verified,
        )

    def _neurons(self, neurons: int | Sequence[int] | None, gradient: np.ndarray) -> list[int]:
        """The usable neurons that were asked for, or those with the largest gradients."""
        if neurons is None:
            sizes = np.where(self.usable, np.linalg.norm(gradient, axis=1), -1.0)
            return [int(j) for j in np.argsort(-sizes, kind="stable")[:_NEURONS] if sizes[j] >= 0]
        used = neuron_indices(neurons, len(self.weights))
        for j in used:
            if not self.usable[j]:
                raise ValueError(
                    f"`neurons` must be usable ones, {np.flatnonzero(self.usable).tolist()}, got {j}, whose factor "
                    "differs between the rows, or is 0"
                )
        return used


@locked
def malicious_input(
    model: torch.nn.Module | None = None,
    *,
    batch_size: int,
    seed: int,
    weights: Any = None,
    bias: Any = None,
    activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> MaliciousInput:
    """Features x_1 … x_N that share one W·x_r = V, are linearly independent and all differ.

    With W the (p₂, p₁) weights of the first layer and N ≤ p₁ − p₂, x_r = W⁺V + s·q_r, with q_r orthonormal in the null
    space of W (Yuan, Xue, Wang and Shen 2022, Algorithm 5). Everything after the first layer is then the same for every
    row, so the first layer's gradient is Xᵀe times one unknown factor per neuron. V is random and not zero, and s =
    √N·‖W⁺V‖ keeps the condition number of X at √2.

    Args:
        model: a torch module whose first layer is linear and receives the features unchanged. Its activation is checked
            and the construction is verified on it.
        batch_size: N, at least 1 and at most p₁ − p₂.
        seed: seed of V and of the choice in the null space.
        weights: instead of a model: (p₂, p₁).
        bias: with weights: (p₂,), or None.
        activation: with weights: the activation as a function of a tensor.

    Returns:
        `MaliciousInput`; train on its `features`, then call its `recover`.

    Raises:
        ValueError: for N > p₁ − p₂, for an activation whose derivative is 0 on an interval (ReLU, ReLU6, hard tanh: a
            neuron that is off has a zero gradient), for a model whose logits differ between the rows, and where no
            neuron of the first layer moves the logit.

    Guarantees:
        Deterministic given the seed.

    Example:
        >>> import numpy as np
        >>> import torch
        >>> from leakcore.attacks import labels
        >>> weights = np.random.default_rng(0).standard_normal((3, 12))
        >>> crafted = labels.malicious_input(weights=weights, activation=torch.tanh, batch_size=8, seed=0)
        >>> crafted.features.shape, bool(crafted.deviation < 1e-9)
        ((8, 12), True)
    """
    if (model is None) == (weights is None):
        raise ValueError("exactly one of `model` and `weights` must be given")
    n = validate.integer(1, batch_size=batch_size)
    key = validate.seed(seed=seed)
    if model is not None:
        if bias is not None or activation is not None:
            raise ValueError("`bias` and `activation` are allowed only with weights=")
        forward_rounding.check_model(model)
        first = next((m for m in model.modules() if isinstance(m, torch.nn.Linear)), None)
        if first is None:
            raise ValueError("model: has no torch.nn.Linear layer; pass weights= and activation= instead")
        dtype, place = first.weight.dtype, first.weight.device
        matrix = first.weight.detach().double().cpu().numpy()
        shift = np.zeros(len(matrix)) if first.bias is None else first.bias.detach().double().cpu().numpy()
        roundoff = forward_rounding.roundoff_of(dtype)
    else:
        if activation is None or not callable(activation):
            raise ValueError("`activation` must be given with weights=, as a function of a tensor")
        matrix, roundoff = validate.host_array(weights=weights)
        if matrix.ndim != 2 or 0 in matrix.shape:
            raise ValueError(f"`weights` must have shape (p2, p1), got {matrix.shape}")
        shift = np.zeros(len(matrix))
        if bias is not None:
            shift, _ = validate.host_array(bias=bias)
            if shift.shape != (len(matrix),):
                raise ValueError(f"`bias` must have shape ({len(matrix)},), got {shift.shape}")
        _check_activation(activation)
    units, width = matrix.shape
    if n > width - units:
        raise ValueError(
            f"`batch_size` must be at most p1 - p2 = {width} - {units} = {width - units}, got {n}: the "
            "number of features minus the first hidden layer's neurons"
        )
    exact = _features(matrix, n, key)
    features: Any = torch.as_tensor(exact, dtype=dtype, device=place) if model is not None else exact
    if model is None and roundoff > 2.0**-53:
        features = exact.astype(np.float32)
    rounded = features.double().cpu().numpy() if model is not None else features.astype(np.float64)
    reached = rounded @ matrix.T
    target = exact[0] @ matrix.T
    spread, usable = (None, np.ones(units, bool)) if model is None else _verify(model, features)
    singular = np.linalg.svd(rounded, compute_uv=False)
    return MaliciousInput(
        features=features,
        target=target,
        deviation=float(np.abs(reached - target).max()),
        condition=float(singular[0] / singular[-1]),
        verified=model is not None,
        logit_spread=spread,
        weights=matrix,
        bias=shift,
        usable=usable,
        roundoff=roundoff,
    )


def _features(matrix: np.ndarray, n: int, seed: int) -> np.ndarray:
    units, width = matrix.shape
    left, singular, right = np.linalg.svd(matrix, full_matrices=True)
    rank = int((singular > singular[0] * 2.0**-52 * max(matrix.shape)).sum()) if singular[0] > 0 else 0
    if rank == 0:
        raise ValueError("model: its first layer's weights are all zero")
    draw = standard_normal((n + 1, max(width, units)), seed=seed, purpose=Stream.MALICIOUS_FEATURES)
    # V lies in the range of W and has standard deviation 1/2, so that no activation is near saturation.
    wanted = left[:, :rank] @ (left[:, :rank].T @ (0.5 * draw[n, :units]))
    common = right[:rank].T @ ((left[:, :rank].T @ wanted) / singular[:rank])
    free = right[rank:].T
    basis, _ = np.linalg.qr(free @ draw[:n, : free.shape[1]].T)
    return np.asarray(common + np.sqrt(n) * np.linalg.norm(common) * basis.T)


_PLACES = (-3.0, -0.5, 0.5, 3.0)
"""For every activation in use, a derivative of 0 at one of these means one of 0 on an interval."""


def _is_flat(after: torch.Tensor, at: torch.Tensor) -> bool:
    """Whether some number of `at` does not move `after`, which is computed from it elementwise."""
    slope = torch.autograd.grad(after.sum(), at, allow_unused=True)[0] if after.requires_grad else None
    return slope is None or bool((slope == 0).any())


def _check_activation(activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
    at = torch.tensor(_PLACES, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        try:
            after = activation(at)
        except (RuntimeError, TypeError) as error:
            raise ValueError(
                f"`activation` must be a function of a torch tensor, with a derivative ({error})"
            ) from None
        if not isinstance(after, torch.Tensor) or after.shape != at.shape:
            raise ValueError("`activation` must map a tensor to a tensor of the same shape")
    if _is_flat(after, at):
        raise ValueError(
            "`activation` must be strictly monotone, as tanh, sigmoid and ELU are; a derivative that is 0 on an "
            "interval (as ReLU's) can hide the labels"
        )


def _verify(model: torch.nn.Module, features: torch.Tensor) -> tuple[float, np.ndarray]:
    """Largest difference of the logits, and the neurons whose factor g_J clearly has one sign over the rows."""
    dtype = forward_rounding.precisions(model)[0]
    state = forward_rounding.cast_state(model, dtype)
    with torch.no_grad():
        _, calls = forward_rounding.forward(model, state, features)
    if calls[0].entering.shape != features.shape or not torch.equal(calls[0].entering, features):
        raise ValueError("`model`: the first linear layer must receive the features unchanged")
    if len(calls) > 1:
        _check_elementwise(model, state, features, calls)
    at = calls[0].output.detach().requires_grad_()
    with torch.enable_grad():
        prediction, calls = forward_rounding.forward(model, state, features, replace=(0, at))
        logits = calls[-1].output if forward_rounding.same_as_logits(prediction, calls[-1].output) else prediction
        if logits.numel() != len(features):
            raise ValueError(f"`model` must return one logit per row, got shape {tuple(logits.shape)}")
        (factor,) = torch.autograd.grad(logits.sum(), at)
    values = logits.detach().double().reshape(-1)
    spread = float((values.max() - values.min()).abs())
    rough = 1e3 * forward_rounding.roundoff_of(dtype) ** 0.75
    if spread > rough * (1.0 + float(values.abs().max())):
        raise ValueError(
            "`model` must depend on the features through its first linear layer alone, but its logits "
            f"differ by {spread:.3g} between rows whose first layers agree"
        )
    factors = factor.double().cpu().numpy()
    middle = np.abs(factors.mean(axis=0))
    usable = (np.ptp(factors, axis=0) < 0.1 * middle) & (middle > 0)
    if not usable.any():
        raise ValueError(
            f"model: none of the {len(usable)} neurons of its first layer moves the logit in one direction "
            "over all rows; other weights or another seed may help"
        )
    return spread, usable


def _check_elementwise(model: torch.nn.Module, state: Any, features: torch.Tensor, calls: list[Any]) -> None:
    """The derivative between the first two linear layers must not vanish where a neuron is off."""
    for value in _PLACES:
        at = torch.full_like(calls[0].output, value).requires_grad_()
        with torch.enable_grad():
            _, again = forward_rounding.forward(model, state, features, replace=(0, at))
        if _is_flat(again[1].entering, at):
            raise ValueError(
                "model: the derivative of its first activation is 0 on an interval (as ReLU's), which can hide the "
                "labels; Algorithm 5 needs tanh, sigmoid, ELU or another that is strictly monotone"
            )
