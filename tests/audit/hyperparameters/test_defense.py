"""The audit under a defence: refusals, the game with it and without, what each defence does, what the report says."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from leakcore import attacks, audit, datasets, defenses, dpsgd, models
from leakcore.audit.hyperparameters import defense as defended
from leakcore.audit.hyperparameters import reconstruction
from leakcore.audit.hyperparameters.config import noise_under_defense, parsed_defense, why_bounds_hold
from leakcore.defenses import Clip, Compose, Dropout, GaussianNoise, Laplace, LocalSteps, Prune

SMALL: dict[str, Any] = {"num_rows": 40, "steps": 6, "sweep": (), "runs": 32, "hidden": (4,), "learning_rate": 1.0}


def test_a_defence_is_kept_as_it_is_spelt() -> None:
    defense = Compose(LocalSteps(2, 1.0), Dropout(0.5, per_sample=False), Clip(0.25), Prune(0.1), GaussianNoise(1e16))
    config = audit.AuditConfig(**SMALL, defense=defense)
    assert config.defense == "local-steps:2,1 + dropout:0.5,shared + clip:0.25 + prune:0.1 + gaussian-noise:1e+16"
    assert defenses.parse(config.defense).parts == defense.parts
    assert audit.AuditConfig.from_dict(config.to_dict()) == config
    assert audit.AuditConfig(**SMALL, defense="local-steps:2").defense == "local-steps:2,1"
    assert audit.AuditConfig(**SMALL).to_dict() != config.to_dict()


@pytest.mark.parametrize(
    ("defense", "more", "message"),
    [
        ("clip-samples:1", {}, "must not have ClipSamples, the audited mechanism itself, got 'clip-samples:1"),
        ("dp-sgd:1,1", {}, "must not have DPSGD, the audited mechanism itself, got 'dp-sgd:1,1"),
        ("local-steps:4", {}, "`steps` must be a multiple of the 4 local steps of defense='local-steps:4,1', got 6"),
        (
            "local-steps:2,0.5",
            {},
            "`defense` must have local steps of the audited training .*, learning_rate=1.*, got 'local-steps:2,0.5",
        ),
        ("prune:0.5", {"sample_rate": 0.5}, "`sample_rate` must be 1 with defense='prune:0.5', got 0.5"),
        ("dropout:0.5", {"hidden": ()}, "`hidden` must not be empty with defense='dropout:0.5', got"),
        ("shrink:1", {}, r"`defense` must begin with one of local-steps, dropout,.*, got 'shrink:1'"),
        ("prune", {}, "keep_fraction is missing"),
        ("prune:x", {}, "is not a number"),
        ("prune:1,2", {}, "is superfluous"),
        ("", {}, r"`defense` must begin with one of local-steps, dropout, clip-samples, dp-sgd,.*, got ''"),
        (Compose(), {}, "`defense` must have a part, got none"),
    ],
)
def test_what_it_cannot_take_is_refused_before_any_work(defense: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audit.AuditConfig(**{**SMALL, **more}, defense=defense)


def test_wrong_types_are_named() -> None:
    with pytest.raises(TypeError, match=r"`defense` must be text, got 0.1"):
        audit.AuditConfig(**SMALL, defense=0.1)
    with pytest.raises(TypeError, match=r"`defense` must be text, such as 'prune:0.1 \+ laplace:0.5', got 3"):
        defenses.parse(3)  # type: ignore[arg-type]


def test_clipped_gradients_match_torch() -> None:
    config = audit.AuditConfig(**{**SMALL, "hidden": (6, 5), "activation": "tanh", "max_grad_norm": 0.3})
    game = defended._DefendedGame(config, 1.0, None)
    theta, candidates, _ = game.start(3, 2)
    apart = game._clipped(theta, game.pool[0][candidates], game.pool[1][candidates], apart=True)
    model = models.mlp((64, 6, 5, 10), "tanh")
    for run in range(2):
        torch.nn.utils.vector_to_parameters(theta[run], model.parameters())
        for place, row in enumerate(candidates[run, :3]):
            model.zero_grad()
            torch.nn.functional.cross_entropy(model(game.pool[0][row][None]), game.pool[1][row][None]).backward()
            flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            torch.testing.assert_close(
                apart[run, place], flat * min(1.0, 0.3 / float(flat.norm())), rtol=1e-4, atol=1e-7
            )
    summed = game._clipped(theta, game.pool[0][candidates], game.pool[1][candidates])
    torch.testing.assert_close(summed[:, 0], apart.sum(1), rtol=1e-4, atol=1e-6)


def test_without_a_defence_it_is_the_audits_own_game() -> None:
    """The same candidates, targets, initial parameters and noise; an attack as good as the prior-aware one."""
    config = audit.AuditConfig(**{**SMALL, "runs": 96, "epsilon": 40.0})
    noise = reconstruction.noise_levels(config)[0][0]
    data = datasets.digits()
    known = config.num_rows - 1
    plain = attacks.reconstruction_game(
        reconstruction.ensemble(config, noise),
        dpsgd.Rows(data.features[:known], data.labels[:known]),
        dpsgd.Rows(data.features[known:], data.labels[known:]),
        attacks.GameRules(config.num_candidates),
        runs=96,
    )
    mine = sum(defended.play(config, noise, None, first, 32).hits for first in (0, 32, 64))
    assert plain.hits > 30  # chance: 10
    assert abs(mine - plain.hits) <= 8
    game = defended._DefendedGame(config, noise, None)
    theta, candidates, target = game.start(0, 4)
    chosen = np.take_along_axis(candidates.numpy(), target[:, None], 1)
    trained = reconstruction.ensemble(config, noise).run(
        data.features[:known],
        data.labels[:known],
        runs=4,
        per_run=dpsgd.PerRun(dpsgd.Rows(data.features[known:], data.labels[known:], chosen)),
    )
    for step in range(config.steps):
        theta = theta - config.learning_rate * game.released(theta, candidates, target, step, 0)
    np.testing.assert_allclose(theta.numpy(), trained.parameters, atol=2e-5)


def test_a_run_is_the_same_in_whatever_range_it_is_played() -> None:
    config = audit.AuditConfig(**SMALL)
    defense = Compose(LocalSteps(2, 1.0), Dropout(0.5), Laplace(0.01), GaussianNoise(0.01))
    whole = defended.play(config, 1.0, defense, 0, 6)
    parts = [defended.play(config, 1.0, defense, first, 2) for first in (0, 2, 4)]
    assert whole.hits == sum(p.hits for p in parts)
    assert whole.accuracy == pytest.approx(float(np.mean([p.accuracy for p in parts])), abs=1e-6)


@pytest.mark.full(keep=2)
@pytest.mark.parametrize(
    ("defense", "hampers"),
    [
        ("gaussian-noise:0.05", True),
        ("laplace:0.05", True),
        ("prune:0.02", True),
        ("dropout:0.2", True),
        ("clip:0.001", False),
        ("local-steps:2", False),
    ],
)
def test_each_defence_in_the_game(defense: str, hampers: bool) -> None:
    """Noise, pruning and unknown masks hide the target; scaling hides nothing from one who undoes it, and two steps in
    one release little."""
    config = audit.AuditConfig(**{**SMALL, "epsilon": 60.0, "defense": defense})
    noise = reconstruction.noise_levels(config)[0][0]
    plain, under = (defended.play(config, noise, d, 0, 48).hits for d in (None, parsed_defense(config.defense)))
    assert plain > 24
    if hampers:
        assert under < plain - 8
    else:
        assert under > plain - 12


@pytest.mark.full
def test_the_report_names_the_defence_and_why_bounds_hold() -> None:
    plain = audit.run(SMALL)
    result = audit.run({**SMALL, "defense": "gaussian-noise:0.01 + prune:0.5"})
    assert result.passed
    text, page, content = result.to_text(), result.to_html(), json.loads(result.to_json())
    for output in (" ".join(text.split()), page):
        assert "gaussian-noise:0.01 + prune:0.5" in output
        assert "post-processing" in output
    part = content["defense"]
    assert part["runs"] == 32
    # Gaussian noise before anything else makes it DP-SGD with more noise: √(σ² + (0.01·40/0.1)²).
    claimed = result.claimed
    assert part["with"]["epsilon"]["value"] < part["without"]["epsilon"]["value"] == claimed.epsilon.value
    assert part["with"]["bound"]["value"] < part["without"]["bound"]["value"] == claimed.bound.value
    # Nothing else of the audit moves.
    own = json.loads(plain.to_json())
    assert "defense" not in own
    for key in ("reconstruction", "labels", "layers", "curve"):
        assert content[key] == own[key], key


def test_bounds_are_not_lowered_by_what_proves_nothing() -> None:
    for text, more in (
        ("prune:0.1", False), ("laplace:1", False), ("prune:0.1 + gaussian-noise:1", False), ("clip:1", False),
        ("local-steps:2 + gaussian-noise:1", False), ("gaussian-noise:1 + prune:0.1", True),
        ("dropout:0.5 + gaussian-noise:1", True),
    ):  # fmt: skip
        config = audit.AuditConfig(**SMALL, defense=text)
        assert (
            noise_under_defense(parsed_defense(config.defense), 1.0, config.num_rows, config.max_grad_norm) is not None
        ) == more, text
    config = audit.AuditConfig(**SMALL, defense="gaussian-noise:0.01")
    assert noise_under_defense(
        parsed_defense(config.defense), 3.0, config.num_rows, config.max_grad_norm
    ) == pytest.approx(5.0)  # 3² + (0.01·40/0.1)²
    said = why_bounds_hold(defenses.parse("dropout:0.5 + prune:0.1"))
    assert "masks without the data" in said
    assert "post-processing" in said
