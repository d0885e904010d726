"""Audits and lower bounds: never above the truth more often than they say, and no sentence says more than its number.

Members: every public function of `leakcore.bounds` and `leakcore.audit` whose result may be a lower bound on ε.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from leakcore import accounting, audit, bounds, mechanisms
from leakcore.attacks import membership
from leakcore.audit.hyperparameters.report import _bracket_text
from leakcore.audit.scores.statistics import audited
from leakcore.cli import main
from tests.audit import samples as reports
from tests.audit.samples import orthogonal, simulated
from tests.conformance.audit_levels import LEVEL, Case, cases

_CASES = cases()
_P_VALUE = 1e-4
"""Of all cases together, by Bonferroni: how often the suite would fail although every bound keeps its level."""
_ELSEWHERE = {
    "ridge_output_perturbation": "exact, no trials: tests/bounds/audited_epsilon/test_ridge.py recomputes it",
    "label_epsilon": "exact, no trials: tests/bounds/test_labels.py",
    "mse_lower_bound": "bounds an error, not ε",
}
"""Public names with a bound from below that no trial decides, and why they have no case."""
_BY_THEIR_STATISTIC = {
    "from_trace": "from_scores",
    "claim": "epsilon_lower_bound_best",
    "run": "epsilon_lower_bound_one_run",
}
"""Audits that train or need a run: their bound has the cases, and their sentences are read."""


def _public(module: Any) -> Iterator[tuple[str, Any]]:
    for name in module.__all__:
        value = getattr(module, name)
        if not inspect.ismodule(value):
            yield name, value


def _bounds_from_below() -> set[str]:
    """Public names of `bounds` that speak of a result of kind "lower"."""
    said = re.compile(r"kind\s+\"lower\"|lower bound on ε", re.IGNORECASE)
    names = set()
    for name, value in _public(bounds):
        documented = inspect.getdoc(value) or ""
        methods = [inspect.getdoc(m) or "" for m in vars(value).values()] if inspect.isclass(value) else []
        if inspect.isfunction(value) and said.search(documented):
            names.add(name)
        if inspect.isclass(value) and any(re.search(r"kind\s+\"lower\"", text) for text in methods):
            names.add(name)
    return names


def _audits() -> set[str]:
    """Public functions of `audit` that return a report of an audit."""
    names = set()
    for name, value in _public(audit):
        if inspect.isfunction(value):
            returned = str(inspect.unwrap(value).__annotations__.get("return"))  # a name: the modules annotate lazily
            kinds = [getattr(audit, word, None) for word in re.findall(r"\w+", returned)]
            if any(inspect.isclass(kind) and issubclass(kind, audit.AuditReport) for kind in kinds):
                names.add(name)
    return names


def test_every_public_lower_bound_and_audit_is_a_member() -> None:
    covered = {case.bound for case in _CASES} | set(_ELSEWHERE) | set(_BY_THEIR_STATISTIC)
    assert set(_BY_THEIR_STATISTIC.values()) <= {case.bound for case in _CASES}
    assert _bounds_from_below() | _audits() == covered, "a new lower bound or audit needs a case in audit_levels.py"


def _too_often(case: Case, plays: int, seed: int) -> tuple[int, float]:
    """How often more than the truth was proved, and the p-value of that at the stated level."""
    rng = np.random.default_rng([seed, *case.bound.encode(), *case.what.encode()])
    above = sum(case.play(rng) > case.truth * (1 + 1e-9) + 1e-12 for _ in range(plays))
    return above, float(stats.binom.sf(above - 1, plays, 1 - LEVEL))


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("case", _CASES, ids=str)
def test_more_than_the_truth_is_proved_no_oftener_than_stated(case: Case) -> None:
    above, chance = _too_often(case, case.plays, 0)
    assert chance > _P_VALUE / len(_CASES), f"{above} of {case.plays} above {case.truth:.4g}, p = {chance:.1e}"


@pytest.mark.slow
@pytest.mark.parametrize("case", _CASES, ids=str)
def test_more_than_the_truth_is_proved_no_oftener_than_stated_in_many_plays(case: Case) -> None:
    plays = 10 * case.plays
    above, chance = _too_often(case, plays, 1)
    assert chance > _P_VALUE / len(_CASES), f"{above} of {plays} above {case.truth:.4g}, p = {chance:.1e}"


# Swapped and mistaken arguments

_ALPHABETS = ((0, 1), (-1, 1), (False, True), (3, 7))


def _as(kind: str, values: np.ndarray) -> Any:
    """The same numbers as another library or type has them."""
    if kind == "pandas":
        return pytest.importorskip("pandas").Series(values)
    if kind == "torch":
        return pytest.importorskip("torch").as_tensor(values)
    return values.tolist() if kind == "list" else values.astype(object) if kind == "object" else values


@st.composite
def _mistakes(draw: st.DrawFn) -> tuple[Any, Any]:
    """Scores and labels that have nothing to do with each other, in some order and type."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(40, 300))
    low, high = draw(st.sampled_from(_ALPHABETS))
    labels = np.where(rng.random(n) < draw(st.sampled_from((0.2, 0.5))), high, low)
    labels[:2] = low, high
    if not isinstance(low, bool):
        labels = labels.astype(draw(st.sampled_from((np.int64, np.int8, np.float64, np.float32))))
    scores = draw(st.sampled_from(("gamma", "normal", "losses")))
    values = {"gamma": rng.gamma(3, 1, n) + 1, "normal": rng.normal(size=n), "losses": -rng.exponential(1, n)}[scores]
    kinds = ("numpy", "list", "object", "pandas", "torch")
    sides = _as(draw(st.sampled_from(kinds)), values), _as(draw(st.sampled_from(kinds)), labels)
    return sides[::-1] if draw(st.booleans()) else sides


