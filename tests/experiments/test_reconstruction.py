"""The reconstruction paper's parts: data, games, learning rates, the model-based attack."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from leakcore import bounds, models
from leakcore.experiments.driver.context import Context
from leakcore.experiments.reconstruction import best_rate, data, fig1, games, pictures
from leakcore.experiments.reconstruction.fig1 import Errors, ModelBased
from tests.datasets.archives import archive, put
from tests.experiments.contexts import context


@pytest.fixture(scope="module")
def split() -> data.Split:
    rows = np.random.default_rng(0).random((120, 12), np.float32)
    labels = np.arange(120) % 2
    return data.Split(rows[:20], labels[:20], rows[20:], labels[20:], 2, "made up", rows[20:], (3, 4))


@pytest.fixture(scope="module")
def cell(split: data.Split) -> best_rate.Cell:
    return best_rate.play(
        context(),
        split,
        games.GameSetting(epsilon=40.0, hidden=(), steps=5, max_grad_norm=1.0, step=2.0),
        runs=64,
        methods=("sum", "likelihood"),
        by="sum",
        sweep_runs=(32, 64),
        name="made up",
    )


def test_no_reported_run_chose_the_rate(cell: best_rate.Cell) -> None:
    for game in (*cell.before.values(), *cell.after.values()):
        assert game.run_ranges == ((0, 64),)
        assert game.run_ranges[0][1] <= best_rate._FIRST_RUN
    assert {t.learning_rate for t in cell.tried} == {0.1, 10.0}
    assert all(t.runs == 96 for t in cell.tried)  # both are finalists
    assert cell.rates[1] == best_rate.best(cell.tried).learning_rate


def test_the_games_are_played_at_the_rates_that_are_said(cell: best_rate.Cell, split: data.Split) -> None:
    assert cell.rates[0] == games.learning_rate(split, games.GameSetting(epsilon=1.0, max_grad_norm=1.0, step=2.0))
    assert cell.rates[0] == pytest.approx(2.0 * 21 / 1000)
    for rate, played in zip(cell.rates, (cell.before, cell.after), strict=True):
        assert played["sum"].settings["learning_rate"] == pytest.approx(rate)
    again = games.with_learning_rate(split, cell.setting, 0.7)
    assert games.learning_rate(split, again) == pytest.approx(0.7)


def test_the_gap_is_bound_minus_attack_in_two_parts(cell: best_rate.Cell) -> None:
    success = float(cell.after["sum"].value)
    assert sum(cell.parts("sum")) == pytest.approx(cell.bound - success)
    assert cell.ratios("sum")[1] == pytest.approx(success / cell.bound)
    table = best_rate._table([cell], {"sum": "plain", "likelihood": "likelihood"})
    assert [row[0] for row in table.rows] == ["made up, plain", "made up, likelihood"]
    assert f"→ {success:.3f} [" in table.rows[0][3]


def test_the_best_rate_is_the_largest_success_among_those_tried_most() -> None:
    few = best_rate.Tried(0.1, 10, 10)
    more = [
        best_rate.Tried(1.0, 30, 50),
        best_rate.Tried(3.0, 30, 50),
        best_rate.Tried(10.0, 20, 50),
        best_rate.Tried(30.0, -1, 50),
    ]
    assert best_rate.best([few, *more]).learning_rate == 3.0


def test_a_rate_at_which_runs_overflow_is_not_chosen(split: data.Split) -> None:
    setting = games.GameSetting(epsilon=40.0, hidden=(8,), steps=5, max_grad_norm=1.0)
    played = games.try_each(
        context(),
        split,
        [games.with_learning_rate(split, setting, rate) for rate in (0.1, 1e37)],
        num_candidates=10,
        runs=range(32),
        methods=("sum",),
        task="overflow",
    )
    assert played[0] is not None
    assert played[0]["sum"].trials == 32
    assert played[1] is None


def test_the_optimum_with_mini_batches_meets_that_of_full_ones_and_lies_below_the_bound() -> None:
    here = context()
    nearly = games.orthogonal(here, 5.0, 1 - 1e-9, 100, 10)
    assert nearly == pytest.approx(float(bounds.orthogonal_success(5.0, 100, 10).value), abs=0.005)
    assert games.orthogonal(here, 5.0, 1.0, 100, 10) == float(bounds.orthogonal_success(5.0, 100, 10).value)
    sampled = games.orthogonal(here, 0.8, 0.1, 20, 10)
    assert 0.1 < sampled < games.upper(0.8, 0.1, 20, 10)


def _split() -> data.Split:
    rows = np.random.default_rng(0).random((80, 12), np.float32)
    labels = np.arange(80) % 2
    return data.Split(rows[:20], labels[:20], rows[20:], labels[20:], 2, "made up", rows[20:], (3, 4))


def _attack(context: Context, split: data.Split) -> ModelBased:
    setting = pictures.fixed_start(100.0, (5,), 0.1, 0.1)
    return ModelBased(context, "made up", split, setting, pictures.drawn_targets(context, split, 6), 1000)


def test_every_image_but_the_targets_is_a_shadow_once() -> None:
    split = _split()
    attack = _attack(context(), split)
    assert len(set(attack.chosen)) == len(attack.chosen) == 60 - 6
    assert not set(attack.chosen) & set(attack.index)
    assert (pictures.drawn_targets(attack.context, split, 3) == attack.index[:3]).all()


def test_stored_errors_are_the_errors_and_note_the_same_departures(tmp_path: Path) -> None:
    first = context(folder=tmp_path)
    fresh = _attack(first, _split()).errors(100.0)
    first.pieces.close()
    second = context(folder=tmp_path)
    stored = _attack(second, _split()).errors(100.0)
    assert len(list(tmp_path.rglob("model-based-*.json"))) == 1
    for name in ("mixed", "plain"):
        np.testing.assert_array_equal(getattr(fresh, name), getattr(stored, name))
    assert fresh.noise_ratio == stored.noise_ratio == pytest.approx(1, abs=0.2)  # 6 models of 77 parameters
    assert first.departures == second.departures
    assert "noise of shadow models" in {d.what for d in first.departures.values()}


def _curves(gradient: float, model: float, noiseless: float) -> fig1._Curves:
    def errors(value: float, ratio: float = 1.0) -> Errors:
        each = np.array([value, value * 1.1, value * 0.9])
        return Errors(each, each + 0.01, ratio)

    return fig1._Curves(
        "MNIST",
        _split(),
        (10.0, 1000.0),
        [np.array([0.2, 0.3]), np.array([gradient, gradient])],
        (10.0, 1000.0),
        [errors(0.07), errors(model)],
        errors(noiseless, float("nan")),
        0.067,
        500,
        0.037,
        [0.04, 1.0],
    )


def test_the_text_follows_the_errors() -> None:
    ahead, behind = _curves(0.05, 0.01, 0.001), _curves(0.005, 0.05, 0.04)
    assert ahead.good == behind.good == [1000.0]
    assert ahead.last_published == pytest.approx(0.02)  # the perceptron, not the better network
    assert "ahead of the gradient-based one at 2 of 2 ε" in ahead.sentence
    assert "ahead of the gradient-based one at 1 of 2 ε" in behind.sentence
    assert _curves(0.05, 0.05, 0.001).good == []
    assert [row[0] for row in ahead.table().rows] == ["10", "1000", "no noise"]
    low, high = fig1._interval(np.array([1.0, 2.0, 3.0]))
    assert (low, high) == (0.0, pytest.approx(2 + 4.302653 / 3**0.5))


ROWS = 12


@pytest.fixture
def archives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Archives of the authors' form with a dozen images each."""
    rng = np.random.default_rng(0)
    ten = {f"data_batch_{i}.bin": rng.integers(0, 10, (ROWS, 3073), np.uint8) for i in range(1, 6)}
    hundred = {"train.bin": rng.integers(0, 20, (ROWS, 3074), np.uint8)}
    for name, members in (("cifar10", ten), ("cifar100", hundred)):
        whole = archive({member: records.tobytes() for member, records in members.items()})
        put(monkeypatch, tmp_path, (name, "all"), whole)
    monkeypatch.setenv("LEAKCORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LEAKCORE_DATA", raising=False)
    return tmp_path


