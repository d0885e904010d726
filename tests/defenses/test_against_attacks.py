"""Defences move attacks the way their bounds say."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from leakcore import attacks, defenses, dpsgd
from leakcore.attacks import inversion, tensor
from leakcore.defenses import Clip, Compose, Dropout, GaussianNoise, Laplace, LocalSteps, Prune


def test_recorded_runs_under_noise_are_attacked_less_well():
    # Whose run is it? The target with the least loss of Equation 1, among 32; Fisher's exact test, p < 0.001.
    rng = np.random.default_rng(0)
    ensemble = dpsgd.Ensemble((5, 4), noise_multiplier=0.5, max_grad_norm=1.0, learning_rate=0.1, steps=4, seed=0)
    points, labels = rng.random((32, 1, 5)), rng.integers(0, 4, (32, 1))
    run = ensemble.run(
        rng.random((6, 5)),
        rng.integers(0, 4, 6),
        runs=32,
        per_run=dpsgd.PerRun(dpsgd.Rows(points, labels)),
        observer=dpsgd.Observer(record=True),
    )
    noisy = defenses.defended(run, GaussianNoise(30.0), seed=1)
    moved = noisy.observed - run.observed
    assert abs(float(moved.std()) - 30.0) < 1.5
    plain = attacks.gradient_loss(run, points[:, 0], labels[:, 0])
    worse = attacks.gradient_loss(noisy, points[:, 0], labels[:, 0])

    def own(losses):
        return int((losses.argmin(1) == np.arange(32)).sum())

    table = [[hits, 32 - hits] for hits in (own(plain), own(worse))]
    assert stats.fisher_exact(table, alternative="greater").pvalue < 0.001
    with pytest.raises(ValueError, match="not additive"):
        defenses.defended(run, Prune(0.5), seed=1)


def _two_layer(m, d, batch, seed):
    """Two-layer network as the tensor method has it (w ~ N(0, I), a = 1/m), unit inputs, residuals of about ±1."""
    weights = tensor.GaussianWeights(m, d, seed)
    model = nn.Sequential(nn.Linear(d, m, bias=False), nn.ELU(), nn.Linear(m, 1, bias=False)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.from_numpy(weights.rows(0, m).copy()))
        model[2].weight.fill_(1 / m)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, d))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = rng.choice([-1.0, 1.0], (batch, 1)) * rng.uniform(0.5, 1.5, (batch, 1))
    return model, weights, torch.from_numpy(x), torch.from_numpy(y)


def _square(outputs, targets):
    return 0.5 * (outputs - targets).square().mean()


def _tensor_error(defense, *, m=20_000, d=8, batch=2, seeds=3):
    """Median over networks of the tensor method's error; an input that is not found counts 1, as a guess of 0 would."""
    out = []
    for seed in range(seeds):
        model, weights, x, y = _two_layer(m, d, batch, seed)
        release = defenses.release(model, x, y, defense=defense, loss=_square, seed=seed).parts["2.weight"][0]
        attack = tensor.reconstruct(release, weights, num_examples=batch, activation="elu", certify=False)
        errors = tensor.match(attack.inputs, x, signs_known=attack.signs_known).errors if len(attack.inputs) else []
        out.append(np.sqrt((np.sum(np.square(errors)) + batch - len(errors)) / batch))
    return float(np.median(out))


def test_each_defence_moves_the_tensor_attack_as_its_bound_says():
    plain = _tensor_error(None)
    assert plain < 0.1
    # Noise in units of one residual's share: (B + σ)√(d/m).
    noisy = [_tensor_error(GaussianNoise(s)) for s in (0.5, 2.0)]
    assert plain < noisy[0] < noisy[1]
    # Clipping scales the release, which the attack does not mind: B√(d/m), as without.
    assert _tensor_error(Clip(1e-3)) == pytest.approx(plain, rel=1e-3)
    # Noise after clipping is larger by ‖g‖/s in units of what is left: (B + σ max{1, ‖g‖/s})√(d/m).
    dp = [_tensor_error(Compose(Clip(s), GaussianNoise(0.5))) for s in (1e3, 30.0)]
    assert plain < dp[0] < dp[1]
    # Keep probability: B√(d/(mp)).
    thinned = _tensor_error(Dropout(0.1))
    assert thinned > 1.5 * plain
    # Laplace has no row; more noise, more error.
    assert plain < _tensor_error(Laplace(0.5)) < _tensor_error(Laplace(2.0))
    # Pruning has no bound: measured.
    pruned = [_tensor_error(Prune(p)) for p in (0.5, 0.01)]
    assert pruned[0] < pruned[1]


def test_local_aggregation_of_minibatches_costs_the_tensor_attack():
    # kB√(d/m): four rows in two local steps against two in one.
    both = _tensor_error(LocalSteps(2, 1e-3, minibatches=True), batch=4, m=50_000)
    assert both > _tensor_error(None, m=50_000)


@pytest.mark.slow
def test_noise_and_pruning_move_gradient_inversion():
    def error(defense):
        out = []
        for seed in range(3):
            model, _, x, y = _two_layer(300, 5, 1, seed)
            released = defenses.release(model, x, y, defense=defense, loss=_square, seed=seed)
            attack = inversion.invert(
                model,
                inversion.ReleasedGradient(released, loss=_square),
                (5,),
                labels=y,
                objective=inversion.L2(box=(-1, 1)),
                optimizer=inversion.LBFGS(iterations=100, restarts=10),
            ).compared_with(x)
            assert attack.quality is not None
            out.append(float(np.sqrt(5 * attack.quality[attack.best].mse[0])))
        return float(np.median(out))

    plain = error(None)
    assert plain < 0.01
    assert plain < error(GaussianNoise(0.1)) < error(GaussianNoise(1.0))
    assert error(Prune(0.02)) > plain
