"""The label study: what one aggregated last-layer gradient gives away, without and with DP-SGD's noise.

A companion run (scikit-learn's breast cancer, MLP 30–h–1 ReLU) is trained with DP-SGD at each noise level. Its rows are
then cut into batches, and for each batch the attacker sees the released gradient of the last weight vector and solves
for p − y (Yuan, Xue, Wang and Shen 2022, Algorithm 3). The label-ε lower bound of the same release is compared with
the ε of one step under replacement.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

import numpy as np

from leakcore import accounting, attacks, bounds, datasets, dpsgd, kernels
from leakcore._base.process_wide import one_thread
from leakcore._base.progress import Progress
from leakcore._base.results import Assumptions, Result
from leakcore._base.run_folder import PartialResults
from leakcore.audit.hyperparameters.config import AuditConfig
from leakcore.audit.shared.format import power

if TYPE_CHECKING:
    from leakcore.audit.hyperparameters.reconstruction import ReconstructionPoint

MAX_GRAD_NORM = 1.0
"""C of the companion run: the label paper's setting (its Section 5)."""
LEARNING_RATE = 0.5
TESTS = ("paper", "optimal", "likelihood-ratio")
_Show = Callable[[int, int], object]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LabelOutcome:
    """One release setting. `noise_multiplier` 0: the plain averaged gradient, neither clipped nor noised.

    epsilon: claimed ε of the companion's whole training (add/remove), ∞ without noise. claimed: the audited level.
    labels: in all batches. determined: how many the system determines (without noise: beyond rounding as well). right:
    how many of these were named rightly, in the release without noise. recovered: share right of the determined ones.
    majority: share of the more frequent class among them. lower: label-ε by test, for the most exposed label.
        replacement: ε of the one step.
    """

    noise_multiplier: float
    epsilon: float
    claimed: bool
    labels: int
    determined: int
    right: int
    recovered: Result
    majority: float
    lower: dict[str, Result]
    replacement: Result | None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LabelStudy:
    """All release settings and how they were obtained."""

    batch_size: int
    batches: int
    outcomes: list[LabelOutcome]
    caption: str
    epsilon_caption: str


@dataclasses.dataclass(frozen=True, eq=False)
class _Batches:
    """A trained companion on its data, cut into batches: (batches, N, ...) arrays, float64."""

    hidden: np.ndarray
    labels: np.ndarray
    probs: np.ndarray
    per_sample: list[np.ndarray]
    other_norms: np.ndarray


LARGEST_EPSILON = 64.0
"""The largest ε of a companion. Above it noise hides no label, and the search for the noise takes minutes and fails."""


def study(
    config: AuditConfig,
    points: list[ReconstructionPoint],
    pieces: PartialResults,
    progress: Progress,
    executor: Executor | None = None,
) -> LabelStudy:
    """The study at the ε of every reconstruction point; the release without noise uses the claimed level's model."""
    jobs = {}
    for number, point in enumerate(points):
        show: _Show | None = None
        if executor is None:
            show = functools.partial(progress, f"labels {number + 1} of {len(points)}")
        epsilon = min(float(point.epsilon.value), LARGEST_EPSILON)
        jobs[f"labels-{number}"] = functools.partial(_level, config, epsilon, point.claimed, show)
    levels: dict[str, list[LabelOutcome]] = {}
    for name, piece in pieces.each(jobs, executor, list[LabelOutcome]):
        levels[name] = piece
        if executor is not None:
            progress("labels", len(levels), len(points))
    outcomes = [outcome for name in jobs for outcome in levels[name]]
    outcomes.sort(key=lambda outcome: outcome.noise_multiplier > 0)
    beyond = any(float(point.epsilon.value) > LARGEST_EPSILON for point in points)
    size = config.label_batch_size
    count = outcomes[0].labels // size
    level = f"{100 * config.confidence:g}%"
    return LabelStudy(
        batch_size=size,
        batches=count,
        outcomes=outcomes,
        caption=(
            f"Breast cancer, MLP 30–{config.label_hidden}–1 ReLU, {count} batches of {size}; one released last-layer "
            f"gradient each. The noisy rows clip at C = {MAX_GRAD_NORM:g} by the joint norm and name labels by sign; "
            f"their share is a mean over {config.label_trials} trials per batch with a {level} Hoeffding interval. "
            f"The named ε is the companion's own training ({config.label_steps} steps, add/remove, upper)"
            + (f"; levels above {LARGEST_EPSILON:g} stand at it." if beyond else ".")
        ),
        epsilon_caption=(
            f"ε of one label at δ = {power(config.delta)} in one step on a known batch, for the most exposed label of "
            f"the {count} batches. Deterministic; replacement adjacency throughout, so these columns may be compared. "
            "The paper's test and the best threshold use the pseudo-inverse, the likelihood ratio the whole gradient; "
            "the last column is the accountant's upper bound for the same step."
        ),
    )


