"""Each defence does what it says, and defences compose in order."""

import numpy as np
import pytest
import torch
from torch import nn

from leakcore import clip_and_noise, defenses, dpsgd
from leakcore.attacks import inversion
from leakcore.defenses import DPSGD, Clip, ClipSamples, Compose, Dropout, GaussianNoise, Laplace, LocalSteps, Prune


def _model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 20), nn.Softplus(), nn.Linear(20, 3)).double()


def _batch(rows=4):
    torch.manual_seed(5)
    return torch.randn(rows, 6).double(), torch.arange(rows) % 3


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_transforms_of_a_gradient(library, dtype):
    raw = np.random.default_rng(0).standard_normal((3, 2, 500)).astype(dtype)
    g = raw if library == "numpy" else torch.from_numpy(raw)
    noisy = np.asarray(GaussianNoise(0.5).apply(g, seed=1)) - raw
    # 3,000 draws: four standard errors of a variance of 1/4.
    assert abs(float(noisy.var()) - 0.25) < 4 * 0.25 * np.sqrt(2 / 3000)
    heavy = np.asarray(Laplace(0.5).apply(g, seed=1)) - raw
    assert abs(float(np.abs(heavy).mean()) - 0.5) < 4 * 0.5 / np.sqrt(3000)
    assert np.unique(noisy).size > 2900  # rows do not share their noise
    clipped = np.asarray(Clip(2.0).apply(g))
    np.testing.assert_allclose(np.linalg.norm(clipped, axis=-1), 2.0, rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(Clip(1e6).apply(g)), raw)
    pruned = np.asarray(Prune(0.1).apply(g))
    assert (np.count_nonzero(pruned, axis=-1) == 50).all()
    assert np.abs(raw[pruned == 0]).max() <= 10
    for i in np.ndindex(3, 2):
        remaining = pruned[i] != 0
        assert np.abs(raw[i][remaining]).min() >= np.abs(raw[i][~remaining]).max()
        np.testing.assert_array_equal(pruned[i][remaining], raw[i][remaining])
    for out in (noisy, heavy, clipped, pruned):
        assert out.dtype == raw.dtype
    assert type(GaussianNoise(1.0).apply(g, seed=1)) is type(g)


def test_noise_is_a_function_of_seed_and_step():
    g = np.zeros(100)
    first = GaussianNoise(1.0).apply(g, seed=1, step=0)
    np.testing.assert_array_equal(first, GaussianNoise(1.0).apply(g, seed=1, step=0))
    assert not np.isin(first, GaussianNoise(1.0).apply(g, seed=1, step=1)).any()
    assert not np.isin(first, GaussianNoise(1.0).apply(g, seed=2, step=0)).any()
    both = Compose(GaussianNoise(1.0), GaussianNoise(1.0)).apply(g, seed=1)
    assert not np.allclose(both, 2 * first)  # two noises of one composition are two
    mechanism = clip_and_noise(np.zeros((1, 100)), 1.0, 1.0, seed=1).sum  # nor the mechanism's, of the same seed
    assert not np.isin(first, mechanism).any()
    with pytest.raises(ValueError, match="`seed` is required"):
        GaussianNoise(1.0).apply(g)


def test_dp_sgd_is_the_kernels_release_and_composition_goes_stage_by_stage():
    rows = np.random.default_rng(0).standard_normal((5, 40))
    expected = clip_and_noise(rows, 2.0, 0.7, seed=3).sum / 5
    np.testing.assert_array_equal(DPSGD(2.0, 0.7).apply(rows, seed=3), expected)
    np.testing.assert_allclose(DPSGD(2.0, 0.0, expected_batch_size=10).apply(rows), clip_and_noise(rows, 2.0).sum / 10)
    mean = Compose(ClipSamples(2.0)).apply(rows)
    np.testing.assert_allclose(mean, clip_and_noise(rows, 2.0).sum / 5, rtol=1e-12)
    out = Compose(ClipSamples(2.0), Clip(0.1), Prune(0.5)).apply(rows)
    assert np.count_nonzero(out) == 20
    np.testing.assert_allclose(out, Prune(0.5).apply(Clip(0.1).apply(mean)), rtol=1e-12)
    with pytest.raises(ValueError, match="put it first"):
        Compose(GaussianNoise(1.0), ClipSamples(1.0))
    with pytest.raises(ValueError, match="is allowed only once"):
        Compose(Dropout(0.5), Dropout(0.5))
    with pytest.raises(TypeError, match=r"must be of leakcore\.defenses\.Defense, got"):
        Compose("noise")


