"""What a plan says of audits that are not run."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import optimize

from leakcore import audit, bounds
from leakcore.cli import main
from leakcore.numerics import gaussian_pair_epsilon


def test_what_is_expected_is_what_audits_prove() -> None:
    """40 simulated audits of the best attack on μ-GDP with ε = 3: their median lies near the plan's number."""
    planned = audit.plan(3.0, trainings=[400], canaries=[200], confidence=0.95)
    many = next(a for a in planned.audits if (a.design, a.family) == ("many runs", "gdp"))
    rng = np.random.default_rng(8)
    mu = optimize.brentq(lambda m: gaussian_pair_epsilon(m, delta=1e-5) - 3.0, 0.1, 2.0)
    proved = [
        float(
            bounds.epsilon_lower_bound_from_scores(
                mu + rng.normal(size=200), rng.normal(size=200), adjacency="add-remove", delta=1e-5, confidence=0.95,
                threshold=bounds.SimultaneousThreshold(), hypothesis=bounds.Hypothesis("gdp", "in"),
            ).value
        )
        for _ in range(40)
    ]  # fmt: skip
    assert many.expected == pytest.approx(np.median(proved), abs=3 * np.std(proved) / np.sqrt(40) * 1.25)


def test_a_design_that_cannot_fail_is_left_out() -> None:
    planned = audit.plan(8.0, trainings=[100], canaries=[100])
    assert planned.able == tuple(a for a in planned.audits if a.ceiling > 8.0)
    assert all(a.noticed is None for a in planned.audits if a.ceiling <= 8.0)
    assert all(a.expected <= a.ceiling for a in planned.audits)
    assert "never" in planned.to_text()


def test_the_command_prints_the_table_and_takes_no_other_option() -> None:
    done = CliRunner().invoke(main, ["audit", "plan", "--epsilon", "3", "--confidence", "0.9"])
    assert done.exit_code == 0, done.output
    assert "Audits of the claim ε = 3 at δ = 1e-5, at 90%" in done.stdout
    printed = CliRunner().invoke(main, ["audit", "plan", "--epsilon", "3", "--json"])
    assert json.loads(printed.stdout)["epsilon"] == 3.0
    refused = CliRunner().invoke(main, ["audit", "plan", "--steps", "3"])
    assert refused.exit_code == 2
    assert "`--steps` is allowed only with `leakcore audit run`" in refused.output


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"`epsilon` must be above 0, got 0"):
        audit.plan(0.0)
    with pytest.raises(ValueError, match=r"`trainings` must be in \[20, 10000000\], got 10"):
        audit.plan(1.0, trainings=[10])