def test_the_papers_scale_reads_ten_classes_as_features_of_the_wide_network(
    archives: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network is of the same kind and narrower: 36.5 million parameters would take hours here."""
    monkeypatch.setattr(models, "wrn_28_10", lambda classes: models.wide_resnet(10, 1, num_classes=classes))
    monkeypatch.setattr(Context, "pick", lambda self, what="", *, quick, paper, tiny=None: tiny or quick)
    split = data.cifar10(context("paper", data=archives), 20)
    assert split.classes == 10
    assert split.known_features.shape == (20, 64)
    assert split.pool_features.shape == (5 * ROWS - 20, 64)
    assert "all ten classes (60 training images" in split.described
    assert "WRN-28-10 that we trained on 12 images of CIFAR-100" in split.described
    assert "% of the others" in split.described


def test_without_the_archives_the_papers_scale_says_which_file_it_wants(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"(?s)cifar-10-binary\.tar\.gz.*cifar-10-python\.tar\.gz, is read as"):
        data.cifar10(context("paper", data=tmp_path), 20)


def test_a_linear_classifier_reads_what_is_there() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, 300)
    rows = np.eye(3)[labels] + 0.1 * rng.normal(size=(300, 3))
    order = rng.permutation(300)
    assert data._read_linearly(rows.astype(np.float32), labels, 3, order) > 0.99
    blind = data._read_linearly(rng.normal(size=(300, 3)).astype(np.float32), labels, 3, order)
    assert blind < 0.5  # chance: a third; P(Bin(150, 1/3) > 75) = 1e-5
