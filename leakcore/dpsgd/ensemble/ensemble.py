"""Many independent DP-SGD runs trained together: the mechanism under audit, repeated thousands of times."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leakcore._base import memory_limit, validate
from leakcore.dpsgd.ensemble.arguments import PerRun, RowReader, Rows, run_range
from leakcore.dpsgd.ensemble.block import Fault, Plan
from leakcore.dpsgd.ensemble.checkpoint import Checkpoint
from leakcore.dpsgd.ensemble.network import Initialisation, ModuleNetwork, Network, read_network
from leakcore.dpsgd.ensemble.observer import Observer
from leakcore.dpsgd.ensemble.result import EnsembleRun
from leakcore.dpsgd.ensemble.sampling import SLOTS, Batches, Streams, read_sampling
from leakcore.dpsgd.ensemble.workers import Collector, Execution, Request, losses, train, train_elsewhere
from leakcore.kernels import num_threads

_MECHANISM = "layers activation noise_multiplier max_grad_norm dtype learning_rate steps".split()
_SETTINGS = (*_MECHANISM, "sample_rate", "expected_batch_size", "batch_size")


@dataclasses.dataclass(frozen=True, eq=False, init=False)
class Ensemble:
    """Independent DP-SGD runs of one network, trained together as batched matrix products.

    In step t each run draws a batch B_t and moves its parameters by Abadi et al. (2016), Algorithm 1:

        g_t = Σ_{z ∈ B_t} ∇ℓ(θ_t, z)·min{1, C/‖∇ℓ(θ_t, z)‖} + σC·N(0, I),    θ_{t+1} = θ_t − η·g_t / B,

    with B the *expected* batch size q·rows, as in Opacus. The norm is that of all parameters together. The loss is
    softmax cross-entropy for two or more outputs, binary cross-entropy on the logit for one output.

    Args:
        network: (inputs, hidden..., outputs) of a perceptron, a `Network`, or a `ModuleNetwork` for any torch module.
        noise_multiplier: σ, at least 0.
        max_grad_norm: C, above 0; C² must be a normal number in the network's dtype.
        learning_rate: η, above 0.
        steps: T, at least 0.
        sample_rate: q in (0, 1] of Poisson batches (1: all rows in each step), or a `PoissonBatches`,
            `ShuffledBatches`, `FixedBatches` or `AllocatedBatches`.
        seed: 64-bit. Everything random is a pure function of (seed, run, step).
        fault: a `Fault`, to test audits.

    Raises:
        ValueError: names the argument, its value and what is allowed.
        TypeError: for an argument of another type.

    Guarantees:
        Run r of a seed has the same bits in any range of runs, on any number of threads and workers, for one machine,
        torch build, dtype and data; other machines agree to rounding (docs/explanation/ensembles.md). The generator is
        statistical, not cryptographic: use this class to measure mechanisms, not to train models that will be released.

    Example:
        >>> from leakcore import datasets, dpsgd
        >>> data = datasets.breast_cancer()
        >>> ensemble = dpsgd.Ensemble(
        ...     (30, 1), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=1.0, steps=20, seed=0
        ... )
        >>> result = ensemble.run(data.features, data.labels, runs=8)
        >>> result.parameters.shape
        (8, 31)
        >>> bool((result.accuracy(data.features, data.labels) > 0.9).all())
        True
    """

    network: Network | ModuleNetwork
    noise_multiplier: float
    max_grad_norm: float
    learning_rate: float
    steps: int
    sampling: Batches
    seed: int
    fault: Fault | None

    def __init__(
        self,
        network: Sequence[int] | Network | ModuleNetwork,
        *,
        noise_multiplier: float,
        max_grad_norm: float,
        learning_rate: float,
        steps: int,
        sample_rate: float | Batches = 1.0,
        seed: int,
        fault: Fault | None = None,
    ) -> None:
        if fault is not None and not isinstance(fault, Fault):
            raise TypeError(f"`fault` must be a dpsgd.Fault or None, got {fault!r}")
        vars(self).update(
            network=read_network(network),
            noise_multiplier=validate.non_negative(noise_multiplier=noise_multiplier),
            max_grad_norm=validate.positive(max_grad_norm=max_grad_norm),
            learning_rate=validate.positive(learning_rate=learning_rate),
            steps=validate.integer(0, 2**24 - 1, steps=steps),
            sampling=read_sampling(sample_rate),
            seed=validate.seed(seed=seed),
            fault=fault,
        )
        limits = np.finfo(self.dtype)
        if not float(limits.tiny) <= self.max_grad_norm * self.max_grad_norm <= float(limits.max):
            raise ValueError(
                f"`max_grad_norm` must have a square that is a normal number in dtype={self.dtype!r}, got "
                f"{max_grad_norm!r}"
            )

    @property
    def layers(self) -> tuple[int, ...]:
        """(inputs, hidden..., outputs), or (inputs, outputs) of a module."""
        return tuple(self.network.layers)

    @property
    def activation(self) -> str:
        """Name of the activation of the hidden layers."""
        return self.network.activation

    @property
    def dtype(self) -> str:
        """Either "float32" or "float64"."""
        return self.network.dtype

    @property
    def sample_rate(self) -> float:
        """The rate q of Poisson batches, 1/b of allocated ones; 1 where batches have a fixed size."""
        return self.sampling.rate

    @property
    def batch_size(self) -> int | None:
        """Rows of a batch of fixed size, shuffled or not; None where sizes vary."""
        return self.sampling.size

    @property
    def expected_batch_size(self) -> float | None:
        """The divisor B, if the caller chose it, else None."""
        return self.sampling.expected_batch_size

    @property
    def num_parameters(self) -> int:
        """Length of the flat parameter vector of a run."""
        return self.network.num_parameters

    def replace(self, **changes: Any) -> Ensemble:
        """The same ensemble with some arguments changed.

        Args:
            **changes: arguments of the constructor, by name.

        Returns:
            A new `Ensemble`.
        """
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        own["sample_rate"] = own.pop("sampling")
        return Ensemble(**own | changes)

    def settings(self) -> dict[str, Any]:
        """All arguments as plain values; a module is represented by the name of its class.

        Returns:
            A dict that JSON can hold.
        """
        own, fault = self.network, dataclasses.asdict(self.fault or Fault())
        slack = fault.pop("clip_slack")
        out = {name: getattr(self, name) for name in _SETTINGS} | {
            "sampling": self.sampling.scheme,
            "initialisation": self._initialisation.name,
            "initialisation_scale": self._initialisation.scale,
            "initialisation_noise": self._initialisation.noise,
            "clip_slack": slack,
            "fault": None if self.fault in (None, Fault(clip_slack=slack)) else fault,
            "seed": self.seed,
        }
        if isinstance(own, Network):
            return out
        for name in ("layers", "activation", "initialisation", "initialisation_scale"):
            del out[name]
        return {"module": type(own.module).__qualname__, "input_shape": own.input_shape, **out}

    def run(
        self,
        features: Any,
        labels: Any,
        *,
        runs: int | range,
        per_run: PerRun | None = None,
        observer: Observer | None = None,
        probes: Rows | None = None,
        keep_parameters: bool = True,
        execution: Execution | None = None,
    ) -> EnsembleRun:
        """Train runs.

        torch's intra-op thread count is 1 during the call and is restored afterwards. On KeyboardInterrupt the blocks
        that are being trained stop within a step.

        Args:
            features: (rows, inputs), the rows that all runs share, stored once.
            labels: (rows,) class numbers (0 or 1 for one output).
            runs: how many runs, 0, 1, ...; or which, as range(first, stop).
            per_run: extra rows of each run, and ready-made initial parameters, noise or batches.
            observer: the attacker, who sees and scores every step. None: nothing is scored or recorded.
            probes: rows at which the *final* models are evaluated, for all runs or for each. They are not trained on.
                Without labels `probe_losses` is None.
            keep_parameters: False drops the final parameters.
            execution: device, threads, workers, checkpoint and progress. None: as `dpsgd.Execution()`.

        Returns:
            An `EnsembleRun`, whose row i is run `first_run + i`.

        Raises:
            FloatingPointError: if the parameters of a run overflow.
            ValueError: names the argument, its value and what is allowed.
            TypeError: for an argument of another type.
        """
        execution = validate.settings(Execution, execution=execution)
        own, attacker = validate.settings(PerRun, per_run=per_run), validate.settings(Observer, observer=observer)
        if probes is not None:
            validate.instance(Rows, probes=probes)
        first, stop = run_range(runs)
        count = stop - first
        reader = RowReader(self.layers, self.dtype, count)
        common = reader.samples(features, labels)
        extra, candidates = reader.of_runs(own.extra, "extra"), reader.of_runs(attacker.candidates, "candidates")
        read_at = reader.probes(probes)
        vectors = (1 if keep_parameters else 0) + (2 * self.steps if attacker.record else 0)
        numbers = vectors * self.num_parameters + (0 if read_at is None else read_at.rows * self.layers[-1])
        size = np.dtype(self.dtype).itemsize
        memory_limit.require(count * (1 + numbers * size), runs=count)
        memory_limit.require(SLOTS * self.num_parameters * size, network=self.layers)
        num_rows = common.rows + (0 if extra is None else extra.rows)
        if self.batch_size is not None and self.batch_size > num_rows:
            raise ValueError(
                f"`batch_size` must be at most the {num_rows} rows of a training set, got {self.batch_size}"
            )
        if num_rows == 0:
            raise ValueError("`features` or `per_run.extra` must hold at least one row")
        if attacker.batches == "all" and extra is None:
            raise ValueError("`observer.batches` must be 'common' or 'none' without extra rows, got 'all'")
        if attacker.cosines and candidates is not None and candidates.rows < 2:
            raise ValueError(f"`candidates` must have at least 2 rows with cosines, got {candidates.rows}")
        request = Request(
            first=first,
            stop=stop,
            common=common,
            extra=extra,
            candidates=candidates,
            probes=read_at,
            watch=attacker.watch(),
            keep_parameters=validate.boolean(keep_parameters=keep_parameters),
            device=execution.device,
            **own.draws(self.network, (count, self.steps, num_rows), noisy=self.noise_multiplier > 0),
        )
        arrays = _trained(self._plan(num_rows), request, execution)
        labelled = probes is not None and probes.labels is not None
        return EnsembleRun(
            layers=self.layers,
            activation=self.activation,
            max_grad_norm=self.max_grad_norm,
            first_run=request.first,
            probe_losses=losses(arrays.get("probe_logits"), request.probes if labelled else None),
            template=copy.deepcopy(self.network.module) if isinstance(self.network, ModuleNetwork) else None,
            **arrays,
        )

    @property
    def _initialisation(self) -> Initialisation:
        how = self.network.initialisation
        return Initialisation(how) if isinstance(how, str) else how

    def _plan(self, num_rows: int) -> Plan:
        expected = self.expected_batch_size or self.batch_size or self.sample_rate * num_rows
        self._require_representable(expected)
        own = self.network if isinstance(self.network, ModuleNetwork) else None
        plain: dict[str, Any] = {name: getattr(self, name) for name in _MECHANISM}
        return Plan(
            **plain,
            sampling=self.sampling,
            expected_batch_size=expected,
            initialisation=self._initialisation,
            fault=self.fault or Fault(),
            streams=Streams(self.seed, self.dtype),
            module=None if own is None else own.module,
            input_shape=() if own is None else tuple(own.input_shape),
        )

    def _require_representable(self, expected: float) -> None:
        """ValueError if training would multiply by a factor that the dtype cannot represent."""
        noise, norm, rate = self.noise_multiplier, self.max_grad_norm, self.learning_rate
        initial, fault = self._initialisation, self.fault or Fault()
        largest = float(np.finfo(self.dtype).max)
        step = rate / expected if expected * largest > rate else math.inf
        factors = {
            "`noise_multiplier` times `max_grad_norm`": (noise * norm, f"{noise!r} times {norm!r}"),
            "`noise_multiplier` times `max_grad_norm` times `fault.noise` and `fault.bias_noise`": (
                noise * norm * fault.noise * max(1.0, fault.bias_noise),
                f"{noise!r} times {norm!r} times {fault.noise!r} and {fault.bias_noise!r}",
            ),
            "`learning_rate` over `expected_batch_size`": (step, f"{rate!r} over {expected!r}"),
            "`initialisation.scale`": (initial.scale, initial.scale),
            "`initialisation.noise`": (initial.noise, initial.noise),
            "`fault.clip_slack`": (fault.clip_slack, fault.clip_slack),
        }
        for what, (factor, text) in factors.items():
            if factor > largest:
                raise ValueError(f"{what} must be at most {largest:.3g}, the largest {self.dtype}, got {text}")


def _trained(plan: Plan, request: Request, execution: Execution) -> dict[str, Any]:
    """The arrays of all runs, by the names of `EnsembleRun`: finished ones from the checkpoint, the others trained."""
    count, progress = request.stop - request.first, execution.progress
    folder = None if execution.checkpoint is None else Checkpoint(Path(execution.checkpoint), plan, request)
    collected = Collector(request, plan)
    for low, high, piece in () if folder is None else folder.restore():
        collected.put(low, high, piece)
    if collected.done and progress is not None:
        progress(collected.done, count)
    for low, high in collected.missing():
        part = request.part(low, high)
        if execution.executor is None:
            pieces = train(plan, part, execution.num_threads or num_threads())
        else:
            pieces = train_elsewhere(plan, part, execution.num_threads or 1, execution.executor)
        with contextlib.closing(pieces) as arriving:
            for begin, end, arrived in arriving:
                piece = collected.put(begin, end, arrived)
                if folder is not None:
                    folder.save(begin, end, piece)
                if progress is not None:
                    progress(collected.done, count)
    return collected.arrays()
