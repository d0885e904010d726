"""How well the attacks tell members from others: their known order, nothing on models that never saw the rows, and no
more than differential privacy allows.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from leakcore import bounds, datasets, dpsgd
from leakcore.attacks import membership
from leakcore.attacks.membership import MembershipTrials, References

_ORDER = np.random.default_rng(0).permutation(1797)
_DATA = datasets.digits()
_X, _Y = _DATA.features[_ORDER].astype(np.float32), _DATA.labels[_ORDER]
X, Y = _X[:200], _Y[:200]
OTHERS = _X[200:500], _Y[200:500]
COPIES = membership.noisy_copies(X, scales=(0.5, 1.0, 2.0), count=4, seed=0)
QUERIES = membership.Queries(population=OTHERS, copies=COPIES)
ATTACKS = ("loss", "lira", "lira-offline", "rmia", "loss-trajectory", "label-only", "quantile")


def _ensemble(noise: float) -> dpsgd.Ensemble:
    return dpsgd.Ensemble(
        (64, 32, 10), noise_multiplier=noise, max_grad_norm=2.0, learning_rate=2.0, steps=60, seed=0,
        sample_rate=dpsgd.PoissonBatches(1.0, expected_batch_size=100.0),
    )  # fmt: skip


@pytest.fixture(scope="module")
def trials() -> MembershipTrials:
    return membership.play(_ensemble(0.0), X, Y, runs=80, queries=QUERIES, checkpoints=(20, 40))


def _area(scores: np.ndarray, included: np.ndarray) -> np.ndarray:
    """(models,) areas under the ROC curve."""
    areas = [
        stats.mannwhitneyu(own[inside], own[~inside]).statistic / (inside.sum() * (~inside).sum())
        for own, inside in zip(scores, included, strict=True)
    ]
    return np.array(areas)


def _two(trials: MembershipTrials) -> References:
    """Two references such that each row is in one and out of the other."""
    half = np.random.default_rng(1).random(200) < 0.5
    included = np.array([half, ~half])
    rows, labels = np.concatenate([X, OTHERS[0]]), np.concatenate([Y, OTHERS[1]])
    run = _ensemble(0.0).run(
        X, Y, runs=range(1000, 1002), probes=dpsgd.Rows(rows, labels),
        per_run=dpsgd.PerRun(batches=np.broadcast_to(included[:, None], (2, 60, 200))),
    )  # fmt: skip
    assert run.probe_losses is not None
    return References(losses=run.probe_losses[:, :200], population_losses=run.probe_losses[:, 200:], included=included)


def test_the_order_of_power_is_the_known_one(trials):
    """Wilcoxon signed-rank tests of 16 models' areas, one-sided, each at p < 1e-3: RMIA with two references beats the
    loss; LiRA online with 64 beats RMIA with two and everything but LiRA offline and RMIA; each beats chance.
    """
    references, target = trials[:64], trials[64:]
    areas = {
        name: _area(membership.scores(name, target, references=references), target.included)
        for name in ATTACKS
        if name != "quantile"
    }
    areas["rmia, two"] = _area(membership.scores("rmia", target, references=_two(trials)), target.included)

    def better(one: str, other: str) -> bool:
        return stats.wilcoxon(areas[one], areas[other], alternative="greater").pvalue < 1e-3

    assert better("rmia, two", "loss")
    assert better("lira", "rmia, two")
    assert areas["lira"].mean() == max(own.mean() for own in areas.values())
    for name in ("loss", "loss-trajectory", "label-only"):
        assert better("lira", name)
        assert better("rmia", name)
    for own in areas.values():
        assert stats.wilcoxon(own - 0.5, alternative="greater").pvalue < 1e-3


@pytest.mark.parametrize("attack", ATTACKS)
def test_models_that_did_not_see_the_rows_tell_nothing(trials, attack):
    """Coins that had no effect: the area of 16 models' scores is ½ within the exact law of the rank sum, p > 1e-3."""
    references = trials[:64]
    target = trials[64:] if attack != "quantile" else trials[64:68]
    scores = membership.scores(attack, target, references=references)
    unused = np.random.default_rng(7).random(target.included.shape) < 0.5
    pvalues = [stats.mannwhitneyu(own[inside], own[~inside]).pvalue for own, inside in zip(scores, unused, strict=True)]
    assert stats.combine_pvalues(pvalues).pvalue > 1e-3
    assert stats.kstest(pvalues, "uniform").pvalue > 1e-3


def test_no_attack_beats_differential_privacy(trials):
    """σ = 20: 7 attacks' true-positive rates at 3 false-positive rates, each with Clopper–Pearson limits of 1e-4, stay
    below what any test can have. Without noise the likelihood ratio is above it.
    """
    private = membership.play(_ensemble(20.0), X, Y, runs=48, queries=QUERIES, checkpoints=(20, 40))
    for attack in ATTACKS:
        target = private[32:] if attack != "quantile" else private[32:36]
        scores = membership.scores(attack, target, references=private[:32])
        assert _excess(scores, target.included, noise=20.0) <= 0, attack
    scores = membership.scores("lira", trials[64:], references=trials[:64])
    assert _excess(scores, trials[64:].included, noise=20.0) > 0.05


def _excess(scores: np.ndarray, included: np.ndarray, noise: float) -> float:
    """By how much the true-positive rate is above the bound, at the worst of three false-positive rates."""
    inside, outside = scores[included], scores[~included]
    out = []
    for rate in (0.05, 0.2, 0.5):
        level = np.quantile(outside, 1 - rate)
        hits, false = int((inside > level).sum()), int((outside > level).sum())
        tpr = stats.binomtest(hits, len(inside)).proportion_ci(1 - 2e-4).low
        fpr = stats.binomtest(false, len(outside)).proportion_ci(1 - 2e-4).high
        out.append(tpr - float(bounds.membership(noise, 1.0, 60, fpr=fpr).value))
    return max(out)