def test_release_without_a_defence_is_the_gradient():
    model, (x, y) = _model(), _batch()
    plain = defenses.release(model, x, y)
    loss = nn.functional.cross_entropy(model(x), y)
    expected = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(plain.gradient, torch.cat([g.flatten() for g in expected]), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(plain.parts["2.bias"], expected[3], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(plain.gradient, inversion.gradient(model, x, y))
    all_of_it = defenses.release(model, x, y, defense=Compose(ClipSamples(1e9)))
    torch.testing.assert_close(all_of_it.gradient, plain.gradient, rtol=1e-10, atol=1e-13)


def test_local_steps_are_sgd():
    model, (x, y) = _model(), _batch()
    result = defenses.release(model, x, y, defense=LocalSteps(3, learning_rate=0.2)).gradient
    trained = _model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.2)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(trained(x), y).backward()
        optimizer.step()
    moved = torch.cat([(a - b).flatten() for a, b in zip(model.parameters(), trained.parameters(), strict=True)])
    torch.testing.assert_close(result, moved.detach() / 0.6, rtol=1e-9, atol=1e-12)
    two = defenses.release(model, x, y, defense=LocalSteps(2, 1e-12, minibatches=True)).gradient
    torch.testing.assert_close(two, defenses.release(model, x, y).gradient, rtol=1e-6, atol=1e-9)
    with pytest.raises(ValueError, match=r"`inputs` must have a number of rows that LocalSteps.* divides, got"):
        defenses.release(model, x, y, defense=LocalSteps(3, 0.1, minibatches=True))
    with pytest.raises(ValueError, match="acts on training"):
        LocalSteps(2, 0.1).apply(np.zeros(3))


@pytest.mark.parametrize("per_sample", [True, False])
def test_dropout_keeps_with_keep_probability(per_sample):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4000), nn.Softplus(), nn.Linear(4000, 3)).double()
    x, y = _batch(2)
    dropped = defenses.release(model, x, y, defense=Dropout(0.25, per_sample=per_sample), seed=1).parts["2.weight"]
    share = float((dropped[0] != 0).double().mean())
    expected = 1 - 0.75**2 if per_sample else 0.25
    assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / 4000)
    whole = defenses.release(model, x, y, defense=Dropout(1.0, per_sample=per_sample), seed=1).gradient
    torch.testing.assert_close(whole, defenses.release(model, x, y).gradient)
    # Per-sample gradients see the very masks that the batch sees.
    both = Compose(Dropout(0.25, per_sample=per_sample), ClipSamples(1e9))
    alone = defenses.release(model, x, y, defense=both, seed=1).parts["2.weight"]
    torch.testing.assert_close(alone, dropped, rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match="`seed` is required"):
        defenses.release(model, x, y, defense=Dropout(0.5))


class _Ordered(nn.Module):
    """The last layer registered first."""

    def __init__(self):
        super().__init__()
        self.head, self.body = nn.Linear(300, 3), nn.Linear(200, 300)

    def forward(self, x):
        return self.head(self.body(x).tanh())


@pytest.mark.parametrize("per_sample", [True, False])
def test_dropout_masks_hidden_units_whatever_the_order_of_registration(per_sample):
    torch.manual_seed(0)
    model = _Ordered().double()
    plain = nn.Sequential(model.body, nn.Tanh(), model.head)
    x, y = torch.rand(1, 200).double(), [1]
    how = {"defense": Dropout(0.5, per_sample=per_sample), "seed": 3}
    result = defenses.release(model, x, y, **how).parts
    assert (result["body.weight"].abs().sum(0) > 0).all()  # no input is dropped
    assert 100 < int((result["head.weight"].abs().sum(0) == 0).sum()) < 200
    wanted = defenses.release(plain, x, y, **how).parts
    for name, same in (("body", "0"), ("head", "2")):
        torch.testing.assert_close(result[f"{name}.weight"], wanted[f"{same}.weight"])
    with pytest.raises(ValueError, match="Dropout: the model has no linear layer with hidden units"):
        defenses.release(plain[0], x, y, **how)


