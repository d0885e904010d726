"""The model-based attack (RecoNN) over ε: shadow models once, a reconstructor for each noise."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from leakcore import attacks, dpsgd
from leakcore._base.digest import digest
from leakcore._base.one_thread import one_thread
from leakcore.experiments.context import Context
from leakcore.experiments.reconstruction.setting import games
from leakcore.experiments.reconstruction.setting.data import Split

_TARGET_RUNS = 1_000_000
"""Number of the first target's run: no shadow model has it."""
_NETWORKS = ("mixed", "plain")
NOTE = (
    "the model-based attack trains its shadow models without noise, once for all ε. Its network then sees each of them "
    "with the mechanism's noise, N(0, (ησC√T/B)²) per parameter, afresh in every epoch. 'Mixed rows': it adds up the "
    "rows of the first layer's weights by numbers that it reads from the parameters, the same for all pixels. "
    "'Perceptron': it reads the parameters' principal components. The models under attack are trained with noise, step "
    "by step"
)


@dataclasses.dataclass(frozen=True)
class Errors:
    """Squared errors per pixel of each target, by network; and how the noise of the released parameters compares with
    ησC√T/B, NaN without noise."""

    mixed: np.ndarray
    plain: np.ndarray
    noise_ratio: float


@dataclasses.dataclass(frozen=True, eq=False)
class ModelBased:
    """The attack on one data set. setting: at any ε; index: the targets' rows of the pool; shadows: how many models,
    each of another image of the pool."""

    context: Context
    name: str
    split: Split
    setting: games.GameSetting
    index: np.ndarray
    shadows: int

    @functools.cached_property
    def chosen(self) -> np.ndarray:
        """The shadow models' rows of the pool: none is a target."""
        rest = np.setdiff1d(np.arange(len(self.split.pool_labels)), self.index)
        return rest[: self.shadows]

    def errors(self, epsilon: float | None) -> Errors:
        """At this ε, or without noise; stored as a piece."""
        # Here and not in the piece: a stored one notes no departures from the paper.
        self.context.departs("noise of shadow models", "in every step", "in the reconstructor's training")
        training = {network: self._training(network) for network in _NETWORKS}
        how = [dataclasses.asdict(self.setting), epsilon, self.index.tolist(), self.shadows, self.split.content]
        piece = self.context.pieces.get_or_run(
            f"model-based-{digest(*how)[:20]}", functools.partial(self._measure, epsilon, training)
        )
        return Errors(np.array(piece["mixed"]), np.array(piece["plain"]), float(piece["noise_ratio"]))

    @property
    def blind(self) -> float:
        """Error of the shadow images' mean: a guess without any release."""
        guess = np.broadcast_to(self.split.images[self.chosen].mean(axis=0), self.split.images[self.index].shape)
        return float(attacks.mean_squared_error(guess, self.split.images[self.index]).mean())

    def _measure(self, epsilon: float | None, training: dict[str, attacks.ReconstructorTraining]) -> dict[str, Any]:
        clean = self._released(0.0, self.index, _TARGET_RUNS, "targets without noise")
        spread, ratio, released = 0.0, float("nan"), clean
        if epsilon is not None:
            noisy = games.ensemble(self.context, self.split, dataclasses.replace(self.setting, epsilon=epsilon))
            rows = len(self.split.known_labels) + 1
            spread = (
                noisy.learning_rate * noisy.noise_multiplier * noisy.max_grad_norm * float(noisy.steps) ** 0.5 / rows
            )
            released = self._released(noisy.noise_multiplier, self.index, _TARGET_RUNS, f"targets, ε = {epsilon:g}")
            ratio = float(np.std(released.astype(np.float64) - clean)) / spread
        out: dict[str, Any] = {"noise_ratio": ratio}
        for network, plan in training.items():
            with one_thread():
                reader = attacks.reconstructor(
                    self._shadows, self.split.images[self.chosen], training=dataclasses.replace(plan, noise=spread),
                    seed=self.context.seed,
                    progress=lambda done, total, what=network: self.context.progress(  # type: ignore[misc]
                        f"{self.name}, reconstructor ({what}), ε = {epsilon}", done, total
                    ),
                )  # fmt: skip
            error = attacks.mean_squared_error(reader.reconstruct(released), self.split.images[self.index])
            out[network] = error.tolist()
        return out

    @functools.cached_property
    def _shadows(self) -> np.ndarray:
        return self._released(0.0, self.chosen, 0, "shadow models")

    def _released(self, noise_multiplier: float, rows: np.ndarray, first_run: int, task: str) -> np.ndarray:
        return attacks.shadow_models(
            games.ensemble(self.context, self.split, self.setting, noise_multiplier=noise_multiplier),
            self.split.known_features, self.split.known_labels, self.split.pool_features[rows],
            self.split.pool_labels[rows], first_run=first_run,
            execution=dpsgd.Execution(
                executor=self.context.executor,
                progress=lambda done, total: self.context.progress(f"{self.name}, {task}", done, total),
            ),
        )  # fmt: skip

    def _training(self, network: str) -> attacks.ReconstructorTraining:
        pick = self.context.pick
        components = pick(tiny=8, quick=200, paper=400)
        epochs = pick(tiny=1, quick=30, paper=100)
        self.context.departs("what the reconstructor reads", "every parameter", f"{components} principal components")
        if network == "mixed":
            first = (*self.setting.hidden, self.split.classes)[0], self.split.known_features.shape[1]
            width = pick(tiny=16, quick=128, paper=512)
            return attacks.ReconstructorTraining(
                hidden=(width,), epochs=epochs, batch_size=64, learning_rate=2e-3, components=components,
                first_layer=first,
            )  # fmt: skip
        width = pick("width of the reconstructor, perceptron", tiny=16, quick=256, paper=1000)
        return attacks.ReconstructorTraining(hidden=(width, width), epochs=epochs, components=components)
