"""The calls of `public_calls` that take arrays, models or runs: kernels, attacks, leakage, defences, dpsgd, audit."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from tests.dpsgd.ensemble import flat_arguments as flat
from tests.public.calls import NUMBERS, SCORES, SIGMA, Call, at_least_zero, rng, unit


@functools.cache
def model() -> Any:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Sigmoid(), torch.nn.Linear(3, 2)).double()


def _rows(n: int = 6) -> dict[str, Any]:
    import torch

    return {"inputs": torch.from_numpy(rng().random((n, 4))), "targets": torch.arange(n) % 2}


def _ensemble(**change: Any) -> Any:
    return flat.ensemble((4, 2), **MECHANISM | {"seed": 0, "expected_batch_size": 6.0} | change)


MECHANISM = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "learning_rate": 0.1, "steps": 2}


@functools.cache
def run() -> Any:
    from leakcore import dpsgd

    return _ensemble().run(
        rng().random((6, 4)),
        np.arange(6) % 2,
        runs=3,
        observer=dpsgd.Observer(dpsgd.Rows(rng().random((2, 4)), [0, 1]), record=True),
    )


def _data(n: int = 6) -> dict[str, Any]:
    return {"features": rng().random((n, 4)), "labels": np.arange(n) % 2}


def _dataset() -> Any:
    from leakcore import datasets

    return datasets.Dataset(**_dataset_fields())


def _dataset_fields() -> dict[str, Any]:
    return {**_data(), "num_classes": 2, "name": "a", "scaling": "b", "source": "c", "licence": "d"}


def _sets() -> Any:
    from leakcore.attacks import attributes

    return attributes.gradient_sets(model(), **_rows(12), batches=_batches())


@functools.cache
def _batches() -> Any:
    from leakcore.attacks import attributes

    return attributes.matched_batches(np.arange(12) % 3 == 0, np.arange(12) % 2, seed=0)


def _defense(name: str = "GaussianNoise", *args: Any) -> Any:
    from leakcore import defenses

    return getattr(defenses, name)(*(args or (0.1,)))


def _gradient() -> Any:
    from leakcore.attacks import inversion

    x = _rows(1)
    return inversion.gradient(model(), x["inputs"], x["targets"])


def _poisoning() -> Any:
    from leakcore.attacks import poisoning

    return poisoning.ZeroInput().poison(**_data(), k=1, adjacency="replace", seed=0)


def _weights() -> Any:
    from leakcore.attacks import tensor

    return tensor.GaussianWeights(64, 3, 0)


def _tensor() -> dict[str, Any]:
    from leakcore.attacks import tensor

    x = np.eye(3)[:2]
    return {"inputs": x, "residuals": np.ones(2), "weights": _weights(), "activation": "tanh"} if tensor else {}


@functools.cache
def _recovery() -> Any:
    from leakcore.attacks import labels

    return labels.last_layer(rng().random((2, 5)), rng().normal(size=(2, 5)) / 9)


def _hidden_layer() -> Any:
    from leakcore.attacks import labels

    return labels.KnownHiddenLayer(rng().random((2, 5)), rng().random((2, 3)))


def _reconstructor_training() -> Any:
    from leakcore import attacks

    return attacks.ReconstructorTraining(hidden=(4,), epochs=1, batch_size=4, held_out=0.25)


def _descent() -> Any:
    from leakcore import attacks

    return attacks.Descent(iterations=2, restarts=1)


def _lbfgs() -> Any:
    from leakcore.attacks import inversion

    return inversion.LBFGS(iterations=2, restarts=1)


def _sgd() -> Any:
    from leakcore.attacks import labels

    return labels.SGD(0.1)


def _purpose() -> Any:
    return "batch"


def quality(result: Any) -> bool:
    return bool(np.isfinite(np.asarray(result, dtype=float)).all())


SEEDS = {"seed": 0}
ARRAYS = {
    "kernels.clip_and_noise": Call(
        lambda: {"grads": rng().normal(size=(3, 5)), "max_grad_norm": 1.0, "noise_multiplier": 0.5, "seed": 0,
                 "step": 0, "mask": np.array([True, False, True]), "first_run": 0},
        lambda r: quality(r.sum) and at_least_zero(r.norms), also=("grads",),
    ),
    "kernels.clip_scores": Call(
        lambda: {"grads": rng().normal(size=(3, 5)), "observed": rng().normal(size=(2, 5)), "max_grad_norm": 1.0,
                 "product_dtype": "float64"},
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
    "kernels.philox4x32": Call(lambda: {"counter": [0, 1, 2, 3], "key": [4, 5]}),
    "kernels.standard_normal": Call(
        lambda: {"shape": (2, 3), "seed": 0, "purpose": _purpose(), "step": 0, "first_row": 0,
                 "dtype": "float64"}, quality,
    ),
    "kernels.generator": Call(lambda: {"seed": 0, "purpose": _purpose(), "step": 0, "row": 0}),
    "kernels.subseed": Call(
        lambda: {"seed": 0, "purpose": _purpose(), "step": 0, "row": 0, "bits": 64}, lambda r: 0 <= r < 2**64
    ),
    "kernels.torch_generator": Call(lambda: {"seed": 0, "purpose": _purpose(), "step": 0, "row": 0}),
    "kernels.uniform": Call(
        lambda: {"shape": (2, 3), "seed": 0, "purpose": _purpose(), "step": 0, "first_row": 0}, unit
    ),
    "kernels.set_num_threads": Call(lambda: {"count": None}),
    "kernels.thread_limit": Call(lambda: {"count": 1}),
    "attacks.prior_aware": Call(
        lambda: {"dots": rng().random((2, 3, 4)), "clipped_norms": np.ones((2, 3, 4)), "max_grad_norm": 1.0,
                 "sample_rate": 0.5, "noise_multiplier": 1.0, "method": "auto"},
        also=("method",),
    ),
    "attacks.gradient": Call(
        lambda: {"run": run(), "descent": _descent(), "box": (0.0, 1.0), "seed": 0, "labels": np.array([0, 1, 0])},
        lambda r: quality(r.points), fixed=("descent",),  # its default is slow
    ),
    "attacks.Descent": Call(lambda: {"iterations": 2, "restarts": 1, "learning_rate": 0.05}),
    "attacks.FrozenEmbedding": Call(lambda: {"module": model(), "shape": (4,)}),
    "attacks.gradient_loss": Call(
        lambda: {"run": run(), "points": rng().random((3, 4)), "labels": np.array([0, 1, 0])}, None,
        also=("features",),
    ),
    "attacks.GameRules": Call(
        lambda: {"num_candidates": 2, "prior": np.array([0.5, 0.5]), "subtract_known": True, "nearest_cosines": True}
    ),
    "attacks.reconstruction_game": Call(
        lambda: {"ensemble": _ensemble(), "known_features": rng().random((5, 4)), "known_labels": np.arange(5) % 2,
                 "pool_features": rng().random((8, 4)), "pool_labels": np.arange(8) % 2, "num_candidates": 2, "runs": 2,
                 "first_run": 0, "method": "auto", "confidence": 0.9}, unit,
        also=("features", "labels", "candidate_features", "candidate_labels"),
    ),
    "attacks.reconstruction_games": Call(
        lambda: {"ensemble": _ensemble(), "known_features": rng().random((5, 4)), "known_labels": np.arange(5) % 2,
                 "pool_features": rng().random((8, 4)), "pool_labels": np.arange(8) % 2, "num_candidates": 2, "runs": 2,
                 "methods": ("sum",), "confidence": 0.9},
        also=("features", "labels", "method"),
    ),
    "attacks.shadow_models": Call(
        lambda: {"ensemble": _ensemble(), "known_features": rng().random((5, 4)), "known_labels": np.arange(5) % 2,
                 "points": rng().random((2, 4)), "labels": np.array([0, 1]), "first_run": 0,
                 "execution": None}, quality,
        also=("features", "extra.features", "extra.labels"),
    ),
    "attacks.reconstructor": Call(
        lambda: {"parameters": rng().normal(size=(12, 5)), "points": rng().random((12, 3)),
                 "training": _reconstructor_training(), "box": (0.0, 1.0), "seed": 0}, fixed=("training",),  # 50 epochs
    ),
    "attacks.ReconstructorTraining": Call(
        lambda: {"hidden": (4,), "epochs": 1, "batch_size": 4, "learning_rate": 0.01, "held_out": 0.25}
    ),
    "attacks.mean_squared_error": Call(
        lambda: {"reconstructions": rng().random((3, 4)), "originals": rng().random((3, 4))}, at_least_zero
    ),
    "attacks.nearest_neighbour_mse": Call(lambda: {"points": rng().random((4, 3))}, at_least_zero),
    "attacks.nearest_prior": Call(
        lambda: {"reconstructions": rng().random((3, 4)), "target_index": np.array([0, 1, 2]),
                 "pool": rng().random((6, 4)), "num_candidates": 3, "confidence": 0.9}, unit,
    ),
    "attacks.pixel_success": Call(
        lambda: {"reconstructions": rng().random((3, 4)), "originals": rng().random((3, 4)), "fraction": 0.5,
                 "tolerance": 0.1, "confidence": 0.9}, unit,
    ),
    "attacks.pixels_within": Call(
        lambda: {"reconstructions": rng().random((3, 4)), "originals": rng().random((3, 4)), "tolerance": 0.1}, unit
    ),
    "attacks.membership.canaries": Call(
        lambda: {"features": rng().random((5, 4)), "classes": 2, "count": 2, "seed": 0}, lambda r: quality(r[0])
    ),
    "attacks.membership.coins": Call(lambda: {"runs": 2, "rows": 3, "seed": 0}),
    "attacks.membership.canary_coins": Call(lambda: {"runs": 2, "canaries": 3, "seed": 0}),
    "attacks.membership.guess": Call(lambda: {"scores": rng().random((2, 5)), "share": 0.5}),
    "attacks.membership.loss_threshold": Call(lambda: {"losses": rng().random((2, 5)), "threshold": 0.5}, quality),
    "attacks.membership.likelihood_ratio": Call(
        lambda: {"losses": rng().random((2, 5)), "reference_losses": rng().random((8, 5)),
                 "reference_included": np.arange(40).reshape(8, 5) % 2 == 0, "spread": "shared"}, quality,
    ),
    "attacks.membership.play": Call(
        lambda: {"ensemble": _ensemble(), **_data(), "runs": 2, "execution": None}, lambda r: quality(r.losses)
    ),
    "attacks.membership.play_canaries": Call(
        lambda: {"ensemble": _ensemble(), **_data(), "canary_features": rng().random((2, 4)),
                 "canary_labels": np.array([0, 1]), "runs": 2, "execution": None}, lambda r: quality(r.scores),
        also=("extra.features", "extra.labels", "batches"),
    ),
    "attacks.poisoning.Backdoor": Call(lambda: {"shape": (1, 4, 4), "label": 1, "patch": 2, "value": 1.0}),
    "attacks.poisoning.ClipBKD": Call(lambda: {"contrast": False}),
    "attacks.poisoning.ZeroInput": Call(lambda: {"contrast": False}),
    "attacks.poisoning.losses": Call(
        lambda: {"run": run(), **_data()}, quality
    ),
    "attacks.poisoning.poisoning_scores": Call(
        lambda: {"ensemble": _ensemble(), "poisoning": _poisoning(), "trials": 2, "execution": None},
        lambda r: quality(r.scores_in),
    ),
    "attacks.poisoning.poisoning_sweep": Call(
        lambda: {"ensemble": _ensemble(), "poisoning": _poisoning(), "ks": (1,), "trials": 2, "execution": None},
        also=("k",),
    ),
    "attacks.labels.SGD": Call(lambda: {"lr": 0.1, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0}),
    "attacks.labels.combine": Call(lambda: {"recoveries": [_recovery()]}),
    "attacks.labels.Clipping": Call(lambda: {"max_grad_norm": 1.0, "clip_slack": 0.0}),
    "attacks.labels.GradientObservation": Call(
        lambda: {"gradient": rng().normal(size=8), "reduction": "mean", "batch_size": 3.0}
    ),
    "attacks.labels.KnownHiddenLayer": Call(
        lambda: {"activations": rng().random((2, 5)), "derivatives": rng().random((2, 3))}
    ),
    "attacks.labels.KnownModel": Call(lambda: {"model": model(), "inputs": _rows()["inputs"]}),
    "attacks.labels.Noise": Call(lambda: {"std": 0.1, "confidence": 0.9}),
    "attacks.labels.Precision": Call(lambda: {"unit_roundoff": 1e-7, "rcond": 1e-5}),
    "attacks.labels.WeightDifference": Call(
        lambda: {"weight_difference": rng().normal(size=8), "optimizer": _sgd(), "reduction": "mean",
                 "batch_size": 3.0},
    ),
    "attacks.labels.general": Call(
        lambda: {"knowledge": rng().normal(size=(3, 8)), "observation": rng().normal(size=8), "clipping": None,
                 "noise": None, "precision": None},
        also=("known_probs", "probs", "jacobian", "gradient"),
    ),
    "attacks.labels.last_layer": Call(
        lambda: {"knowledge": rng().random((2, 5)), "observation": rng().normal(size=(2, 5)) / 9, "clipping": None,
                 "noise": None, "precision": None},
        also=("known_probs", "bias_gradient", "activations", "gradient"),
    ),
    "attacks.labels.gradient_norm": Call(
        lambda: {"gradients": rng().normal(size=(5, 8)), "positive_ratio": 0.5}, also=("gradients",)
    ),
    "attacks.labels.idlg": Call(lambda: {"gradients": rng().normal(size=(5, 2, 8))}),
    "attacks.labels.malicious_input": Call(
        lambda: {"model": _one_logit(), "batch_size": 1, "seed": 0},
        also=("activation", "model"),
    ),
    "attacks.labels.second_last_layer": Call(
        lambda: {"knowledge": _hidden_layer(), "observation": rng().normal(size=(3, 5)) / 9, "positive_ratio": 0.3,
                 "noise": None, "precision": None},
        also=("neurons", "weights", "gradient"),
    ),
    "attacks.inversion.gradient": Call(lambda: {"model": model(), "inputs": _rows(1)["inputs"],
                                                "targets": _rows(1)["targets"]}),
    "attacks.inversion.closed_form": Call(lambda: {"model": model(), "gradient": _gradient(), "shape": (4,)}, quality),
    "attacks.inversion.invert": Call(
        lambda: {"model": model(), "gradient": _gradient(), "shape": (4,), "labels": _rows(1)["targets"],
                 "objective": None, "optimizer": _lbfgs(), "seed": 0}, fixed=("optimizer",),  # its default is slow
    ),
    "attacks.inversion.L2": Call(lambda: {"box": (0.0, 1.0), "total_variation": 0.1, "tolerance": 1e-9}),
    "attacks.inversion.Cosine": Call(lambda: {"box": (0.0, 1.0), "total_variation": 0.1, "tolerance": 1e-9}),
    "attacks.inversion.DPSGDSteps": Call(
        lambda: {"max_grad_norm": 1.0, "l1_weight": 1.0, "box": (0.0, 1.0), "total_variation": 0.1, "tolerance": 1e-9}
    ),
    "attacks.inversion.LBFGS": Call(
        lambda: {"iterations": 2, "learning_rate": 1.0, "restarts": 1, "start": "uniform", "patience": 2}
    ),
    "attacks.inversion.Adam": Call(
        lambda: {"iterations": 2, "learning_rate": 1.0, "restarts": 1, "start": "uniform", "patience": 2,
                 "together": True}
    ),
    "attacks.inversion.SignedAdam": Call(lambda: {"iterations": 2, "learning_rate": 1.0, "together": True}),
    "attacks.inversion.ReleasedGradient": Call(lambda: {"gradient": _gradient(), "batch_size": 1, "loss": None}),
    "attacks.inversion.compare": Call(
        lambda: {"originals": _images(), "reconstructions": _images() * 0.5, "value_range": 1.0}
    ),
    "attacks.inversion.ssim": Call(lambda: {"first": _images(), "second": _images() * 0.5, "value_range": 1.0}),
    "attacks.attributes.layer_gradients": Call(lambda: {"model": model(), "loss": None, **_rows()}),
    "attacks.attributes.matched_batches": Call(
        lambda: {"attribute": np.arange(12) % 3 == 0, "targets": np.arange(12) % 2, "size": 1, "seed": 0}
    ),
    "attacks.attributes.gradient_sets": Call(
        lambda: {"snapshots": model(), "loss": None, **_rows(12), "batches": _batches()}, also=("model",)
    ),
    "attacks.attributes.infer": Call(
        lambda: {"known": _sets(), "observed": _sets(), "trees": 2, "confidence": 0.9, "seed": 0}, unit
    ),
    "attacks.tensor.GaussianWeights": Call(lambda: {"num_neurons": 8, "num_inputs": 3, "seed": 0}),
    "attacks.tensor.choose": Call(lambda: {"activation": "tanh"}),
    "attacks.tensor.hermite_coefficients": Call(lambda: {"activation": "tanh", "max_order": 3}),
    "attacks.tensor.match": Call(lambda: {"recovered": np.eye(3), "inputs": np.eye(3)[::-1]}),
    "attacks.tensor.output_gradient": Call(_tensor, quality),
    "attacks.tensor.reconstruct": Call(
        lambda: {"gradient": rng().normal(size=64), "weights": _weights(), "num_examples": 2, "activation": "tanh",
                 "decomposition": None, "refined": False, "certify": True, "seed": 0},
    ),
    "attacks.tensor.Decomposition": Call(
        lambda: {"orders": (2, 3), "subtract": True, "method": "auto", "margin": 1.2}
    ),
    "leakage.l1_sensitivity": Call(
        lambda: {"model": model(), "loss": None, **_rows(), "adjacency": "replace"}, at_least_zero
    ),
    "leakage.input_attributes": Call(lambda: {"inputs": rng().random((8, 4))}),
    "leakage.sensitivity": Call(lambda: {"model": model(), "loss": None, **_rows(2), "norms": ("F",)}, at_least_zero),
    "leakage.by_layer": Call(
        lambda: {"model": model(), "loss": None, **_rows(48), "attributes": {"third": np.arange(48) % 3 == 0},
                 "family": "logistic", "iterations": 0, "samples": 1, "rows": 24, "columns": 9, "permutations": 1,
                 "seed": 0}, also=("folds", "third", "attribute"),
    ),
    "leakage.mutual_information": Call(
        lambda: {"first": rng().normal(size=(50, 2)), "second": rng().normal(size=(50, 2)), "hidden": 4,
                 "components": 2, "steps": 2, "learning_rate": 0.01, "permutations": 1, "confidence": 0.9, "seed": 0},
    ),
    "leakage.v_information_original": Call(
        lambda: {"model": model(), "loss": None, **_rows(2), "iterations": 2, "learning_rate": 0.1,
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
        lambda: {"model": model(), "inputs": _rows()["inputs"], "targets": _rows()["targets"], "defense": _defense(),
                 "seed": 0, "step": 0},
    ),
    "defenses.parse": Call(lambda: {"text": "gaussian-noise:0.1"}, also=("defense", "defence", "part")),
    "defenses.spell": Call(lambda: {"defense": _defense()}),
    "defenses.attach": Call(lambda: {"optimizer": _optimizer(), "defense": _defense(), "seed": 0}),
    "defenses.defended": Call(lambda: {"run": run(), "defense": _defense(), "seed": 0}),
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
        lambda: {**_data(), "runs": 2, "probe_features": rng().random((2, 4)),
                 "probe_labels": np.array([0, 1])}, lambda r: quality(r.parameters), also=("probes",),
    ),
    "dpsgd.Execution": Call(lambda: {"device": "cpu", "num_threads": 1}),
    "dpsgd.Initialisation": Call(lambda: {"name": "glorot", "scale": 0.5, "noise": 0.1}, also=("initialisation",)),
    "dpsgd.ModuleNetwork": Call(
        lambda: {"module": _small_module(), "input_shape": (4,), "initialisation_noise": 0.1, "dtype": "float32"},
        fixed=("module",),
    ),
    "dpsgd.Network": Call(
        lambda: {"layers": (4, 2), "activation": "elu", "initialisation": "fixed", "dtype": "float64"}
    ),
    "dpsgd.Observer": Call(lambda: {"subtract_known": True, "cosines": False, "keep_steps": True, "record": True}),
    "dpsgd.PerRun": Call(lambda: {"initial": rng().random(10)}),
    "dpsgd.PoissonBatches": Call(lambda: {"sample_rate": 0.5, "expected_batch_size": 3.0}),
    "dpsgd.Rows": Call(_data),
    "dpsgd.ShuffledBatches": Call(lambda: {"batch_size": 3, "expected_batch_size": 3.0}),
    "dpsgd.Fault": Call(lambda: {"noise": 0.5, "bias_noise": 0.5, "clip": "batch", "clip_slack": 1e-6}),
    "dpsgd.secure_normal": Call(lambda: {"count": 3}, quality),
    "audit.from_scores": Call(
        lambda: {"members": np.array(SCORES[0]), "non_members": np.array(SCORES[1]), "delta": 1e-5,
                 "claimed_epsilon": 1.0, "adjacency": "add-remove", "confidence": 0.9},
        also=("scores",),
    ),
    "audit.Retrained": Call(lambda: {"k": 2, "seed": 3}),
    "audit.AuditConfig": Call(
        lambda: {"epsilon": 4.0, "sweep": (1.0,), "delta": 1e-5, "steps": 10, "sample_rate": 0.5, "runs": 5,
                 "hidden": (3,), "activation": "elu", "seed": 0, "confidence": 0.9}, also=("noise_multiplier",),
    ),
    "audit.where_it_sits": Call(lambda: {"measures": _measures()}),
    "datasets.Dataset": Call(_dataset_fields, fixed=("name", "scaling", "source", "licence")),
    "datasets.uniform_noise": Call(lambda: {"like": _dataset(), "rows": 3, "seed": 0}),
    "bounds.laplace.Activation": Call(lambda: {"name": "mine", "lipschitz": 1.0, "at_zero": 0.0, "bound": 1.0}),
}  # fmt: skip
CALLS = NUMBERS | ARRAYS


@functools.cache
def _measures() -> Any:
    return resolve("leakage.by_layer")(**ARRAYS["leakage.by_layer"].arguments())


@functools.cache
def _one_logit() -> Any:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Sigmoid(), torch.nn.Linear(2, 1)).double()


def _images() -> Any:
    import torch

    return torch.from_numpy(rng().random((2, 1, 12, 12)))


def _small_module() -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(4, 2))


def _optimizer() -> Any:
    import torch

    return torch.optim.SGD(_small_module().parameters(), lr=0.1)


def resolve(name: str) -> Any:
    """The public callable of that name."""
    import importlib

    if name == "dpsgd.Ensemble.run":
        return functools.partial(flat.run, _ensemble())
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
    given = {name: flat.pop(name) for name in names & flat.keys()}
    return getattr(leakage, function)(**flat, **{keyword: options(**given)})


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
    "audit.ClaimReport",
    "audit.RunReport",
    "audit.ScoreFile",
    "audit.ScoresReport",
    "audit.SelfTest",
    "audit.TraceReport",
    "bounds.FixedBatchPair",
    "bounds.laplace.PrintedChange",
    "datasets.Reviews",
    "defenses.Attached",
    "defenses.Release",
    "dpsgd.EnsembleRun",
    "dpsgd.Trace",
    "kernels.Clipped",
    "kernels.LabelSolution",
    "kernels.MixtureTail",
    "kernels.Scores",
    "leakage.LeakageByLayer",
    "attacks.attributes.Assumptions",
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
    "bounds.RenyiInformation": "takes nothing",
    "bounds.SimultaneousThreshold": "takes nothing",
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
    "audit.join": "puts recorded runs together: tests/audit/trace/test_join.py",
    "audit.claim": "minutes of training behind a ClaimConfig; tests/audit/claim/test_claim.py bends its keys",
    "audit.run": "minutes of training behind an AuditConfig, which is bent",
    "audit.selftest": "minutes; its arguments are checked in tests/audit/test_selftest.py",
    "dpsgd.record": "wraps an Opacus optimizer: tests/dpsgd/recorder/test_recorder.py",
    "dpsgd.FusedDPOptimizer": "wraps an Opacus optimizer: tests/dpsgd/optimizer/test_fused_optimizer.py",
    "attacks.poisoning.FrozenClipBKD": "optimises images through an extractor: tests/attacks/test_poisoning.py",
    "attacks.poisoning.through": "needs an extractor: tests/attacks/test_poisoning.py",
    "defenses.Defense": "the base class",
    **dict.fromkeys(
        [f"datasets.{name}" for name in ("lfw", "cifar10", "cifar100", "fashion_mnist", "mnist", "location30",
                                         "purchase100", "bank_marketing", "cervical_cancer", "imdb")],
        "reads files: tests/datasets, and fuzzed in tests/fuzz",
    ),
}  # fmt: skip
