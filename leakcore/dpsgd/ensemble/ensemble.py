"""Many independent DP-SGD runs trained together: the mechanism under audit, repeated thousands of times."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np

from leakcore import models
from leakcore._base import memory_limit
from leakcore._base import validate as check
from leakcore._base.cores import usable_cores
from leakcore.dpsgd.ensemble import arguments, run_request
from leakcore.dpsgd.ensemble.arguments import Samples
from leakcore.dpsgd.ensemble.block import initial_parameters
from leakcore.dpsgd.ensemble.block.block import Plan
from leakcore.dpsgd.ensemble.block.initial_parameters import Initialisation
from leakcore.dpsgd.ensemble.checkpoint import Checkpoint
from leakcore.dpsgd.ensemble.injected_fault import Fault
from leakcore.dpsgd.ensemble.randomness import Streams
from leakcore.dpsgd.ensemble.result import EnsembleRun
from leakcore.dpsgd.ensemble.run_request import Request, Source
from leakcore.dpsgd.ensemble.scorer import Scorer
from leakcore.dpsgd.ensemble.workers import Collector, Piece, train, train_elsewhere


class Ensemble:
    """Independent DP-SGD runs of one MLP, as batched matrix products.

    The mechanism (Abadi et al. 2016, Algorithm 1; Opacus's convention for the mean). In step t each run draws its
    batch B_t (each row with probability q, or all rows when q = 1) and moves

        g_t = Σ_{z ∈ B_t} ∇ℓ(θ_t, z)·min{1, C/‖∇ℓ(θ_t, z)‖} + σC·N(0, I),    θ_{t+1} = θ_t − η·g_t / B,

    with B the *expected* batch size q·rows, not the drawn one. Clipping is by the joint norm of all parameters. The
    loss is softmax cross-entropy for two or more outputs, binary cross-entropy on the logit for one.

    Per-sample norms are analytic, ‖∇ℓ‖² = Σ_layers (‖a‖² + 1)·‖δ‖² (Goodfellow 2015), and the clip factor is folded
    into the backward product, so no per-sample gradient is ever stored.

    Args:
        layers: (inputs, hidden..., outputs) as in `models.mlp`; two sizes give logistic regression.
        activation: one of `models.ACTIVATIONS`.
        noise_multiplier: σ ≥ 0. max_grad_norm: C > 0. learning_rate: η > 0. steps: T ≥ 0. sample_rate: q in (0, 1].
        batch_size: shuffled minibatches of exactly that many rows instead: each epoch has a fresh order of all rows, a
            function of (seed, run, epoch), cut into batches; rows mod batch_size rows sit an epoch out. None: Poisson
            batches, or all rows when q = 1.
        expected_batch_size: B; None: batch_size, or q·(common rows + extra rows). Give it where B must not depend on
            whether the target is there: an attacker who knows B would otherwise learn that from the update's scale.
        initialisation: "per-run" (each run its own) or "fixed" (all runs those of run 0): uniform in ±1/√fan_in for
            weights and biases, torch.nn.Linear's default; "glorot" or "fixed-glorot": likewise, weights
            N(0, 2/(fan_in + fan_out)), biases 0 (Glorot and Bengio 2010).
        initialisation_scale: factor ≥ 0 on those values. initialisation_noise: s ≥ 0, adds s times a Glorot normal of
            each run's own, to weights only, also to parameters given as `initial`. Jagielski, Ullman and Oprea 2020,
            Table 2: "fixed-glorot", and "glorot" with scale 0.5, 1 and 2.
        clip_slack: added to the norm before dividing. 0 is the definition above; 1e-6 is what Opacus does.
        fault: a `Fault` makes it a faulty implementation, for tests of audits; None is the mechanism.
        dtype: "float32" or "float64".
        seed: 64-bit; everything random is a pure function of (seed, run, step), see below.

    Determinism. Run r of a seed has the same bits whatever other runs are asked for, in whatever ranges and order, on
    any number of threads, as long as machine, torch build, dtype and data are the same: blocks have a fixed number of
    slots, run r always sits in slot r mod 32, and every product has a fixed shape. Of LEAKCORE_ISA, avx2 and avx512
    give the same bits; the baseline, which does not fuse multiply-adds, rounds differently. Its random numbers
    (Philox4x32-10) are the same everywhere; results of different machines agree to rounding. The generator is
    statistical, not cryptographic: this class measures mechanisms, it does not train models to be released.

    Raises ValueError or TypeError that names the argument, its value and what is allowed.
    """

    def __init__(
        self,
        layers: Sequence[int],
        activation: str = "elu",
        *,
        noise_multiplier: float,
        max_grad_norm: float,
        learning_rate: float,
        steps: int,
        sample_rate: float = 1.0,
        batch_size: int | None = None,
        expected_batch_size: float | None = None,
        initialisation: str = "per-run",
        initialisation_scale: float = 1.0,
        initialisation_noise: float = 0.0,
        clip_slack: float = 0.0,
        fault: Fault | None = None,
        dtype: str = "float32",
        seed: int,
    ) -> None:
        self.layers = models.layer_sizes(layers)
        self.activation = check.one_of(*models.ACTIVATIONS, activation=activation)
        self.noise_multiplier = check.non_negative(noise_multiplier=noise_multiplier)
        self.max_grad_norm = check.positive(max_grad_norm=max_grad_norm)
        self.dtype = check.one_of("float32", "float64", dtype=dtype)
        limits = np.finfo(self.dtype)
        if not float(limits.tiny) <= self.max_grad_norm * self.max_grad_norm <= float(limits.max):
            raise ValueError(
                f"max_grad_norm={max_grad_norm!r}: its square must be a normal number in dtype={self.dtype!r}"
            )
        self.learning_rate = check.positive(learning_rate=learning_rate)
        self.steps = check.integer(0, 2**24 - 1, steps=steps)
        self.sample_rate = check.probability(sample_rate=sample_rate)
        if self.sample_rate == 0:
            raise ValueError("sample_rate=0: must be in (0, 1]")
        self.expected_batch_size = (
            None if expected_batch_size is None else check.positive(expected_batch_size=expected_batch_size)
        )
        self.batch_size = None if batch_size is None else check.integer(1, None, batch_size=batch_size)
        if self.batch_size is not None and self.sample_rate != 1:
            raise ValueError(f"batch_size={batch_size}, sample_rate={sample_rate}: give one of them")
        self.initialisation = check.one_of(*initial_parameters.NAMES, initialisation=initialisation)
        self.initialisation_scale = check.non_negative(initialisation_scale=initialisation_scale)
        self.initialisation_noise = check.non_negative(initialisation_noise=initialisation_noise)
        if fault is not None and not isinstance(fault, Fault):
            raise TypeError(f"fault={fault!r}: must be a dpsgd.Fault")
        self.fault = fault
        self.clip_slack = check.non_negative(clip_slack=clip_slack)
        self.seed = check.seed(seed=seed)

    @property
    def num_parameters(self) -> int:
        """Length of a run's flat parameter vector."""
        return models.num_parameters(self.layers)

    def settings(self) -> dict[str, Any]:
        """Every argument of the constructor, as plain values."""
        out = dict(vars(self))
        if self.fault is not None:
            out["fault"] = dataclasses.asdict(self.fault)
        return out

    def run(
        self,
        features: Any,
        labels: Any,
        *,
        runs: int,
        first_run: int = 0,
        extra_features: Any = None,
        extra_labels: Any = None,
        candidate_features: Any = None,
        candidate_labels: Any = None,
        subtract_known: bool = True,
        candidate_cosines: bool = False,
        pool_features: Any = None,
        pool_labels: Any = None,
        extra_index: Any = None,
        candidate_index: Any = None,
        scorers: Mapping[str, Scorer] | None = None,
        probe_features: Any = None,
        probe_labels: Any = None,
        keep_parameters: bool = True,
        keep_steps: bool = True,
        record: bool = False,
        initial: Any = None,
        noise: Any = None,
        batches: Any = None,
        device: str = "cpu",
        num_threads: int | None = None,
        executor: Executor | None = None,
        checkpoint: str | Path | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> EnsembleRun:
        """Train runs first_run … first_run + runs − 1.

        Args:
            features, labels: (rows, inputs) and (rows,), the rows that all runs share; held once. Labels are class
                numbers (0 or 1 for one output).
            extra_features, extra_labels: further training rows of each run, (runs, m, inputs) and (runs, m), or (m,
                inputs) and (m,) for all runs. They follow the common rows in the numbering of batches.
            candidate_features, candidate_labels: points that are *not* trained on (unless they are extra rows too) but
                scored in every step, (runs, n, inputs) and (runs, n), or without the first axis. `dots` and `norms` of
                the result are s_{t,i} = ⟨clip_C(∇ℓ(θ_t, z_i)), ḡ_t⟩ and ‖clip_C(∇ℓ(θ_t, z_i))‖, ḡ_t = g_t − Σ_{known z
                in B_t} clip_C(∇ℓ(θ_t, z)).
            subtract_known: the threat model of Hayes et al. 2023, Section 3.4: the attacker sees every g_t (hence
                θ_t), knows the common rows and which of *them* are in B_t, and subtracts their clipped gradients; the
                extra rows, and whether they were sampled, he does not know. ḡ_t is then what the extra rows and the
                noise left, and is computed as that, without the cancellation. False: ḡ_t = g_t, the weaker attacker of
                their Appendix E.
            candidate_cosines: also report how close each candidate's gradient is to the nearest other's.
            pool_features, pool_labels, extra_index, candidate_index: extra rows and candidates as row numbers (runs, m)
                and (runs, n) of a pool held once, instead of features per run: memory for their features is then one
                block's, whatever the number of runs.
            scorers: attacks carried along, by name: each step's scores go to them, and `scores` of the result holds
                what they end with. keep_steps=False drops `dots` and `norms`, so that memory does not grow with steps.
            probe_features, probe_labels: rows whose logits and losses under the *final* model are wanted, not trained
                on: (n, inputs) and (n,) for all runs, or (runs, n, inputs) and (runs, n). Labels may be left out: then
                `probe_losses` is None. keep_parameters=False drops the parameters themselves.
            record: keep θ_t and ḡ_t of every step (`thetas`, `observed`): 2·steps·parameters numbers per run.
            initial: ready-made initial parameters, (parameters,) or (runs, parameters), flat in the order of
                `models.mlp(...).parameters()`.
            noise: ready-made standard normal variates (runs, steps, parameters), in the same order.
            batches: ready-made batches, bool (runs, steps, rows + m).
            device: "cpu", "cuda" or "cuda:0", …: where products and activations are computed. Everything random is
                drawn on the CPU, so that the integers are the same; results agree with the CPU's to rounding, which
                training amplifies. Arrays go in and come back as NumPy's.
            num_threads: threads over blocks of 32 runs; None: all cores this process may use. A range that is not
                aligned to 32 costs as much as the aligned range around it.
            executor: any `concurrent.futures.Executor`; ranges of runs go to its workers, each using `num_threads`
                threads (None: one). The bits are the same for any number of workers on machines of one kind.
            checkpoint: a folder where finished runs are kept, in files that are each written atomically and never
                changed. The same call again, whether the last one was killed or wants more runs, reads them and trains
                what is missing, with the same result to the bit; pieces of another mechanism, data set, version or
                arithmetic (`kernels.arithmetic`) are not touched. Nobody but the caller deletes it. Scorers, and what a
                module holds, are told apart by value and code: TypeError names what has neither, as a lock.
            progress: called as progress(done, total) with numbers of runs, from the calling thread.

        While it works, torch's intra-op thread count is 1; it is restored afterwards. On KeyboardInterrupt the blocks
        under way stop within a step. Raises FloatingPointError where a run's parameters overflow.
        """
        first, stop = arguments.run_range(runs, first_run)
        count = stop - first
        common = self._samples(features, labels, "")
        pool = self._optional_pool(pool_features, pool_labels)
        where: dict[str, Any] = {"pool": pool, "runs": count, "layers": self.layers, "dtype": self.dtype}
        extra = run_request.source(extra_features, extra_labels, extra_index, name="extra", **where)
        candidates = run_request.source(
            candidate_features, candidate_labels, candidate_index, name="candidate", **where
        )  # fmt: skip
        probes = run_request.probes(probe_features, probe_labels, runs=count, layers=self.layers, dtype=self.dtype)
        vectors = (1 if keep_parameters else 0) + (2 * self.steps if record else 0)
        numbers = vectors * self.num_parameters + (0 if probes is None else probes.rows * self.layers[-1])
        memory_limit.require(count * (1 + numbers * np.dtype(self.dtype).itemsize), runs=count)
        num_rows = common.rows + (0 if extra is None else extra.rows)
        if self.batch_size is not None and self.batch_size > num_rows:
            raise ValueError(f"batch_size={self.batch_size}: must be at most the {num_rows} rows of a training set")
        if num_rows == 0:
            raise ValueError("features: must hold at least one row, or extra_features must")
        if candidates is None and (candidate_cosines or scorers or not (subtract_known or record)):
            raise ValueError("candidate_cosines, scorers, subtract_known: mean something only with candidate_features")
        if candidate_cosines and candidates is not None and candidates.rows < 2:
            raise ValueError(f"candidate_features has {candidates.rows} row: candidate_cosines needs at least 2")
        if num_threads is not None:
            num_threads = check.integer(1, None, num_threads=num_threads)
        check.executor(executor=executor)
        check.callback(progress=progress)
        request = Request(
            first=first,
            stop=stop,
            common=common,
            extra=extra,
            candidates=candidates,
            scorers=run_request.scorers(scorers),
            keep_parameters=bool(keep_parameters),
            probes=probes if isinstance(probes, Samples) else None,
            own_probes=probes if isinstance(probes, Source) else None,
            keep_steps=keep_steps,
            record=record,
            subtract_known=subtract_known,
            cosines=candidate_cosines,
            device=run_request.device(device),
            **self._ready(initial, noise, batches, count, num_rows),
        )
        plan = self._plan(num_rows)
        kept = None if checkpoint is None else Checkpoint(Path(checkpoint), plan, request)
        collected = Collector(request, plan)
        for low, high, piece in () if kept is None else kept.restore():
            collected.put(low, high, piece)
        if collected.done and progress is not None:
            progress(collected.done, count)
        for low, high in collected.missing():
            with contextlib.closing(self._pieces(plan, request.part(low, high), num_threads, executor)) as arriving:
                for begin, end, piece in arriving:
                    kept_piece = collected.put(begin, end, piece)
                    if kept is not None:
                        kept.save(begin, end, kept_piece)
                    if progress is not None:
                        progress(collected.done, count)
        arrays = collected.arrays()
        return EnsembleRun(
            layers=self.layers,
            activation=self.activation,
            max_grad_norm=self.max_grad_norm,
            first_run=first,
            probe_losses=run_request.losses(arrays.get("probe_logits"), probes if probe_labels is not None else None),
            **arrays,
        )

    def _pieces(
        self, plan: Plan, request: Request, num_threads: int | None, executor: Executor | None
    ) -> Generator[Piece, None, None]:  # fmt: skip
        if executor is None:
            return train(plan, request, num_threads or usable_cores())
        return train_elsewhere(plan, request, num_threads or 1, executor)

    def _samples(self, features: Any, labels: Any, name: str) -> Samples:
        return arguments.samples(features, labels, name=name, layers=self.layers, dtype=self.dtype)

    def _optional_pool(self, features: Any, labels: Any) -> Samples | None:
        if (features is None) != (labels is None):
            raise ValueError("pool_features and pool_labels: give both or neither")
        return None if features is None else self._samples(features, labels, "pool_")

    def _ready(
        self, initial: Any, noise: Any, batches: Any, count: int, num_rows: int
    ) -> dict[str, np.ndarray | None]:  # fmt: skip
        """What replaces the run's own draws, checked."""
        size = self.num_parameters
        if initial is not None and np.ndim(initial) == 1:
            initial = np.broadcast_to(initial, (count, np.shape(initial)[0]))
        real: dict[str, Any] = {"dtype": self.dtype, "kinds": "f", "allowed": "a real floating type"}
        start = arguments.injected(initial, name="initial", shape=(count, size), **real)
        ready = arguments.injected(noise, name="noise", shape=(count, self.steps, size), **real)
        if ready is not None and self.noise_multiplier == 0:
            raise ValueError("noise: given, but noise_multiplier=0 adds none")
        shape = (count, self.steps, num_rows)
        taken = arguments.injected(batches, name="batches", shape=shape, dtype="bool", kinds="b", allowed="bool")
        return {"initial": start, "noise": ready, "batches": taken}

    def _plan(self, num_rows: int) -> Plan:
        expected = self.expected_batch_size or self.batch_size or self.sample_rate * num_rows
        self._require_representable(expected)
        return Plan(
            layers=self.layers,
            activation=self.activation,
            noise_multiplier=self.noise_multiplier,
            max_grad_norm=self.max_grad_norm,
            learning_rate=self.learning_rate,
            steps=self.steps,
            sample_rate=self.sample_rate,
            batch_size=self.batch_size,
            expected_batch_size=expected,
            clip_slack=self.clip_slack,
            initialisation=Initialisation(self.initialisation, self.initialisation_scale, self.initialisation_noise),
            fault=self.fault or Fault(),
            dtype=self.dtype,
            streams=Streams(self.seed, self.dtype),
        )

    def _require_representable(self, expected: float) -> None:
        """ValueError where training would multiply by what is no number in the dtype."""
        noise, norm, rate = self.noise_multiplier, self.max_grad_norm, self.learning_rate
        largest = float(np.finfo(self.dtype).max)
        step = rate / expected if expected * largest > rate else math.inf
        factors = {
            f"noise_multiplier={noise!r}, max_grad_norm={norm!r}: product": noise * norm,
            f"learning_rate={rate!r}, expected_batch_size={expected!r}: quotient": step,
            f"initialisation_scale={self.initialisation_scale!r}: it": self.initialisation_scale,
            f"initialisation_noise={self.initialisation_noise!r}: it": self.initialisation_noise,
            f"clip_slack={self.clip_slack!r}: it": self.clip_slack,
        }
        for what, factor in factors.items():
            if factor > largest:
                raise ValueError(f"{what} must be at most {largest:.3g}, the largest {self.dtype}")
