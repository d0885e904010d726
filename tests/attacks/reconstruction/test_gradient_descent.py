"""Both losses against autograd through materialised per-sample gradients, and what the attack finds."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from scipy import stats

from leakcore import attacks, datasets, dpsgd, models
from leakcore.attacks.reconstruction.gradient_descent import ReleasedSteps, losses
from tests.dpsgd.ensemble import flat_arguments as flat

LAYERS = (7, 5, 4)


def _run(layers=LAYERS, activation="elu", *, noise=0.5, clip=0.3, runs=2, steps=4, dtype="float64", **more):
    rng = np.random.default_rng(0)
    outputs = max(2, layers[-1])
    ensemble = flat.ensemble(
        layers, activation, noise_multiplier=noise, max_grad_norm=clip, learning_rate=1, steps=steps, dtype=dtype,
        seed=1, **more,
    )  # fmt: skip
    points, labels = rng.random((runs, 1, layers[0])), rng.integers(0, outputs, (runs, 1))
    run = ensemble.run(
        rng.random((9, layers[0])),
        rng.integers(0, outputs, 9),
        runs=runs,
        per_run=dpsgd.PerRun(dpsgd.Rows(points, labels)),
        observer=dpsgd.Observer(record=True),
    )
    return run, points[:, 0], labels[:, 0]


def _plain_loss(run, i, z, label, printed: bool) -> torch.Tensor:
    """Equation 1 as printed, or the likelihood, one step at a time, gradients materialised by autograd."""
    total = torch.zeros((), dtype=torch.float64)
    for theta, release in zip(run.thetas[i], run.observed[i], strict=True):
        module = models.mlp(run.layers, run.activation).double()
        torch.nn.utils.vector_to_parameters(torch.from_numpy(theta.copy()), module.parameters())
        out = module(z[None])
        if run.layers[-1] == 1:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(out[0, 0], torch.tensor(float(label)).double())
        else:
            loss = torch.nn.functional.cross_entropy(out, torch.tensor([label]))
        grads = torch.autograd.grad(loss, list(module.parameters()), create_graph=True)
        g = torch.cat([part.flatten() for part in grads])
        g = g / torch.clamp(g.norm() / run.max_grad_norm, min=1)
        release = torch.from_numpy(release)
        total = total - g @ release + ((g - release).abs().sum() if printed else 0.5 * g @ g)
    return total


@pytest.mark.parametrize("printed", [True, False])
@pytest.mark.parametrize("clip", [0.3, 50.0])
@pytest.mark.parametrize(
    ("layers", "activation"), [(LAYERS, "elu"), (LAYERS, "softplus"), ((7, 4), "elu"), ((7, 6, 5, 1), "tanh")]
)
def test_loss_and_derivative(layers, activation, clip, printed) -> None:
    """Both divided by C²; float64, 1e-10. C = 50 clips nothing."""
    run, _, labels = _run(layers, activation, clip=clip)
    z = torch.rand(layers[0], dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    label = int(labels[1])
    expected = _plain_loss(run, 1, z, label, printed) / clip**2
    (slope,) = torch.autograd.grad(expected, z)
    trace = ReleasedSteps.of(run.thetas[1], run.observed[1], layers, clip)
    weight = 1 / clip if printed else None
    targets = (
        torch.tensor([[float(label)]]).double() if layers[-1] == 1 else torch.eye(layers[-1]).double()[label][None]
    )
    points = torch.stack([z.detach(), torch.zeros_like(z)]).requires_grad_()
    ours = losses(points, targets.expand(2, -1), trace, activation, clip, weight)
    (ours_slope,) = torch.autograd.grad(ours.sum(), points)
    assert float(ours[0].detach()) == pytest.approx(float(expected.detach()), rel=1e-10)
    np.testing.assert_allclose(ours_slope[0], slope, rtol=1e-9, atol=1e-10 * float(slope.abs().max()))
    public = attacks.gradient_loss(run, points.detach().numpy(), [label, label], l1_weight=weight)
    np.testing.assert_allclose(public[1], ours.detach().numpy(), rtol=1e-12)


def _digits(noise: float, runs: int) -> tuple[dpsgd.EnsembleRun, datasets.Dataset]:
    known, rest = datasets.digits().split(99, seed=0)
    ensemble = dpsgd.Ensemble(
        (64, 10, 10), noise_multiplier=noise, max_grad_norm=0.1, learning_rate=5.0, steps=20, seed=0
    )
    targets, _ = rest.split(runs, seed=1)
    run = ensemble.run(
        known.features,
        known.labels,
        runs=runs,
        per_run=dpsgd.PerRun(dpsgd.Rows(targets.features[:, None], targets.labels[:, None])),
        observer=dpsgd.Observer(record=True),
    )
    return run, targets


@pytest.mark.full
def test_accuracy_by_noise() -> None:
    run, targets = _digits(0.0, 3)
    attack = attacks.gradient(run, targets.labels, descent=attacks.Descent(iterations=250, restarts=1))
    error = attacks.mean_squared_error(attack.points, targets.features)
    near = attacks.nearest_neighbour_mse(datasets.digits().features).mean()
    assert (error < near / 10).all()
    assert (attack.points >= 0).all()
    assert (attack.points <= 1).all()
    run, targets = _digits(100.0, 3)
    attack = attacks.gradient(run, targets.labels, descent=attacks.Descent(iterations=250, restarts=1))
    assert (attacks.mean_squared_error(attack.points, targets.features) > near).all()
    # The search is not what fails: it found points that explain the noise better than the target does.
    at_target = attacks.gradient_loss(run, targets.features[:, None], targets.labels[:, None])[:, 0]
    assert (attack.losses < at_target).all()


def test_likelihood_at_the_target() -> None:
    """Up to a constant the default loss is the negative log density of the noise, in units of σ²."""
    run, targets = _digits(2.0, 3)
    guesses = np.stack([targets.features, np.roll(targets.features, 1, axis=1)], axis=1)
    labels = np.repeat(targets.labels[:, None], 2, axis=1)
    losses = attacks.gradient_loss(run, guesses, labels)
    for i in range(3):
        densities = []
        for j in range(2):
            z, total = torch.from_numpy(guesses[i, j]).to(torch.float64), 0.0
            for theta, release in zip(run.thetas[i], run.observed[i], strict=True):
                module = models.mlp(run.layers, run.activation).double()
                torch.nn.utils.vector_to_parameters(torch.from_numpy(theta).double(), module.parameters())
                loss = torch.nn.functional.cross_entropy(module(z[None]), torch.tensor([int(labels[i, j])]))
                g = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(module.parameters()))])
                g = g / torch.clamp(g.norm() / run.max_grad_norm, min=1)
                scale = 2.0 * run.max_grad_norm
                total += stats.norm.logpdf(release, g.numpy(), scale).sum()
            densities.append(total)
        assert losses[i, 1] - losses[i, 0] == pytest.approx((densities[0] - densities[1]) * 2.0**2, rel=1e-3)


@pytest.mark.slow
def test_unknown_label() -> None:
    run, targets = _digits(0.0, 2)
    attack = attacks.gradient(run, descent=attacks.Descent(iterations=120, restarts=1))
    assert attack.labels.tolist() == targets.labels.tolist()


@pytest.mark.full
def test_frozen_extractor() -> None:
    """Without noise: the features of what was found are the target's, and the extractor is left as it was."""
    rng = np.random.default_rng(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        extractor = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3), torch.nn.ELU(), torch.nn.Flatten(), torch.nn.Linear(64, 24)
        )
    images, labels = rng.random((8, 1, 6, 6)), rng.integers(0, 3, 8)
    features = models.extract_features(extractor, images)
    ensemble = dpsgd.Ensemble((24, 3), noise_multiplier=0, max_grad_norm=1, learning_rate=1, steps=5, seed=0)
    run = ensemble.run(
        features[:6],
        labels[:6],
        runs=2,
        per_run=dpsgd.PerRun(dpsgd.Rows(features[6:, None], labels[6:, None])),
        observer=dpsgd.Observer(record=True),
    )
    through = attacks.FrozenEmbedding(extractor, (1, 6, 6))
    descent = attacks.Descent(iterations=300, restarts=2)
    attack = attacks.gradient(run, labels[6:], descent=descent, embedding=through, l1_weight=1)
    assert attack.points.shape == (2, 36)
    again = models.extract_features(extractor, attack.points.reshape(2, 1, 6, 6))
    start = np.square(features[:6].mean(axis=0) - features[6:]).mean()
    assert np.square(again - features[6:]).mean() < start / 100
    assert all(p.requires_grad and p.grad is None for p in extractor.parameters())
    with pytest.raises(
        ValueError, match=r"`embedding` must map one point of shape \(1, 6, 6\) to shape \(1, 7\), got \(1, 24\)"
    ):
        attacks.gradient(_run()[0], embedding=through)
    with pytest.raises(TypeError, match="`embedding` must be of type FrozenEmbedding, got Sequential"):
        attacks.gradient(_run()[0], embedding=extractor)


