"""Kept results are what the code of today gives, and none is above what is proved."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from bench import accounting_grid, agreement
from bench.attacks import final_model, imprint_rows, membership_attacks, text_recovery
from bench.audits import audit_powers, claim_audits
from bench.cases import mechanisms as timed
from bench.clusters import auditing_scale, shard_times
from leakcore import accounting, mechanisms
from leakcore.attacks import imprint, membership
from tests.bench.test_pages import stored


def test_the_accountants_grid() -> None:
    """A result of an older accountant would be another one: the value itself need not have the same bits."""
    kept = stored("accounting-grid-epyc-2core")
    assert accounting_grid.summarise(kept["rows"], kept["peers"]) == kept["summary"]
    rows = sorted(kept["rows"], key=lambda row: row["epsilon"]["seconds"])[: len(kept["rows"]) // 2 : 10]
    for row in rows:
        now = accounting.epsilon(**{name: row[name] for name in accounting_grid.NAMES})
        low, high = row["epsilon"]["interval"]
        slack = 1e-9 * (1.0 + high)
        assert low - slack <= now.value, row
        assert now.interval is not None
        assert now.interval[0] <= high + slack, row


def test_agreement_with_other_packages() -> None:
    pytest.importorskip("dp_accounting")
    kept = stored("agreement-epyc-2core")
    rows = kept["dp_accounting"]
    assert agreement.summarise(rows, kept["jax_privacy"]) == kept["summary"]
    assert all(agreement._meets(row["ours"], row["theirs"]) for row in rows + kept["jax_privacy"])
    assert not agreement._meets((1.0, 2.0), (2.1, 3.0))
    for row in rows[1:8:2]:
        now = accounting.epsilon(
            mechanisms.from_event(agreement.event(row)), delta=row["delta"], adjacency=row["adjacency"]
        )
        assert now.interval is not None
        slack = 1e-9 * (1.0 + row["ours"][1])
        assert row["ours"][0] - slack <= now.interval[1]
        assert now.interval[0] <= row["ours"][1] + slack


def test_timed_mechanisms_and_their_peers_agree() -> None:
    pytest.importorskip("dp_accounting")
    for case in timed.cases(quick=False):
        if case.size.startswith(("ε, full", "ε, Poisson and")):
            ours, theirs = (contender.build(None)() for contender in case.contenders)
            assert ours == pytest.approx(theirs, rel=1e-3), case.size


def test_audit_powers() -> None:
    """The first two repetitions again: they lie where 200 say, within 5 standard deviations."""
    kept = stored("audit-powers")
    row = next(r for r in kept["rows"] if (r["mu"], r["method"]) == (1.0, "leakcore, Gaussian"))
    rng = np.random.default_rng(kept["seed"])
    for _ in range(2):
        value = audit_powers.by_coins("gdp")(*audit_powers.scores("one run", 1.0, rng))
        assert abs(value - row["mean"]) <= 5 * row["error"] * math.sqrt(kept["repetitions"])


def test_audits_of_claims() -> None:
    for row in stored("claim-audits")["trained"]:
        assert row["all"] >= row["split"]
        if row["noise"] == 1:
            assert max(row["split"], row["all"], row["early"]) <= 4.0
    rng = np.random.default_rng(0)
    scores = {"k = 1": (rng.normal(2 * 0.9302, size=1000), rng.normal(size=1000), 1)}
    claim = claim_audits.claimed(4.0)
    proved, trainings, why = claim_audits.early(scores, claim, 0)
    assert why == "refuted"
    assert trainings < 1000
    assert proved > 4.0
    assert claim_audits.by_all(scores, claim, 0) > claim_audits.by_split(scores, claim, 0) > 4.0


def test_attacks_stay_below_their_bounds() -> None:
    """So many hits or more have a probability of at least 1e-3 at the bound."""
    assert all(row["proved"] < final_model.CLAIM for row in stored("final-model")["rows"])
    for bench, kept in (
        (imprint_rows, [row for row in stored("imprint-rows")["rows"] if row["draws"]]),
        (text_recovery, stored("text-recovery")["candidates"]),
    ):
        assert kept
        for row in kept:
            assert row["bound"] == pytest.approx(bench.bound_at(row["sigma"]), rel=1e-9)  # type: ignore[attr-defined]
            assert stats.binom.sf(row["hits"] - 1, row["draws"], row["bound"]) >= 1e-3
    games = stored("membership-attacks")
    assert all(row["tpr"] < games["bound"] for row in games["rows"] if row["training"] != "without noise")


def test_membership_areas() -> None:
    """The first 4 of 64 models again: their area lies where 64 say, within 5 standard deviations."""
    bench, kept = membership_attacks, stored("membership-attacks")
    x, y = bench.data(kept["seed"])
    target = membership.play(bench.ensemble(0.0, kept["seed"]), x[: bench.ROWS], y[: bench.ROWS], runs=4)
    row = next(r for r in kept["rows"] if r["attack"] == "loss")
    area = bench.area(membership.scores("loss", target), target.included)
    assert abs(area - row["area"]) <= 5 * row["area_error"] * math.sqrt(kept["targets"] / 4)


def test_rows_of_an_imprint() -> None:
    bench, kept = imprint_rows, stored("imprint-rows")
    net, x, y = bench.planted(kept["seed"])
    own = np.random.default_rng(kept["seed"]).choice(len(x), bench.BATCH, replace=False)
    released = bench.clipped_rows(net, x[own], y[own]).sum(0)
    assert imprint.read(net, released, batch_size=bench.BATCH, accuracy=bench.CLOSE).value >= 0.6


def test_recovered_sentences() -> None:
    pytest.importorskip("transformers")
    bench = text_recovery
    corpus = bench.prose()
    rows = bench.sentences(corpus, bench.encoder(corpus))
    net = bench.model(1, width=64)
    batch = [rows[i] for i in np.random.default_rng(0).choice(len(rows), 2, replace=False)]
    result = bench.attacked(net, batch, bench.gradient_of(net, batch))
    assert (result["exact"], result["determined"], result["wrong"]) == (2, 2, 0)


def test_trainings_of_the_auditing_papers_grid() -> None:
    # 6 ε_th, 2 starts, 2 attacks, clean and four k, 500 for the threshold and 500 counted.
    assert auditing_scale.trainings("FMNIST") == 6 * 2 * 2 * 5 * 1000
    assert auditing_scale.trainings("Purchase-100") == 6 * 2 * 5 * 1000


def test_ratio_of_turns() -> None:
    """Log-ratios with mean log 1.1 and a known spread."""
    taken = {"here": [1.0, 2.0, 4.0, 8.0], "one": [1.0, 2.42, 4.0, 9.68]}
    value, low, high = shard_times.ratio(taken, "one")
    error = 1.96 * math.log(1.1) * math.sqrt(4 / 3) / 2
    assert value == pytest.approx(1.1)
    assert (low, high) == pytest.approx((1.1 * math.exp(-error), 1.1 * math.exp(error)))
