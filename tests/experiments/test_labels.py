"""The label paper's experiments: what the attacker sees, the order of the tests, trends on a fixed model and batch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from leakcore import accounting, bounds, experiments, models
from leakcore._base.run_folder.partial_results import PartialResults
from leakcore.experiments.context import Context
from leakcore.experiments.labels import fig3, fig5, grid, network
from leakcore.experiments.labels import study as _study
from leakcore.numerics import gaussian_pair_epsilon

DATA = Path(os.environ.get("LEAKCORE_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
needs_data = pytest.mark.skipif(
    not ((DATA / "cervical").is_dir() and (DATA / "bank").is_dir()), reason="no folder of data sets"
)
TESTS = ("paper", "optimal", "likelihood-ratio")
SIGMAS = (0.3, 0.5, 1.0, 2.0, 4.0)


def _context(scale: str = "quick") -> Context:
    return Context(
        scale=scale, seed=0, data=DATA, pieces=PartialResults(None, ""), progress=lambda task, done, total: None
    )


@pytest.fixture(scope="module")
def initial() -> tuple[_study.LabelData, network.Observed]:
    """Cervical Cancer in 15 batches, seen through an untrained network."""
    study = _study.studies(_context())[0]
    return study, network.observe(_study.trained(_context(), study, None)[0], study.features)


def test_what_the_attacker_sees_is_the_gradient_that_torch_computes() -> None:
    rng = np.random.default_rng(0)
    module = models.mlp((5, network.HIDDEN, network.HIDDEN, 1), "relu").double()
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.from_numpy(rng.normal(size=tuple(p.shape)) / np.sqrt(p.shape[-1])))
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    x, labels = rng.normal(size=(2, 3, 5)), rng.integers(0, 2, (2, 3))
    observed = network.observe(flat, x)
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
        network.observe(np.zeros(3), x)


# The must-show table and trends, on a fixed model and batch


@needs_data
@pytest.mark.parametrize("scope", _study.SCOPES)
def test_paper_optimal_likelihood_ratio_and_replacement_are_in_order(initial, scope) -> None:
    study, observed = initial
    for sigma in SIGMAS:
        limits = [_study.label_bound(study, observed, observed.last, sigma, 1.0, scope, t) for t in TESTS]
        values = [f.largest for f in limits]
        upper = gaussian_pair_epsilon(2 / sigma, delta=_study.DELTA)
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
        for scope in _study.SCOPES:
            by_sigma = [np.max(_study.label_bound(study, observed, layer, s, 1.0, scope).value) for s in SIGMAS]
            assert (np.diff(by_sigma) < 0).all()
            norms = np.linalg.norm(layer, axis=-1) if scope == "layer" else observed.joint
            e = np.abs(observed.probs - study.labels)
            # Rows of zeros are not gradients: nothing clips them, and they give no bound.
            least = (np.minimum(e, 1 - e) * norms)[np.linalg.norm(layer, axis=-1) > 0].min()
            clips = np.concatenate([np.geomspace(0.01, 0.99, 4) * least, least * np.geomspace(2, 1e4, 8)])
            by_clip = np.array([_study.label_bound(study, observed, layer, 0.5, c, scope).largest for c in clips])
            assert (np.diff(by_clip) <= 1e-9 * by_clip[:-1]).all()
            np.testing.assert_allclose(by_clip[:4], by_clip[0], rtol=1e-9)
            assert by_clip[-1] < 0.5 * by_clip[0]


@needs_data
@pytest.mark.parametrize(("scope", "least"), [("layer", 2.0), ("joint", 5.0)])
def test_the_last_layer_leaks_more_than_the_second_last(initial, scope, least) -> None:
    study, _ = initial
    leak = _study.leak(_context(), study, _study.trained(_context(), study, None)[:1], 0.5, 1.0, scope)
    assert leak.last.shape == (1, 15)
    assert leak.second.shape == (1, 20, 15)
    assert least < leak.ratio < 50


@needs_data
def test_when_every_gradient_is_clipped_the_layers_leak_alike(initial) -> None:
    # Clipped to C under both labels, ‖C_r‖ drops out: what is left is geometry. The paper's orders of magnitude come
    # from gradients too small to be clipped, which drown in noise.
    study, _ = initial
    start = _study.trained(_context(), study, None)[:1]
    at = {c: _study.leak(_context(), study, start, 0.5, c, "layer").ratio for c in (1e-5, 1.0)}
    assert at[1e-5] < 2 < at[1.0]


@needs_data
def test_growth_with_the_number_of_batches_stays_below_both_extrapolations(initial) -> None:
    study, observed = initial
    values = np.asarray(_study.label_bound(study, observed, observed.last, 0.5, 1.0, "layer").value)
    growth = values.max() / values.mean()
    harmonic, log = (bounds.extrapolate_label_epsilon(1.0, 15, 50, rule=r).value for r in ("harmonic", "log"))
    assert 1.0 < growth < harmonic < log


# Where the text states neither noise nor clipping norm


@needs_data
def test_the_sweep_finds_the_noise_that_gives_a_printed_number() -> None:
    bank = _study.studies(_context())[1]
    cells, growths = [], []
    for sigma, scale in ((0.5, 0.66), (1.0, 0.066), (4.0, 1e-4)):
        for clip in (1.0, 10.0, 100.0):
            cells.append(grid.GridCell(sigma, clip, np.empty(0), np.ones(1), 0.0, np.full((1, 80), scale / clip)))
            growths.append(fig5._growth(cells[-1].batches, 4, 0))
    assert all(growth.factor == 1.0 for growth in growths)
    table = fig5._where_printed(bank, cells, growths)
    nowhere = ("4", "not in the sweep", "not in the sweep")
    assert [row[:3] for row in table.rows] == [("0.5", "20", "0.033"), ("1", "2", "0.033"), nowhere]
    low, high = map(int, fig5._epochs(bank, 0.3).split(" to "))
    ends = [accounting.epsilon(0.3, 1 / 80, 80 * n, delta=_study.DELTA).value for n in (low, high)]
    assert ends[0] < 282.24 <= ends[1]


def test_an_exponential_variable_is_found_to_be_one() -> None:
    quantiles = (np.arange(20_000) + 0.5) / 20_000
    assert fig3._fits(fig3._shape(-np.log1p(-quantiles))) == [True, True, True]
    assert fig3._fits(fig3._shape(quantiles)) == [False, False, False]


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