@pytest.mark.slow
def test_independence_of_workers() -> None:
    run, _, labels = _run(runs=3, dtype="float32")
    descent = attacks.Descent(iterations=5, restarts=2)
    whole = attacks.gradient(run, labels, descent=descent, execution=dpsgd.Execution(num_threads=1))
    calls: list[tuple[int, int]] = []
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        shared = attacks.gradient(
            run,
            labels,
            descent=descent,
            execution=dpsgd.Execution(executor=executor, progress=lambda *at: calls.append(at)),
        )
    threaded = attacks.gradient(run, labels, descent=descent, execution=dpsgd.Execution(num_threads=3))
    for other in (shared, threaded):
        for field in ("points", "labels", "losses", "restart"):
            assert (getattr(whole, field) == getattr(other, field)).all()
    assert calls == [(1, 3), (2, 3), (3, 3)]
    assert whole.points.dtype == np.float32


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"labels": [0]}, ValueError, r"`labels` must have shape \(runs=2,\), got \(1,\)"),
        ({"labels": [0, 4]}, ValueError, r"`labels` must lie in \[0, 3\], got values in \[0, 4\]"),
        ({"labels": [0.0, 1.0]}, TypeError, "`labels` must be of an integer type, got float64"),
        ({"l1_weight": -1}, ValueError, "`l1_weight` must be at least 0, got -1"),
        ({"box": (1.0, 1.0)}, ValueError, r"`box` must have low below high, got \(1\.0, 1\.0\)"),
        ({"box": (0.0, np.inf)}, ValueError, r"`box` must hold numbers below 1e30 in magnitude, got \(0\.0, inf\)"),
        ({"descent": 5}, TypeError, "`descent` must be of type Descent, got int"),
        (
            {"execution": dpsgd.Execution(checkpoint="x")},
            ValueError,
            r"`execution\.checkpoint` must be None for attacks\.gradient, got 'x'",
        ),
        ({"execution": 2}, TypeError, "`execution` must be of type Execution, got int"),
    ],
)
def test_errors(change, error, message) -> None:
    run, _, labels = _run()
    with pytest.raises(error, match=message):
        attacks.gradient(run, **({"labels": labels, "descent": attacks.Descent(iterations=1)} | change))


