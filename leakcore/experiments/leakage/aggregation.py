"""Figure 9: what is left of a target's information in the mean with n other gradients."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from leakcore import kernels, leakage
from leakcore.attacks import attributes as attack
from leakcore.experiments.driver.context import Context
from leakcore.experiments.driver.result import ExperimentResult, Panel, Stated
from leakcore.experiments.driver.verdict import Check
from leakcore.experiments.leakage import common

_SAID = {("original", 10): "very difficult", ("latent", 30): "hard", ("latent", 50): "hard"}


class AmongOthers(torch.nn.Module):
    """The model on a batch in which only the first sample varies."""

    others: torch.Tensor

    def __init__(self, model: torch.nn.Module, others: torch.Tensor) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("others", others)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(1, ...) → (1 + others, classes)."""
        out: torch.Tensor = self.model(torch.cat([x, self.others]))
        return out


def fig9(context: Context) -> ExperimentResult:
    """LeNet: sensitivity of the batch's mean gradient, inversion of it, and an attribute of the target in it."""
    study = common.images(context)
    numbers = context.pick(
        "other rows for each image", tiny=(0, 3), quick=(0, 1, 3, 10, 30, 50), paper=(0, 1, 3, 10, 20, 30, 40, 50)
    )
    count = context.pick("images", tiny=2, quick=6, paper=40)
    rows = context.pick("rows", tiny=15, quick=200, paper=600)
    (model,) = common.trained(context, study, "lenet", [context.pick("epochs of training", tiny=0, quick=1, paper=10)])
    x, y = common.sample(study, count, context.seed)
    rng = kernels.generator(context.seed, kernels.Stream.FIGURE9_OTHERS)
    target = _Target(context, model, study, x, y)
    moved = np.array([target.sensitivity(n, rng) for n in numbers])
    inverted, latent = [], []
    for k, n in enumerate(numbers):
        inverted.append(target.inversion(n, rng))
        latent.append(target.latent(n, rows, rng))
        context.progress("aggregation", k + 1, len(numbers))
    original = np.array([f.above_null[0] for f in inverted])
    # The layer that shows most of a gradient alone: the largest of all layers at each n would rise above 0 by itself.
    layer = int(np.argmax(np.asarray(latent[0].above_null)))
    best, value, chance = (
        np.array([float(np.asarray(getattr(f, name))[layer]) for f in latent])
        for name in ("above_null", "value", "null_mean")
    )
    at = 1 + np.array(numbers)
    share = moved.mean(1) / moved[0].mean()
    intervals = [f.interval for f in inverted if f.interval is not None]
    low, high = ([np.ravel(i[side])[0] for i in intervals] for side in (0, 1))
    null = np.array([f.null[0] for f in inverted])

    def nearest(n: int) -> int:
        return int(np.argmin(np.abs(np.array(numbers) - n)))

    exactly = f"its share in the mean is exactly 1/{at[nearest(30)]} = {1 / at[nearest(30)]:.4f}"
    stated = [
        Stated("sensitivity at 30×, of that alone", "near zero", float(share[nearest(30)]), comment=exactly),
        *(
            Stated(
                f"{kind} V-information at {n}×, above its null",
                _SAID.get((kind, n), "–"),
                float(values[nearest(n)]),
                comment=f"{which}; alone: {values[0]:.3f}",
            )
            for kind, values, which in (
                ("original", original, "first pair"),
                ("latent", best, "brightness, the layer that shows most alone"),
            )
            for n in (10, 30, 50)
        ),
    ]
    exact = float(np.abs(share * at - 1).max())
    gone = original[nearest(10)] < 0.3 * max(original[0], 1e-9), best[nearest(50)] < 0.3 * max(best[0], 1e-9)
    result = context.result(
        stated=stated,
        panels=[
            Panel.of(
                ("sensitivity, first layer", "gradients in the mean", "relative to the target alone"),
                common.curve("1/(n + 1)", "bound", 1 / at, x=at),
                common.curve("sensitivity", "attack", share, x=at),
                log="xy",
            ),
            Panel.of(
                ("original, first pair of layers", "gradients in the mean", "score"),
                common.curve("V-information", "attack-2", [f.raw[0] for f in inverted], low, high, x=at),
                common.curve("null", "baseline", null, x=at),
                log="x",
            ),
            Panel.of(
                ("latent: brightness of the target", "gradients in the mean", "V-information, nats"),
                common.curve("V-information", "attack-2", value, x=at),
                common.curve("null", "baseline", chance, x=at),
                log="x",
            ),
        ],
        checks=[
            Check.of("sensitivity falls to 1/(n + 1), within 1%", [exact < 0.01]),
            Check.size("with 10 others less than 0.3 of the inversion's score is left", [gone[0]]),
            Check.size("with 50 others less than 0.3 of the latent information is left", [gone[1]]),
        ],
        conclusion=f"With 10 others the inversion's score above its null is {original[nearest(10)]:.2f} instead of "
        f"{original[0]:.2f}; with 50, latent V-information falls from {best[0]:.3f} nats to {best[nearest(50)]:.3f}. "
        f"The largest relative deviation from 1/(n + 1) is {exact:.1g}.",
        notes=("others drawn at random from the same data; the inversion knows the target's label and not the others",),
    )
    return common.report(result, data=[study.described], images=count, rows=rows)


