"""Figure 1: error of the model-based and of the gradient-based attack over ε."""

from __future__ import annotations

import numpy as np

from leakcore import attacks
from leakcore.experiments._context import Context
from leakcore.experiments._registry import Experiment
from leakcore.experiments._result import ExperimentResult, Panel, Series, Stated
from leakcore.experiments.reconstruction import _data, _games, _oblivious, _pair, _report


def run(experiment: Experiment, context: Context) -> ExperimentResult:
    """Mean squared error per pixel, beside the nearest neighbour's and a random guess's."""
    epsilons = context.pick(tiny=(100.0,), quick=(10.0, 1000.0), paper=(1.0, 10.0, 100.0, 1000.0, 10_000.0))
    targets = context.pick(tiny=2, quick=6, paper=1000)
    shadows = context.pick(tiny=32, quick=512, paper=40_000)
    stated, panels, splits, told = [], [], [], []
    for name, split, hidden, clip in _pair.settings(context):
        splits.append(split)
        found = _pair.attacked(context, split, hidden, clip, epsilons, targets)
        error = [float(f.error(split).mean()) for f in found]
        model = [
            _model_based(context, split, _pair.setting(e, hidden, clip), shadows, found[0].index, name)
            for e in epsilons
        ]
        near = float(attacks.nearest_neighbour_mse(split.images[:2000]).mean())
        x = np.array(epsilons)
        lines = (
            Series(name="nearest neighbour: near-perfect below", role="orthogonal", x=x, y=np.full(len(x), near)),
            Series(name="random guess: poor above", role="chance", x=x, y=np.full(len(x), attacks.UNIFORM_MSE)),
            Series(name="model-based attack", role="attack-2", x=x, y=np.array(model)),
            Series(name="gradient-based attack", role="attack", x=x, y=np.array(error)),
        )
        panels.append(
            Panel(title=name, x_label=_games.EPSILON, y_label="mean squared error per pixel", series=lines, log_x=True,
                  log_y=True, y_range=None)
        )  # fmt: skip
        for e, a, b in zip(epsilons, error, model, strict=True):
            stated.append(
                Stated(
                    what=f"{name}, ε = {e:g}: error, gradient-based",
                    paper="shown only",
                    ours=a,
                    comment=f"model-based {b:.4g}; nearest neighbour {near:.4g}; random guess 0.167",
                )
            )
        told.append(f"{name} at ε = {epsilons[-1]:g}: gradient-based {error[-1]:.4f}, model-based {model[-1]:.4f}")
    return _report.report(
        experiment, context, conclusion="Mean squared error, " + "; ".join(told) + ".", stated=stated, panels=panels,
        splits=splits, setting=_pair.setting(epsilons[-1], hidden, clip), runs=targets, shadow_models=shadows,
        optimiser=_oblivious.settings(context),
        notes=("the text runs 10⁶ steps of gradient descent and 40,000 shadow models",),
    )  # fmt: skip


def _model_based(
    context: Context, split: _data.Split, setting: _games.Setting, shadows: int, index: np.ndarray, name: str
) -> float:
    def measure() -> dict[str, float]:
        model = _games.ensemble(context, split, setting)
        rest = np.setdiff1d(np.arange(len(split.pool_labels)), index)
        chosen = rest[np.arange(shadows) % len(rest)]
        both = np.concatenate([chosen, index])
        parameters = attacks.shadow_models(
            model, split.known_features, split.known_labels, split.pool_features[both], split.pool_labels[both],
            progress=lambda done, total: context.progress(f"{name}, shadow models, ε = {setting.epsilon:g}", done,
            total),
        )  # fmt: skip
        network = attacks.reconstructor(
            parameters[:shadows],
            split.images[chosen],
            seed=context.seed,
            epochs=context.pick(tiny=1, quick=10, paper=50),
        )
        guess = network.reconstruct(parameters[shadows:])
        return {"error": float(attacks.mean_squared_error(guess, split.images[index]).mean())}

    return float(context.pieces.get_or_run(f"model-based-{name}-{setting.epsilon:g}", measure)["error"])