def test_bad_descents() -> None:
    for name, least in (("iterations", "at least 1"), ("restarts", "at least 1"), ("learning_rate", "above 0")):
        with pytest.raises(ValueError, match=f"`{name}` must be {least}, got 0"):
            attacks.Descent(**{name: 0})
    run, _, labels = _run()
    with pytest.raises(ValueError, match="restarts="):
        attacks.gradient(run, labels, descent=attacks.Descent(restarts=10**13))


def test_another_module() -> None:
    """Its parameters read as a logistic regression's would be other ones."""
    rng = np.random.default_rng(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3)).double()
    ensemble = dpsgd.Ensemble(
        dpsgd.ModuleNetwork(module, (4,), dtype="float64"),
        noise_multiplier=0.1,
        max_grad_norm=1,
        learning_rate=0.1,
        steps=2,
        seed=1,
    )
    x, y = rng.random((9, 4)), np.arange(9) % 3
    run = ensemble.run(
        x, y, runs=2, per_run=dpsgd.PerRun(dpsgd.Rows(x[:1], y[:1])), observer=dpsgd.Observer(record=True)
    )
    advice = (
        r"`run` must be of a dpsgd\.Network, got a dpsgd\.ModuleNetwork of Sequential; "
        r".*attacks\.inversion\.invert\(module, .*states=run"
    )
    with pytest.raises(ValueError, match=advice):
        attacks.gradient(run, [0, 0])
    with pytest.raises(ValueError, match=advice):
        attacks.gradient_loss(run, x[:2], y[:2])
    assert run.thetas is not None
    assert run.observed is not None
    attack = attacks.inversion.invert(
        module,
        attacks.inversion.ReleasedGradient(run.observed[0], states=run.thetas[0]),
        (4,),
        labels=y[:1],
        objective=attacks.inversion.DPSGDSteps(run.max_grad_norm, box=(0, 1)),
        optimizer=attacks.inversion.Adam(iterations=2, restarts=1),
    )
    assert attack.reconstructions.shape == (1, 4)


def test_parameters_of_another_size() -> None:
    run, points, labels = _run()
    assert run.thetas is not None
    for name in ("thetas", "observed"):
        short = dataclasses.replace(run, **{name: getattr(run, name)[..., :-1]})
        with pytest.raises(ValueError, match=rf"`run\.{name}` must end in the 64 parameters.*got shape \(2, 4, 63\)"):
            attacks.gradient_loss(short, points, labels)


def test_unrecorded_run() -> None:
    ensemble = dpsgd.Ensemble((2, 2), noise_multiplier=1, max_grad_norm=1, learning_rate=1, steps=1, seed=0)
    run = ensemble.run(np.zeros((3, 2)), [0, 1, 0], runs=1)
    with pytest.raises(ValueError, match="`run` must hold recorded steps"):
        attacks.gradient(run, [0])


def test_torch_threads_of_a_worker() -> None:
    run, _, labels = _run()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(torch.set_num_threads, 2).result()
        attacks.gradient(
            run, labels, descent=attacks.Descent(iterations=2, restarts=1), execution=dpsgd.Execution(executor=executor)
        )
        assert executor.submit(torch.get_num_threads).result() == 2


def test_bad_networks_and_shapes() -> None:
    run, _, labels = _run()
    with pytest.raises(TypeError, match="`module` must be of type Module, got function"):
        attacks.FrozenEmbedding(lambda x: x, (7,))
    with pytest.raises(TypeError, match="`shape` must be a sequence of integers, got 7"):
        attacks.FrozenEmbedding(torch.nn.Identity(), 7)
    with pytest.raises(ValueError, match=r"`embedding` must take inputs of shape \(7,\): "):
        attacks.gradient(run, labels, embedding=attacks.FrozenEmbedding(torch.nn.Linear(5, 36), (7,)))