def _others(study: common.LayerData, n: int, rng: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(rng.choice(len(study.inputs), n, replace=False))


@dataclasses.dataclass(frozen=True, eq=False)
class _Target:
    """The targets, whose gradient is released in a mean with others: images x with labels y."""

    context: Context
    model: torch.nn.Module
    study: common.LayerData
    x: torch.Tensor
    y: torch.Tensor

    def sensitivity(self, n: int, rng: np.random.Generator) -> list[float]:
        """First layer's F-norm of the mean's derivative along the target; the share is exact, so few images do."""
        rows = _others(self.study, n, rng)
        labels = self.study.targets[rows]

        def loss(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(outputs, torch.cat([target, labels]))

        sensitivities = leakage.sensitivity(
            AmongOthers(self.model, self.study.inputs[rows]),
            self.x[:2],
            self.y[:2],
            loss=loss,
            norms="F",
            budget=leakage.JacobianBudget(probes=4),
            seed=self.context.seed,
        )
        return [float(v) for v in sensitivities.per_sample["F"][:, 0]]

    def inversion(self, n: int, rng: np.random.Generator) -> leakage.OriginalInformation:
        """Inversion of the first pair of layers, with its gradient in a mean with n others."""
        pair = tuple(attack.layer_gradients(self.model, self.x[:1], self.y[:1]))[:2]
        rows = np.array([rng.choice(len(self.study.inputs), max(n, 1), replace=False) for _ in range(len(self.x))])
        others = attack.layer_gradients(self.model, self.study.inputs, self.study.targets, batches=rows, layers=pair)
        mean = torch.from_numpy(np.concatenate([others[name] for name in pair], axis=1))
        steps = self.context.pick("iterations of inversion", tiny=3, quick=80, paper=1000)
        mixed = {"pairs": [pair], "released": lambda g, _: (g + n * mean) / (n + 1)}
        return common.inverted(self.context, self.model, self.x, self.y, steps, **mixed)

    def latent(self, n: int, rows: int, rng: np.random.Generator) -> leakage.VInformation:
        """V-information about brightness, with each gradient in a mean with n others."""
        alone = common.sets(self.model, self.study, "brightness", rows=rows, seed=self.context.seed, columns=1000)
        pool = list(alone.gradients)
        mixed = {}
        # The others come from the same gradients: as many with the attribute as without, never the target itself.
        picks = np.array([rng.choice(len(alone.attribute) - 1, max(n, 1)) for _ in alone.attribute])
        picks += picks >= np.arange(len(picks))[:, None]
        for name in pool:
            g = alone.gradients[name]
            mixed[name] = g if n == 0 else np.stack([(g[i] + g[picks[i, :n]].sum(0)) / (n + 1) for i in range(len(g))])
        return alone.latent(self.context, self.context.pick("permutations", tiny=1, quick=3, paper=20), gradients=mixed)