def _level(config: AuditConfig, epsilon: float, claimed: bool, progress: _Show | None) -> list[LabelOutcome]:
    """The release at one ε; where it is the claimed one, its model's release without noise before it."""
    with one_thread():
        rate = config.label_batch_size / len(datasets.breast_cancer().labels)
        settings: dict[str, Any] = {"delta": config.delta, "sample_rate": rate, "steps": config.label_steps}
        sigma = float(accounting.noise_multiplier(epsilon=epsilon, **settings).value)
        batches = _companion(config, sigma)
        noisy = _with_noise(config, batches, sigma, epsilon, claimed, progress)
        return [_without_noise(config, batches), noisy] if claimed else [noisy]


def _companion(config: AuditConfig, sigma: float) -> _Batches:
    data = datasets.breast_cancer()
    rows = len(data.labels)
    run = dpsgd.Ensemble(
        dpsgd.Network((data.features.shape[1], config.label_hidden, 1), "relu", dtype="float64"),
        noise_multiplier=sigma,
        max_grad_norm=MAX_GRAD_NORM,
        learning_rate=LEARNING_RATE,
        steps=config.label_steps,
        sample_rate=config.label_batch_size / rows,
        seed=config.seed,
    ).run(data.features, data.labels, runs=1)
    count = rows // config.label_batch_size
    keys = kernels.uniform((1, rows), seed=config.seed, purpose=kernels.Stream.LABEL_BATCHES)[0]
    order = np.argsort(keys, kind="stable")
    chosen = order[: count * config.label_batch_size].reshape(count, -1)
    return _forward(run, np.asarray(data.features, dtype=np.float64)[chosen], np.asarray(data.labels)[chosen])


def _forward(run: dpsgd.EnsembleRun, x: np.ndarray, y: np.ndarray) -> _Batches:
    """Activations, probabilities and per-sample gradients of all parameters, by the chain rule."""
    w1, b1, w2, b2 = (p.detach().numpy() for p in run.module(run.first_run).parameters())
    before = x @ w1.T + b1
    hidden = np.maximum(before, 0.0)
    with np.errstate(over="ignore"):  # where e^−logit is beyond a float, the probability is 0
        probs = 1 / (1 + np.exp(-(hidden @ w2[0] + b2[0])))
    residual = probs - y
    passed = w2[0] * (before > 0)
    delta = residual[..., None] * passed
    per_sample = [delta[..., :, None] * x[..., None, :], delta, residual[..., None] * hidden, residual[..., None]]
    # ‖∇ℓ‖² = e²(‖h‖² + 1 + ‖passed‖²(‖x‖² + 1)): the joint norm under either label is |e| times this.
    other_norms = np.sqrt((hidden**2).sum(-1) + 1 + (passed**2).sum(-1) * ((x**2).sum(-1) + 1))
    return _Batches(hidden, y, probs, per_sample, other_norms)


