"""What the label paper's figures share: its data sets, its network, training, and what a bound says of every batch."""

from __future__ import annotations

import base64
import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from scipy import special

from leakcore import accounting, bounds, datasets, dpsgd, kernels, models
from leakcore._base.digest import digest
from leakcore._base.process_wide import one_thread, quiet
from leakcore.dpsgd import Ensemble, Streams
from leakcore.experiments.driver.context import Context
from leakcore.experiments.driver.result import ExperimentResult, Series, Stated

HIDDEN = 200
"""Neurons in each of the two hidden ReLU layers."""


@dataclasses.dataclass(frozen=True, eq=False)
class Observed:
    """A network of two hidden ReLU layers and one logit Z, on batches of N samples; float64.

    probs: (batches, N), sigmoid(Z). last: (batches, N, HIDDEN), inputs of the last layer, which are dZ/dW for it.
    before: (batches, N, HIDDEN), inputs of the second last layer; slopes: its ReLUs' derivatives, 0 or 1. top:
    (HIDDEN,), weights of the last layer. joint: (batches, N), ‖dZ/dθ‖ over all weights and biases.
    """

    probs: np.ndarray
    last: np.ndarray
    before: np.ndarray
    slopes: np.ndarray
    top: np.ndarray
    joint: np.ndarray

    def second_last(self, neurons: Sequence[int] | np.ndarray) -> np.ndarray:
        """(neurons, batches, N, HIDDEN): dZ/dW for the weights into each of these neurons of the last hidden layer.

        Yuan et al. (2022), Equation 4: W_J^L·X^{L−1}[r]·U[r].
        """
        weight = np.moveaxis(self.slopes[..., neurons] * self.top[neurons], -1, 0)
        return np.asarray(weight[..., None] * self.before)

    def grad_norms(self, labels: np.ndarray) -> np.ndarray:
        """(batches, 2, N): joint norms of each sample's gradient under its own and the flipped label."""
        e = np.abs(self.probs - labels)
        return np.stack([e * self.joint, (1.0 - e) * self.joint], axis=-2)


def observe(parameters: np.ndarray, features: np.ndarray) -> Observed:
    """Run `models.mlp((inputs, HIDDEN, HIDDEN, 1))`, from its flat parameter vector, on (batches, N, inputs)."""
    sizes = (features.shape[-1], HIDDEN, HIDDEN, 1)
    (w1, b1), (w2, b2), (w3, b3) = _layers(np.asarray(parameters, dtype=np.float64), sizes)
    x = np.asarray(features, dtype=np.float64)
    z1 = x @ w1.T + b1
    before = np.maximum(z1, 0.0)
    z2 = before @ w2.T + b2
    last = np.maximum(z2, 0.0)
    slopes = (z2 > 0).astype(np.float64)
    second = slopes * w3[0]
    first = (second @ w2) * (z1 > 0)
    # ‖dZ/dθ‖² = Σ_layers (‖a‖² + 1)·‖δ‖² (Goodfellow 2015), the 1 for the bias.
    squares = [
        (np.square(a).sum(axis=-1) + 1.0) * (1.0 if d is None else np.square(d).sum(axis=-1))
        for a, d in ((x, first), (before, second), (last, None))
    ]
    return Observed(
        probs=special.expit((last @ w3.T + b3)[..., 0]),
        last=last,
        before=before,
        slopes=slopes,
        top=w3[0],
        joint=np.sqrt(sum(squares)),
    )


