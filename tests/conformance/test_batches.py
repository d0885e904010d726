"""Ways to draw batches: what a class says of itself is what it draws, and who does not know a class refuses its name.

Invariant of the family: no class counts as another. An attacker, an audit or an accountant that has no answer for a way
to draw batches says so, and never takes it for the way whose answer comes last in its list.
"""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import numpy as np
import pytest

pytest.importorskip("torch")
from leakcore import attacks, audit, dpsgd, mechanisms
from leakcore.attacks.reconstruction import game_result
from leakcore.audit.claim import proofs
from leakcore.audit.claim.config import SchemeName
from leakcore.audit.hyperparameters import scheme
from leakcore.audit.trace.recorded_run import choose, whole_run
from leakcore.dpsgd.ensemble.sampling import Batches, DrawnBatches, Streams
from leakcore.dpsgd.trace.trace import Scheme as Recorded
from leakcore.mechanisms.schemes import SCHEMES

ROWS, RUNS, STEPS = 60, 32, 40
EXAMPLES = (
    dpsgd.PoissonBatches(0.3), dpsgd.ShuffledBatches(12), dpsgd.FixedBatches(7), dpsgd.AllocatedBatches(5),
)  # fmt: skip
EVERY = pytest.mark.parametrize("batches", EXAMPLES, ids=lambda b: type(b).__name__)
X, Y = np.random.default_rng(0).random((20, 4)), np.arange(20) % 2


ARGUMENTS: dict[str, dict[str, Any]] = {
    "poisson": {"sample_rate": 0.3, "steps": 10},
    "full": {"steps": 10},
    "fixed": {"batch_size": 12, "dataset_size": 60, "steps": 10},
    "shuffled": {"batches": 5, "epochs": 2},
    "allocation": {"batches": 5, "epochs": 2},
}
RECORDED = {
    "unknown": "",
    "poisson": "Poisson",
    "full-batch": "FullBatch",
    "shuffled": "Shuffled",
    "fixed-size": "FixedSize",
}


class Odd(dpsgd.FixedBatches):
    """Answers every question, under a name that nobody else knows."""

    scheme = "odd"


def _ensemble(batches: Any, **changes: Any) -> dpsgd.Ensemble:
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "learning_rate": 0.1, "seed": 0}
    return dpsgd.Ensemble((4, 2), sample_rate=batches, **{"steps": 4, **settings, **changes})


def _classes(of: type) -> set[type]:
    return {c for sub in of.__subclasses__() for c in {sub, *_classes(sub)} if c.__module__.startswith("leakcore.")}


def test_every_class_is_held_to_this() -> None:
    public = {getattr(dpsgd, name) for name in dir(dpsgd) if name.endswith("Batches")}
    assert {type(b) for b in EXAMPLES} == public == {c for c in _classes(Batches) if not c.__abstractmethods__}
    names = [b.scheme for b in EXAMPLES]
    assert len(set(names)) == len(names)
    assert set(names) | {"full"} == set(SCHEMES) == set(game_result.SCHEMES) | {"full"}


@pytest.mark.parametrize("question", sorted(Batches.__abstractmethods__))
def test_no_class_without_an_answer(question: str) -> None:
    answers: dict[str, Any] = {name: None for name in Batches.__abstractmethods__ if name != question}
    with pytest.raises(TypeError, match=f"abstract method '?{question}"):
        type("Unanswered", (Batches,), answers)()


