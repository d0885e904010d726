"""What the Laplace mechanism costs a two-layer network: sensitivity and signal-to-noise ratio over m and d.

The lecture calls it impractical from an order with an open constant. Here each point has the derived bound, the largest
change that a set of candidates shows, and the gradient of a batch against the noise that each of the two implies.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np

from leakcore import bounds, kernels
from leakcore._base.process_wide import one_thread
from leakcore.experiments.driver.context import Context
from leakcore.experiments.driver.result import ExperimentResult, Panel, Series, Stated
from leakcore.experiments.driver.verdict import Check

if TYPE_CHECKING:
    import torch


EPSILON = 1.0
BATCH = 32
_FIXED_INPUTS = 20
_FIXED_NEURONS = 200
_SOURCE = "Lecture 13 (Lei 2024), Sections 4.2 and 4.3, eqs. 4.3 to 4.10"


def laplace(context: Context) -> ExperimentResult:
    """One sweep over m at fixed d and one over d at fixed m, each point for one random network."""
    neurons = context.pick(
        "neurons", tiny=(20, 200), quick=(20, 60, 200, 600, 2000), paper=(20, 60, 200, 600, 2000, 6000, 20_000)
    )
    inputs = context.pick("inputs", tiny=(5, 50), quick=(5, 20, 80, 300, 1000), paper=(5, 20, 80, 300, 1000, 3000))
    candidates = context.pick("candidates for the largest difference", tiny=6, quick=24, paper=100)
    sweeps = {"m": [(m, _FIXED_INPUTS) for m in neurons], "d": [(_FIXED_NEURONS, d) for d in inputs]}
    sizes = {f"point-{m}-{d}-{candidates}": (m, d) for m, d in sweeps["m"] + sweeps["d"]}
    jobs = {name: functools.partial(_point, context.seed, *size, candidates) for name, size in sizes.items()}
    points = {sizes[name]: point for name, point in context.finish("networks", jobs).items()}
    panels, stated = [], []
    for name, places in sweeps.items():
        x = np.array([place[0 if name == "m" else 1] for place in places], dtype=float)
        other = f"d = {_FIXED_INPUTS}" if name == "m" else f"m = {_FIXED_NEURONS}"
        label = "neurons m" if name == "m" else "inputs d"
        where = f"{name}, {other}"

        def column(key: str, places: list[tuple[int, int]] = places) -> np.ndarray:
            return np.array([points[place][key] for place in places])

        panels.append(
            Panel.of(
                (f"ℓ1-sensitivity, {other}", label, "Δ₁"),
                Series.of("derived bound", "bound", x, column("bound")),
                Series.of("printed order m√d", "baseline", x, column("printed")),
                Series.of("measured, worst of candidates", "attack", x, column("measured")),
                log="xy",
            )
        )
        panels.append(
            Panel.of(
                (f"signal to noise at ε = {EPSILON:g}, {BATCH} examples, {other}", label, "‖G‖₂ ÷ rms of the noise"),
                Series.of("ceiling for any data, derived noise", "orthogonal", x, column("ceiling")),
                Series.of("batch, derived noise", "attack-2", x, column("ratio")),
                Series.of("batch, noise of the measured Δ₁", "attack-3", x, column("hopeful")),
                log="xy",
            )
        )
        stated += [
            Stated(
                f"exponent of the bound in {where}, a_j = 1/m",
                "1" if name == "m" else "0.5",
                _slope(x, column("bound")),
                comment="(4.10) drops a_j and r; with a_j = 1/m the bound is O(m + √(md))",
            ),
            Stated(f"exponent of the measured sensitivity in {where}", "at most that", _slope(x, column("measured"))),
            Stated(
                f"exponent of the noise scale in {where}",
                "0.5 (d√m/ε²)" if name == "m" else "1 (d√m/ε²)",
                _slope(x, column("bound")),
                comment="E7: the printed magnitude does not follow from Δ = O(m√d); b = Δ/ε does",
            ),
            Stated(f"exponent of the signal-to-noise ratio in {where}", "not stated", _slope(x, column("ratio"))),
        ]
    ratios = np.array([p["ratio"] for p in points.values()])
    hopeful = np.array([p["hopeful"] for p in points.values()])
    # The gradient of a sum grows with its examples at the same rate as that of the batch; the noise does not.
    needed = BATCH / points[sweeps["m"][-1]]["ratio"]
    bounded = [p["measured"] <= p["bound"] for p in points.values()]
    is_bounded = all(bounded)
    beaten = sum(not p["printed_holds"] for p in points.values())
    held = "its right side is 0 there; the derived bound held in all"
    comment = held if is_bounded else "the derived bound was exceeded: an error"
    stated.append(Stated(f"(4.8) at r = 0: networks of {len(points)} where it fails", "0", beaten, comment=comment))
    return context.result(
        conclusion=("" if is_bounded else "The derived bound was exceeded: an error. ")
        + f"The gradient is {ratios.min():.2g} to {ratios.max():.2g} times as large as the noise, and at most "
        f"{hopeful.max():.2g} times with only as much noise as the measured sensitivity asks for. At m = "
        f"{sweeps['m'][-1][0]}, d = {_FIXED_INPUTS}, a gradient as large as the noise takes about {needed:,.0f} "
        "examples.",
        checks=[
            Check.of("the measured sensitivity is at most the derived bound", bounded),
            Check.of("the noise is larger than the gradient", ratios < 1),
            Check(says="the printed (4.8) holds", holds=len(points) - beaten, cases=len(points), about="size"),
        ],
        stated=stated,
        panels=panels,
        notes=(
            "inputs uniform on the unit sphere, y = ±1 at random, w_j ~ N(0, I); one network per point",
            "the bound holds over the draw of W with probability 0.999 at each point; neighbours differ in one example",
            "a measured sensitivity is a lower bound: noise may not rest on it, and no better bound saves more",
        ),
        data=("drawn: inputs uniform on the unit sphere, targets ±1",),
        settings={
            "epsilon": EPSILON,
            "batch": BATCH,
            "activation": "relu",
            "output_weights": "1/m",
            "candidates": candidates,
            "neurons": neurons,
            "inputs": inputs,
            "confidence": 0.999,
        },
        provenance=_SOURCE,
    )


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _point(*setting: int) -> dict[str, float]:
    import torch  # noqa: F401  # before the limit on its threads

    with one_thread():
        return _measure(*setting)


def _measure(seed: int, m: int, d: int, candidates: int) -> dict[str, float]:
    import torch

    from leakcore.leakage import l1_sensitivity

    rng = kernels.generator(seed, kernels.Stream.LECTURE_LAPLACE, row=m << 32 | d)
    w, a = rng.standard_normal((m, d)), np.full(m, 1.0 / m)
    bound = bounds.laplace.two_layer_random(m, d, adjacency="replace")
    model = _two_layers(w, a)

    def unit(count: int) -> np.ndarray:
        x = rng.standard_normal((count, d))
        return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))

    # Besides random inputs, the ones that drive the network most: the mean weight and the leading directions of W.
    driving = np.concatenate([w.mean(axis=0)[None], np.linalg.svd(w, full_matrices=False)[2][:2]])
    driving /= np.linalg.norm(driving, axis=1, keepdims=True)
    x = np.concatenate([unit(candidates), driving, -driving])
    inputs, targets = torch.from_numpy(np.concatenate([x, x])), torch.from_numpy(np.repeat([1.0, -1.0], len(x)))
    measured_sensitivity = l1_sensitivity(model, inputs, targets, loss=_square, adjacency="replace")
    inputs, targets = torch.from_numpy(unit(BATCH)), torch.from_numpy(rng.choice([-1.0, 1.0], BATCH))
    batch = l1_sensitivity(model, inputs, targets, loss=_square, adjacency="add-remove")
    root = math.sqrt(2.0 * bound.num_parameters)
    first, second = unit(2)
    fitted = float(a @ np.maximum(w @ first, 0.0))
    return {
        "bound": float(bound.value),
        "measured": float(measured_sensitivity.value),
        "printed": bound.printed["(4.10)"],
        "ratio": bound.signal_to_noise(EPSILON, gradient_norm=batch.gradient_norm),
        "hopeful": batch.gradient_norm * EPSILON / (float(measured_sensitivity.value) * root),
        "ceiling": bound.signal_to_noise_ceiling(EPSILON, num_examples=BATCH),
        "printed_holds": float(bounds.laplace.printed_change(w, a, (first, fitted), (second, -1.0)).holds),
    }


def _square(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return ((outputs - targets) ** 2).sum()


def _two_layers(w: np.ndarray, a: np.ndarray) -> torch.nn.Module:
    import torch

    class TwoLayers(torch.nn.Module):
        """Σ_j a_j relu(w_jᵀx)."""

        def __init__(self) -> None:
            super().__init__()
            self.hidden = torch.nn.Parameter(torch.from_numpy(w))
            self.output = torch.nn.Parameter(torch.from_numpy(a))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x @ self.hidden.T) @ self.output

    return TwoLayers()
