"""Labels from one aggregated gradient of the last layer (Algorithm 3) or of any weights (Algorithm 1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from leakcore._base.results import Assumptions
from leakcore.attacks.labels import known_probabilities, linear_system
from leakcore.attacks.labels.forward_rounding import logit_jacobian
from leakcore.attacks.labels.knowledge import (
    KnownModel,
    KnownSystem,
    known_of_arrays,
    known_of_jacobian,
    known_of_last_layer,
)
from leakcore.attacks.labels.observation import Clipping, Noise, Precision, observe, read_observation, read_precision
from leakcore.attacks.labels.result import UNDETERMINED, LabelRecovery, combine, name_labels


def recover(
    known: KnownSystem,
    observation: Any,
    *,
    clipping: Clipping | None,
    noise: Noise | None,
    precision: Precision,
    part: str,
    provenance: str,
    coarsest: float = 0.0,
) -> LabelRecovery:
    """The labels that the systems at hand determine; keywords as in `last_layer`. coarsest: roundoff of the parts."""
    observed = observe(
        observation,
        known.rows.shape[2],
        known_weights=known.weights,
        weights_roundoff=precision.stored(known.roundoff),
        steps=known.steps,
    )
    if observed.with_bias:
        ones = np.ones((*known.rows.shape[:2], 1))
        known = dataclasses.replace(known, rows=np.concatenate([known.rows, ones], axis=2))
        part += " and bias"
    steps, unknowns, width = known.rows.shape
    n = known.samples
    divisor = observed.source.divisor(n)
    how = linear_system.read_conditions(
        max(unknowns, width),
        roundoff=max(known.roundoff, observed.roundoff, coarsest),
        divisor=divisor,
        noise=noise,
        precision=precision,
    )
    known = known.rougher(how.coarser_than(known.roundoff))
    vectors = observed.values.shape[1]
    if vectors == 0:
        raise ValueError("`gradient` must have at least one row, got none")
    if known.weights is not None and known.weights.shape[1] != vectors:
        raise ValueError(
            f"`gradient` must have one weight vector for each of the model's {known.weights.shape[1]} "
            f"logits, got {vectors}"
        )
    classes = known.wide or vectors
    clipped = known_probabilities.read_clipping(clipping, known_probs=known.probs is not None, steps=known.steps, n=n)
    if clipped is not None and classes > 1:
        raise ValueError(
            f"`clipping` is allowed only with one logit; with {classes} a clipped residual takes {classes} values"
        )
    if known.probs is not None and known.probs.values.shape[2] != classes:
        raise ValueError(
            f"`known_probs` must have as many classes as the gradient has weight vectors, {classes}, got "
            f"{known.probs.values.shape[2]}"
        )
    blind = observed.stored is None
    exact = how.noise is not None and not blind
    notes = ["binary labels, logistic loss, one logit"] if classes == 1 else [f"{classes} classes, softmax loss"]
    notes.append(linear_system.HARD)
    notes += linear_system.noise_notes(how)
    if blind:
        notes.append(linear_system.BLIND)
    if clipped is not None:
        notes.append(
            f"every sample's gradient clipped to {clipped.clip:g}"
            + (" by its joint norm" if clipped.joint is not None else " by these weights alone")
        )
    common: dict[str, Any] = {
        "kind": "lower" if exact else "estimate",
        "confidence": noise.confidence if noise is not None and exact and how.noise else None,
        "interval": None,
        "assumptions": Assumptions(
            adjacency=None,
            attacker=f"{known.who}; sees {observed.what} of {part}"
            + ("; knows each row's probabilities" if known.probs is not None else ""),
            notes=tuple(notes),
        ),
        "provenance": provenance,
    }
    total = np.swapaxes(observed.values, 1, 2) * divisor
    stored = None if observed.stored is None else np.swapaxes(observed.stored, 1, 2) * divisor
    if known.summed is not None:
        more = linear_system.growth(unknowns + n, how.roundoff) * known.summed[None, :, None]
        stored = more if stored is None else stored + more
    if known.probs is not None:
        return _with_probs(known, total, stored, how, clipped, common)
    parts = []
    for s in range(steps):
        solution = _solved(known, s, total[s], None if stored is None else stored[s], how.shared(steps))
        named = name_labels(solution.residuals, solution.tolerance, solution.identifiable)
        what = {**common, "confidence": how.shared(steps).level if common["confidence"] else None}
        if not (solution.fits or blind) or (
            how.noise is not None and _two_labels(solution.residuals, solution.tolerance)
        ):
            named = np.full_like(named, UNDETERMINED)
            what = _contradicted(common, linear_system.MISFIT)
        method = "signs of the minimum-norm solution of the aggregated gradient's linear system"
        parts.append(_recovery(what, method, named, solution))
    return combine(parts)


def _recovery(
    common: dict[str, Any], method: str, named: np.ndarray, solution: linear_system.SystemSolution
) -> LabelRecovery:
    residuals, tolerance = (a[:, 0] if a.shape[1] == 1 else a for a in (solution.residuals, solution.tolerance))
    return LabelRecovery(
        **common,
        value=float((named != UNDETERMINED).mean()),
        method=method,
        labels=named,
        residuals=residuals,
        identifiable=solution.identifiable,
        determined=named != UNDETERMINED,
        tolerance=tolerance,
        rank=solution.rank,
        condition=solution.condition,
    )


def _solved(
    known: KnownSystem, step: int, total: np.ndarray, stored: np.ndarray | None, how: linear_system.Conditions
) -> linear_system.SystemSolution:
    """The residuals of one step. Where the attacker holds the model, they must agree with its probabilities to fit."""
    for conditions in (how, dataclasses.replace(how, roundoff=linear_system.FLOAT32)):
        solution = linear_system.solve(known.rows[step], total, conditions, stored=stored, forward=known.forward[step])
        if known.wide is not None:
            solution = linear_system.with_last_class(solution, known.wide, conditions)
        if known.own is None or not solution.fits or how.noise is None:
            return solution
        clear = solution.identifiable
        own, doubt = known.own.values[step], known.own.error[step] * (conditions.roundoff / how.roundoff)
        if linear_system.agree_with_probabilities(
            solution.residuals[clear], solution.alarm[clear], own[clear], doubt[clear]
        ):
            return solution
        if how.roundoff >= linear_system.FLOAT32:
            break
    return dataclasses.replace(solution, fits=False)


def _with_probs(
    known: KnownSystem,
    total: np.ndarray,
    stored: np.ndarray | None,
    how: linear_system.Conditions,
    clipped: known_probabilities.ClippedSamples | None,
    common: dict[str, Any],
) -> LabelRecovery:
    """One box-constrained problem per weight vector; all steps are stacked."""
    assert known.probs is not None
    steps, unknowns, _ = known.rows.shape
    n, wide = known.samples, known.wide
    probs, doubt = known.probs
    if wide is not None:
        probs, doubt = (a[:, :, :-1].reshape(steps, unknowns, 1) for a in (probs, doubt))
    problems = total.shape[2]
    solved = []
    for k in range(problems):
        equations = []
        for s in range(steps):
            rows, forward = known.rows[s], known.forward[s]
            high, gap, error = known_probabilities.two_values(
                probs[s, :, k], doubt[s, :, k], rows, forward, s, clipped, max(how.roundoff, known.roundoff)
            )
            equations.append(
                known_probabilities.Observation(
                    rows=rows,
                    total=total[s, :, k],
                    high=high,
                    gap=gap,
                    stored=None if stored is None else stored[s, :, k],
                    forward=forward,
                    doubt=error,
                )
            )
        box = known_probabilities.solve_box(equations, how.shared(problems))
        solved.append((equations[0].high - equations[0].gap * box.y, box.reach, box.labels))
        if not box.fits:
            common = _contradicted(
                common,
                "no labels fit this gradient: reduction, batch_size, clipping, noise, hard labels or the "
                "probabilities are not as said",
            )
    residuals, tolerance, states = (np.stack(parts, axis=1) for parts in zip(*solved, strict=True))
    if wide is not None:
        residuals, tolerance, states = (a.reshape(n, wide - 1) for a in (residuals, tolerance, states))
        residuals = np.c_[residuals, -residuals.sum(axis=1)]
        tolerance, states = np.c_[tolerance, tolerance.sum(axis=1)], linear_system.with_last_state(states)
    stacked = linear_system.solve(
        np.concatenate(list(known.rows), axis=1),
        np.concatenate(list(total), axis=0),
        how,
        stored=None,
        forward=np.zeros(unknowns),
    )
    if wide is not None:
        stacked = linear_system.with_last_class(stacked, wide, how)
    classes = states.shape[1]
    named = states[:, 0] if classes == 1 else _one_class(states)
    identifiable = stacked.identifiable | (named != UNDETERMINED)
    return _recovery(
        common,
        "least squares over labels in [0, 1] with known probabilities, each label certified by a dual vector",
        named.astype(np.int64),
        dataclasses.replace(stacked, residuals=residuals, tolerance=tolerance, identifiable=identifiable),
    )


def _two_labels(residuals: np.ndarray, tolerance: np.ndarray) -> bool:
    """Whether a row has two residuals p − y that are certainly negative: with one hard label it has one."""
    return bool(((residuals < -tolerance).sum(axis=1) > 1).any())


def _contradicted(common: dict[str, Any], note: str) -> dict[str, Any]:
    before: Assumptions = common["assumptions"]
    noted = dataclasses.replace(before, notes=(*(n for n in before.notes if n != note), note))
    return {**common, "kind": "estimate", "confidence": None, "assumptions": noted}


def _one_class(states: np.ndarray) -> np.ndarray:
    """The class that is proved, or the only one that is not excluded."""
    is_one, open_ = states == 1, states != 0
    proved = is_one.sum(axis=1) == 1
    left = ~is_one.any(axis=1) & (open_.sum(axis=1) == 1)
    return np.where(proved, is_one.argmax(axis=1), np.where(left, open_.argmax(axis=1), UNDETERMINED))


def last_layer(
    knowledge: Any,
    observation: Any,
    *,
    known_probs: Any = None,
    clipping: Clipping | None = None,
    noise: Noise | None = None,
    precision: Precision | None = None,
) -> LabelRecovery:
    """Labels of a batch from one aggregated gradient of the last layer.

    e = p − y solves dL/dW = (1/N) Xᵀe, with X the layer's inputs, and y = 1{e < 0} (Yuan et al. 2022, Algorithm 3).
    With K logits each class gives such a system, and the label is the class whose residual is negative.

    Args:
        knowledge: a `KnownModel`, or X itself, (N, d); for S observed steps of the same batch (S, N, d), or S models.
        observation: a `GradientObservation`, a `WeightDifference`, or a mean gradient; (d,), (1, d), or (K, d) for K
            logits, after an axis of steps where there are several.
        known_probs: the model's p, (N,) or (N, K), after an axis of steps; True computes it from a `KnownModel`. All
            steps are then solved together, and labels beyond the system's rank can be certified.
        clipping: how each sample's gradient was clipped; only with known_probs and one logit.
        noise: None: unknown; labels are then an estimate, by sign.
        precision: the arithmetic, where the arrays do not show it.

    Returns:
        `LabelRecovery`. A row is identifiable when its residual is a linear function of the gradient, and determined
        when also |residual| > tolerance. Any other row gets −1.

    Guarantees:
        Kind "lower" proves the determined labels. Where no residuals explain the gradient, nothing is determined.
        Float64 on the CPU, deterministic for a machine and its BLAS threads. More: docs/explanation/attacks.md.
        ValueError or TypeError names an argument that does not fit.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import labels
        >>> x = np.random.default_rng(0).standard_normal((6, 16))  # inputs of the last layer
        >>> y = np.array([0, 1, 1, 0, 1, 0])
        >>> gradient = x.T @ (0.5 - y) / 6  # the mean over the batch, of a model with p = 0.5
        >>> recovery = labels.last_layer(x, gradient, noise=labels.Noise(0))
        >>> recovery.labels.tolist()
        [0, 1, 1, 0, 1, 0]
        >>> recovery.value, recovery.kind  # all labels, proved
        (1.0, 'lower')
    """
    arithmetic = read_precision(precision)
    known = known_of_last_layer(knowledge, known_probs)
    return recover(
        known,
        observation,
        clipping=clipping,
        noise=noise,
        precision=arithmetic,
        part="the last layer's weights",
        provenance="Yuan, Xue, Wang and Shen (2022), Algorithm 3",
    )


def general(
    knowledge: Any,
    observation: Any,
    *,
    parameters: str | Sequence[str] | None = None,
    known_probs: Any = None,
    clipping: Clipping | None = None,
    noise: Noise | None = None,
    precision: Precision | None = None,
) -> LabelRecovery:
    """Labels of a batch from the aggregated gradient of any weights.

    e = p − y solves dL/dW = (1/N) C e, where column r of C is the derivative dZ_r/dW of the logit, and y = 1{e < 0}
    (Yuan, Xue, Wang and Shen 2022, Algorithm 1 and equation 1). With K logits and softmax cross-entropy every row has K
    residuals that sum to 0. That makes N·(K − 1) unknowns, so at least as many weights are needed, and the label is the
    class whose residual is negative.

    Args:
        knowledge: a `KnownModel`, whose derivatives (N·K times the size of the parameters) are computed by reverse
            mode; or the array Cᵀ, (N, d) with row r = dZ_r/dW, or (S, N, d) for S observed steps of the same batch. An
            array also serves K logits whose weight vectors share these rows.
        observation: a `GradientObservation`, a `WeightDifference`, or a mean gradient, (d,) or (K, d). With a
            `KnownModel` one array of the parameter's shape, a sequence of one per parameter, or a mapping by name.
        parameters: with a `KnownModel`: names of the observed parameters (`model.named_parameters()`), in the order in
            which their gradients are joined. None: all.
        known_probs: as in `last_layer`.
        clipping: as in `last_layer`.
        noise: as in `last_layer`.
        precision: as in `last_layer`.

    Returns:
        `LabelRecovery`; identifiable and determined mean what they mean in `last_layer`.

    Raises:
        ValueError, TypeError: as `last_layer`, and for an observation with a separate bias (name it in `parameters`).

    Guarantees:
        As `last_layer`.

    Example:
        >>> import numpy as np
        >>> from leakcore.attacks import labels
        >>> jacobian = np.random.default_rng(0).standard_normal((4, 10))  # dZ_r/dW, one row per sample
        >>> y = np.array([1, 0, 0, 1])
        >>> gradient = jacobian.T @ (0.5 - y) / 4
        >>> recovery = labels.general(jacobian, gradient, noise=labels.Noise(0))
        >>> recovery.labels.tolist(), recovery.kind
        ([1, 0, 0, 1], 'lower')
    """
    arithmetic = read_precision(precision)
    observation = read_observation(
        observation, without=("bias_gradient", "bias_difference"), why="only for one layer; name the bias in parameters"
    )
    coarsest = 0.0
    if isinstance(knowledge, KnownModel):
        derivatives = logit_jacobian(knowledge.single_model(), knowledge.inputs, parameters)
        known = known_of_jacobian(derivatives, known_probs)
        arrays = {n: getattr(observation, n, None) for n in ("gradient", "weight_difference", "weights")}
        if arrays["gradient"] is not None:
            coarsest = derivatives.roundoff_of(arrays["gradient"])
        joined = {n: derivatives.join(n, array) for n, array in arrays.items() if array is not None}
        observation = dataclasses.replace(observation, **joined)
    else:
        if parameters is not None:
            raise ValueError("`parameters` is allowed only with labels.KnownModel")
        known = known_of_arrays(known_probs, jacobian=knowledge)
    return recover(
        known,
        observation,
        clipping=clipping,
        noise=noise,
        precision=arithmetic,
        part="some weights",
        provenance="Yuan, Xue, Wang and Shen (2022), Algorithm 1",
        coarsest=coarsest,
    )