@EVERY
def test_what_it_says_is_what_it_draws(batches: Batches) -> None:
    """Sizes and the share of the rows, over 1,280 batches; the divisor of a step is their mean."""
    drawn = DrawnBatches(batches, Streams(0, "float32"), ROWS)
    taken = np.stack([drawn.batch(step, 0) for step in range(STEPS)])
    assert taken.shape == (STEPS, RUNS, ROWS)
    sizes = taken.sum(axis=2)
    assert (sizes == batches.size).all() if batches.size is not None else len(np.unique(sizes)) > 5
    assert abs(taken.mean() - batches.share(ROWS)) < 4 * np.sqrt(0.25 / taken.size)
    ensemble = _ensemble(batches)
    assert ensemble.batch_size == batches.size
    assert ensemble.sample_rate == (batches.share(ROWS) if batches.size is None else 1)
    assert abs(ensemble._plan(ROWS).expected_batch_size - batches.share(ROWS) * ROWS) < 1e-9
    assert ensemble.settings()["sampling"] == batches.scheme
    per_epoch = batches.period(ROWS)
    in_epoch = taken[: STEPS // per_epoch * per_epoch].reshape(-1, per_epoch, RUNS, ROWS).sum(axis=1)
    assert (in_epoch <= 1).all()  # which is what the attacker of an epoch's batches assumes


@EVERY
def test_the_attacker_of_the_game_knows_it(batches: Batches) -> None:
    """He scores a target that is in each of his steps, or in a batch's share of them."""
    ensemble = _ensemble(batches, steps=20)
    known = game_result.scheme(ensemble)
    top = game_result.rule(ensemble, "top", 20)
    assert top.count == (20 if known.batches == "all" else round(20 * batches.share(20)))
    game = attacks.reconstruction_game(
        ensemble, dpsgd.Rows(X[:14], Y[:14]), dpsgd.Rows(X[14:], Y[14:]), attacks.GameRules(3), runs=32
    )
    assert game.adjacency in mechanisms.of_scheme(batches.scheme, 1.0, ARGUMENTS[batches.scheme]).adjacencies
    assert game.settings["sampling"] == batches.scheme


def test_an_attacker_refuses_what_he_does_not_know() -> None:
    known, pool = dpsgd.Rows(X[:14], Y[:14]), dpsgd.Rows(X[14:], Y[14:])
    ensemble = _ensemble(Odd(3))
    assert ensemble.run(X, Y, runs=2).parameters.shape == (2, 10)
    with pytest.raises(ValueError, match=r"`ensemble` must have batches .*, got 'odd'"):
        attacks.reconstruction_game(ensemble, known, pool, attacks.GameRules(3), runs=32)
    with pytest.raises(ValueError, match=r"Poisson or full batches.*Odd\(batch_size=3"):
        attacks.membership.play_canaries(ensemble, X[:16], Y[:16], X[16:], Y[16:], runs=2)
    with pytest.raises(ValueError, match=r"Poisson or full batches.*Odd\(batch_size=3"):
        attacks.poisoning.crafted_gradient_scores(ensemble, X, Y, trials=32)
    with pytest.raises((TypeError, ValueError), match=r"dpsgd\.PoissonBatches.*allowed"):
        _ensemble(Odd)


@pytest.mark.parametrize("name", SCHEMES)
def test_an_audit_of_hyperparameters_plays_with_the_batches_of_its_mechanism(name: str) -> None:
    config = audit.AuditConfig(
        noise_multiplier=1.0, epsilon=None, sampling=name, num_rows=60, sweep=(), **ARGUMENTS[name]
    )
    batches = scheme.batches(config)
    assert batches.scheme == ("poisson" if name == "full" else name)
    assert scheme.full_batches(config) == (batches.share(60) == 1)
    knows = game_result.SCHEMES[batches.scheme].knows
    assert set(scheme.batches_known(config).split()) <= {*knows.replace(",", "").split(), "so", "and"}
    assert type(scheme.mechanism(config, 1.0)).__name__ == SCHEMES[name].mechanism


@pytest.mark.parametrize("name", get_args(SchemeName))
def test_an_audit_of_a_claim_trains_with_the_batches_of_its_mechanism(name: str) -> None:
    keys = {key: value for key, value in ARGUMENTS[name].items() if key in ("sample_rate", "batch_size")}
    keys |= {"shuffled": {"batch_size": 12}, "allocation": {"batches": 5}}.get(name, {})
    relation = "replace" if name in ("fixed", "shuffled") else "add-remove"
    mechanism = {"noise_multiplier": 1.0, "sampling": name, "steps": 10, **keys}
    config = audit.ClaimConfig.from_dict({"mechanism": mechanism, "claim": {"adjacency": relation}})
    batches = config.ensemble(4, 2, 1.0, 60).sampling
    assert (batches.scheme, config.mechanism.swaps) == (name, batches.size is not None)
    accounted, _ = proofs._scheme(config, 60)
    played = mechanisms.of_scheme(name, 1.0, ARGUMENTS[name])  # where the orders are known: a step for each epoch
    assert repr(accounted) == repr(mechanisms.FullBatch(1.0, 2) if name == "shuffled" else played)


def test_audits_refuse_what_they_do_not_know() -> None:
    config = audit.AuditConfig(noise_multiplier=1.0, epsilon=None)
    object.__setattr__(config, "sampling", "odd")
    for question in (scheme.batches, scheme.batches_known):
        with pytest.raises(ValueError, match=r"`sampling` must be one of .*, got 'odd'"):
            question(config)
    claim = audit.ClaimConfig.from_dict({"mechanism": {"noise_multiplier": 1.0}})
    with pytest.raises(ValueError, match=r"`mechanism.sampling` must be one of .*, got 'odd'"):
        dataclasses.replace(claim.mechanism, sampling="odd")


def test_a_trace_names_a_way_to_draw_that_audits_know() -> None:
    fields: dict[str, Any] = {
        "noise_multiplier": np.ones(8), "max_grad_norm": np.ones(8), "batch_rows": np.full(8, 5), "sample_rate": None,
        "expected_batch_size": 5.0, "members": np.arange(6) < 3, "members_given": True, "times_seen": np.full(6, 8),
        "clipped_share": np.zeros(6), "membership_sum": np.zeros(6), "membership_likelihood": np.zeros(6),
        "pair_sum": np.zeros((6, 6)), "pair_likelihood": np.zeros((6, 6)),
    }  # fmt: skip
    numbers: dict[str, Any] = {"sample_rate": 0.25, "batch_size": 5, "dataset_size": 20, "batches": 4, "evidence": "it"}
    assert set(RECORDED) == set(get_args(Recorded))
    for name, mechanism in RECORDED.items():
        rate = {"poisson": 0.25}.get(name, 1.0)
        trace = dpsgd.Trace(**fields | {"sampling": dpsgd.Sampling(scheme=name, **numbers), "sample_rate": rate})
        chosen, why = choose(trace, whole_run(trace, None))
        assert (type(chosen).__name__ if chosen else "") == mechanism
        assert why.evidence == ("it" if mechanism else "")
    with pytest.raises(ValueError, match=r"`scheme` must be .*'fixed-size' or 'unknown', got 'odd'"):
        dpsgd.Sampling(scheme="odd", **numbers)
