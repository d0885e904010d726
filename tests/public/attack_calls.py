"""The public calls of the attacks."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.public.calls import Call, at_least_zero, rng, unit
from tests.public.examples import (
    batches,
    data,
    decoder,
    descent,
    ensemble,
    gradient,
    hidden_layer,
    images,
    lbfgs,
    model,
    normed,
    one_logit,
    planted,
    planted_gradient,
    poisoning,
    quality,
    reconstructor_training,
    recovery,
    released_text,
    rows,
    run,
    sets,
    sgd,
    tensor,
    weights,
)


def _observed(models: int) -> dict[str, Any]:
    return {
        "losses": rng().random((models, 5)), "population_losses": rng().random((models, 4)),
        "checkpoint_losses": rng().random((models, 2, 5)), "copies_right": rng().random((models, 5)),
        "features": rng().random((5, 2)), "population_features": rng().random((4, 2)),
    }  # fmt: skip


def _targets() -> Any:
    from leakcore.attacks import membership

    return membership.Observations(**_observed(3))


def _references() -> Any:
    from leakcore.attacks import membership

    return membership.References(**_observed(8), included=np.arange(40).reshape(8, 5) % 2 == 0)


ATTACKS = {
    "attacks.prior_aware": Call(
        lambda: {"dots": rng().random((2, 3, 4)), "clipped_norms": np.ones((2, 3, 4)), "max_grad_norm": 1.0,
                 "sample_rate": 0.5, "noise_multiplier": 1.0, "method": "auto"},
        also=("method",),
    ),
    "attacks.gradient": Call(
        lambda: {"run": run(), "descent": descent(), "box": (0.0, 1.0), "seed": 0, "labels": np.array([0, 1, 0])},
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
        lambda: {"ensemble": ensemble(), "known_features": rng().random((5, 4)), "known_labels": np.arange(5) % 2,
                 "pool_features": rng().random((8, 4)), "pool_labels": np.arange(8) % 2, "num_candidates": 2, "runs": 2,
                 "first_run": 0, "method": "auto", "confidence": 0.9}, unit,
        also=("features", "labels", "candidate_features", "candidate_labels"),
    ),
    "attacks.reconstruction_games": Call(
        lambda: {"ensemble": ensemble(), "known_features": rng().random((5, 4)), "known_labels": np.arange(5) % 2,
                 "pool_features": rng().random((8, 4)), "pool_labels": np.arange(8) % 2, "num_candidates": 2, "runs": 2,
                 "methods": ("sum",), "confidence": 0.9},
        also=("features", "labels", "method"),
    ),
    "attacks.shadow_models": Call(
        lambda: {"ensemble": ensemble(), "known_features": rng().random((5, 4)), "known_labels": np.arange(5) % 2,
                 "points": rng().random((2, 4)), "labels": np.array([0, 1]), "first_run": 0,
                 "execution": None}, quality,
        also=("features", "extra.features", "extra.labels"),
    ),
    "attacks.reconstructor": Call(
        lambda: {"parameters": rng().normal(size=(12, 5)), "points": rng().random((12, 3)),
                 "training": reconstructor_training(), "box": (0.0, 1.0), "seed": 0}, fixed=("training",),  # 50 epochs
    ),
    "attacks.ReconstructorTraining": Call(
        lambda: {"hidden": (4,), "epochs": 1, "batch_size": 4, "learning_rate": 0.01, "held_out": 0.25,
                 "components": 2, "first_layer": (1, 3), "noise": 0.1}
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
    "attacks.membership.Observations": Call(lambda: _observed(3)),
    "attacks.membership.References": Call(lambda: {**_observed(8), "included": np.arange(40).reshape(8, 5) % 2 == 0}),
    "attacks.membership.Releases": Call(
        lambda: {"dots": rng().random((2, 3, 5)), "clipped_norms": np.ones((2, 3, 5)), "max_grad_norm": 1.0,
                 "sample_rate": 0.5, "noise_multiplier": 1.0},
    ),
    "attacks.membership.Queries": Call(
        lambda: {"population": (rng().random((3, 4)), np.array([0, 1, 0])), "copies": rng().random((2, 6, 4))}
    ),
    "attacks.membership.LossThreshold": Call(lambda: {"threshold": 0.5}),
    "attacks.membership.LiRA": Call(lambda: {"offline": True, "spread": "row"}),
    "attacks.membership.RMIA": Call(lambda: {"gamma": 2.0, "a": 0.3, "online": False}),
    "attacks.membership.LossTrajectory": Call(lambda: {"strength": 2.0}),
    "attacks.membership.QuantileRegression": Call(lambda: {"quantile": 0.8, "iterations": 3}),
    "attacks.membership.ReleasedProducts": Call(lambda: {"method": "sum"}),
    "attacks.membership.scores": Call(
        lambda: {"attack": "rmia", "target": _targets(), "references": _references()}, unit,
        also=("attack", "references.included"),
    ),
    "attacks.membership.noisy_copies": Call(
        lambda: {"features": rng().random((5, 4)), "scales": (0.5, 1.0), "count": 2, "seed": 0}, quality
    ),
    "attacks.membership.observe": Call(
        lambda: {"models": [model()], **data(), "queries": None}, lambda r: quality(r.losses), also=("model",)
    ),
    "attacks.membership.play": Call(
        lambda: {"ensemble": ensemble(), **data(), "runs": 2, "queries": None, "checkpoints": (1,), "execution": None},
        lambda r: quality(r.losses),
    ),
    "attacks.membership.play_canaries": Call(
        lambda: {"ensemble": ensemble(), **data(), "canary_features": rng().random((2, 4)),
                 "canary_labels": np.array([0, 1]), "runs": 2, "execution": None}, lambda r: quality(r.scores),
        also=("extra.features", "extra.labels", "batches"),
    ),
    "attacks.poisoning.Backdoor": Call(lambda: {"shape": (1, 4, 4), "label": 1, "patch": 2, "value": 1.0}),
    "attacks.poisoning.ClipBKD": Call(lambda: {"contrast": False}),
    "attacks.poisoning.ZeroInput": Call(lambda: {"contrast": False}),
    "attacks.poisoning.losses": Call(
        lambda: {"run": run(), **data()}, quality
    ),
    "attacks.poisoning.poisoning_scores": Call(
        lambda: {"ensemble": ensemble(), "poisoning": poisoning(), "trials": 2, "execution": None},
        lambda r: quality(r.scores_in),
    ),
    "attacks.poisoning.poisoning_sweep": Call(
        lambda: {"ensemble": ensemble(), "poisoning": poisoning(), "ks": (1,), "trials": 2, "execution": None},
        also=("k",),
    ),
    "attacks.poisoning.crafted_gradient_scores": Call(
        lambda: {"ensemble": ensemble(), **data(), "trials": 2, "references": 1, "execution": None},
        lambda r: quality(r.scores_in),
    ),
    "attacks.labels.SGD": Call(lambda: {"lr": 0.1, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0}),
    "attacks.labels.combine": Call(lambda: {"recoveries": [recovery()]}),
    "attacks.labels.Clipping": Call(lambda: {"max_grad_norm": 1.0, "clip_slack": 0.0}),
    "attacks.labels.GradientObservation": Call(
        lambda: {"gradient": rng().normal(size=8), "reduction": "mean", "batch_size": 3.0}
    ),
    "attacks.labels.KnownHiddenLayer": Call(
        lambda: {"activations": rng().random((2, 5)), "derivatives": rng().random((2, 3))}
    ),
    "attacks.labels.KnownModel": Call(lambda: {"model": model(), "inputs": rows()["inputs"]}),
    "attacks.labels.Noise": Call(lambda: {"std": 0.1, "confidence": 0.9}),
    "attacks.labels.Precision": Call(lambda: {"unit_roundoff": 1e-7, "rcond": 1e-5}),
    "attacks.labels.WeightDifference": Call(
        lambda: {"weight_difference": rng().normal(size=8), "optimizer": sgd(), "reduction": "mean",
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
        lambda: {"model": one_logit(), "batch_size": 1, "seed": 0},
        also=("activation", "model"),
    ),
    "attacks.labels.second_last_layer": Call(
        lambda: {"knowledge": hidden_layer(), "observation": rng().normal(size=(3, 5)) / 9, "positive_ratio": 0.3,
                 "noise": None, "precision": None},
        also=("neurons", "weights", "gradient"),
    ),
    "attacks.inversion.gradient": Call(lambda: {"model": model(), "inputs": rows(1)["inputs"],
                                                "targets": rows(1)["targets"]}),
    "attacks.inversion.batch_statistics": Call(
        lambda: {"model": normed(), "after": normed(batches=1), "steps": 1}, also=("statistics", "running"),
    ),
    "attacks.inversion.closed_form": Call(lambda: {"model": model(), "gradient": gradient(), "shape": (4,)}, quality),
    "attacks.inversion.invert": Call(
        lambda: {"model": model(), "gradient": gradient(), "shape": (4,), "labels": rows(1)["targets"],
                 "objective": None, "optimizer": lbfgs(), "seed": 0}, fixed=("optimizer",),  # its default is slow
    ),
    "attacks.inversion.L2": Call(
        lambda: {"box": (0.0, 1.0), "total_variation": 0.1, "statistics_weight": 0.5, "tolerance": 1e-9}
    ),
    "attacks.inversion.Cosine": Call(
        lambda: {"box": (0.0, 1.0), "total_variation": 0.1, "statistics_weight": 0.5, "tolerance": 1e-9}
    ),
    "attacks.inversion.DPSGDSteps": Call(
        lambda: {"max_grad_norm": 1.0, "l1_weight": 1.0, "box": (0.0, 1.0), "total_variation": 0.1, "tolerance": 1e-9}
    ),
    "attacks.inversion.LocalSteps": Call(
        lambda: {"learning_rate": 0.1, "steps": 3, "batch_size": 2, "box": (0.0, 1.0), "total_variation": 0.1,
                 "statistics_weight": 0.5, "tolerance": 1e-9}
    ),
    "attacks.inversion.LBFGS": Call(
        lambda: {"iterations": 2, "learning_rate": 1.0, "restarts": 1, "start": "uniform", "patience": 2}
    ),
    "attacks.inversion.Adam": Call(
        lambda: {"iterations": 2, "learning_rate": 1.0, "restarts": 1, "start": "uniform", "patience": 2,
                 "together": True}
    ),
    "attacks.inversion.SignedAdam": Call(lambda: {"iterations": 2, "learning_rate": 1.0, "together": True}),
    "attacks.inversion.ReleasedGradient": Call(lambda: {"gradient": gradient(), "batch_size": 1, "loss": None}),
    "attacks.inversion.compare": Call(
        lambda: {"originals": images(), "reconstructions": images() * 0.5, "value_range": 1.0}
    ),
    "attacks.inversion.ssim": Call(lambda: {"first": images(), "second": images() * 0.5, "value_range": 1.0}),
    "attacks.attributes.layer_gradients": Call(lambda: {"model": model(), "loss": None, **rows()}),
    "attacks.attributes.matched_batches": Call(
        lambda: {"attribute": np.arange(12) % 3 == 0, "targets": np.arange(12) % 2, "size": 1, "seed": 0}
    ),
    "attacks.attributes.gradient_sets": Call(
        lambda: {"snapshots": model(), "loss": None, **rows(12), "batches": batches()}, also=("model",)
    ),
    "attacks.attributes.infer": Call(
        lambda: {"known": sets(), "observed": sets(), "trees": 2, "confidence": 0.9, "seed": 0}, unit
    ),
    "attacks.imprint.Imprint": Call(
        lambda: {"model": model(), "shape": (4,), "thresholds": np.array([0.1, 0.4, 0.6]), "centre": (0.0, 1.0),
                 "scale": 1.0},
    ),
    "attacks.imprint.plant": Call(
        lambda: {"model": model(), "samples": rng().random((9, 4)), "bins": 4, "scale": 1.0}
    ),
    "attacks.imprint.read": Call(
        lambda: {"planted": planted(), "gradient": planted_gradient(), "batch_size": 2, "accuracy": 0.01,
                 "noise_std": 0.0}, unit,
    ),
    "attacks.text.tokens": Call(
        lambda: {"embedding_gradient": rng().normal(size=(5, 3)) * (np.arange(5) % 2)[:, None], "tied": False,
                 "update": "gradient", "noise": None},
        at_least_zero,
    ),
    "attacks.text.next_tokens": Call(
        lambda: {"gradient": np.array([0.25, -0.5, 0.25]), "positions": 2, "update": "gradient",
                 "label_smoothing": 0.0, "layer_norm": None, "tied": None, "clipped": False, "precision": None}, unit
    ),
    "attacks.text.sequences": Call(
        lambda: {"model": decoder(), "gradient": released_text(), "batch_size": 1, "length": 6,
                 "vocabulary": np.arange(20), "noise_std": 0.0}, unit, also=("layers",),
    ),
    "attacks.tensor.GaussianWeights": Call(lambda: {"num_neurons": 8, "num_inputs": 3, "seed": 0}),
    "attacks.tensor.choose": Call(lambda: {"activation": "tanh"}),
    "attacks.tensor.hermite_coefficients": Call(lambda: {"activation": "tanh", "max_order": 3}),
    "attacks.tensor.match": Call(lambda: {"recovered": np.eye(3), "inputs": np.eye(3)[::-1]}),
    "attacks.tensor.output_gradient": Call(tensor, quality),
    "attacks.tensor.reconstruct": Call(
        lambda: {"gradient": rng().normal(size=64), "weights": weights(), "num_examples": 2, "activation": "tanh",
                 "decomposition": None, "refined": False, "certify": True, "seed": 0},
    ),
    "attacks.tensor.Decomposition": Call(
        lambda: {"orders": (2, 3), "subtract": True, "method": "auto", "margin": 1.2}
    ),
}  # fmt: skip
