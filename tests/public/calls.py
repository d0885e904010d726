"""One small valid call of every public function, and what its result must satisfy: what the hypothesis tests bend.

`EXEMPT` lists the public names that are not functions of the user's arguments, each with its reason.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

PACKAGES = (
    "leakcore",
    "leakcore.accounting",
    "leakcore.bounds",
    "leakcore.bounds.laplace",
    "leakcore.bounds.methods",
    "leakcore.kernels",
    "leakcore.mechanisms",
    "leakcore.numerics",
    "leakcore.attacks",
    "leakcore.attacks.attributes",
    "leakcore.attacks.imprint",
    "leakcore.attacks.inversion",
    "leakcore.attacks.labels",
    "leakcore.attacks.membership",
    "leakcore.attacks.poisoning",
    "leakcore.attacks.tensor",
    "leakcore.attacks.text",
    "leakcore.leakage",
    "leakcore.defenses",
    "leakcore.dpsgd",
    "leakcore.audit",
    "leakcore.datasets",
)


@dataclasses.dataclass(frozen=True)
class Call:
    """arguments: makes valid ones. holds: what a result must satisfy beyond being well-typed. fixed: arguments that are
    not bent, with the reason at the place. also: words that name an argument in a message though they are none."""

    arguments: Callable[[], dict[str, Any]]
    holds: Callable[[Any], bool] | None = None
    fixed: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def unit(result: Any) -> bool:
    """A probability or success rate."""
    value = np.asarray(getattr(result, "value", result), dtype=float)
    return bool(((value >= 0) & (value <= 1)).all())


def at_least_zero(result: Any) -> bool:
    return bool((np.asarray(getattr(result, "value", result), dtype=float) >= 0).all())


def below_ceiling(result: Any) -> bool:
    return at_least_zero(result) and result.kind == "lower"


def _mechanism(**more: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"noise_multiplier": 1.0, "sample_rate": 0.5, "steps": 3, **more}


SIGMA = {"noise_multiplier": 1.0, "sample_rate": 0.5, "steps": 3}
SCORES = ([0.1, 0.7, 0.9, 1.5, 2.0, 2.5], [-1.0, 0.0, 0.2, 0.6, -0.5, 0.1])


def _epsilon() -> Any:
    from leakcore import accounting

    return accounting.epsilon(1.0, 0.5, 3, delta=1e-5)


def _fractions(x: Any) -> Any:
    return x


def _hypothesis() -> Any:
    from leakcore import bounds

    return bounds.Hypothesis()


def _threshold() -> Any:
    from leakcore import bounds

    return bounds.SplitThreshold()


def _query() -> Any:
    from leakcore.bounds import laplace

    return laplace.GradientQuery()


NUMBERS = {
    "accounting.epsilon": Call(_mechanism(delta=1e-5, adjacency="add-remove", method="exact"), at_least_zero),
    "accounting.delta": Call(_mechanism(epsilon=1.0, adjacency="add-remove", method="exact"), unit),
    "accounting.noise_multiplier": Call(
        lambda: {"epsilon": 2.0, "delta": 1e-5, "sample_rate": 0.5, "steps": 3, "adjacency": "add-remove",
                 "method": "exact"}, at_least_zero,
    ),
    "mechanisms.Poisson": Call(_mechanism()),
    "mechanisms.FullBatch": Call(lambda: {"noise_multiplier": 1.0, "steps": 3}),
    "mechanisms.FixedSize": Call(
        lambda: {"noise_multiplier": 1.0, "batch_size": 1, "dataset_size": 2, "steps": 3}
    ),
    "mechanisms.Shuffled": Call(lambda: {"noise_multiplier": 1.0, "batches": 4, "epochs": 2}),
    "mechanisms.GDP": Call(lambda: {"mu": 1.0, "claimed_under": "add-remove"}),
    "mechanisms.ApproximateDP": Call(lambda: {"epsilon": 1.0, "delta": 1e-5, "claimed_under": "add-remove"}),
    "mechanisms.RandomAllocation": Call(
        lambda: {"noise_multiplier": 1.0, "batches": 4, "epochs": 2, "k": 1, "fixed": False}
    ),
    "mechanisms.CorrelatedNoise": Call(
        lambda: {"matrix": np.eye(4), "noise_multiplier": 1.0, "participation": _participation()}
    ),
    "mechanisms.MinSeparation": Call(lambda: {"separation": 2, "participations": 2}),
    "mechanisms.CyclicPoisson": Call(lambda: {"sample_rate": 0.5}),
    "mechanisms.BallsInBins": Call(lambda: {"batches": 2}),
    "mechanisms.square_root": Call(lambda: {"steps": 4, "bands": 2}),
    "mechanisms.toeplitz": Call(lambda: {"coefficients": np.array([1.0, 0.5]), "steps": 4}),
    "mechanisms.blt": Call(lambda: {"scales": np.array([0.5]), "decays": np.array([0.5]), "steps": 4}),
    "mechanisms.tree": Call(lambda: {"steps": 4}),
    "mechanisms.ZCDP": Call(lambda: {"rho": 0.5, "claimed_under": "add-remove"}),
    "mechanisms.from_event": Call(lambda: {"event": _event()}),
    "mechanisms.grid": Call(lambda: {"kind": _poisson(), "noise_multiplier": [1.0, 2.0], **_rest()}),
    "mechanisms.Composition": Call(lambda: {"parts": (_pair(), _pair())}),
    "accounting.last_iterate_epsilon": Call(_mechanism(delta=1e-5), at_least_zero),
    "accounting.to_replacement": Call(lambda: {"claim": _epsilon()}, at_least_zero),
    "bounds.reconstruction": Call(
        _mechanism(kappa=0.1, method="auto", num_samples=2000, confidence=0.99, seed=0), unit
    ),
    "bounds.reconstruction_rdp": Call(_mechanism(kappa=0.1), unit),
    "bounds.reconstruction_dkw": Call(
        lambda: {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 10, "kappa": 0.1, "num_samples": 2000,
                 "confidence": 0.99, "seed": 0}, unit,
    ),
    "bounds.reconstruction_of": Call(
        lambda: {"pair": _pair(), "kappa": 0.1, "num_samples": 2000, "confidence": 0.99, "seed": 0}, unit,
    ),
    "bounds.StatedPair": Call(lambda: {"pair": _pair(), "adjacency": "replace", "dominates": True}),
    "bounds.methods.Auto": Call(lambda: {"num_samples": 2000, "confidence": 0.99, "seed": 0}),
    "bounds.methods.MonteCarlo": Call(lambda: {"num_samples": 2000, "seed": 0, "under": "null"}),
    "bounds.methods.Certified": Call(
        lambda: {"num_samples": 2000, "confidence": 0.99, "seed": 0, "width": 0.1, "resume": None}, also=("state",)
    ),
    "bounds.methods.Importance": Call(lambda: {"num_samples": 2000, "confidence": 0.99, "seed": 0}),
    "bounds.methods.DKW": Call(lambda: {"num_samples": 2000, "confidence": 0.99, "seed": 0}),
    "bounds.measured_pair": Call(
        lambda: {"noise_multiplier": 1.0, "sample_rate": 0.5, "clipped_norms": np.full(3, 0.5)}
    ),
    "bounds.membership": Call(_mechanism(fpr=0.1), unit),
    "bounds.orthogonal_success": Call(
        lambda: {"noise_multiplier": 1.0, "steps": 3, "num_candidates": 4, "geometry": "orthogonal"}, unit
    ),
    "bounds.calibrate_noise": Call(
        lambda: {"target_success": 0.5, "kappa": 0.1, "sample_rate": 0.5, "steps": 3, "delta": 1e-5}, at_least_zero
    ),
    # A large σ, or a small q, takes a minute before it is an AccuracyError.
    "bounds.discrete_prior": Call(_mechanism(prior=np.array([0.5, 0.3, 0.2])), unit, fixed=("noise_multiplier",)),
    "bounds.label_success": Call(_mechanism(num_classes=4), unit),
    "bounds.kappa_from_samples": Call(
        lambda: {"samples": rng().normal(size=(20, 3)), "radius": 0.5, "metric": "euclidean", "confidence": 0.99}, unit
    ),
    "bounds.kappa_pixels": Call(lambda: {"num_pixels": 16, "fraction": 0.5, "pixel_probability": 0.25}, unit),
    "bounds.fano_advantage": Call(
        _mechanism(num_candidates=4, information="rdp"), also=("num_candidates", "prior")
    ),
    "bounds.AnalyticInformation": Call(lambda: {"separation": 1.0}),
    "bounds.SampledInformation": Call(lambda: {"separation": 1.0, "num_samples": 500, "seed": 0}),
    "bounds.mse_lower_bound": Call(_mechanism(diameters=np.ones(3), adjacency="replace"), at_least_zero),
    "bounds.epsilon_lower_bound": Call(
        lambda: {"hits_in": 90, "hits_out": 5, "trials": 100, "confidence": 0.99, "delta": 1e-5, "k": 1,
                 "adjacency": "replace", "hypothesis": _hypothesis()}, below_ceiling,
    ),
    "bounds.Hypothesis": Call(lambda: {"family": "dp", "direction": "in"}),
    "bounds.SplitThreshold": Call(lambda: {"share": 0.5, "seed": 0}),
    "bounds.SimultaneousThreshold": Call(lambda: {"seed": 0}),
    "bounds.SequentialTest": Call(
        lambda: {"epsilon": 1.0, "adjacency": "replace", "confidence": 0.99, "delta": 1e-5, "family": "dp"}
    ),
    "bounds.epsilon_opt": Call(
        lambda: {"trials": 100, "confidence": 0.99, "k": 1, "delta": 1e-5, "adjacency": "replace",
                 "hypothesis": _hypothesis()},
        at_least_zero,
    ),
    "bounds.epsilon_lower_bound_best": Call(
        lambda: {"audits": {"a": (*SCORES, 1)}, "threshold": _threshold(), "confidence": 0.99, "delta": 0.0,
                 "adjacency": "replace", "hypothesis": _hypothesis()}, below_ceiling,
        also=("scores_in", "scores_out", "k"),
    ),
    "bounds.epsilon_lower_bound_from_scores": Call(
        lambda: {"scores_in": np.array(SCORES[0]), "scores_out": np.array(SCORES[1]), "threshold": _threshold(),
                 "confidence": 0.99, "delta": 0.0, "k": 1, "adjacency": "replace", "hypothesis": _hypothesis()},
        below_ceiling,
    ),
    "bounds.epsilon_from_membership": Call(
        lambda: {"correct": 80, "guesses": 100, "coins": "none", "confidence": 0.99, "delta": 0.0,
                 "adjacency": "add-remove", "chosen": "before"}, at_least_zero, also=("rows",),
    ),
    "bounds.epsilon_lower_bound_one_run": Call(
        lambda: {"correct": 80, "guesses": 100, "canaries": 200, "confidence": 0.99, "delta": 1e-5,
                 "adjacency": "add-remove", "family": "gdp", "chosen": "by-scores", "k": 2}, below_ceiling,
    ),
    "bounds.label_epsilon": Call(
        lambda: {"jacobian": rng().normal(size=(4, 8)), "probs": np.full(4, 0.5), "labels": np.array([0, 1, 1, 0]),
                 "noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-3, "test": "paper"}, at_least_zero,
    ),
    "bounds.SignTest": Call(lambda: {"complement": True}),
    "bounds.ThresholdTest": Call(lambda: {"compose": True}),
    "bounds.LikelihoodRatioTest": Call(lambda: {"compose": True}),
    "bounds.extrapolate_label_epsilon": Call(
        lambda: {"lb_one_batch": 1.0, "num_batches": 4, "batch_size": 8, "rule": "harmonic"}, at_least_zero
    ),
    "bounds.ridge_output_perturbation": Call(
        lambda: {"features": rng().random((5, 2)) / 2, "targets": rng().random(5), "regularisation": 1.0,
                 "epsilon": 1.0, "delta": 1e-5}, at_least_zero,
    ),
    "bounds.laplace.compose": Call(
        lambda: {"epsilons": np.array([0.1, 0.2]), "count": 2, "delta": 1e-6, "method": "auto",
                 "adjacency": "replace"}, at_least_zero,
    ),
    "bounds.laplace.count_sensitivity": Call(lambda: {"num_queries": 2, "adjacency": "replace"}, at_least_zero),
    "bounds.laplace.histogram_sensitivity": Call(
        lambda: {"num_bins": 3, "bins_per_row": 1, "adjacency": "replace"}, at_least_zero
    ),
    "bounds.laplace.mean_sensitivity": Call(
        lambda: {"lower": 0.0, "upper": 1.0, "num_rows": 9, "adjacency": "replace"}, at_least_zero
    ),
    "bounds.laplace.sum_sensitivity": Call(
        lambda: {"lower": 0.0, "upper": 1.0, "adjacency": "replace"}, at_least_zero, also=("l1_norm",)
    ),
    "bounds.laplace.error_bound": Call(lambda: {"scale": 1.0, "dimensions": 2, "confidence": 0.9}, at_least_zero),
    "bounds.laplace.tail": Call(lambda: {"threshold": 1.0, "scale": 1.0, "dimensions": 2}, unit),
    "bounds.laplace.noise_scale": Call(
        lambda: {"sensitivity": 1.0, "epsilon": 1.0, "adjacency": "replace"}, at_least_zero
    ),
    "bounds.laplace.mechanism": Call(
        lambda: {"values": np.arange(3.0), "sensitivity": 1.0, "epsilon": 1.0, "seed": 0, "step": 0, "secure": False},
        also=("scale",),
    ),
    "bounds.laplace.printed_change": Call(
        lambda: {"hidden_weights": rng().normal(size=(2, 3)), "output_weights": rng().normal(size=2),
                 "first": (np.array([0.1, 0.2, 0.3]), 1.0), "second": (np.array([0.2, 0.1, 0.3]), 0.5),
                 "activation": "relu"}, also=("x", "y", "inputs", "target"),
    ),
    "bounds.laplace.two_layer": Call(
        lambda: {"hidden_weights": rng().normal(size=(2, 3)), "output_weights": rng().normal(size=2),
                 "activation": "relu", "query": _query(), "adjacency": "replace"}, at_least_zero,
    ),
    "bounds.laplace.GradientQuery": Call(
        lambda: {"input_norm": 1.0, "target_bound": 1.0, "gradients": "both", "batch_size": 8}
    ),
    "bounds.laplace.two_layer_random": Call(
        lambda: {"num_neurons": 2, "num_inputs": 3, "activation": "relu", "query": _query(), "adjacency": "replace",
                 "confidence": 0.99}, at_least_zero,
    ),
    "numerics.clopper_pearson": Call(
        lambda: {"successes": 3, "trials": 9, "confidence": 0.9, "side": "two-sided"},
        lambda r: unit(np.asarray(r)) and bool((np.asarray(r[0]) <= np.asarray(r[1])).all()),
    ),
    "numerics.gaussian_pair_epsilon": Call(lambda: {"separation": 1.0, "delta": 1e-3}, at_least_zero),
    "numerics.simultaneous_lower_limits": Call(
        lambda: {"trials": 12, "confidence": 0.9},
        lambda r: unit(r) and bool((np.diff(r) >= 0).all()),
    ),
}  # fmt: skip


def _event() -> Any:
    import dp_accounting

    return dp_accounting.GaussianDpEvent(1.0)


def _participation() -> Any:
    from leakcore import mechanisms

    return mechanisms.MinSeparation(2, 2)


def _rest() -> dict[str, Any]:
    return {"sample_rate": 0.5, "steps": 3}


def _poisson() -> Any:
    from leakcore import mechanisms

    return mechanisms.Poisson


def _pair() -> Any:
    from leakcore import mechanisms

    return mechanisms.FixedSize(1.0, 1, 2, 3)


def public() -> Iterator[tuple[str, Any]]:
    """Every public callable by the name that a user types after `leakcore.`, once."""
    visited: set[int] = set()
    for package in reversed(PACKAGES):
        module = importlib.import_module(package)
        names = getattr(module, "__all__", None) or [
            n for n, v in vars(module).items()
            if not n.startswith("_") and getattr(v, "__module__", "").startswith("leakcore.") and callable(v)
        ]  # fmt: skip
        for name in names:
            member = getattr(module, name)
            if not callable(member) or id(member) in visited:
                continue
            visited.add(id(member))
            where = package.removeprefix("leakcore").removeprefix(".")
            yield (f"{where}.{name}" if where else name), member


def is_made_by_functions(member: Any) -> bool:
    """Results, protocols and errors: the library makes them, or the user implements them."""
    from leakcore._base.results import Result

    if not inspect.isclass(member):
        return False
    return (
        issubclass(member, (Result, Exception)) or getattr(member, "_is_protocol", False) or inspect.isabstract(member)
    )
