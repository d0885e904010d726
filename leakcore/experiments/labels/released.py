"""The last layer's gradient of every batch, released once with DP-SGD's noise, attacked and bounded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from leakcore import attacks, bounds, datasets, dpsgd, kernels
from leakcore._base import validate
from leakcore._base.results import Record
from leakcore.experiments.labels.common import BATCH, DELTA, HIDDEN, observe

_DATASETS = ("cancer", "bank")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Released(Record):
    """Counts over all batches, and the bound of each.

    labels: how many there are; identifiable, determined: how many the systems determine, and how many of those the
    noise lets the attacker name; right: how many named ones are right; right_by_sign: the same when every identifiable
    one is named by its sign.
    """

    described: str
    attacker: str
    batches: int
    labels: int
    identifiable: int
    determined: int
    right: int
    right_by_sign: int
    bound: bounds.LabelEpsilon


def play(
    dataset: str,
    *,
    data: Path | None,
    noise_multiplier: float,
    max_grad_norm: float,
    batches: int,
    confidence: float,
    seed: int,
) -> Released:
    """Attack the paper's network (200–200 ReLU) at its initial weights on batches of 50.

    Each batch releases G = (1/50)(Σ_r clip_C(g_r) + N(0, σ²C²I)) of the last layer's weights once, clipped by that
    layer's gradient alone; the attacker knows the layer's inputs and σ (Yuan et al. 2022, Algorithm 3). σ = 0 releases
    the plain mean, unclipped. Raises ValueError that names the argument.
    """
    which = validate.one_of(*_DATASETS, dataset=dataset)
    load: Callable[..., datasets.Dataset] = datasets.cervical_cancer if which == "cancer" else datasets.bank_marketing
    whole = load(path=data, download=False)
    sigma = validate.non_negative(noise_multiplier=noise_multiplier)
    clip = validate.positive(max_grad_norm=max_grad_norm)
    level = validate.confidence(confidence=confidence)
    count = validate.integer(1, len(whole) // BATCH, batches=batches)
    start = validate.seed(seed=seed)
    rows, _ = whole.split(count * BATCH, seed=start)
    features, labels = rows.features.reshape(count, BATCH, -1), rows.labels.reshape(count, BATCH)
    ensemble = dpsgd.Ensemble(
        dpsgd.Network((features.shape[-1], HIDDEN, HIDDEN, 1), "relu"),
        noise_multiplier=0.0,
        max_grad_norm=clip,
        learning_rate=1.0,
        steps=0,
        seed=start,
    )
    observed = observe(ensemble.run(rows.features, rows.labels, runs=1).parameters[0], features)
    identifiable = determined = right = by_sign = 0
    for b in range(count):
        gradients = observed.last[b] * (observed.probs[b] - labels[b])[:, None]
        if sigma == 0:
            gradient = gradients.mean(axis=0)
        else:
            gradient = kernels.clip_and_noise(gradients, clip, sigma, seed=start, step=b).sum / BATCH
        recovery = attacks.labels.last_layer(
            observed.last[b], gradient, noise=attacks.labels.Noise(sigma * clip / BATCH, level if sigma else None)
        )
        identifiable += int(recovery.identifiable.sum())
        determined += int(recovery.determined.sum())
        right += int((recovery.labels == labels[b])[recovery.determined].sum())
        by_sign += int(((recovery.residuals < 0) == (labels[b] == 1))[recovery.identifiable].sum())
    bound = bounds.label_epsilon(
        observed.last, observed.probs, labels, noise_multiplier=sigma, max_grad_norm=clip, delta=DELTA
    )
    noise = f"σ = {sigma:g}, C = {clip:g}" if sigma else "no noise, unclipped"
    return Released(
        described=f"{whole.name}: {count} batches of {BATCH}, {rows.labels.mean():.1%} positive; initial network "
        f"{features.shape[-1]}–{HIDDEN}–{HIDDEN}–1 ReLU; {noise}",
        attacker=recovery.assumptions.attacker,
        batches=count,
        labels=count * BATCH,
        identifiable=identifiable,
        determined=determined,
        right=right,
        right_by_sign=by_sign,
        bound=bound,
    )