def _layers(flat: np.ndarray, sizes: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    pairs = list(itertools.pairwise(sizes))
    wanted = sum((fan_in + 1) * fan_out for fan_in, fan_out in pairs)
    if flat.shape != (wanted,):
        raise ValueError(f"`parameters` must have shape ({wanted},) for layers {tuple(sizes)}, got {flat.shape}")
    out, at = [], 0
    for fan_in, fan_out in pairs:
        weight = flat[at : at + fan_in * fan_out].reshape(fan_out, fan_in)
        at += fan_in * fan_out
        out.append((weight, flat[at : at + fan_out]))
        at += fan_out
    return out


OPACUS = "models are trained by Opacus (GradSampleModule and DPOptimizer), on the batches that dpsgd.Ensemble draws"


def train_by_opacus(
    ensemble: Ensemble,
    features: np.ndarray,
    labels: np.ndarray,
    *,
    initial: np.ndarray,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> np.ndarray:
    """(runs, parameters) float32 of the ensemble's networks after DP-SGD from `initial` (runs, parameters).

    ensemble: how to train: ReLU networks with one logit, Poisson batches, no fault of its own. Batches are a function
    of (seed, run, step), the same as the ensemble's; noise comes from a torch generator per run. Raises ImportError
    where Opacus is not installed.
    """
    import torch

    # Opacus's own code on the newest torch; and its hooks, whose input is data and needs no gradient.
    with quiet(category=DeprecationWarning), quiet(category=FutureWarning), quiet("Full backward hook is firing"):
        try:
            from opacus import GradSampleModule
            from opacus.optimizers import DPOptimizer
        except ImportError as error:
            raise ImportError("`trainer='opacus'` needs Opacus: pip install 'leakcore[opacus]'") from error
        # Copies: torch warns of arrays that may not be written, and the parameters become views of theirs.
        x, y = (torch.from_numpy(np.array(a, dtype=np.float32)) for a in (features, labels))
        out = np.empty((len(initial), models.num_parameters(ensemble.layers)), dtype=np.float32)
        for run, start in enumerate(initial):
            plain = models.mlp(ensemble.layers, "relu")
            flat = torch.from_numpy(np.array(start, dtype=np.float32))
            torch.nn.utils.vector_to_parameters(flat, plain.parameters())
            module = GradSampleModule(plain, loss_reduction="sum")
            optimizer = DPOptimizer(
                torch.optim.SGD(module.parameters(), lr=ensemble.learning_rate),
                noise_multiplier=ensemble.noise_multiplier,
                max_grad_norm=ensemble.max_grad_norm,
                expected_batch_size=ensemble.expected_batch_size,
                loss_reduction="mean",
                generator=kernels.torch_generator(ensemble.seed, kernels.Stream.OPACUS_NOISE, row=run),
            )
            for step in range(ensemble.steps):
                rows = torch.as_tensor(_batch(ensemble, len(x), run=run, step=step))
                optimizer.zero_grad()
                logits = module(x[rows])[:, 0]
                loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, y[rows], reduction="sum")
                torch.autograd.backward(loss)
                optimizer.step()
            out[run] = torch.cat([p.detach().flatten() for p in plain.parameters()]).numpy()
            progress(run + 1, len(initial))
    return out


def _batch(ensemble: Ensemble, rows: int, *, run: int, step: int) -> np.ndarray:
    streams = Streams(ensemble.seed, "float32")
    return np.flatnonzero(streams.batch(1, rows, ensemble.sample_rate, step, first_run=run)[0])


K = TypeVar("K", bound=Hashable)

SOURCE = "Yuan, Xue, Wang and Shen, Deep Gradient Attacks with Strong DP-SGD Lower Bounds for Label Privacy, 2022"
BATCH = 50
DELTA = 1e-5
STEP = 0.1
"""Learning rate × clipping norm: with it fixed the noise of a step in the weights is the same for every C."""
TRAINED = {
    "ensemble": "models are trained by dpsgd.Ensemble: Opacus's DP-SGD (Poisson batches of 50 expected, divided by "
    f"50, flat clipping with its 1e-6), without Opacus; learning rate × C = {STEP:g}",
    "opacus": f"{OPACUS}; Poisson batches of 50 expected, divided by 50; learning rate × C = {STEP:g}",
}
SCOPES = ("layer", "joint")
"""Clipped by the released weight vector's own gradient, as the paper's algorithm does, or by the joint norm of all."""


@dataclasses.dataclass(frozen=True, eq=False)
class LabelData:
    """A data set cut into batches of 50, on which the network is trained and which the attacker sees one by one.

    name; features (batches, 50, inputs), labels (batches, 50); epochs of training; described: the data, in words.
    """

    name: str
    features: np.ndarray
    labels: np.ndarray
    epochs: int
    described: str

    @property
    def title(self) -> str:
        return TITLES[self.name]

    @property
    def batches(self) -> int:
        return len(self.labels)

    @property
    def steps(self) -> int:
        return self.epochs * self.batches

    @functools.cached_property
    def content(self) -> str:
        """A digest of all rows: a stored piece serves only the data that it was computed from."""
        return digest(self.features, self.labels)[:20]

    def epsilon(self, noise_multiplier: float) -> float:
        """The accountant's ε of the training, add/remove."""
        return float(accounting.epsilon(noise_multiplier, 1 / self.batches, self.steps, delta=DELTA).value)


def studies(context: Context) -> list[LabelData]:
    """Cervical Cancer, 15 batches, and Bank Marketing, 80 batches: the paper's numbers of them."""
    cancer = datasets.cervical_cancer(path=context.data, download=False)
    bank = datasets.bank_marketing(path=context.data, download=False)
    counts = context.pick(tiny=(2, 3), quick=(15, 80), paper=(15, 80))
    of_cancer = context.pick("epochs, Cervical Cancer", tiny=1, quick=10, paper=20)
    of_bank = context.pick("epochs, Bank Marketing", tiny=1, quick=2, paper=10)
    return [_cut(context, "cancer", cancer, counts[0], of_cancer), _cut(context, "bank", bank, counts[1], of_bank)]


def _cut(context: Context, name: str, data: datasets.Dataset, batches: int, epochs: int) -> LabelData:
    rows, _ = data.split(batches * BATCH, seed=context.seed)
    return LabelData(
        name=name,
        features=rows.features.reshape(batches, BATCH, -1),
        labels=rows.labels.reshape(batches, BATCH),
        epochs=epochs,
        described=f"{data.name}: {len(rows):,} of {len(data):,} rows in {batches} batches of {BATCH} "
        f"({rows.labels.mean():.1%} positive), {data.features.shape[1]} features; {data.scaling}; {data.source}",
    )


def runs(context: Context) -> int:
    """Networks per setting, each with its own initial weights, batches and noise."""
    return context.pick("networks of each setting", tiny=1, quick=3, paper=10)


def neurons(context: Context) -> np.ndarray:
    """The neurons J of the last hidden layer whose incoming weights are attacked."""
    return np.arange(0, HIDDEN, context.pick("every how many neurons are attacked", tiny=50, quick=10, paper=1))


def trained(
    context: Context, study: LabelData, noise_multiplier: float | None, max_grad_norm: float = 1.0
) -> np.ndarray:
    """(runs, parameters) float32 after DP-SGD; noise_multiplier None: the initial ones, the same for every setting."""
    if noise_multiplier is None:
        return _ensemble(context, study, 0.0, 1.0, steps=0).run(*_rows(study), runs=runs(context)).parameters
    return all_trained(context, study, [(noise_multiplier, max_grad_norm)])[noise_multiplier, max_grad_norm]


def all_trained(
    context: Context, study: LabelData, settings: Sequence[tuple[float, float]]
) -> dict[tuple[float, float], np.ndarray]:
    """`trained` at every (noise multiplier, clipping norm), each of them a piece."""
    names = {f"network-{sigma!r}-{clip!r}-{study.content}": (sigma, clip) for sigma, clip in settings}
    task = f"{study.name}: train"
    jobs: dict[str, Callable[[], dict[str, Any]]] = {}
    initial = trained(context, study, None) if context.trainer == "opacus" else None
    for name, (sigma, clip) in names.items():
        ensemble = _ensemble(context, study, sigma, clip, steps=study.steps)
        jobs[name] = functools.partial(_train, ensemble, *_rows(study), runs(context), initial)
    context.progress(task, 0, len(jobs))
    flat = {
        name: np.frombuffer(base64.b64decode(piece["parameters"]), "<f4")
        for name, piece in context.finish(task, jobs).items()
    }
    return {setting: flat[name].reshape(runs(context), -1) for name, setting in names.items()}


def _ensemble(context: Context, study: LabelData, sigma: float, clip: float, *, steps: int) -> dpsgd.Ensemble:
    return dpsgd.Ensemble(
        dpsgd.Network((study.features.shape[-1], HIDDEN, HIDDEN, 1), "relu"),
        noise_multiplier=sigma,
        max_grad_norm=clip,
        learning_rate=STEP / clip,
        steps=steps,
        sample_rate=dpsgd.PoissonBatches(1 / study.batches, expected_batch_size=BATCH),
        fault=dpsgd.Fault(clip_slack=1e-6),
        seed=context.seed,
    )


def _rows(study: LabelData) -> tuple[np.ndarray, np.ndarray]:
    return study.features.reshape(-1, study.features.shape[-1]), study.labels.reshape(-1)


def _train(
    ensemble: dpsgd.Ensemble, x: np.ndarray, y: np.ndarray, runs: int, initial: np.ndarray | None
) -> dict[str, Any]:
    """initial: for Opacus; None for the ensemble."""
    if initial is None:
        parameters = ensemble.run(x, y, runs=runs).parameters
    else:
        import torch  # noqa: F401  # before the limit on its threads

        with one_thread():
            parameters = train_by_opacus(ensemble, x, y, initial=initial)
    return {"parameters": base64.b64encode(parameters.astype("<f4").tobytes()).decode()}


@dataclasses.dataclass(frozen=True, eq=False)
class Leak:
    """The bound of each batch, by layer: last (runs, batches), second (runs, neurons, batches)."""

    last: np.ndarray
    second: np.ndarray

    @property
    def second_median(self) -> np.ndarray:
        """(runs, batches): the median over neurons."""
        return np.asarray(np.median(self.second, axis=1))

    @property
    def ratio(self) -> float:
        """Mean bound of a batch, last layer over second last (median over its neurons)."""
        second = float(np.median(self.second.mean(axis=(0, 2))))
        return float(self.last.mean()) / second if second > 0 else float("inf")


def all_leaks(
    context: Context, study: LabelData, asked: Mapping[K, tuple[np.ndarray, float, float, str]]
) -> dict[K, Leak]:
    """The paper's test on both layers, batch by batch, for every (networks, noise multiplier, clipping norm, scope)."""
    names, jobs = {}, {}
    for key, (networks, sigma, clip, scope) in asked.items():
        name = names[key] = f"leak-{sigma!r}-{clip!r}-{scope}-{digest(networks)[:20]}-{study.content}"
        jobs[name] = functools.partial(_leak, study, neurons(context), networks, sigma, clip, scope)
    pieces = context.finish(f"{study.name}: bounds", jobs)
    return {key: Leak(np.array(pieces[name]["last"]), np.array(pieces[name]["second"])) for key, name in names.items()}


def _leak(study: LabelData, neurons: np.ndarray, networks: np.ndarray, *how: Any) -> dict[str, Any]:
    """how: as `label_bound` has it."""
    last, second = [], []
    # A few neurons at a time: their Jacobians take 80 kB per neuron and batch.
    parts = np.array_split(neurons, max(1, len(neurons) * study.batches // 800))
    for parameters in networks:
        with one_thread():
            observed = observe(parameters, study.features)
        last.append(label_bound(study, observed, observed.last, *how).value)
        seconds = [label_bound(study, observed, observed.second_last(p), *how).value for p in parts]
        second.append(np.concatenate(seconds))
    return {"last": np.array(last).tolist(), "second": np.array(second).tolist()}


def label_bound(
    study: LabelData,
    observed: Observed,
    jacobian: np.ndarray,
    noise_multiplier: float,
    max_grad_norm: float,
    scope: str,
    test: str = "paper",
) -> bounds.LabelEpsilon:
    """`bounds.label_epsilon` of every batch (and neuron) at δ = 1e-5."""
    return bounds.label_epsilon(
        jacobian,
        observed.probs,
        study.labels,
        noise_multiplier=noise_multiplier,
        max_grad_norm=max_grad_norm,
        delta=DELTA,
        grad_norms=observed.grad_norms(study.labels) if scope == "joint" else None,
        test=test,
    )


_ADJACENCY = (
    "label-ε is of one step under replacement of a label, membership in the batch known; the accountant's ε is of the "
    "whole training under add/remove, so the two are drawn and never compared"
)
NOT_COMPARED = "not compared: another adjacency, and all steps"
TITLES = {"cancer": "Cervical Cancer", "bank": "Bank Marketing"}


def report(
    context: Context, result: ExperimentResult, *, studies: list[LabelData], **settings: Any
) -> ExperimentResult:
    """The result with the notes and settings that all of them share."""
    return dataclasses.replace(
        result,
        notes=(*result.notes, TRAINED[context.trainer], _ADJACENCY),
        data=tuple(dict.fromkeys(s.described for s in studies)),
        settings={
            "hidden": HIDDEN,
            "batch_size": BATCH,
            "delta": DELTA,
            "networks": runs(context),
            "trainer": context.trainer,
            "neurons": len(neurons(context)),
            "epochs": {s.name: s.epochs for s in studies},
            **settings,
        },
        provenance=SOURCE,
    )


def points(name: str, role: str, x: Any, values: list[np.ndarray]) -> Series:
    """Means with the 5th to 95th percentile of all networks and batches."""
    low, high = np.array([np.percentile(v, (5, 95)) for v in values]).T
    return Series.of(name, role, x, [v.mean() for v in values], low=low, high=high)


def spent(what: str, study: LabelData, sigma: float, printed: str, comment: str) -> Stated:
    """The accountant's ε of the whole training, next to the paper's."""
    what = f"{what}: accountant's ε, add/remove, {study.steps} steps"
    return Stated(what, printed, study.epsilon(sigma), kind="upper", comment=comment)


def accountant(data: LabelData, x: Any, sigmas: Any) -> Series:
    """The accountant's ε of the whole training, which the paper draws above its bounds."""
    return Series.of("accountant's ε, all steps, add/remove", "accountant", x, [data.epsilon(float(s)) for s in sigmas])


def steps(name: str, role: str, edges: np.ndarray, heights: np.ndarray) -> Series:
    """A histogram's outline."""
    return Series.of(name, role, np.repeat(edges, 2), np.concatenate([[0.0], np.repeat(heights, 2), [0.0]]))
