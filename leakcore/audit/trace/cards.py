"""The four numbers of the report on a recorded run."""

from __future__ import annotations

from leakcore.audit.report.cards import BEATS, EPSILON, PROVED, REACHED, Card, card, epsilon_card, proof_card
from leakcore.audit.report.format import counted, ends, interval, number, percent
from leakcore.audit.trace.facts import TraceFacts


def cards(report: TraceFacts) -> tuple[Card, Card, Card, Card]:
    """The four numbers, in the order of `QUESTIONS`; a number that the recorded steps do not give is called unknown."""
    run, upper = report.run, report.reconstruction[-1]
    if report.unknown or upper is None or report.epsilon is None:
        unknown = f"The recorded steps alone do not tell: {report.unknown}."
        bound = Card(question=BEATS, absent="not known", detail=unknown)
        epsilon = Card(question=EPSILON, absent="not known", detail=unknown)
    else:
        size = report.num_candidates
        bound = card(
            BEATS,
            upper,
            percent(upper),
            f"The probability of naming a training row among {size:,} equally likely candidates; guessing reaches "
            f"{percent(1 / size)}.",
        )
        epsilon = epsilon_card(
            report.epsilon, report.delta, f"the accountant's ε of the run's {counted(run.steps, 'step')}."
        )
    return bound, _reached(report), _proved(report), epsilon


def _reached(report: TraceFacts) -> Card:
    where = "in the recorded steps" if report.run.partial else "on this run"
    measured = [(size, m) for size, m in zip(report.candidate_counts, report.named, strict=True) if m is not None]
    if measured:
        size, best = measured[-1]
        return card(
            REACHED,
            best,
            percent(best),
            f"The share of rows named among {size:,} candidates {where}.",
            interval=interval(best),
        )
    if report.area is not None:
        return card(
            REACHED,
            report.area,
            number(report.area, 3),
            f"Area under the ROC curve of the membership test {where}: 0.5 is guessing, 1 is perfect.",
            interval=ends(report.area, 2),
        )
    why = (
        "The candidates hold no non-members to compare with."
        if report.recognised
        else "No member was recognised in a batch: inputs are transformed on the way, or none was sampled."
    )
    return Card(question=REACHED, absent="not measured", detail=why)


def _proved(report: TraceFacts) -> Card:
    if report.audited is None:
        return Card(
            question=PROVED,
            detail="One run proves a lower bound on ε only if a fair coin decided for each candidate whether it was "
            "trained on.",
        )
    coins = report.members + report.non_members
    return proof_card(report.audited, report.delta, f"from guesses at {coins:,} coins in one run.")