@given(_mistakes())
@settings(derandomize=True, database=None, deadline=None, max_examples=150)
def test_labels_in_the_place_of_scores_are_refused(sides: tuple[Any, Any]) -> None:
    for design in ({"coins": True}, {"retrained": True, "adjacency": "replace"}, {"adjacency": "add-remove"}):
        with pytest.raises((ValueError, TypeError), match=r"^`(members|non_members)` must hold scores"):
            audit.from_scores(*sides, **design)


@given(_mistakes())
@settings(derandomize=True, database=None, deadline=None, max_examples=60)
def test_labels_of_the_usual_kinds_are_refused_by_every_bound_on_two_arrays(sides: tuple[Any, Any]) -> None:
    values = {tuple(sorted(set(np.asarray(side, dtype=float).tolist()))) for side in sides}
    if (3.0, 7.0) in values:
        return  # two arbitrary numbers may be a score of events
    how: dict[str, Any] = {"adjacency": "replace"}
    calls = (
        lambda: bounds.epsilon_lower_bound_from_scores(*sides, **how),
        lambda: bounds.epsilon_lower_bound_from_scores(*sides, threshold=bounds.SimultaneousThreshold(), **how),
        lambda: bounds.epsilon_lower_bound_best({"a": (*sides, 1)}, **how),
        lambda: bounds.SequentialTest(1.0, **how).add({"a": (*sides, 1)}),
    )
    for call in calls:
        with pytest.raises((ValueError, TypeError), match="must hold scores, got"):
            call()