def _without_noise(config: AuditConfig, batches: _Batches) -> LabelOutcome:
    determined = right = ones = 0
    for b, y in enumerate(batches.labels):
        gradient = batches.per_sample[2][b].mean(axis=0)
        recovery = attacks.labels.last_layer(batches.hidden[b], gradient, noise=attacks.labels.Noise(0.0))
        determined += int(recovery.determined.sum())
        right += int((recovery.labels[recovery.determined] == y[recovery.determined]).sum())
        ones += int(y[recovery.determined].sum())
    share = right / determined if determined else math.nan
    method, sees = "labels from one averaged last-layer gradient", "sees the plain averaged gradient"
    return LabelOutcome(
        noise_multiplier=0.0,
        epsilon=math.inf,
        claimed=False,
        labels=batches.labels.size,
        determined=determined,
        right=right,
        recovered=_recovered(config, share, method, sees),
        majority=_majority(ones, determined),
        lower={},
        replacement=None,
    )


def _with_noise(
    config: AuditConfig, batches: _Batches, sigma: float, epsilon: float, claimed: bool, progress: _Show | None
) -> LabelOutcome:
    count, _, width = batches.hidden.shape
    draws = config.label_trials
    shares = []
    determined = ones = 0
    for b, y in enumerate(batches.labels):
        clipped = kernels.clip_and_noise([g[b] for g in batches.per_sample], MAX_GRAD_NORM).sum[2]
        noise = kernels.standard_normal(
            (draws, width), seed=config.seed, purpose=kernels.Stream.LABEL_RELEASES, step=b, dtype="float64"
        )
        for released in clipped + sigma * MAX_GRAD_NORM * noise:
            recovery = attacks.labels.last_layer(
                batches.hidden[b], attacks.labels.GradientObservation(released, reduction="sum")
            )
            correct = recovery.labels[recovery.determined] == y[recovery.determined]
            shares.append(float(correct.mean()) if correct.size else 0.0)
        identifiable = recovery.identifiable
        determined += int(identifiable.sum())
        ones += int(y[identifiable].sum())
        if progress is not None:
            progress(b + 1, count)
    mean = float(np.mean(shares))
    half = math.sqrt(math.log(2 / (1 - config.confidence)) / (2 * len(shares)))
    residual = np.abs(np.stack([batches.probs - batches.labels, batches.probs - 1 + batches.labels]))
    how: dict[str, Any] = {
        "noise_multiplier": sigma,
        "max_grad_norm": MAX_GRAD_NORM,
        "delta": config.delta,
        "grad_norms": np.moveaxis(residual * batches.other_norms, 0, -2),
    }
    known = batches.hidden, batches.probs, batches.labels
    method = f"signs of the solved residuals, mean over {len(shares)} independent releases; Hoeffding's interval"
    return LabelOutcome(
        noise_multiplier=sigma,
        epsilon=epsilon,
        claimed=claimed,
        labels=batches.labels.size,
        determined=determined,
        right=round(mean * determined),
        recovered=_recovered(config, mean, method, "sees one clipped, noisy, summed gradient", half),
        majority=_majority(ones, determined),
        lower={test: _most_exposed(bounds.label_epsilon(*known, test=test, **how)) for test in TESTS},
        replacement=accounting.epsilon(sigma, 1.0, 1, delta=config.delta, adjacency="replace"),
    )


def _most_exposed(batches: Result) -> Result:
    """The largest of the batches' bounds. They are deterministic, so choosing the largest needs no correction."""
    own = {f.name: getattr(batches, f.name) for f in dataclasses.fields(Result)}
    return Result(**{**own, "value": float(np.max(batches.value))})


def _majority(ones: int, of: int) -> float:
    return max(ones, of - ones) / of if of else math.nan


def _recovered(config: AuditConfig, share: float, method: str, sees: str, half: float | None = None) -> Result:
    """The share of labels that were right. half: the width of its interval on either side, if it has one."""
    return Result(
        quantity="share of labels recovered",
        value=share,
        kind="estimate",
        confidence=None if half is None else config.confidence,
        interval=None if half is None else (max(0.0, share - half), min(1.0, share + half)),
        method=method,
        assumptions=Assumptions(
            "replace",
            f"knows the model and the inputs of the batch, and {sees} of the last weight vector",
            ("conditional on this model and these batches",),
        ),
        seed=config.seed,
        provenance="Yuan, Xue, Wang and Shen (2022), Algorithm 3",
    )
