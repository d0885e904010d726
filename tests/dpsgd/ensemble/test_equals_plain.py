"""The batched ensemble against DP-SGD as anyone would write it: one model at a time, per-sample gradients by
torch.func, materialised and clipped; same data, same injected noise, initial parameters and batches."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad, vmap

from leakcore import datasets, dpsgd, models
from tests.dpsgd.ensemble import flat_arguments as flat

RUNS, ROWS, EXTRA, CANDIDATES, STEPS = 3, 11, 2, 4, 6


def _per_sample_gradients(layers, activation, flat, features, labels) -> torch.Tensor:
    """(rows, parameters), float64, in the flat order of `models.mlp(...).parameters()`."""
    module = models.mlp(layers, activation).double()
    torch.nn.utils.vector_to_parameters(torch.as_tensor(flat, dtype=torch.float64), module.parameters())
    parameters = {name: p.detach() for name, p in module.named_parameters()}

    def loss(params, x, y):
        out = functional_call(module, params, (x[None],))
        if layers[-1] == 1:
            return torch.nn.functional.binary_cross_entropy_with_logits(out[0, 0], y.double())
        return torch.nn.functional.cross_entropy(out, y[None])

    x, y = torch.as_tensor(np.array(features), dtype=torch.float64), torch.as_tensor(np.array(labels))
    grads = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    return torch.cat([grads[name].flatten(1) for name in parameters], 1)


def _clipped(grads: torch.Tensor, max_grad_norm: float, slack: float = 0.0) -> torch.Tensor:
    return grads * (max_grad_norm / (grads.norm(dim=1, keepdim=True) + slack)).clamp(max=1.0)


@dataclasses.dataclass
class PlainRun:
    parameters: np.ndarray
    dots: np.ndarray
    dots_without_subtraction: np.ndarray
    norms: np.ndarray
    cosine: float


def train_plainly(
    layers, activation, features, labels, *, initial, noise, batches, noise_multiplier, max_grad_norm, learning_rate,
    expected_batch_size, num_common, candidates=None, candidate_labels=None, slack=0.0,
) -> PlainRun:  # fmt: skip
    """One run. noise (steps, parameters), batches (steps, rows) bool; known are the first `num_common` rows."""
    theta = torch.as_tensor(initial, dtype=torch.float64).clone()
    dots, plain_dots, norms, cosines = [], [], [], []
    for step in range(len(noise)):
        drawn = torch.as_tensor(batches[step], dtype=torch.float64)[:, None]
        contributions = (
            _clipped(_per_sample_gradients(layers, activation, theta, features, labels), max_grad_norm, slack) * drawn
        )
        released = contributions.sum(0) + noise_multiplier * max_grad_norm * torch.as_tensor(noise[step])
        if candidates is not None:
            observed = released - contributions[:num_common].sum(0)
            raw = _per_sample_gradients(layers, activation, theta, candidates, candidate_labels)
            guess = _clipped(raw, max_grad_norm, slack)
            dots.append((guess @ observed).numpy())
            plain_dots.append((guess @ released).numpy())
            norms.append(guess.norm(dim=1).numpy())
            unit = raw / raw.norm(dim=1, keepdim=True)
            gram = unit @ unit.T
            gram.fill_diagonal_(-torch.inf)
            cosines.append(float(gram.max(dim=1).values.mean()))
        theta -= learning_rate / expected_batch_size * released
    return PlainRun(
        theta.numpy(),
        np.array(dots),
        np.array(plain_dots),
        np.array(norms),
        float(np.mean(cosines)) if cosines else 0.0,
    )


def _case(layers, *, seed=0, rate=0.6):
    rng = np.random.default_rng(seed)
    classes = max(2, layers[-1])
    size = models.num_parameters(layers)
    return {
        "x": rng.normal(size=(ROWS, layers[0])),
        "y": rng.integers(0, classes, ROWS),
        "extra_x": rng.normal(size=(RUNS, EXTRA, layers[0])),
        "extra_y": rng.integers(0, classes, (RUNS, EXTRA)),
        "cand_x": rng.normal(size=(RUNS, CANDIDATES, layers[0])),
        "cand_y": rng.integers(0, classes, (RUNS, CANDIDATES)),
        "initial": rng.normal(size=(RUNS, size)) * 0.5,
        "noise": rng.normal(size=(RUNS, STEPS, size)),
        "batches": rng.random((RUNS, STEPS, ROWS + EXTRA)) < rate,
    }


def _both(layers, activation, *, slack=0.0, max_grad_norm=0.8, dtype="float64", subtract_known=True, **overrides):
    c = _case(layers) | overrides
    ensemble = dpsgd.Ensemble(
        dpsgd.Network(layers, activation, dtype=dtype),
        noise_multiplier=0.7,
        max_grad_norm=max_grad_norm,
        learning_rate=1.5,
        steps=STEPS,
        sample_rate=0.6,
        fault=dpsgd.Fault(clip_slack=slack),
        seed=0,
    )
    ours = ensemble.run(
        c["x"],
        c["y"],
        runs=range(5, 5 + RUNS),
        per_run=dpsgd.PerRun(
            dpsgd.Rows(c["extra_x"], c["extra_y"]), initial=c["initial"], noise=c["noise"], batches=c["batches"]
        ),
        observer=dpsgd.Observer(dpsgd.Rows(c["cand_x"], c["cand_y"]), subtract_known=subtract_known, cosines=True),
    )
    theirs = [
        train_plainly(
            layers, activation, np.concatenate([c["x"], c["extra_x"][r]]), np.concatenate([c["y"], c["extra_y"][r]]),
            initial=c["initial"][r], noise=c["noise"][r], batches=c["batches"][r], noise_multiplier=0.7,
            max_grad_norm=max_grad_norm, learning_rate=1.5, expected_batch_size=0.6 * (ROWS + EXTRA), num_common=ROWS,
            candidates=c["cand_x"][r], candidate_labels=c["cand_y"][r], slack=slack,
        )
        for r in range(RUNS)
    ]  # fmt: skip
    return ours, theirs


@pytest.mark.parametrize("activation", models.ACTIVATIONS)
@pytest.mark.parametrize("layers", [(5, 4, 3), (5, 4, 1)], ids=str)
def test_equal_to_the_plain_loop(layers, activation) -> None:
    ours, theirs = _both(layers, activation)
    for r, run in enumerate(theirs):
        np.testing.assert_allclose(ours.parameters[r], run.parameters, rtol=0, atol=1e-10)
        np.testing.assert_allclose(ours.dots[r], run.dots, rtol=0, atol=1e-10)
        np.testing.assert_allclose(ours.clipped_norms[r], run.norms, rtol=0, atol=1e-10)
        assert ours.cosine[r] == pytest.approx(run.cosine, abs=1e-10)


@pytest.mark.parametrize("layers", [(5, 3), (5, 1), (5, 6, 4, 3, 2), (1, 1, 1)], ids=str)
def test_equal_for_any_depth(layers) -> None:
    ours, theirs = _both(layers, "tanh")
    for r, run in enumerate(theirs):
        np.testing.assert_allclose(ours.parameters[r], run.parameters, rtol=0, atol=1e-10)
        np.testing.assert_allclose(ours.dots[r], run.dots, rtol=0, atol=1e-10)


def test_without_subtraction_the_score_is_against_the_released_gradient() -> None:
    ours, theirs = _both((5, 4, 3), "elu", subtract_known=False)
    for r, run in enumerate(theirs):
        np.testing.assert_allclose(ours.parameters[r], run.parameters, rtol=0, atol=1e-10)
        np.testing.assert_allclose(ours.dots[r], run.dots_without_subtraction, rtol=0, atol=1e-10)
        assert np.abs(ours.dots[r] - run.dots).max() > 1e-3


def test_the_slack_of_opacus_is_matched_on_request() -> None:
    ours, theirs = _both((5, 4, 3), "elu", slack=0.1)
    exact, _ = _both((5, 4, 3), "elu")
    for r, run in enumerate(theirs):
        np.testing.assert_allclose(ours.parameters[r], run.parameters, rtol=0, atol=1e-10)
        np.testing.assert_allclose(ours.clipped_norms[r], run.norms, rtol=0, atol=1e-10)
        assert np.abs(ours.parameters[r] - exact.parameters[r]).max() > 1e-3


def test_the_comparison_can_fail() -> None:
    """Another noise in one coordinate of one step moves the result by far more than the tolerance."""
    noise = _case((5, 4, 3))["noise"]
    noise[1, 2, 7] += 1e-6
    ours, _ = _both((5, 4, 3), "elu")
    other, _ = _both((5, 4, 3), "elu", noise=noise)
    moved = np.abs(ours.parameters - other.parameters).max(axis=1)
    assert moved[1] > 1e-8
    assert (moved[[0, 2]] == 0).all()


@pytest.mark.parametrize("activation", models.ACTIVATIONS)
def test_float32_agrees_to_rounding(activation) -> None:
    ours, theirs = _both((5, 4, 3), activation, dtype="float32")
    for r, run in enumerate(theirs):
        np.testing.assert_allclose(ours.parameters[r], run.parameters, rtol=0, atol=2e-5)


@pytest.mark.parametrize("slack", [0.0, 1e-6, 0.1, 2.0])
def test_clipped_gradients_are_counted(slack) -> None:
    """One step from the same parameters: the norms of an ensemble that clips nothing say which are clipped."""
    c, bound = _case((5, 4, 3)), 0.9

    def first_step(**clip):
        ensemble = flat.ensemble(
            (5, 4, 3), "elu", noise_multiplier=0.0, learning_rate=1.5, steps=1, dtype="float64", seed=0, **clip
        )
        return ensemble.run(
            c["x"],
            c["y"],
            runs=RUNS,
            per_run=dpsgd.PerRun(initial=c["initial"]),
            observer=dpsgd.Observer(dpsgd.Rows(c["cand_x"], c["cand_y"]), record=True),
        )

    norms = first_step(max_grad_norm=1e6).clipped_norms
    result = first_step(max_grad_norm=bound, clip_slack=slack)
    wanted = (norms + slack > bound).sum(axis=(1, 2))
    assert slack > 1 or 0 < wanted.sum() < norms.size
    np.testing.assert_array_equal(result.clipped, wanted)


def test_norms_are_exactly_the_bound_where_clipped() -> None:
    ours, _ = _both((5, 4, 3), "elu", dtype="float32", max_grad_norm=0.3)
    assert (ours.clipped_norms == np.float32(0.3)).mean() > 0.5
    assert ours.clipped_norms.max() == np.float32(0.3)


def test_rows_beyond_one_chunk() -> None:
    """1,025 rows are two chunks: the sum, the batches and the extra rows must still line up."""
    rng = np.random.default_rng(3)
    layers, rows = (3, 2), 1025
    x, y = rng.normal(size=(rows, 3)), rng.integers(0, 2, rows)
    extra_x, extra_y = rng.normal(size=(1, 1, 3)), rng.integers(0, 2, (1, 1))
    initial, noise = rng.normal(size=8), rng.normal(size=(1, 2, 8))
    batches = rng.random((1, 2, rows + 1)) < 0.5
    ensemble = dpsgd.Ensemble(
        dpsgd.Network(layers, dtype="float64"),
        noise_multiplier=1.0,
        max_grad_norm=0.5,
        learning_rate=2.0,
        steps=2,
        sample_rate=0.5,
        seed=0,
    )
    ours = ensemble.run(
        x, y, runs=1, per_run=dpsgd.PerRun(dpsgd.Rows(extra_x, extra_y), initial=initial, noise=noise, batches=batches)
    )
    run = train_plainly(
        layers, "elu", np.concatenate([x, extra_x[0]]), np.concatenate([y, extra_y[0]]), initial=initial,
        noise=noise[0], batches=batches[0], noise_multiplier=1.0, max_grad_norm=0.5, learning_rate=2.0,
        expected_batch_size=0.5 * (rows + 1), num_common=rows,
    )  # fmt: skip
    np.testing.assert_allclose(ours.parameters[0], run.parameters, rtol=0, atol=1e-10)


def test_zero_gradients_are_not_divided_by() -> None:
    """A saturated sigmoid has no gradient at all: its clip factor must be 1, not 0/0."""
    ensemble = dpsgd.Ensemble(
        dpsgd.Network((2, 1), dtype="float64"),
        noise_multiplier=0,
        max_grad_norm=0.5,
        learning_rate=1.0,
        steps=1,
        seed=0,
    )
    out = ensemble.run(
        np.zeros((1, 2)),
        [1],
        runs=1,
        per_run=dpsgd.PerRun(initial=np.array([0.0, 0.0, 800.0])),
        observer=dpsgd.Observer(dpsgd.Rows(np.ones((2, 2)), [1, 1]), cosines=True),
    )
    assert out.parameters[0].tolist() == [0.0, 0.0, 800.0]
    assert out.clipped_norms.tolist() == [[[0.0, 0.0]]]
    assert out.cosine.tolist() == [0.0]


def test_module_is_the_run() -> None:
    ours, theirs = _both((5, 4, 3), "elu")
    module = ours.module(6)
    with torch.no_grad():
        flat = torch.nn.utils.parameters_to_vector(module.parameters()).numpy()
    np.testing.assert_allclose(flat, theirs[1].parameters, rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match=r"`run` must be in \[5, 7\], got 8"):
        ours.module(8)


@pytest.mark.parametrize("outputs", [1, 3])
def test_accuracy_is_that_of_the_modules(outputs) -> None:
    ours, _ = _both((5, 4, outputs), "elu")
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(50, 5)), rng.integers(0, max(2, outputs), 50)
    expected = []
    for run in range(5, 5 + RUNS):
        with torch.no_grad():
            logits = ours.module(run)(torch.from_numpy(x))
        guess = (logits[:, 0] > 0).long() if outputs == 1 else logits.argmax(1)
        expected.append(float((guess.numpy() == y).mean()))
    assert ours.accuracy(x, y).tolist() == expected
    assert len(set(expected)) > 1


def test_digits_are_learned() -> None:
    """The default setting of the reconstruction game is a useful classifier: above 80% on held-out digits at ε = 10."""
    train, test = datasets.digits().split(1000, seed=0)
    ensemble = dpsgd.Ensemble(
        (64, 10, 10), noise_multiplier=4.998886302, max_grad_norm=0.1, learning_rate=10.0, steps=100, seed=3
    )
    out = ensemble.run(train.features, train.labels, runs=4)
    assert out.accuracy(test.features, test.labels).min() > 0.8
