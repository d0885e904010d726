"""Figure 1's model-based attack: who is a shadow, what is stored, and what the figure says of its errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from leakcore._base.run_folder.partial_results import PartialResults
from leakcore.experiments.context import Context
from leakcore.experiments.reconstruction import fig1
from leakcore.experiments.reconstruction.setting import both_image_sets, data, oblivious
from leakcore.experiments.reconstruction.setting.model_based import Errors, ModelBased


def _context(folder: Path | None = None) -> Context:
    return Context(
        scale="tiny", seed=0, data=None, pieces=PartialResults(folder, "bound to nothing"), progress=lambda *_: None
    )


def _split() -> data.Split:
    rows = np.random.default_rng(0).random((80, 12), np.float32)
    labels = np.arange(80) % 2
    return data.Split(rows[:20], labels[:20], rows[20:], labels[20:], 2, "made up", rows[20:], (3, 4))


def _attack(context: Context, split: data.Split) -> ModelBased:
    setting = both_image_sets.setting(100.0, (5,), 0.1, 0.1)
    return ModelBased(context, "made up", split, setting, oblivious.drawn_targets(context, split, 6), 1000)


def test_every_image_but_the_targets_is_a_shadow_once() -> None:
    split = _split()
    attack = _attack(_context(), split)
    assert len(set(attack.chosen)) == len(attack.chosen) == 60 - 6
    assert not set(attack.chosen) & set(attack.index)
    assert (oblivious.drawn_targets(attack.context, split, 3) == attack.index[:3]).all()


def test_stored_errors_are_the_errors_and_note_the_same_departures(tmp_path: Path) -> None:
    first = _context(tmp_path)
    fresh = _attack(first, _split()).errors(100.0)
    first.pieces.close()
    second = _context(tmp_path)
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
        "MNIST", _split(), (10.0, 1000.0), [np.array([0.2, 0.3]), np.array([gradient, gradient])], (10.0, 1000.0),
        [errors(0.07), errors(model)], errors(noiseless, float("nan")), 0.067, 500, 0.037, [0.04, 1.0],
    )  # fmt: skip


def test_the_text_follows_the_errors() -> None:
    ahead, behind = _curves(0.05, 0.01, 0.001), _curves(0.005, 0.05, 0.04)
    assert ahead.good == behind.good == [1000.0]
    assert ahead.last_published == pytest.approx(0.02)  # the perceptron, not the better network
    assert "ahead of the gradient-based one at 2 of 2 ε" in ahead.sentence
    assert "ahead of the gradient-based one at 1 of 2 ε" in behind.sentence
    assert "less the noise than 500 shadow models." in behind.sentence
    assert "less the noise" not in ahead.sentence
    assert "At ε = 10 the bound lets no attack name the target among the 60 images" in ahead.sentence
    assert _curves(0.05, 0.05, 0.001).good == []
    assert [row[0] for row in ahead.table().rows] == ["10", "1000", "no noise"]
    low, high = fig1._interval(np.array([1.0, 2.0, 3.0]))
    assert (low, high) == (0.0, pytest.approx(2 + 4.302653 / 3**0.5))
