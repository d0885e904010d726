"""Runs against plain DP-SGD, on every path: native loops, batched products, any module, CUDA."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from leakcore import attacks, datasets, dpsgd, models
from leakcore.dpsgd.ensemble import passes, workers
from leakcore.kernels.ensemble import EnsembleRows, EnsembleSums, Taken
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


@pytest.mark.full(keep=5)
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


@pytest.mark.full(keep=5)
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


SHAPES = [
    ((13, 3), "relu"), ((5, 2), "relu"), ((5, 1), "relu"), ((1, 1), "relu"), ((13, 10, 10), "elu"),
    ((17, 32, 2), "relu"), ((20, 33, 7, 2), "tanh"), ((20, 9, 5, 1), "sigmoid"), ((17, 40, 30, 4), "leaky_relu"),
    ((33, 12, 2), "identity"), ((70, 23, 11), "elu"),
]  # fmt: skip
ROWS_NATIVE = 203


def _run(layers, activation, dtype, **how) -> dpsgd.EnsembleRun:
    rng = np.random.default_rng(4)
    ensemble = flat.ensemble(
        layers, activation, noise_multiplier=0.5, max_grad_norm=0.6, learning_rate=0.5, steps=6, dtype=dtype, seed=1,
        **how,
    )  # fmt: skip
    classes = max(2, layers[-1])
    return ensemble.run(
        rng.normal(size=(ROWS_NATIVE, layers[0])),
        rng.integers(0, classes, ROWS_NATIVE),
        runs=35,
        per_run=dpsgd.PerRun(dpsgd.Rows(rng.normal(size=(35, 2, layers[0])), rng.integers(0, classes, (35, 2)))),
    )


@pytest.mark.full(keep=6)
@pytest.mark.parametrize(("layers", "activation"), SHAPES, ids=str)
@pytest.mark.parametrize("how", [{}, {"sample_rate": 0.3}, {"batch_size": 17}, {"clip_slack": 1e-6}], ids=str)
def test_equal_to_batched_products(layers, activation, how, monkeypatch) -> None:
    ours = {dtype: _run(layers, activation, dtype, **how).parameters for dtype in ("float32", "float64")}
    monkeypatch.setattr(workers, "has_native_sums", lambda layers, activation: False)
    products = {dtype: _run(layers, activation, dtype, **how).parameters for dtype in ours}
    np.testing.assert_allclose(ours["float64"], products["float64"], rtol=0, atol=1e-12)
    # A rounding may put a unit on the other side of ReLU's kink: one row's contribution, η·C/B, is then another.
    close = 0.5 * 0.6 / 17 if "relu" in activation else 5e-6
    np.testing.assert_allclose(ours["float32"], products["float32"], rtol=0, atol=close)
    np.testing.assert_allclose(ours["float32"], ours["float64"], rtol=0, atol=close)
    assert (ours["float32"] != products["float32"]).any(), "both took the same path"


def _sums(rows: EnsembleRows, weights: np.ndarray, runs: int, taken: Taken | None = None) -> np.ndarray:
    """The sums of a linear model with three outputs."""
    into = np.full_like(weights, np.nan)
    EnsembleSums(runs, (weights.shape[2] - 1, 3), "relu", str(weights.dtype), max_grad_norm=1.0, slack=0.0).add(
        [weights.ctypes.data], rows, None, [into.ctypes.data], [0], common_taken=taken
    )
    return into


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1, 59, 60, 61, 125])
def test_a_run_does_not_feel_the_others(dtype, size) -> None:
    """All rows by all runs, by each alone, and by index: the same bits."""
    rng = np.random.default_rng(0)
    rows = EnsembleRows.of(rng.normal(size=(size, 37)).astype(dtype), rng.integers(0, 3, size))
    weights = rng.normal(size=(40, 3, 38)).astype(dtype)
    together = _sums(rows, weights, 40)
    by_index = _sums(rows, weights, 40, Taken.of(np.ones((40, size), bool)))
    assert np.isfinite(together).all()
    assert (by_index == together).all()
    for run in (0, 7, 39):
        assert (_sums(rows, weights[run : run + 1], 1) == together[run]).all()


def test_runs_without_rows_have_a_zero_sum() -> None:
    rng = np.random.default_rng(0)
    rows = EnsembleRows.of(rng.normal(size=(9, 5)), rng.integers(0, 3, 9))
    taken = np.zeros((3, 9), bool)
    taken[1, [2, 8]] = True
    sums = _sums(rows, rng.normal(size=(3, 3, 6)), 3, Taken.of(taken))
    assert (sums[[0, 2]] == 0).all()
    assert np.linalg.norm(sums[1]) > 0.1


def test_a_norm_beyond_the_type_makes_the_sum_nan() -> None:
    rows = EnsembleRows.of(np.full((2, 5), 1e25, np.float32), np.array([0, 1]))
    assert np.isnan(_sums(rows, np.zeros((1, 3, 6), np.float32), 1)).all()


def test_saturated_outputs_have_no_gradient_and_no_nan() -> None:
    rows = EnsembleRows.of(np.ones((2, 1)), np.array([0, 0]))
    weights = np.zeros((1, 3, 2))
    weights[0, :, 1] = (2000.0, 0.0, -2000.0)
    sums = _sums(rows, weights, 1)
    assert np.abs(sums).max() < 1e-300


RNG = np.random.default_rng(2)
MECHANISM = {
    "noise_multiplier": 0.6, "max_grad_norm": 0.4, "learning_rate": 0.8, "steps": 5, "dtype": "float64", "seed": 6,
}  # fmt: skip


def _mlp(layers: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(0)
    return models.mlp(layers, "tanh").double()


@pytest.mark.full(keep=2)
@pytest.mark.parametrize("layers", [(6, 5, 3), (6, 1)], ids=str)
@pytest.mark.parametrize(
    "how", [{}, {"sample_rate": 0.1}, {"batch_size": 20, "clip_slack": 1e-6}, {"fault": dpsgd.Fault(bias_noise=0)}]
)
def test_an_mlp_given_as_a_module_is_that_mlp(layers, how, monkeypatch) -> None:
    monkeypatch.setattr(passes, "_GRADIENTS", 700)
    module = _mlp(layers)
    classes = max(2, layers[-1])
    data = {
        "features": RNG.normal(size=(150, 6)), "labels": RNG.integers(0, classes, 150), "runs": 3, "first_run": 40,
        "extra_features": RNG.normal(size=(3, 2, 6)), "extra_labels": RNG.integers(0, classes, (3, 2)),
        "candidate_features": RNG.normal(size=(4, 6)), "candidate_labels": RNG.integers(0, classes, 4),
        "candidate_cosines": True, "probe_features": RNG.normal(size=(5, 6)), "probe_labels": np.ones(5, int),
    }  # fmt: skip
    ours = flat.run(flat.module_ensemble(module, (6,), **MECHANISM | how), **data)
    start = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    theirs = flat.run(flat.ensemble(layers, "tanh", **MECHANISM | how), **data, initial=start)
    for field in ("parameters", "dots", "clipped_norms", "cosine", "clipped", "probe_logits", "probe_losses"):
        np.testing.assert_allclose(getattr(ours, field), getattr(theirs, field), rtol=0, atol=1e-10, err_msg=field)


def _conv() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.GroupNorm(3, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    ).double()


def test_a_convolutional_network_is_dp_sgd_written_out() -> None:
    x, y, noise = RNG.random((9, 36)), RNG.integers(0, 3, 9), RNG.normal(size=(1, 5, 75))
    module = _conv()
    ours = flat.module_ensemble(module, (1, 6, 6), **MECHANISM).run(x, y, runs=1, per_run=dpsgd.PerRun(noise=noise))
    plain = _conv()
    for step in range(5):
        total = torch.from_numpy(noise[0, step]) * 0.6 * 0.4
        for row, label in zip(torch.from_numpy(x), torch.from_numpy(y), strict=True):
            loss = nn.functional.cross_entropy(plain(row.view(1, 1, 6, 6)), label[None])
            gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, plain.parameters())])
            total += gradient * min(1.0, 0.4 / float(gradient.norm()))
        vector = torch.nn.utils.parameters_to_vector(plain.parameters()).detach() - 0.8 / 9 * total
        torch.nn.utils.vector_to_parameters(vector, plain.parameters())
    np.testing.assert_allclose(ours.parameters[0], vector.numpy(), rtol=0, atol=1e-10)
    with torch.no_grad():
        images = torch.from_numpy(x).view(-1, 1, 6, 6)
        np.testing.assert_allclose(ours.module(0)(images).numpy(), plain(images).numpy(), rtol=0, atol=1e-9)
        assert (plain(images) - module(images)).abs().max() > 0.01, "nothing was trained, or the caller's module was"


def test_bits_do_not_depend_on_company() -> None:
    x, y = RNG.random((40, 36)), RNG.integers(0, 3, 40)
    ensemble = flat.module_ensemble(
        _conv(), (1, 6, 6), **MECHANISM | {"dtype": "float32"}, batch_size=8, initialisation_noise=0.5
    )  # fmt: skip
    whole = ensemble.run(x, y, runs=70, execution=dpsgd.Execution(num_threads=2))
    assert len(np.unique(whole.parameters[:, 0])) == 70
    for first, runs in ((0, 1), (30, 7), (69, 1)):
        part = ensemble.run(x, y, runs=range(first, first + runs), execution=dpsgd.Execution(num_threads=1))
        assert (part.parameters == whole.parameters[first : first + runs]).all()


def test_a_checkpoint_knows_the_module(tmp_path) -> None:
    x, y = RNG.random((10, 6)), RNG.integers(0, 3, 10)
    for module in (_mlp((6, 3)), _mlp((6, 5, 3)), nn.Linear(6, 3).double()):
        ensemble = flat.module_ensemble(module, (6,), **MECHANISM)
        stored = [
            ensemble.run(x, y, runs=2, execution=dpsgd.Execution(checkpoint=tmp_path)).parameters for _ in range(2)
        ]
        assert (stored[0] == ensemble.run(x, y, runs=2).parameters).all()
        assert (stored[0] == stored[1]).all()


class _Scaled(nn.Module):
    """Like another by its repr and its parameters, not by what it computes."""

    def __init__(self, scale: float, act: object) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3).double()
        nn.init.constant_(self.linear.weight, 0.1)
        nn.init.zeros_(self.linear.bias)
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float64))
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.act(x * self.scale))


def test_a_checkpoint_knows_what_a_module_does_not_print(tmp_path) -> None:
    x, y = RNG.random((10, 6)), RNG.integers(0, 3, 10)
    modules = [_Scaled(1.0, torch.tanh), _Scaled(5.0, torch.tanh), _Scaled(1.0, torch.relu)]
    modules += [_Scaled(1.0, lambda v: v * 2.0), _Scaled(1.0, lambda v: v * 3.0)]
    for module in modules:
        ensemble = flat.module_ensemble(module, (6,), **MECHANISM)
        stored = ensemble.run(x, y, runs=2, execution=dpsgd.Execution(checkpoint=tmp_path)).parameters
        assert (stored == ensemble.run(x, y, runs=2).parameters).all()
    assert len(list(tmp_path.iterdir())) == len(modules)
    # Built again, it is the same one.
    flat.module_ensemble(_Scaled(5.0, torch.tanh), (6,), **MECHANISM).run(
        x, y, runs=2, execution=dpsgd.Execution(checkpoint=tmp_path)
    )
    assert len(list(tmp_path.iterdir())) == len(modules)


def _frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    module[0].requires_grad_(False)
    return module


@pytest.mark.parametrize(
    ("module", "shape", "error", "message"),
    [
        ("net", (6,), TypeError, r"`module` must be a torch.nn.Module, got 'net'"),
        (nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), (6,), ValueError, "`module` must compute each"),
        (nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)), (6,), ValueError, "module: Dropout.*call module.eval"),
        (nn.Flatten(), (6,), ValueError, "`module` must have parameters to train"),
        (_frozen(), (6,), ValueError, "`module` must have parameters that require grad, for all are"),
        (nn.Linear(6, 3), (5,), ValueError, r"`module` must take rows of input_shape=\(5,\) \(mat1 and mat2"),
        (nn.Linear(6, 3), (2, 6), ValueError, r"`module` must return \(2, outputs\) logits.*, got \(2, 2, 3\)"),
    ],
)
def test_errors(module, shape, error, message) -> None:
    with pytest.raises(error, match=message):
        flat.module_ensemble(module, shape, **MECHANISM)


def test_a_module_alone_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`network` must be sizes of layers or a.*, got Linear"):
        dpsgd.Ensemble(nn.Linear(6, 3), **{k: v for k, v in MECHANISM.items() if k != "dtype"})


KNOWN, REST = datasets.digits().split(99, seed=0)
needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available() and not os.environ.get("LEAKCORE_REQUIRE_CUDA"), reason="torch sees no CUDA device"
)


def _run_device(device: str, sample_rate: float, dtype: str = "float64") -> dpsgd.EnsembleRun:
    ensemble = dpsgd.Ensemble(
        dpsgd.Network((64, 8, 10), dtype=dtype),
        noise_multiplier=1.0,
        max_grad_norm=0.5,
        learning_rate=0.5,
        steps=20,
        sample_rate=sample_rate,
        seed=7,
    )
    return ensemble.run(
        KNOWN.features,
        KNOWN.labels,
        runs=40,
        per_run=dpsgd.PerRun(dpsgd.Rows(REST.features[:1], REST.labels[:1])),
        observer=dpsgd.Observer(dpsgd.Rows(REST.features[:5], REST.labels[:5]), cosines=True, record=True),
        execution=dpsgd.Execution(device=device),
    )


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", "", None, torch.device("cpu")])
def test_an_unknown_device_is_named(device: Any) -> None:
    with pytest.raises(
        ValueError, match=re.escape(f"`device` must be 'cpu', 'cuda' or 'cuda:0', 'cuda:1', …, got {device!r}")
    ):
        _run_device(device, 1.0)


@pytest.mark.parametrize("device", ["cuda:64"] if torch.cuda.is_available() else ["cuda", "cuda:0"])
def test_a_device_that_is_not_there_is_refused_before_any_work(device: str) -> None:
    with pytest.raises(
        ValueError, match=rf"`device` must be one of the \d+ CUDA devices that torch has here, got '{device}'"
    ):
        _run_device(device, 1.0)
    ensemble = dpsgd.Ensemble((64, 10), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=1.0, steps=1, seed=0)
    with pytest.raises(ValueError, match=rf"`device` must be one of the \d+ CUDA devices .*, got '{device}'"):
        attacks.reconstruction_game(
            ensemble,
            dpsgd.Rows(KNOWN.features, KNOWN.labels),
            dpsgd.Rows(REST.features, REST.labels),
            runs=1,
            execution=dpsgd.Execution(device=device),
        )


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("sample_rate", [1.0, 0.5, 0.05])
def test_cuda_draws_the_same_numbers_and_agrees_to_rounding(sample_rate: float) -> None:
    """float64: 20 steps of a contraction-free recursion lose a few digits; a wrong draw would show in the first."""
    here, there = _run_device("cpu", sample_rate), _run_device("cuda", sample_rate)
    for name in ("thetas", "observed", "parameters", "dots", "clipped_norms", "cosine"):
        np.testing.assert_allclose(getattr(there, name), getattr(here, name), rtol=1e-7, atol=1e-9, err_msg=name)
    again = _run_device("cuda:0", sample_rate)
    np.testing.assert_allclose(again.parameters, there.parameters, rtol=1e-7, atol=1e-9)


@pytest.mark.cuda
@needs_cuda
def test_games_on_cuda_have_the_cpu_s_success() -> None:
    """The same runs in float32: fewer than 2% of guesses may change by rounding."""
    ensemble = dpsgd.Ensemble((64, 10), noise_multiplier=2.0, max_grad_norm=1.0, learning_rate=1.0, steps=40, seed=3)
    here, there = (
        attacks.reconstruction_game(ensemble, KNOWN, REST, runs=512, execution=dpsgd.Execution(device=d))
        for d in ("cpu", "cuda")
    )
    assert abs(here.hits - there.hits) <= 10
