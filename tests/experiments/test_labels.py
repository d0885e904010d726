"""The label paper's experiments: what the attacker sees, the order of the tests, trends, and training by Opacus."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leakcore import accounting, bounds, dpsgd, experiments, kernels, models
from leakcore.experiments.labels import common, unstated_settings
from leakcore.numerics import gaussian_pair_epsilon
from tests.dpsgd.ensemble import flat_arguments as flat
from tests.experiments.contexts import context

DATA = Path(os.environ.get("LEAKCORE_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
needs_data = pytest.mark.skipif(
    not ((DATA / "cervical").is_dir() and (DATA / "bank").is_dir()), reason="no folder of data sets"
)
TESTS = ("paper", "optimal", "likelihood-ratio")
SIGMAS = (0.3, 0.5, 1.0, 2.0, 4.0)


@pytest.fixture(scope="module")
def initial() -> tuple[common.LabelData, common.Observed]:
    """Cervical Cancer in 15 batches, seen through an untrained network."""
    study = common.studies(context("quick", data=DATA))[0]
    return study, common.observe(common.trained(context("quick", data=DATA), study, None)[0], study.features)


def test_what_the_attacker_sees_is_the_gradient_that_torch_computes() -> None:
    rng = np.random.default_rng(0)
    module = models.mlp((5, common.HIDDEN, common.HIDDEN, 1), "relu").double()
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.from_numpy(rng.normal(size=tuple(p.shape)) / np.sqrt(p.shape[-1])))
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    x, labels = rng.normal(size=(2, 3, 5)), rng.integers(0, 2, (2, 3))
    observed = common.observe(flat, x)
    neurons = [0, 7, 199]
    second, norms = observed.second_last(neurons), observed.grad_norms(labels)
    for b, r in np.ndindex(2, 3):
        logit = module(torch.from_numpy(x[b, r]))[0]
        gradient = [g.numpy() for g in torch.autograd.grad(logit, list(module.parameters()), retain_graph=True)]
        assert observed.probs[b, r] == pytest.approx(float(torch.sigmoid(logit.detach())), rel=1e-12)
        np.testing.assert_allclose(observed.last[b, r], gradient[4][0], rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(second[:, b, r], gradient[2][neurons], rtol=1e-10, atol=1e-14)
        for flip in (0, 1):
            y = torch.tensor(float(labels[b, r] if flip == 0 else 1 - labels[b, r]), dtype=torch.float64)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, y)
            whole = torch.autograd.grad(loss, list(module.parameters()), retain_graph=True)
            assert norms[b, flip, r] == pytest.approx(float(torch.cat([g.flatten() for g in whole]).norm()), rel=1e-9)
    with pytest.raises(ValueError, match=r"`parameters` must have shape \(41601,\) for layers \(5,.*, got \(3,\)"):
        common.observe(np.zeros(3), x)


# The must-show table and trends, on a fixed model and batch


@needs_data
@pytest.mark.parametrize("scope", common.SCOPES)
def test_paper_optimal_likelihood_ratio_and_replacement_are_in_order(initial, scope) -> None:
    study, observed = initial
    for sigma in SIGMAS:
        limits = [common.label_bound(study, observed, observed.last, sigma, 1.0, scope, t) for t in TESTS]
        values = [f.largest for f in limits]
        upper = gaussian_pair_epsilon(2 / sigma, delta=common.DELTA)
        assert 0 < values[0] < values[1] < values[2] <= upper * (1 + 1e-12)
        assert limits[0].replacement.value == upper
        assert all(f.adjacency == "replace" for f in limits)
        if scope == "layer":
            # Nearly every gradient is clipped, so the best attack spends what the mechanism may spend.
            assert values[2] == pytest.approx(upper, rel=1e-9)


@needs_data
def test_the_bound_falls_with_noise_and_clipping_norm_and_is_constant_while_all_is_clipped(initial) -> None:
    study, observed = initial
    for layer in (observed.last, observed.second_last([10])[0]):
        for scope in common.SCOPES:
            by_sigma = [np.max(common.label_bound(study, observed, layer, s, 1.0, scope).value) for s in SIGMAS]
            assert (np.diff(by_sigma) < 0).all()
            norms = np.linalg.norm(layer, axis=-1) if scope == "layer" else observed.joint
            e = np.abs(observed.probs - study.labels)
            # Rows of zeros are not gradients: nothing clips them, and they give no bound.
            least = (np.minimum(e, 1 - e) * norms)[np.linalg.norm(layer, axis=-1) > 0].min()
            clips = np.concatenate([np.geomspace(0.01, 0.99, 4) * least, least * np.geomspace(2, 1e4, 8)])
            by_clip = np.array([common.label_bound(study, observed, layer, 0.5, c, scope).largest for c in clips])
            assert (np.diff(by_clip) <= 1e-9 * by_clip[:-1]).all()
            np.testing.assert_allclose(by_clip[:4], by_clip[0], rtol=1e-9)
            assert by_clip[-1] < 0.5 * by_clip[0]


@needs_data
@pytest.mark.parametrize(("scope", "least"), [("layer", 2.0), ("joint", 5.0)])
def test_the_last_layer_leaks_more_than_the_second_last(initial, scope, least) -> None:
    study, _ = initial
    start = common.trained(context("quick", data=DATA), study, None)[:1]
    leak = common.all_leaks(context("quick", data=DATA), study, {scope: (start, 0.5, 1.0, scope)})[scope]
    assert leak.last.shape == (1, 15)
    assert leak.second.shape == (1, 20, 15)
    assert least < leak.ratio < 50


@needs_data
def test_when_every_gradient_is_clipped_the_layers_leak_alike(initial) -> None:
    # Clipped to C under both labels, ‖C_r‖ drops out: what is left is geometry. The paper's orders of magnitude come
    # from gradients too small to be clipped, which drown in noise.
    study, _ = initial
    start = common.trained(context("quick", data=DATA), study, None)[:1]
    at = common.all_leaks(context("quick", data=DATA), study, {c: (start, 0.5, c, "layer") for c in (1e-5, 1.0)})
    assert at[1e-5].ratio < 2 < at[1.0].ratio


@needs_data
def test_growth_with_the_number_of_batches_stays_below_both_extrapolations(initial) -> None:
    study, observed = initial
    values = np.asarray(common.label_bound(study, observed, observed.last, 0.5, 1.0, "layer").value)
    growth = values.max() / values.mean()
    harmonic, log = (bounds.extrapolate_label_epsilon(1.0, 15, 50, rule=r).value for r in ("harmonic", "log"))
    assert 1.0 < growth < harmonic < log


# Where the text states neither noise nor clipping norm


@pytest.mark.full
@needs_data
def test_the_sweep_finds_the_noise_that_gives_a_printed_number() -> None:
    bank = common.studies(context("quick", data=DATA))[1]
    cells, growths = [], []
    for sigma, scale in ((0.5, 0.66), (1.0, 0.066), (4.0, 1e-4)):
        for clip in (1.0, 10.0, 100.0):
            cells.append(
                unstated_settings.GridCell(sigma, clip, np.empty(0), np.ones(1), 0.0, np.full((1, 80), scale / clip))
            )
            growths.append(unstated_settings._growth(cells[-1].batches, 4, 0))
    assert all(growth.factor == 1.0 for growth in growths)
    table = unstated_settings._where_printed(bank, cells, growths)
    nowhere = ("4", "not in the sweep", "not in the sweep")
    assert [row[:3] for row in table.rows] == [("0.5", "20", "0.033"), ("1", "2", "0.033"), nowhere]
    low, high = map(int, unstated_settings._epochs(bank, 0.3).split(" to "))
    ends = [accounting.epsilon(0.3, 1 / 80, 80 * n, delta=common.DELTA).value for n in (low, high)]
    assert ends[0] < 282.24 <= ends[1]


def test_an_exponential_variable_is_found_to_be_one() -> None:
    quantiles = (np.arange(20_000) + 0.5) / 20_000
    assert unstated_settings._fits(unstated_settings._shape(-np.log1p(-quantiles))) == [True, True, True]
    assert unstated_settings._fits(unstated_settings._shape(quantiles)) == [False, False, False]


# The experiments themselves


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("name", [f"labels-fig{i}" for i in range(1, 6)])
def test_figures_at_their_smallest(name: str, tmp_path: Path) -> None:
    result = experiments.run(name, scale="tiny", data=DATA, out=tmp_path)
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8")) == json.loads(result.to_json())
    assert "Yuan" in result.provenance
    assert len(result.data) == 2
    assert any("never compared" in note for note in result.notes)
    for panel in result.panels:
        for series in panel.series:
            assert np.isfinite(series.y).all(), series.name
    upper = {s.x.tobytes(): s.y for p in result.panels for s in p.series if s.name == "upper bound of one step"}
    for panel in result.panels[: 2 if upper else 0]:
        for series in panel.series:
            assert (series.y <= upper[series.x.tobytes()] * (1 + 1e-9)).all(), series.name


@needs_data
def test_an_interrupted_figure_goes_on_and_gives_the_same_json(tmp_path: Path) -> None:
    name = "labels-fig5"

    class Stop(Exception):
        pass

    def stop(task: str, done: int, total: int) -> None:
        if task.startswith("bank"):
            raise Stop

    with pytest.raises(Stop):
        experiments.run(name, scale="tiny", data=DATA, out=tmp_path / "cut", progress=stop)
    pieces = sorted((tmp_path / "cut" / "partial").rglob("network-*.json"))
    assert len(pieces) == 2
    before = [piece.stat().st_mtime_ns for piece in pieces]
    calls = []

    def watch(task: str, done: int, total: int) -> None:
        calls.append([piece.stat().st_mtime_ns for piece in pieces])

    experiments.run(name, scale="tiny", data=DATA, out=tmp_path / "cut", progress=watch)
    assert calls
    assert all(times == before for times in calls)
    experiments.run(name, scale="tiny", data=DATA, out=tmp_path / "whole")
    assert (tmp_path / "cut" / f"{name}.json").read_bytes() == (tmp_path / "whole" / f"{name}.json").read_bytes()


def test_data_sets_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="cervical"):
        experiments.run("labels-fig3", scale="tiny", data=tmp_path)


LAYERS, ROWS, RUNS, STEPS, RATE = (7, 12, 12, 1), 60, 2, 15, 0.3


def _data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, LAYERS[0])), rng.integers(0, 2, ROWS)
    for array in (x, y):
        array.setflags(write=False)  # as a data set's
    return x, y


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    "max_grad_norm", [pytest.param(0.05, marks=pytest.mark.slow), 1.0, pytest.param(100.0, marks=pytest.mark.slow)]
)
def test_opacus_and_the_ensemble_train_the_same_networks(monkeypatch: pytest.MonkeyPatch, max_grad_norm: float) -> None:
    pytest.importorskip("opacus")
    from opacus.optimizers import optimizer as opacus_optimizer

    x, y = _data()
    settings: dict[str, Any] = {"noise_multiplier": 0.8, "max_grad_norm": max_grad_norm, "steps": STEPS}
    settings |= {"learning_rate": 0.5 / max_grad_norm, "sample_rate": RATE, "expected_batch_size": 18, "seed": 3}
    ensemble = flat.ensemble(LAYERS, "relu", clip_slack=1e-6, **settings)
    start = flat.ensemble(LAYERS, "relu", **{**settings, "steps": 0}).run(x, y, runs=RUNS).parameters
    noise = np.stack(
        [
            kernels.standard_normal((RUNS, start.shape[1]), seed=9, purpose=kernels.Stream.CLIP_NOISE, step=t)
            for t in range(STEPS)
        ],
        axis=1,
    ).astype(np.float32)
    ours = ensemble.run(x, y, runs=RUNS, per_run=dpsgd.PerRun(noise=noise)).parameters
    left = [noise.reshape(-1)]

    def given(std: float, reference: Any, **_: Any) -> Any:
        import torch

        flat = left[0][: reference.numel()]
        left[0] = left[0][reference.numel() :]
        return std * torch.as_tensor(flat.copy()).reshape(reference.shape)

    monkeypatch.setattr(opacus_optimizer, "_generate_noise", given)
    theirs = common.train_by_opacus(ensemble, x, y, initial=start)
    assert len(left[0]) == 0
    moved = np.abs(ours - start).max()
    assert moved > 0.1
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=2e-5 * moved)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_without_injection_runs_differ_and_repeat() -> None:
    pytest.importorskip("opacus")
    x, y = _data()
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "learning_rate": 0.1, "steps": 3}
    settings |= {"sample_rate": RATE, "expected_batch_size": 18, "seed": 3}
    ensemble = flat.ensemble(LAYERS, "relu", **settings)
    initial = flat.ensemble(LAYERS, "relu", **{**settings, "steps": 0, "seed": 0}).run(x, y, runs=1).parameters
    start = np.repeat(initial, 2, axis=0)
    first, again = (common.train_by_opacus(ensemble, x, y, initial=start) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(start[0], start[1])
    assert (first[0] != first[1]).mean() > 0.9


def test_without_opacus_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus", None)
    x, y = _data()
    ensemble = dpsgd.Ensemble(
        dpsgd.Network(LAYERS, "relu"), noise_multiplier=1, max_grad_norm=1, learning_rate=1, steps=1, seed=0
    )
    with pytest.raises(ImportError, match=r"`trainer='opacus'` needs Opacus: pip install 'leakcore\[opacus\]'"):
        common.train_by_opacus(ensemble, x, y, initial=np.zeros((1, 10)))


def test_the_trainer_is_checked_before_any_work() -> None:
    with pytest.raises(ValueError, match="`trainer` must be 'ensemble' for reconstruction-fig15, got 'opacus'"):
        experiments.run("reconstruction-fig15", trainer="opacus")
    with pytest.raises(ValueError, match="`trainer` must be 'ensemble' or 'opacus', got 'jax'"):
        experiments.run("labels-fig1", trainer="jax")
