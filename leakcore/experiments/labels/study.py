"""The label paper's two data sets, its network trained on them, and what a bound says of every batch."""

from __future__ import annotations

import base64
import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from leakcore import accounting, bounds, datasets, dpsgd
from leakcore._base.digest import digest
from leakcore._base.one_thread import one_thread
from leakcore.experiments.context import Context
from leakcore.experiments.labels import opacus_training
from leakcore.experiments.labels.network import HIDDEN, Observed, observe

K = TypeVar("K", bound=Hashable)

SOURCE = "Yuan, Xue, Wang and Shen, Deep Gradient Attacks with Strong DP-SGD Lower Bounds for Label Privacy, 2022"
BATCH = 50
DELTA = 1e-5
STEP = 0.1
"""Learning rate × clipping norm: with it fixed the noise of a step in the weights is the same for every C."""
TRAINED = {
    "ensemble": "models are trained by dpsgd.Ensemble: Opacus's DP-SGD (Poisson batches of 50 expected, divided by "
    f"50, flat clipping with its 1e-6), without Opacus; learning rate × C = {STEP:g}",
    "opacus": f"{opacus_training.TRAINED}; Poisson batches of 50 expected, divided by 50; learning rate × C = {STEP:g}",
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
    tiny = context.scale == "tiny"
    return [
        _cut(
            context,
            "cancer",
            cancer,
            2 if tiny else 15,
            context.pick("epochs, Cervical Cancer", tiny=1, quick=10, paper=20),
        ),
        _cut(
            context, "bank", bank, 3 if tiny else 80, context.pick("epochs, Bank Marketing", tiny=1, quick=2, paper=10)
        ),
    ]


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
    for name, (sigma, clip) in names.items():
        ensemble = _ensemble(context, study, sigma, clip, steps=study.steps)
        if context.trainer == "opacus":
            initial = trained(context, study, None)
            jobs[name] = functools.partial(_by_opacus, ensemble, *_rows(study), initial=initial)
        else:
            jobs[name] = functools.partial(_by_ensemble, ensemble, *_rows(study), runs=runs(context))
    context.progress(task, 0, len(jobs))
    parameters = {}
    for name, piece in context.pieces.each(jobs, context.executor):
        flat = np.frombuffer(base64.b64decode(piece["parameters"]), "<f4")
        parameters[names[name]] = flat.reshape(runs(context), -1)
        context.progress(task, len(parameters), len(jobs))
    return parameters


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


def _by_ensemble(ensemble: dpsgd.Ensemble, x: np.ndarray, y: np.ndarray, *, runs: int) -> dict[str, Any]:
    return _kept(ensemble.run(x, y, runs=runs).parameters)


def _by_opacus(ensemble: dpsgd.Ensemble, x: np.ndarray, y: np.ndarray, *, initial: np.ndarray) -> dict[str, Any]:
    import torch  # noqa: F401  # before the limit on its threads

    with one_thread():
        return _kept(opacus_training.train(ensemble, x, y, initial=initial))


def _kept(parameters: np.ndarray) -> dict[str, Any]:
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


def leak(
    context: Context, study: LabelData, networks: np.ndarray, noise_multiplier: float, max_grad_norm: float, scope: str
) -> Leak:
    """The paper's test on both layers of every network, batch by batch."""
    return all_leaks(context, study, {0: (networks, noise_multiplier, max_grad_norm, scope)})[0]


def all_leaks(
    context: Context, study: LabelData, asked: Mapping[K, tuple[np.ndarray, float, float, str]]
) -> dict[K, Leak]:  # fmt: skip
    """`leak` of every (networks, noise multiplier, clipping norm, scope), each of them a piece."""
    names = {}
    jobs = {}
    for key, (networks, sigma, clip, scope) in asked.items():
        name = f"leak-{sigma!r}-{clip!r}-{scope}-{digest(networks)[:20]}-{study.content}"
        names[key] = name
        jobs[name] = functools.partial(_leak, study, neurons(context), networks, sigma, clip, scope)
    leaks = {}
    for name, piece in context.pieces.each(jobs, context.executor):
        leaks[name] = Leak(np.array(piece["last"]), np.array(piece["second"]))
        context.progress(f"{study.name}: bounds", len(leaks), len(jobs))
    return {key: leaks[name] for key, name in names.items()}


def _leak(
    study: LabelData,
    neurons: np.ndarray,
    networks: np.ndarray,
    noise_multiplier: float,
    max_grad_norm: float,
    scope: str,
) -> dict[str, Any]:
    last, second = [], []
    # A few neurons at a time: their Jacobians take 80 kB per neuron and batch.
    parts = np.array_split(neurons, max(1, len(neurons) * study.batches // 800))
    for parameters in networks:
        with one_thread():
            observed = observe(parameters, study.features)
        last.append(label_bound(study, observed, observed.last, noise_multiplier, max_grad_norm, scope).value)
        second.append(
            np.concatenate(
                [
                    label_bound(study, observed, observed.second_last(p), noise_multiplier, max_grad_norm, scope).value
                    for p in parts
                ]
            )
        )
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
