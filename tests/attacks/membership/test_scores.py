"""Each attack's scores: against a literal formula, in their known order, and no more than privacy allows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from leakcore import bounds, datasets, dpsgd
from leakcore.attacks import membership
from leakcore.attacks.membership import (
    LiRA,
    LossThreshold,
    LossTrajectory,
    MembershipTrials,
    Observations,
    QuantileRegression,
    References,
)

_RNG = np.random.default_rng(0)


def _phi(losses):
    return np.log(np.exp(-losses) / (1 - np.exp(-losses)))


@pytest.fixture(scope="module")
def world():
    """3 attacked models, 50 references, 4 rows, 9 of the population."""
    references = References(
        losses=_RNG.exponential(size=(50, 4)), population_losses=_RNG.exponential(size=(50, 9)),
        included=_RNG.random((50, 4)) < 0.5,
    )  # fmt: skip
    target = Observations(losses=_RNG.exponential(size=(3, 4)), population_losses=_RNG.exponential(size=(3, 9)))
    return target, references


def test_loss_threshold(world):
    target, references = world
    pairs = zip(references.losses, references.included, strict=True)
    limit = np.mean([own[inside].mean() for own, inside in pairs if inside.any()])
    wanted = limit - target.losses
    np.testing.assert_allclose(membership.scores("loss", target, references=references), wanted)
    np.testing.assert_array_equal(membership.scores("loss", target), -target.losses)
    np.testing.assert_array_equal(membership.scores(LossThreshold(2.0), target), 2 - target.losses)


def test_lira(world):
    target, references = world
    result = membership.scores(LiRA(spread="row"), target, references=references)
    offline = membership.scores(LiRA(offline=True, spread="row"), target, references=references)
    for i in range(4):
        inside = _phi(references.losses[references.included[:, i], i])
        outside = _phi(references.losses[~references.included[:, i], i])
        attacked = _phi(target.losses[:, i])
        wanted = stats.norm.logpdf(attacked, inside.mean(), inside.std(ddof=1)) - stats.norm.logpdf(
            attacked, outside.mean(), outside.std(ddof=1)
        )
        np.testing.assert_allclose(result[:, i], wanted, rtol=1e-9)
        tail = stats.norm.sf(attacked, outside.mean(), outside.std(ddof=1))  # the text's Pr[Z > φ]
        np.testing.assert_allclose(stats.norm.sf(offline[:, i]), tail, rtol=1e-9)


def test_lira_with_shared_spreads(world):
    target, references = world
    known, there = _phi(references.losses), references.included
    wanted = np.zeros((3, 4))
    for sign, who in ((1, there), (-1, ~there)):
        means = np.array([known[who[:, i], i].mean() for i in range(4)])
        left = np.concatenate([known[who[:, i], i] - means[i] for i in range(4)])
        spread = np.sqrt((left**2).sum() / (len(left) - 4))
        wanted += sign * stats.norm.logpdf(_phi(target.losses), means, spread)
    np.testing.assert_allclose(membership.scores("lira", target, references=references), wanted, rtol=1e-9)


@pytest.mark.parametrize("gamma", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("a", [0.0, 0.3, 1.0])
def test_rmia_offline(world, gamma, a):
    """By loops over models, rows and population rows, as the published tool counts them."""
    target, references = world
    scores = membership.scores(membership.RMIA(gamma=gamma, a=a), target, references=references)
    out = np.array([np.mean(np.exp(-references.losses[~references.included[:, i], i])) for i in range(4)])
    mean_x = (1 + a) / 2 * out + (1 - a) / 2
    mean_z = (1 + a) / 2 * np.exp(-references.population_losses).mean(axis=0) + (1 - a) / 2
    for model in range(3):
        ratio_x = np.exp(-target.losses[model]) / mean_x
        ratio_z = np.exp(-target.population_losses[model]) / mean_z
        count = np.array([sum(x / z >= gamma for z in ratio_z) for x in ratio_x])
        np.testing.assert_allclose(scores[model], (count + ratio_x / (1 + ratio_x)) / 10, rtol=1e-12)


def test_rmia_online(world):
    target, references = world
    scores = membership.scores(membership.RMIA(online=True), target, references=references)
    p, there = np.exp(-references.losses), references.included
    mean_x = np.array([(p[there[:, i], i].mean() + p[~there[:, i], i].mean()) / 2 for i in range(4)])
    ratio_x = np.exp(-target.losses) / mean_x
    ratio_z = np.exp(-target.population_losses) / np.exp(-references.population_losses).mean(axis=0)
    count = (ratio_x[:, :, None] >= ratio_z[:, None]).sum(axis=2)
    np.testing.assert_allclose(scores, (count + ratio_x / (1 + ratio_x)) / 10, rtol=1e-12)


def test_trajectory_of_one_checkpoint():
    """φ is N(±1, 1) at the first checkpoint and noise at the last: the log odds are 2φ₁."""
    rng = np.random.default_rng(1)
    there = rng.random((100, 200)) < 0.5
    phi = rng.normal(size=(100, 2, 200))
    phi[:, 0] += np.where(there, 1.0, -1.0)
    losses = np.logaddexp(0, -phi)  # −log of the logistic function
    references = References(losses=losses[:, 1], checkpoint_losses=losses, included=there)
    scores = membership.scores("loss-trajectory", references[:5], references=references[5:])
    np.testing.assert_allclose(scores, 2 * phi[:5, 0], atol=0.15)


def test_quantiles():
    """Confidence is 3·(feature > 0) + noise: the score is the noise over the 0.9 quantile of it."""
    rng = np.random.default_rng(2)
    features, others = rng.normal(size=(400, 1)), rng.normal(size=(4000, 1))
    noise = rng.normal(size=400)
    losses = np.logaddexp(0, -(3.0 * (features[:, 0] > 0) + noise))
    population = np.logaddexp(0, -(3.0 * (others[:, 0] > 0) + rng.normal(size=4000)))
    target = Observations(
        losses=losses[None], population_losses=population[None], features=features, population_features=others
    )
    score = membership.scores("quantile", target)[0]
    assert np.corrcoef(score, noise / stats.norm.ppf(0.9))[0, 1] > 0.97
    assert np.abs(score - noise / stats.norm.ppf(0.9)).mean() < 0.2
    np.testing.assert_array_equal(score, membership.scores("quantile", target)[0])


def test_label_only():
    share = _RNG.random((2, 5))
    wild = Observations(losses=_RNG.random((2, 5)), copies_right=share)
    np.testing.assert_array_equal(membership.scores("label-only", wild), share)


def test_losses_of_zero():
    """Members' losses of e^-30 or so, some of them 0 in float64: nearly every guess is right."""
    rng = np.random.default_rng(5)
    there = rng.random((64, 40)) < 0.5
    losses = np.where(there, np.exp(rng.normal(-33, 2, (64, 40))), np.exp(rng.normal(-27, 2, (64, 40))))
    losses = -np.log1p(-losses)
    losses[losses < 2.0**-53] = 0
    assert (losses == 0).mean() > 0.01
    references = References(losses=losses[16:], included=there[16:])
    for spread in ("shared", "row"):
        ratio = membership.scores(LiRA(spread=spread), Observations(losses=losses[:16]), references=references)
        right, number = membership.guess(ratio, share=0.2).tally(there[:16])
        assert right > 0.9 * number


