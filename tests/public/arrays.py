"""The calls of `public_calls` that take arrays, models or runs: kernels, attacks, leakage, defences, dpsgd, audit."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from tests.dpsgd.ensemble import flat_arguments as flat
from tests.public.attack_calls import ATTACKS
from tests.public.calls import NUMBERS, SCORES, SIGMA, Call, at_least_zero, rng, unit
from tests.public.examples import (
    MECHANISM,
    data,
    dataset,
    dataset_fields,
    defense,
    ensemble,
    model,
    optimizer,
    pair,
    purpose,
    quality,
    rows,
    run,
    small_module,
)

ARRAYS = {
    "kernels.clip_and_noise": Call(
        lambda: {"grads": rng().normal(size=(3, 5)), "max_grad_norm": 1.0, "noise_multiplier": 0.5, "seed": 0,
                 "step": 0, "mask": np.array([True, False, True]), "first_run": 0, "runs": False},
        lambda r: quality(r.sum) and at_least_zero(r.norms), also=("grads",),
    ),
    "kernels.clip_scores": Call(
        lambda: {"grads": rng().normal(size=(3, 5)), "observed": rng().normal(size=(2, 5)), "max_grad_norm": 1.0,
                 "product_dtype": "float64", "runs": False},
        lambda r: quality(r.dots) and at_least_zero(r.clipped_norms),
    ),
    "kernels.solve_labels": Call(
        lambda: {"jacobian": rng().normal(size=(3, 5)), "gradient": rng().normal(size=5)},
    ),
    "kernels.mixture_log_ratio": Call(lambda: {"num_samples": 9, **SIGMA, "under": "null", "seed": 0,
                                               "first_sample": 0, "dtype": "float64"}),
    "kernels.mixture_tail": Call(
        lambda: {"num_samples": 9, "thresholds": np.array([0.0, 1.0]), **SIGMA, "under": "null", "seed": 0,
                 "first_sample": 0, "dtype": "float64"}, lambda r: at_least_zero(r.counts),
    ),
    "kernels.Allocation": Call(lambda: {"noise_multiplier": 1.0, "bins": 4, "epochs": 2, "k": 2}),
    "kernels.allocation_log_ratio": Call(lambda: {"allocation": pair(), "num_samples": 9, "under": "null", "seed": 0,
                                                  "first_sample": 0, "dtype": "float64"}),
    "kernels.allocation_tail": Call(
        lambda: {"allocation": pair(), "num_samples": 9, "thresholds": np.array([0.0, 1.0]), "under": "null", "seed": 0,
                 "first_sample": 0, "dtype": "float64"}, lambda r: at_least_zero(r.counts),
    ),
    "kernels.philox4x32": Call(lambda: {"counter": [0, 1, 2, 3], "key": [4, 5]}),
    "kernels.standard_normal": Call(
        lambda: {"shape": (2, 3), "seed": 0, "purpose": purpose(), "step": 0, "first_row": 0,
                 "dtype": "float64"}, quality,
    ),
    "kernels.generator": Call(lambda: {"seed": 0, "purpose": purpose(), "step": 0, "row": 0}),
    "kernels.subseed": Call(
        lambda: {"seed": 0, "purpose": purpose(), "step": 0, "row": 0, "bits": 64}, lambda r: 0 <= r < 2**64
    ),
    "kernels.torch_generator": Call(lambda: {"seed": 0, "purpose": purpose(), "step": 0, "row": 0}),
    "kernels.uniform": Call(
        lambda: {"shape": (2, 3), "seed": 0, "purpose": purpose(), "step": 0, "first_row": 0}, unit
    ),
    "kernels.set_num_threads": Call(lambda: {"count": None}),
    "kernels.thread_limit": Call(lambda: {"count": 1}),
    "leakage.l1_sensitivity": Call(
        lambda: {"model": model(), "loss": None, **rows(), "adjacency": "replace"}, at_least_zero
    ),
    "leakage.input_attributes": Call(lambda: {"inputs": rng().random((8, 4))}),
    "leakage.sensitivity": Call(lambda: {"model": model(), "loss": None, **rows(2), "norms": ("F",)}, at_least_zero),
    "leakage.by_layer": Call(
        lambda: {"model": model(), "loss": None, **rows(48), "attributes": {"third": np.arange(48) % 3 == 0},
                 "family": "logistic", "iterations": 0, "samples": 1, "rows": 24, "columns": 9, "permutations": 1,
                 "seed": 0}, also=("folds", "third", "attribute"),
    ),
    "leakage.mutual_information": Call(
        lambda: {"first": rng().normal(size=(50, 2)), "second": np.arange(50) % 3, "num_classes": 4, "hidden": 4,
                 "components": 2, "steps": 2, "learning_rate": 0.01, "permutations": 1, "confidence": 0.9, "seed": 0},
    ),
    "leakage.v_information_original": Call(
        lambda: {"model": model(), "loss": None, **rows(2), "iterations": 2, "learning_rate": 0.1,
                 "total_variation": 0.0, "confidence": 0.9, "seed": 0}, also=("low", "high"),
    ),
    "leakage.subspace_distance": Call(
        lambda: {"grads_without": rng().normal(size=(4, 6, 3)), "grads_with": rng().normal(size=(4, 6, 3)),
                 "permutations": 1, "seed": 0},
    ),
    "leakage.v_information": Call(
        lambda: {"gradients": rng().normal(size=(20, 3)), "labels": np.arange(20) % 2, "family": "logistic",
                 "prior": "uniform", "folds": 2, "permutations": 1, "confidence": 0.9, "seed": 0}, also=("classes",),
    ),
    "leakage.CrossValidation": Call(
        lambda: {"folds": 2, "prior": "empirical", "balance": True, "strata": np.arange(20) % 2, "confidence": 0.9}
    ),
    "leakage.JacobianBudget": Call(lambda: {"probes": 2, "memory": 2**20}),
    "leakage.LayerMeasures": Call(
        lambda: {"family": "mlp", "samples": 1, "rows": 24, "columns": 9, "permutations": 1, "iterations": 2}
    ),
    "leakage.MineNetwork": Call(lambda: {"hidden": 4, "components": 2, "steps": 2, "learning_rate": 0.01}),
    "leakage.PairInversion": Call(
        lambda: {"iterations": 2, "learning_rate": 0.1, "total_variation": 0.1, "low": 0.0, "high": 1.0,
                 "confidence": 0.9},
    ),
    "leakage.Logistic": Call(lambda: {"strength": 1.0}),
    "leakage.RandomForest": Call(lambda: {"trees": 3, "seed": 0}),
    "leakage.MLP": Call(lambda: {"hidden": 3, "components": 2, "steps": 2, "learning_rate": 0.1, "seed": 0}),
    "defenses.release": Call(
        lambda: {"model": model(), "inputs": rows()["inputs"], "targets": rows()["targets"], "defense": defense(),
                 "seed": 0, "step": 0},
    ),
    "defenses.parse": Call(lambda: {"text": "gaussian-noise:0.1"}, also=("defense", "defence", "part")),
    "defenses.spell": Call(lambda: {"defense": defense()}),
    "defenses.attach": Call(lambda: {"optimizer": optimizer(), "defense": defense(), "seed": 0}),
    "defenses.defended": Call(lambda: {"run": run(), "defense": defense(), "seed": 0}),
    "defenses.Clip": Call(lambda: {"max_grad_norm": 1.0}),
    "defenses.ClipSamples": Call(lambda: {"max_grad_norm": 1.0}),
    "defenses.Compose": Call(dict),
    "defenses.DPSGD": Call(lambda: {"max_grad_norm": 1.0, "noise_multiplier": 1.0, "expected_batch_size": 3.0}),
    "defenses.Dropout": Call(lambda: {"keep_probability": 0.5, "per_sample": False}),
    "defenses.GaussianNoise": Call(lambda: {"std": 0.1}),
    "defenses.Laplace": Call(lambda: {"scale": 0.1}),
    "defenses.LocalSteps": Call(lambda: {"steps": 2, "learning_rate": 0.1, "minibatches": False}),
    "defenses.Prune": Call(lambda: {"keep_fraction": 0.5}),
    "dpsgd.Ensemble": Call(
        lambda: {"network": (4, 2), **MECHANISM, "sample_rate": 0.5, "seed": 0}, also=("layers",)
    ),
    "dpsgd.Ensemble.run": Call(
        lambda: {**data(), "runs": 2, "probe_features": rng().random((2, 4)),
                 "probe_labels": np.array([0, 1])}, lambda r: quality(r.parameters), also=("probes",),
    ),
    "dpsgd.Execution": Call(lambda: {"device": "cpu", "num_threads": 1}),
    "dpsgd.Initialisation": Call(lambda: {"name": "glorot", "scale": 0.5, "noise": 0.1}, also=("initialisation",)),
    "dpsgd.ModuleNetwork": Call(
        lambda: {"module": small_module(), "input_shape": (4,), "initialisation_noise": 0.1, "dtype": "float32"},
        fixed=("module",),
    ),
    "dpsgd.Network": Call(
        lambda: {"layers": (4, 2), "activation": "elu", "initialisation": "fixed", "dtype": "float64"}
    ),
    "dpsgd.Observer": Call(
        lambda: {"subtract_known": True, "batches": "none", "cosines": False, "keep_steps": True, "record": True}
    ),
    "dpsgd.PerRun": Call(lambda: {"initial": rng().random(10)}),
    "dpsgd.PoissonBatches": Call(lambda: {"sample_rate": 0.5, "expected_batch_size": 3.0}),
    "dpsgd.Rows": Call(data),
    "dpsgd.FixedBatches": Call(lambda: {"batch_size": 3, "expected_batch_size": 3.0}),
    "dpsgd.AllocatedBatches": Call(lambda: {"batches": 3, "expected_batch_size": 3.0}),
    "dpsgd.ShuffledBatches": Call(lambda: {"batch_size": 3, "expected_batch_size": 3.0}),
    "dpsgd.Canaries": Call(lambda: {"count": 3, "seed": 0}),
    "dpsgd.CraftedGradient": Call(lambda: {"gradient": rng().random(10), "batches": np.ones((2, 3), bool)}),
    "dpsgd.Fault": Call(lambda: {"noise": 0.5, "bias_noise": 0.5, "clip": "batch", "clip_slack": 1e-6}),
    "dpsgd.secure_normal": Call(lambda: {"count": 3}, quality),
    "audit.from_scores": Call(
        lambda: {"members": np.array(SCORES[0]), "non_members": np.array(SCORES[1]), "delta": 1e-5,
                 "claimed_epsilon": 1.0, "claimed_adjacency": "add-remove", "adjacency": "add-remove",
                 "confidence": 0.9},
        also=("scores",),
    ),
    "audit.plan": Call(
        lambda: {"epsilon": 2.0, "delta": 1e-5, "trainings": [40], "canaries": [40], "confidence": 0.9},
    ),
    "audit.Retrained": Call(lambda: {"k": 2, "seed": 3}),
    "audit.AuditConfig": Call(
        lambda: {"epsilon": 4.0, "sampling": "poisson", "sweep": (1.0,), "delta": 1e-5, "steps": 10,
                 "sample_rate": 0.5, "runs": 5, "hidden": (3,), "activation": "elu", "seed": 0,
                 "confidence": 0.9}, also=("noise_multiplier",),
    ),
    "audit.where_it_sits": Call(lambda: {"measures": _measures()}),
    "datasets.Dataset": Call(dataset_fields, fixed=("name", "scaling", "source", "licence")),
    "datasets.uniform_noise": Call(lambda: {"like": dataset(), "rows": 3, "seed": 0}),
    "bounds.laplace.Activation": Call(lambda: {"name": "mine", "lipschitz": 1.0, "at_zero": 0.0, "bound": 1.0}),
}  # fmt: skip
CALLS = NUMBERS | ARRAYS | ATTACKS


@functools.cache
def _measures() -> Any:
    return resolve("leakage.by_layer")(**ARRAYS["leakage.by_layer"].arguments())


def resolve(name: str) -> Any:
    """The public callable of that name."""
    import importlib

    if name == "dpsgd.Ensemble.run":
        return functools.partial(flat.run, ensemble())
    if name.startswith("attacks.reconstruction_game"):
        return functools.partial(_game, name.rpartition(".")[2])
    if name in OPTIONS:
        return functools.partial(_with_options, name.rpartition(".")[2], *OPTIONS[name])
    where, _, last = name.rpartition(".")
    return getattr(importlib.import_module(f"leakcore.{where}" if where else "leakcore"), last)


OPTIONS = {
    "leakage.by_layer": ("measures", "LayerMeasures"),
    "leakage.mutual_information": ("network", "MineNetwork"),
    "leakage.sensitivity": ("budget", "JacobianBudget"),
    "leakage.v_information": ("validation", "CrossValidation"),
    "leakage.v_information_original": ("inversion", "PairInversion"),
}
"""Functions whose rarer options are an object: the calls here name them one by one, so that each is bent."""


def _with_options(function: str, keyword: str, kind: str, **flat: Any) -> Any:
    from leakcore import leakage

    options = getattr(leakage, kind)
    names = {f.name for f in dataclasses.fields(options)}
    arguments = {name: flat.pop(name) for name in names & flat.keys()}
    return getattr(leakage, function)(**flat, **{keyword: options(**arguments)})


def _game(
    name: str, ensemble: Any, known_features: Any, known_labels: Any, pool_features: Any, pool_labels: Any, **more: Any
) -> Any:
    from leakcore import attacks, dpsgd

    known, pool = dpsgd.Rows(known_features, known_labels), dpsgd.Rows(pool_features, pool_labels)
    return flat.game(getattr(attacks, name), ensemble, known, pool, **more)


RESULTS = (
    "attacks.GradientReconstruction",
    "attacks.PriorAware",
    "attacks.Reconstructor",
    "attacks.attributes.GradientSets",
    "attacks.attributes.MatchedBatches",
    "attacks.inversion.Quality",
    "attacks.labels.MaliciousInput",
    "attacks.membership.CanaryTrials",
    "attacks.membership.Guesses",
    "attacks.membership.MembershipTrials",
    "attacks.poisoning.FrozenPoisoning",
    "attacks.poisoning.Poisoning",
    "attacks.poisoning.PoisoningScores",
    "attacks.tensor.Matched",
    "attacks.tensor.Orders",
    "audit.AuditPlan",
    "audit.CanaryReport",
    "audit.ClaimReport",
    "audit.Comparison",
    "audit.PlannedAudit",
    "audit.RunReport",
    "audit.ListedNumber",
    "audit.ListedReport",
    "audit.ReportList",
    "audit.ScoreFile",
    "audit.ScoresReport",
    "audit.SelfTest",
    "audit.TraceReport",
    "bounds.laplace.PrintedChange",
    "datasets.Reviews",
    "defenses.Attached",
    "defenses.Release",
    "dpsgd.CanaryRecorder",
    "dpsgd.CanaryTrace",
    "dpsgd.EnsembleRun",
    "dpsgd.Sampling",
    "dpsgd.Trace",
    "kernels.Clipped",
    "mechanisms.Grid",
    "mechanisms.GridResult",
    "mechanisms.Loss",
    "kernels.LabelSolution",
    "kernels.MixtureTail",
    "kernels.Scores",
    "leakage.LeakageByLayer",
    "dpsgd.Recorder",
)
EXEMPT = dict.fromkeys(RESULTS, "what a function returns: nobody else makes one") | {
    "kernels.Stream": "an enumeration",
    "kernels.torch_seeded": "a block, which reads its arguments as `torch_generator` does",
    "kernels.num_threads": "takes nothing",
    "kernels.arithmetic": "takes nothing",
    "kernels.build_info": "takes nothing",
    "kernels.get_include": "takes nothing",
    "kernels.selftest": "takes nothing",
    "audit.diagnose": "takes nothing",
    "attacks.membership.LabelOnly": "takes nothing",
    "bounds.RenyiInformation": "takes nothing",
    "bounds.methods.ClosedForm": "takes nothing",
    "bounds.methods.Exact": "takes nothing",
    "bounds.methods.PLD": "takes nothing",
    "audit.progress_bars": "takes nothing",
    "datasets.breast_cancer": "takes nothing",
    "datasets.digits": "takes nothing",
    "audit.ClaimConfig": "made of sections: its TOML is fuzzed in tests/fuzz",
    "audit.ClaimReport": "what audit.claim returns",
    "audit.read_scores": "reads a file: fuzzed in tests/fuzz",
    "audit.from_trace": "reads a file or a recorded run: fuzzed in tests/fuzz",
    "audit.from_canaries": "reads a file or a recorded run: tests/audit/trace/test_canaries.py",
    "audit.list_reports": "reads a folder of reports: tests/audit/test_reports.py, and fuzzed in tests/fuzz",
    "audit.compare": "reads reports: tests/audit/test_comparison.py",
    "audit.join": "puts recorded runs together: tests/audit/trace/test_request.py",
    "audit.claim": "minutes of training behind a ClaimConfig; tests/audit/claim/test_claim.py bends its keys",
    "audit.run": "minutes of training behind an AuditConfig, which is bent",
    "audit.selftest": "minutes; its arguments are checked in tests/audit/test_selftest.py",
    "dpsgd.record": "wraps an Opacus optimizer: tests/dpsgd/record/test_recorder.py",
    "dpsgd.FusedDPOptimizer": "wraps an Opacus optimizer: tests/dpsgd/fused/test_fused_optimizer.py",
    "attacks.poisoning.FrozenClipBKD": "optimises images through an extractor: tests/attacks/test_poisoning.py",
    "attacks.poisoning.through": "needs an extractor: tests/attacks/test_poisoning.py",
    "defenses.Defense": "the base class",
    **dict.fromkeys(
        [f"datasets.{name}" for name in ("lfw", "cifar10", "cifar100", "fashion_mnist", "mnist", "location30",
                                         "purchase100", "bank_marketing", "cervical_cancer", "imdb")],
        "reads files: tests/datasets, and fuzzed in tests/fuzz",
    ),
}  # fmt: skip
