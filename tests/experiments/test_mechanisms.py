"""Training schemes compared: published trainings, and the claim of Poisson accounting for shuffled batches."""

from __future__ import annotations

import math
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp

from leakcore import accounting, experiments, mechanisms
from leakcore.experiments import mechanisms as chapter
from leakcore.experiments.driver.result import ExperimentResult, TextTable
from leakcore.experiments.driver.verdict import verdict
from tests.experiments.contexts import context


@pytest.mark.slow
def test_the_published_trainings_are_compared_with_the_accountant(tmp_path: Path) -> None:
    result = experiments.run("mechanisms-trainings", scale="tiny", out=tmp_path)
    assert (tmp_path / "mechanisms-trainings.png").read_bytes().startswith(b"\x89PNG")
    assert result.verdict == "reproduced"
    assert "not proved to exceed the published ε in any of 2" in result.conclusion
    sources, epsilon, success, tpr = result.tables
    assert [len(table.rows) for table in result.tables] == [2] * 4
    row = dict(zip(epsilon.head, epsilon.rows[1], strict=True))
    exact = accounting.epsilon(2.5, 16_384 / 1_281_167, 71_589, delta=8e-7)
    assert 0.0 <= float(row["Poisson"]) - exact.value < 0.01  # three digits, rounded up
    assert row["full batches"] == "–"
    assert "Poisson, replacement" not in success.head
    assert {cell for table in (success, tpr) for cells in table.rows for cell in cells} >= {"–"}
    assert all("jax_privacy" in cells[-1] for cells in sources.rows)
    assert ExperimentResult.from_dict(result.to_dict()) == result
    assert "Under each scheme: ε" in result.to_text()


def test_sources_and_sizes_of_published_trainings_are_complete_and_agree() -> None:
    orders = [1.0 + x / 10.0 for x in range(1, 100)] + list(range(11, 64))
    assert len(chapter.TRAININGS) == 8
    for training in chapter.TRAININGS:
        assert training.source
        assert not training.is_shuffled or training.loader
        assert 0 <= training.steps - training.batches * training.epochs < training.batches
        # Published values are above the exact ε, and at most what Rényi accounting with the conversion of Abadi et al.
        # (2016) and Mironov (2017) gives, which the sources used before better ones were known.
        accountant = rdp.RdpAccountant(orders)
        gaussian = dp_accounting.GaussianDpEvent(training.noise_multiplier)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(training.sample_rate, gaussian), training.steps)
        loose = min(accountant._rdp + math.log(1.0 / training.delta) / (np.array(orders) - 1.0))
        exact = accounting.epsilon(
            training.noise_multiplier, training.sample_rate, training.steps, delta=training.delta
        ).value
        assert exact <= training.epsilon <= 1.03 * loose, training.name


def row(low: float, high: float, poisson: float = 1.0) -> chapter.Cells:
    ends = {chapter.POISSON: (poisson, poisson), chapter.SHUFFLED: (low, high), chapter.ALLOCATION: (0.9, 0.9)}
    return {name: dict.fromkeys(chapter.QUANTITIES, pair) for name, pair in ends.items()}


def test_the_conclusion_follows_from_the_numbers() -> None:
    abadi, _, bu, _, _, cifar, *_ = chapter.TRAININGS  # ε 1.26, shuffled; 8.68, not said; 1
    one = chapter.compared(context(), [(abadi, row(3.0, 4.0)), (bu, row(3.0, 9.0)), (cifar, row(0.5, 2.0))])
    assert verdict(one.checks) == "reproduced"
    assert (
        "above the published one in 1 of 3: Abadi et al. 2016, MNIST, at least 3.0 instead of 1.26." in one.conclusion
    )
    assert "1 of the 1 trainings whose source says that it shuffles are among them" in one.conclusion
    none = chapter.compared(context(), [(abadi, row(0.5, 1.2, poisson=1.3)), (bu, row(3.0, 9.0))])
    assert [(c.holds, c.cases) for c in none.checks] == [(1, 2)]
    assert "in any of 2, and are proved to keep it in 1." in none.conclusion
    assert verdict(chapter.compared(context(), [(abadi, row(0.5, 1.2, poisson=1.3))]).checks) == "not reproduced"


@pytest.mark.full
def test_a_claim_below_the_lower_end_is_reported_where_it_is() -> None:
    result = experiments.run("mechanisms-shuffling", scale="tiny")
    (panel,) = result.panels
    high, low, claim = (series.y for series in panel.series)
    assert (low <= high).all()
    for i, sigma in enumerate(panel.series[0].x):
        poisson = accounting.epsilon(mechanisms.Poisson(float(sigma), 0.1, 10), delta=1e-5).value
        assert math.isclose(claim[i], poisson, rel_tol=1e-9)
    assert claim[1] < low[1]
    assert result.verdict == "reproduced"
    assert "too small at σ = 1.2" in result.conclusion


@pytest.mark.parametrize(
    ("claims", "holds", "text"),
    [
        ((2.0, 2.0, 2.0), 0, "the claim lies inside the bracket at every σ"),
        ((0.5, 0.5, 2.0), 1, "the claim is too small from σ = 1 to 2, and inside the bracket at σ = 3"),
        ((0.5, 2.0, 0.5), 1, "the claim is too small at 2 of 3 values of σ"),
        ((5.0, 2.0, 2.0), 0, "the claim is above the upper end at σ = 1"),
    ],
)
def test_sentences_on_claims(claims: tuple[float, ...], holds: int, text: str) -> None:
    points = [{"sigma": i + 1.0, "low": 1.0, "high": 3.0, "claim": claim} for i, claim in enumerate(claims)]
    result = chapter.claimed(context(), {10: points})
    assert [(c.holds, c.cases) for c in result.checks] == [(holds, 1)]
    assert text in result.conclusion
    more = chapter.claimed(context(), {10: points, 100: [{**points[0], "claim": 2.0}]})
    assert [(c.holds, c.cases) for c in more.checks] == [(holds, 2)]


def test_numbers_of_a_table_are_rounded_outward() -> None:
    assert chapter._cell((1.2341, 1.2342)) == "1.24"
    assert chapter._cell((1.2341, 7.8911)) == "1.23 to 7.90"
    assert chapter._cell((0.0, np.inf)) == "0.0 to ∞"


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="`rows` must have 2 cells each"):
        TextTable(title="t", head=("a", "b"), rows=(("1",),))