def test_coins_of_the_target(world):
    _, references = world
    rng = np.random.default_rng(3)
    target = {"losses": rng.random((4, 4)), "population_losses": rng.random((4, 9))}
    for attack in ("loss", "lira", "lira-offline", "rmia"):
        with_coins = References(**target, included=rng.random((4, 4)) < 0.5)
        np.testing.assert_array_equal(
            membership.scores(attack, with_coins, references=references),
            membership.scores(attack, Observations(**target), references=references),
        )


def test_bad_observations():
    ones = np.ones((3, 2))
    with pytest.raises(ValueError, match=r"`losses` must have shape \(models, rows\), at least 1 each, got \(3,\)"):
        Observations(losses=np.ones(3))
    with pytest.raises(ValueError, match=r"`losses` must be in \[0, inf\], got values from -1 to 1"):
        Observations(losses=[[1.0, -1.0]])
    with pytest.raises(ValueError, match=r"`losses\[0, 1\]` must be finite, got nan"):
        Observations(losses=[[1.0, np.nan]])
    with pytest.raises(ValueError, match=r"`population_losses` must have shape \(3, others\), .*, got \(2, 4\)"):
        Observations(losses=ones, population_losses=np.ones((2, 4)))
    with pytest.raises(
        ValueError, match=r"`checkpoint_losses` must have shape \(3, checkpoints, 2\), .*, got \(3, 2\)"
    ):
        Observations(losses=ones, checkpoint_losses=ones)
    with pytest.raises(ValueError, match=r"`copies_right` must be in \[0, 1\], got values from 2 to 2"):
        Observations(losses=ones, copies_right=2 * ones)
    with pytest.raises(ValueError, match=r"`population_features` must have shape \(others, 4\), .*, got \(3, 2\)"):
        Observations(losses=ones, features=np.ones((2, 4)), population_features=ones)
    with pytest.raises(ValueError, match=r"`included` must be bool of shape \(3, 2\), as the losses, got float64 of"):
        References(losses=ones, included=ones)
    with pytest.raises(ValueError, match=r"`models` must be a range of the 3 models, first:stop, got slice\(3, None"):
        Observations(losses=ones)[3:]
    with pytest.raises(TypeError, match=r"`models` must be a slice, first:stop, got int"):
        Observations(losses=ones)[0]