@given(st.integers(0, 2**32 - 1), st.sampled_from(("classes", "three", "indices", "shorter")), st.booleans())
@settings(derandomize=True, database=None, deadline=None, max_examples=60)
def test_other_whole_numbers_in_the_place_of_scores_are_refused(seed: int, what: str, turned: bool) -> None:
    """Classes, memberships with "unknown", indices of the members, memberships that lack some rows."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(40, 300))
    there = rng.random(n) < 0.5
    there[:25] = True
    other = {
        "classes": rng.integers(10, size=n),
        "three": rng.choice([-1, 0, 1], size=n, p=[0.2, 0.4, 0.4]),
        "indices": np.flatnonzero(there),
        "shorter": np.where(there, 1, 2)[: n - int(rng.integers(1, 15))],
    }[what]
    sides = (rng.gamma(3, 1, n) + 1, other)
    for design in ({"coins": True}, {"retrained": True, "adjacency": "replace"}, {"adjacency": "add-remove"}):
        with pytest.raises(ValueError, match=r"^`(members|non_members)` must hold scores"):
            audit.from_scores(*(sides[::-1] if turned else sides), **design)


def _ones(rng: np.random.Generator, n: int, share: float) -> np.ndarray:
    out = (rng.random(n) < share).astype(float)
    out[:2] = 0.0, 1.0
    return out


def test_two_arrays_of_labels_and_the_same_array_twice_are_refused() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=100)
    for first, second in (
        (_ones(rng, 100, 0.7), _ones(rng, 100, 0.5)),
        (_ones(rng, 100, 0.7), _ones(rng, 50, 0.5)),
        (np.ones(100), np.zeros(100)),
        (_ones(rng, 100, 0.7) > 0, _ones(rng, 100, 0.5) > 0),
        (2 * _ones(rng, 100, 0.7) - 1, 2 * _ones(rng, 100, 0.5) - 1),
        (scores, _ones(rng, 60, 0.5)),
        (scores, scores),
        (scores, scores.copy()),
    ):
        with pytest.raises(ValueError, match=r"^`(members|non_members)` must "):
            audit.from_scores(first, second, coins=True)


@pytest.mark.full
def test_labels_in_files_and_on_the_command_line_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.gamma(3, 1, 400) + 1, _ones(rng, 400, 0.5)
    np.savez(tmp_path / "s.npz", a=scores, b=labels, c=labels > 0)
    lines = "\n".join(f"{a},{b:g}" for a, b in zip(scores, labels, strict=True))
    (tmp_path / "s.csv").write_text(f"a,b\n{lines}\n")
    for name, other in (("s.npz", "b"), ("s.npz", "c"), ("s.csv", "b")):
        for first, second in (("a", other), (other, "a")):
            columns = ("--members", first, "--non-members", second)
            done = CliRunner().invoke(
                main, ["audit", "scores", str(tmp_path / name), "--coins", *columns, "--json", "-"]
            )
            assert done.exit_code == 2, done.output
            assert "look like labels" in done.stderr
            read = audit.read_scores(tmp_path / name, members=first, non_members=second)
            with pytest.raises(ValueError, match="look like labels"):
                audit.from_scores(read, coins=True)
        done = CliRunner().invoke(
            main,
            ["audit", "scores", str(tmp_path / name), "--coins", "--values", "a", "--labels", other, "--json", "-"],
        )
        assert done.exit_code == 0, done.output


@pytest.mark.full(keep=6)
@pytest.mark.parametrize("kind", ["numpy", "list", "object", "pandas", "torch"])
@pytest.mark.parametrize("dtype", [bool, np.int64, np.float64])
def test_scores_with_memberships_prove_what_two_arrays_prove(kind: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    there = rng.random(200) < 0.5
    scores = rng.normal(size=200) + there
    plain = audit.from_scores(scores[there], scores[~there], coins=True)
    named = audit.from_scores(scores=_as(kind, scores), members=_as(kind, there.astype(dtype)), coins=True)
    assert named.epsilon == plain.epsilon
    assert (named.members, named.non_members) == (plain.members, plain.non_members)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scores": [1.0, 2.0, 3.0, 4.0]}, "`members` must be given with scores"),
        ({"scores": [1.0, 2.0, 3.0, 4.0], "members": [1, 0, 1]}, "`members` must have the shape of scores"),
        ({"scores": [1.0, 2.0, 3.0, 4.0], "members": [1, 0, 2, 1]}, "`members` must be True and False, or 1 and 0"),
        ({"scores": [1, 0, 1, 0], "members": [0.3, 0.1, 0.7, 0.2]}, "`members` must be True and False, or 1 and 0"),
        (
            {"scores": [1.0, 2.0, 3.0, 4.0], "members": [1, 1, 1, 1]},
            "at least two rows that they are non-members, got 0",
        ),
        (
            {"scores": [True, False, True, False], "members": [1, 0, 1, 0]},
            "`scores` must hold scores, got truth values",
        ),
        ({"scores": [1.0, math.nan, 3.0, 4.0], "members": [1, 0, 1, 0]}, r"`scores\[1\]` must be a number, got nan"),
        (
            {"scores": [1.0, 2.0], "members": [1, 0], "non_members": [1.0, 2.0]},
            "`non_members` must be None with scores",
        ),
        ({"scores": "s.npz", "members": [1, 0]}, "`scores` must be an array"),
        ({}, "`members` must be given"),
    ],
)
def test_bad_scores_and_memberships_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        audit.from_scores(**arguments, coins=True)


def test_right_programs_with_few_values_are_not_refused() -> None:
    """Events, counts and saturated statistics are scores; so are guesses of 0 and 1 with named memberships."""
    rng = np.random.default_rng(0)
    events = _ones(rng, 100, 0.7), _ones(rng, 100, 0.3)
    counts = rng.poisson(2.0, 100), np.minimum(rng.poisson(0.3, 100), 1)
    sure = np.ones(100), np.zeros(100)
    for inside, outside in (events, counts, counts[::-1], sure, (np.zeros(100), np.zeros(100)), events[::-1]):
        for way in (bounds.SplitThreshold(), bounds.SimultaneousThreshold()):
            bounds.epsilon_lower_bound_from_scores(inside, outside, adjacency="replace", threshold=way)
        bounds.SequentialTest(1.0, adjacency="replace").add({"a": (inside, outside, 1)})
    there = rng.random(200) < 0.5
    guesses = (there ^ (rng.random(200) < 0.2)).astype(float)
    assert float(audit.from_scores(scores=guesses, members=there, coins=True).epsilon.value) > 0
    audit.from_scores(rng.normal(size=50).round(), rng.normal(size=50).round(), coins=True)
    audit.from_scores([0.1, 0.4, 0.1], [0.2, 0.3, 0.4], adjacency="add-remove")
    audit.from_scores([2.0, 3.0], [0.0, 1.0], coins=True)
    losses = -rng.exponential(1, 60)
    audit.from_scores(losses, np.zeros(60), adjacency="replace", retrained=True)  # a loss that saturates
    audit.from_scores(losses, np.where(rng.random(60) < 0.5, 0.0, losses - 1), coins=True)
    audit.from_scores(rng.poisson(3.0, 60), rng.poisson(3.0, 60) + 0.5 * (np.arange(60) == 3), coins=True)


def test_the_order_of_the_rows_decides_nothing() -> None:
    """Scores that are all equal, or equal in part, of rows that are sorted by their coins, either way."""
    rng, trials, above = np.random.default_rng(3), 0, 0
    for kind, first in itertools.product(("equal", "few"), (True, False)):
        there = np.arange(200) < 100 if first else np.arange(200) >= 100
        scores = np.ones(200) if kind == "equal" else rng.integers(1, 4, size=200).astype(float)
        for share in (0.25, 0.5):
            right, number = membership.guess(scores[None] - 2.0 * (kind == "few"), share=share).tally(there[None])
            trials += 1
            above += float(bounds.epsilon_lower_bound_one_run(right, number, 200, confidence=0.99).value) > 0
        trials += 2
        above += float(audited(scores, there, 1e-5, 0.99).value) > 0
        above += float(audit.from_scores(scores=scores, members=there, coins=True, confidence=0.99).epsilon.value) > 0
    assert above <= 1, f"{above} of {trials} at 99%"


# Relations

_RELATIONS = ("add-remove", "replace", "zero-out")


def _sigma(epsilon: float, relation: str) -> float:
    mechanism = mechanisms.FullBatch(1.0, 1)
    return float(accounting.noise_multiplier(mechanism, epsilon=epsilon, delta=1e-5, adjacency=relation).value)


@pytest.mark.full(keep=2)
@pytest.mark.parametrize("family", ["dp", "gdp", pytest.param("mechanism", marks=pytest.mark.slow)])
@pytest.mark.parametrize("design", [{"retrained": True}, {"coins": True}], ids=str)
@pytest.mark.parametrize(("claimed", "audited"), list(itertools.product(_RELATIONS, _RELATIONS)))
def test_a_correct_mechanism_is_not_contradicted_under_another_relation(
    claimed: str, audited: str, design: dict[str, bool], family: str
) -> None:
    """The noise of exactly the claimed ε: an audit at 99.9% contradicts it at most once in a thousand."""
    rng = np.random.default_rng(7)
    for epsilon in (4.0,) if family == "mechanism" else (1.0, 4.0):
        sigma = _sigma(epsilon, claimed)
        shift = (2 if audited == "replace" else 1) / sigma
        there = rng.random(400) < 0.5
        scores = rng.normal(size=400) + shift * there
        ran = mechanisms.FullBatch(sigma, 1) if family == "mechanism" else family
        how: dict[str, Any] = {"claimed_epsilon": epsilon, "adjacency": audited, "family": ran, **design}
        with pytest.raises(TypeError, match="`claimed_adjacency` must be given with claimed_epsilon"):
            audit.from_scores(scores[there], scores[~there], **how)
        if claimed != audited and not (audited == "replace" and claimed in ("add-remove", "zero-out")):
            with pytest.raises(ValueError, match="`claimed_adjacency` must be"):
                audit.from_scores(scores[there], scores[~there], claimed_adjacency=claimed, **how)
            continue
        report = audit.from_scores(scores[there], scores[~there], claimed_adjacency=claimed, **how)
        assert report.passed, report.verdict()
        assert report.gate is not None
        assert report.gate.adjacency == claimed
        _read(report)
        # Half of the noise is too little, and is found where the scores are many enough.
        broken = audit.from_scores(
            (scores + 4 * shift * there)[there], scores[~there], claimed_adjacency=claimed, **{**how, "family": "gdp"}
        )
        if broken.passed is False:
            words = {"add-remove": "add/remove", "replace": "replacement", "zero-out": "zero-out"}[claimed]
            assert f"above the claimed {epsilon:g} under {words} adjacency" in broken.verdict()
            _read(broken)


def test_a_relation_without_a_claim_is_refused() -> None:
    with pytest.raises(TypeError, match="`claimed_adjacency` must be left out without claimed_epsilon"):
        audit.from_scores([1.0, 2.0], [3.0, 4.0], coins=True, claimed_adjacency="replace")
    with pytest.raises(
        ValueError, match="`claimed_adjacency` must be 'add-remove', 'replace' or 'zero-out', got 'both'"
    ):
        audit.from_scores([1.0, 2.0], [3.0, 4.0], coins=True, claimed_epsilon=1.0, claimed_adjacency="both")


def test_a_choice_by_the_scores_is_paid_for_or_refused() -> None:
    counts: dict[str, Any] = {"delta": 1e-3, "confidence": 0.95}
    fixed = bounds.epsilon_lower_bound_one_run(45, 50, 200, **counts)
    paid = bounds.epsilon_lower_bound_one_run(45, 50, 200, chosen="by-scores", **counts)
    assert 0 < float(paid.value) < float(fixed.value)
    half = bounds.epsilon_lower_bound_one_run(45, 50, 200, delta=1e-3, confidence=0.975)
    assert float(paid.value) == pytest.approx(float(half.value), rel=1e-6), "two events share the error"
    assert any("fixed before the scores" in note for note in fixed.assumptions.notes)
    assert any("chosen by the release alone" in note for note in paid.assumptions.notes)
    free = [
        float(bounds.epsilon_lower_bound_one_run(45, 50, 200, chosen=chosen).value)
        for chosen in ("before", "by-scores")
    ]
    assert free[0] == free[1], "at δ = 0 the choice costs nothing"
    family = mechanisms.Poisson(1.0, 0.1, 5)
    with pytest.raises(ValueError, match="`chosen` must be 'before' where `family` is Poisson"):
        bounds.epsilon_lower_bound_one_run(45, 50, 200, family=family, chosen="by-scores", **counts)
    with pytest.raises(ValueError, match="`chosen` must be 'before' with coins='models'"):
        bounds.epsilon_from_membership(45, 50, coins="models", chosen="by-scores")


# Sentences

_INFERS = re.compile(
    r"contradicted\.|is contradicted|no ε below|No ε below|[Nn]o smaller|tells? members|be told from non-members"
    r"|is refuted|[Mm]ore than is claimed|are recognised|score higher than members|nothing is proved|still leak"
    r"|does worse than"
)
_AT = re.compile(r"\d(\.\d+)?%")
_BROKEN = re.compile(r"not trained as claimed|CLAIM CONTRADICTED|does not do what its|[Ii]s contradicted")


def _results(report: audit.AuditReport) -> list[Any]:
    """Every result in the fields of a report, also in its proofs."""
    from leakcore._base.results import Result

    out, stack = [], list(vars(report).values())
    while stack:
        value = stack.pop()
        if isinstance(value, Result):
            out.append(value)
        elif isinstance(value, dict):
            stack += list(value.values())
        elif isinstance(value, (list, tuple)):
            stack += list(value)
        elif hasattr(value, "__dataclass_fields__"):
            stack += list(vars(value).values())
    return out


def _read(report: audit.AuditReport, *, page: bool = False) -> None:
    """Whether every sentence of the report is warranted by its numbers. page: its HTML is read, too."""
    text = " ".join(report.to_text(10_000).split())
    for result in (r for r in _results(report) if "area" in r.quantity and r.interval is not None):
        tells = re.search(r"scores tell members|[Mm]embers can be told", " ".join(report.verdict_sentences()))
        assert not tells or float(result.interval[0]) > 0.5, "an area that may be that of guessing is said to tell"
    for form in (text, re.sub(r"\s+", " ", report.to_html() if page else "")):
        assert not re.search(r"ε ≥ (&#48;|0)(?![.\d])", form), "a bound of 0 is shown as a proof"
    if report.passed is not False:
        assert not _BROKEN.search(" ".join([report.headline, *report.verdict_sentences()]))
        assert not any(_BROKEN.search(getattr(f, "verdict", "")) for f in report.findings())
    lower = [float(r.value) for r in _results(report) if r.kind == "lower"]
    for least in re.findall(r"ε ≥ (\d[\d.e+-]*\d|\d)", text):
        estimates = [float(r.value) for r in _results(report) if r.quantity == "ε"]
        assert float(least) <= max([*lower, *estimates, 0.0]) * (1 + 1e-9), f"ε ≥ {least} is printed, and not proved"
    for least in re.findall(r"[Nn]o ε below (\d[\d.e+-]*\d|\d)", text):
        assert 0 < float(least) <= max(lower) * (1 + 1e-9)
    for finding in report.findings():
        verdict, assumes = getattr(finding, "verdict", ""), getattr(finding, "assumes", "")
        if _INFERS.search(verdict):
            assert _AT.search(verdict), f"without its level: {verdict}"
            assert assumes, f"without its assumption: {verdict}"
            assert assumes.split(";")[0] in text.replace("\n", " "), "the terminal keeps the assumption back"
    if report.tone == "good":
        proved = [r for r in _results(report) if r.kind == "lower" and r.quantity == "ε"]
        assert any(float(r.value) > 0 for r in proved), "green, and nothing was proved"


def _score_reports() -> Iterator[audit.ScoresReport]:
    rng = np.random.default_rng(11)
    split, three = audit.Retrained(select="split"), audit.Retrained(k=3)
    designs: tuple[dict[str, Any], ...] = (
        {}, {"coins": True}, {"retrained": True}, {"retrained": split}, {"coins": True, "family": "gdp"},
        {"retrained": True, "family": "gdp"}, {"retrained": three},
    )  # fmt: skip
    claims: tuple[dict[str, Any], ...] = ({}, {"claimed_epsilon": 0.05}, {"claimed_epsilon": 2.0})
    for shift, design, claim in itertools.product((-2.0, 0.0, 1.2), designs, claims):
        relation = "replace" if claim else "add-remove"
        claimed = {"claimed_adjacency": "add-remove"} if claim else {}
        inside, outside = rng.normal(shift, 1, 80), rng.normal(0, 1, 90)
        yield audit.from_scores(inside, outside, **design, **claim, **claimed, adjacency=relation)


@pytest.mark.full
def test_no_sentence_on_scores_says_more_than_its_number() -> None:
    tones = set()
    for number, report in enumerate(_score_reports()):
        _read(report, page=number % 9 == 0)
        tones.add((report.tone, report.headline))
    assert {tone for tone, _ in tones} == {"good", "neutral", "bad"}
    assert len(tones) >= 6


@pytest.mark.full
@pytest.mark.parametrize("form", ["trace", "scores", "canaries", "claim", pytest.param("run", marks=pytest.mark.slow)])
def test_no_sentence_of_the_other_forms_says_more_than_its_number(form: str) -> None:
    _read(getattr(reports, form)(), page=True)


@pytest.mark.full
def test_no_sentence_on_canaries_and_traces_says_more_than_its_number() -> None:
    for claim in (None, 0.01):
        _read(audit.from_canaries(simulated(mechanisms.Poisson(1.0, 1.0, 1), 60, 1), claimed_epsilon=claim))
        _read(audit.from_trace(orthogonal(10), claimed_epsilon=claim))


@pytest.mark.slow
def test_no_sentence_on_more_canaries_and_traces_says_more_than_its_number() -> None:
    for count, claim in itertools.product((10, 60), (None, 0.01, 50.0)):
        trace = simulated(mechanisms.Poisson(1.0, 0.3, 3), count, 1)
        _read(audit.from_canaries(trace, claimed_epsilon=claim))
        _read(audit.from_trace(orthogonal(count), coins=count > 20, claimed_epsilon=claim))


def test_canaries_between_the_two_levels_are_not_called_consistent() -> None:
    report = audit.from_canaries(simulated(mechanisms.Poisson(1.0, 1.0, 1), 30, 1))
    above = dataclasses.replace(report.proved, value=1.1 * float(report.epsilon.value))
    between = dataclasses.replace(report, proved=above)
    assert between.passed
    assert between.tone == "neutral"
    assert between.headline == "Above its claim at 95%, not at 99.9%: check."
    assert "nothing contradicts" not in between.verdict()
    _read(between)


@pytest.mark.parametrize(("claim", "passed"), [(1.0, False), (2.4, None), (3.0, True)])
def test_an_epsilon_of_the_schedule_contradicts_by_its_lower_end_alone(claim: float, passed: bool | None) -> None:
    report = audit.from_canaries(simulated(mechanisms.Poisson(1.0, 1.0, 1), 20, 1))
    bracket = dataclasses.replace(report.epsilon, value=2.94, interval=(1.85, 2.94))
    report = dataclasses.replace(report, epsilon=bracket, claimed_epsilon=claim)
    assert report.passed is passed
    assert (report.undecided != "") is (passed is None)
    _read(report)


@pytest.mark.slow
@pytest.mark.parametrize(("claim", "passed"), [(1.0, False), (2.4, None), (3.0, True)])
def test_shuffled_batches_are_contradicted_by_their_lower_end_alone(claim: float, passed: bool | None) -> None:
    """ε of shuffled batches lies in [1.85, 2.94]: a claim of 2.4 may be right."""
    trace, shuffled = simulated(mechanisms.Poisson(2.0, 0.1, 20), 20, 1), mechanisms.Shuffled(2.0, 10, 2)
    report = audit.from_canaries(trace, mechanism=shuffled, claimed_epsilon=claim, divisor="rows")
    assert report.passed is passed
    assert (report.undecided != "") is (passed is None)
    _read(report)


def test_an_accountants_epsilon_of_zero_is_reported() -> None:
    report = audit.from_canaries(simulated(mechanisms.Poisson(200.0, 1.0, 1), 20, 0), delta=0.05)
    assert (float(report.epsilon.value), report.tone) == (0.0, "neutral")
    _read(report)


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(
    ("mechanism", "relation", "said"),
    [
        (mechanisms.Shuffled(2.0, 10, 2), None, "fresh permutations"),
        (mechanisms.FixedSize(2.0, 10, 100, 10), None, "neighbours are fixed"),
        pytest.param(mechanisms.RandomAllocation(2.0, 10, 3), "replace", "not tight", marks=pytest.mark.slow),
    ],
)
def test_the_ends_of_a_bracket_are_said_to_be_what_they_are(mechanism: Any, relation: Any, said: str) -> None:
    spent = accounting.epsilon(mechanism, delta=1e-5, adjacency=relation)
    assert spent.method == "bracket"
    text = _bracket_text(spent)
    assert said in text
    assert ("order" in text) is isinstance(mechanism, mechanisms.Shuffled)


def test_canaries_that_prove_nothing_are_not_green() -> None:
    """Scores that know nothing: the accountant's ε is neither contradicted nor confirmed."""
    null = simulated(mechanisms.Poisson(1.0, 1.0, 1), 40, 0, scores=np.random.default_rng(0).normal(size=200))
    report = audit.from_canaries(null)
    assert float(report.proved.value) == 0
    assert (report.tone, report.passed) == ("neutral", True)
    assert "Nothing was proved" in report.headline
    assert report.cards()[2].shown == "nothing"
    _read(report)