def test_any_torch_optimizer_steps_by_the_defended_gradient():
    model, (x, y) = _model(), _batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    defense = Compose(Clip(0.5), GaussianNoise(0.01))
    expected = defenses.release(model, x, y, defense=defense, seed=4).gradient
    handle = defenses.attach(optimizer, defense, seed=4)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(before - after, expected, rtol=1e-9, atol=1e-12)
    assert handle.step == 1
    handle.remove()
    optimizer.step()
    assert handle.step == 1
    per_sample = defenses.attach(optimizer, ClipSamples(1.0))
    with pytest.raises(ValueError, match="grad_sample"):
        optimizer.step()
    per_sample.remove()
    with pytest.raises(ValueError, match="which the loop itself does"):
        defenses.attach(optimizer, LocalSteps(2, 0.1))
    with pytest.raises(ValueError, match="`seed` is required"):
        defenses.attach(optimizer, GaussianNoise(0.1))


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_in_opacus_training_and_what_the_recorder_sees():
    opacus = pytest.importorskip("opacus")
    import leakcore

    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(20, 6), torch.arange(20) % 3)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    model, optimizer, loader = opacus.PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=10), noise_multiplier=0.5, max_grad_norm=1.0,
    )  # fmt: skip
    handle = defenses.attach(optimizer, Prune(0.01), seed=0)
    released = []
    with pytest.raises(ValueError, match="Opacus's optimizer does itself"):
        defenses.attach(optimizer, ClipSamples(1.0))
    criterion = nn.CrossEntropyLoss()
    with leakcore.record(optimizer, candidates=(data.tensors[0][:4], data.tensors[1][:4])) as recorder:
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
            released.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert handle.step == recorder.steps == len(released)
    assert all(int((g != 0).sum()) == 1 for g in released)  # ⌈0.01·83⌉


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GaussianNoise(-1.0), r"`std` must be at least 0, got -1.0"),
        (lambda: Laplace(-1.0), r"`scale` must be at least 0, got -1.0"),
        (lambda: Clip(0.0), r"`max_grad_norm` must be above 0, got 0.0"),
        (lambda: ClipSamples(0.0), r"`max_grad_norm` must be above 0, got 0.0"),
        (lambda: DPSGD(1.0, -1.0), r"`noise_multiplier` must be at least 0, got -1.0"),
        (lambda: Dropout(0.0), r"`keep_probability` must be in \(0, 1\], got 0\.0"),
        (lambda: Prune(1.5), r"`keep_fraction` must be in \(0, 1\], got 1\.5"),
        (lambda: LocalSteps(0, 0.1), "`steps` must be at least 1, got 0"),
        (lambda: Clip(1.0).apply(np.zeros((0, 3))), "Clip: `gradients` must have shape .*none of them 0, got"),
        (lambda: DPSGD(1.0, 0.0).apply(np.zeros(3)), "DPSGD: `gradients` must have shape .*got"),
        (lambda: Compose(ClipSamples(1.0)).apply(np.zeros(3)), r"must have shape \(B, D\)"),
    ],
)
def test_bad_settings_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_bad_types_are_named():
    with pytest.raises(TypeError, match="list"):
        Clip(1.0).apply([1.0, 2.0])
    for rows in (np.arange(3), torch.zeros(3).to(torch.float8_e4m3fn)):
        with pytest.raises(
            TypeError, match=r"`gradients` must be of type float16, bfloat16, float32 or float64, got (int64|float8)"
        ):
            Clip(1.0).apply(rows)
    model, (x, y) = _model(), _batch()
    with pytest.raises(TypeError, match="Defense"):
        defenses.release(model, x, y, defense="noise")
    with pytest.raises(ValueError, match="at least 1"):
        defenses.release(model, x[:0], y[:0])


def test_a_closure_is_refused_because_it_comes_after_the_defence():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    defenses.attach(optimizer, Clip(1e-3))
    before = model.weight.detach().clone()

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).sum()
        loss.backward()
        return loss

    closure()
    with pytest.raises(ValueError, match=r"step\(closure\) computes the gradient again"):
        optimizer.step(closure)
    with pytest.raises(ValueError, match=r"step\(closure\)"):
        optimizer.step(closure=closure)
    assert (model.weight == before).all()
    optimizer.step()
    assert 0 < (model.weight - before).norm() <= 1e-3


def test_noise_on_a_recorded_run_does_not_depend_on_its_neighbours():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(9, 4)), rng.integers(0, 3, 9)
    ensemble = dpsgd.Ensemble((4, 3), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.5, steps=3, seed=0)
    noise = Compose(GaussianNoise(0.5), Laplace(0.2))
    runs = [
        ensemble.run(x, y, runs=range(f, f + n), observer=dpsgd.Observer(record=True))
        for n, f in ((4, 0), (2, 0), (2, 2))
    ]
    whole, first, second = (defenses.defended(run, noise, seed=1).observed for run in runs)
    np.testing.assert_array_equal(np.concatenate([first, second]), whole)
    assert not np.array_equal(first - runs[1].observed, second - runs[2].observed)


@pytest.mark.parametrize("library", [np.asarray, torch.as_tensor])
def test_clipping_has_the_range_of_its_type(library):
    for dtype, size in (
        ("float16", 30.0),
        ("float16", 6e4),
        ("float32", 1e30),
        ("float64", 1e200),
        ("float64", 1e-150),
    ):
        rows = library(np.full((2, 100), size, dtype))
        for clipped in (Clip(1.0).apply(rows), ClipSamples(1.0).apply(rows)):
            norms = np.linalg.norm(np.asarray(clipped, np.float64), axis=-1)
            np.testing.assert_allclose(norms, min(1.0, 10 * size), rtol=2e-3)
            assert clipped.dtype == rows.dtype


@pytest.mark.parametrize("library", [np.asarray, torch.as_tensor])
def test_what_is_not_finite_is_refused(library):
    for bad in (np.nan, np.inf):
        rows = library(np.array([[1.0, bad, 3.0]], np.float32))
        for defense in (Clip(1.0), Prune(0.5), GaussianNoise(0.1)):
            with pytest.raises(ValueError, match="`gradients` must be finite"):
                defense.apply(rows, seed=1)


def test_spelling_of_numpys_numbers_is_read_again():
    for defense in (GaussianNoise(np.float64(0.1)), Clip(np.float32(2.0))):
        assert defenses.parse(defenses.spell(defense)) == defense