def test_missing_observations(world):
    target, references = world
    bare = Observations(losses=target.losses)
    for attack, name in (
        ("rmia", "population_losses"), ("loss-trajectory", "checkpoint_losses"), ("label-only", "copies_right"),
        ("quantile", "features"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=rf"`target\.{name}` must be observed for \w+\(.*\), got None"):
            membership.scores(attack, bare, references=references)
    for attack in ("lira", "lira-offline", "rmia", "loss-trajectory"):
        with pytest.raises(ValueError, match=r"`references` must be given for \w+\(.*\), got None"):
            membership.scores(attack, target)
    with pytest.raises(ValueError, match=r"`attack` must be 'loss', .* or 'likelihood', got 'mia'"):
        membership.scores("mia", target)
    with pytest.raises(TypeError, match=r"`attack` must be an attack's name or object, as 'rmia' or RMIA\(\), got int"):
        membership.scores(3, target)
    with pytest.raises(TypeError, match="`target` must be of type Observations, got list"):
        membership.scores("loss", [[1.0]])
    with pytest.raises(ValueError, match="`references` must be observed at the 2 rows of `target`, got 4 rows"):
        membership.scores("lira", Observations(losses=np.ones((1, 2))), references=references)
    fewer = References(losses=references.losses, included=references.included, population_losses=np.ones((50, 8)))
    with pytest.raises(ValueError, match=r"`references\.population_losses` must be at the 9 population rows of"):
        membership.scores("rmia", target, references=fewer)
    out = References(losses=np.ones((3, 4)), included=np.zeros((3, 4), bool), checkpoint_losses=np.ones((3, 2, 4)))
    along = Observations(losses=np.ones((1, 4)), checkpoint_losses=np.ones((1, 2, 4)))
    with pytest.raises(
        ValueError, match=r"`references\.included` must have rows in and rows out of models for .* all out"
    ):
        membership.scores("loss-trajectory", along, references=out)
    with pytest.raises(ValueError, match=r"must have each row in at least 1 models for LiRA\(.*, got row 0 in 0: pass"):
        membership.scores("lira", along, references=out)
    with pytest.raises(ValueError, match="must have each row in at least 2 models"):
        membership.scores(LiRA(spread="row"), along, references=out)


def test_bad_settings():
    for kind, settings, message in (
        (LossThreshold, {"threshold": np.inf}, "`threshold` must be finite, got inf"),
        (LiRA, {"spread": "global"}, "`spread` must be 'shared' or 'row', got 'global'"),
        (membership.RMIA, {"gamma": 0.5}, "`gamma` must be at least 1, got 0.5"),
        (membership.RMIA, {"a": 2.0}, r"`a` must be in \[0, 1\], got 2.0"),
        (LossTrajectory, {"strength": 0.0}, "`strength` must be above 0, got 0.0"),
        (QuantileRegression, {"quantile": 0.5}, r"`quantile` must be in \(0.5, 1\), got 0.5"),
        (membership.ReleasedProducts, {"method": "top"}, "`method` must be 'sum' or 'likelihood', got 'top'"),
    ):
        with pytest.raises(ValueError, match=message):
            kind(**settings)


def test_one_reference_of_each_kind():
    """Its deviation came out as 0, and the score as ±10¹² by chance."""
    losses, coins = np.random.default_rng(0).random((3, 4)), np.arange(4) % 2 == 0
    target = Observations(losses=losses)

    def score(*included):
        references = References(losses=losses[: len(included)], included=np.array(included))
        return membership.scores("lira", target, references=references)

    with pytest.raises(ValueError, match=r"`references\.included` must have a row out of two models for LiRA"):
        score(coins, ~coins)
    with pytest.raises(ValueError, match=r"`references\.included` must have a row out of two models"):
        score(coins, ~coins, np.ones(4, bool))
    with pytest.raises(ValueError, match=r"`references\.included` must have a row in two models"):
        score(coins, ~coins, np.zeros(4, bool))
    assert np.isfinite(score(coins, ~coins, coins)).all()


def test_tensors_that_require_grad():
    losses = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(ValueError, match=r"`losses` must not require grad: pass losses.detach\(\)"):
        Observations(losses=losses)
    np.testing.assert_array_equal(Observations(losses=losses.detach().bfloat16()).losses, 1)


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


def test_order_of_power(trials):
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
def test_unseen_rows(trials, attack):
    """Coins that had no effect: the area of 16 models' scores is ½ within the exact law of the rank sum, p > 1e-3."""
    references = trials[:64]
    target = trials[64:] if attack != "quantile" else trials[64:68]
    scores = membership.scores(attack, target, references=references)
    unused = np.random.default_rng(7).random(target.included.shape) < 0.5
    pvalues = [stats.mannwhitneyu(own[inside], own[~inside]).pvalue for own, inside in zip(scores, unused, strict=True)]
    assert stats.combine_pvalues(pvalues).pvalue > 1e-3
    assert stats.kstest(pvalues, "uniform").pvalue > 1e-3


@pytest.mark.full
def test_limit_of_differential_privacy(trials):
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
