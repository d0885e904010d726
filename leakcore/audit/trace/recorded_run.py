"""What an audit of a recorded run is asked, checked before any work: the whole run, and which mechanism it was."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from leakcore._base import validate
from leakcore._base.codec import FACTS, unpack
from leakcore._base.results import Adjacency, Result
from leakcore.audit.scores.statistics import require_fair
from leakcore.audit.shared.claimed_epsilon import noted
from leakcore.audit.shared.format import NUMBERS_FIXED, ROWS_PUBLIC, UNSAID, counted
from leakcore.dpsgd import CanaryTrace, Divisor, Sampling, Trace, parse_divisor
from leakcore.mechanisms import FixedSize, FullBatch, Mechanism, Poisson, RandomAllocation, Shuffled

_LARGEST = 10**9
"""Steps of the longest run: no training makes as many, and accountants take minutes for more."""
_WRITTEN_OUT = 10**7
"""Steps of different settings that are written out, one by one, for the bounds."""
R = TypeVar("R", bound=Result)
_Recorded = TypeVar("_Recorded", bound=Trace | CanaryTrace)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunCoverage:
    """How much of a run was recorded. steps: of the run up to the end of the recording, at least that many unless
    `exact`. said: by the caller. unknown: why ε and bounds of the whole run are not known; empty where they are.
    """

    recorded: int
    steps: int
    exact: bool
    said: bool
    unknown: str

    @property
    def partial(self) -> bool:
        """Whether the run has, or may have, steps that were not recorded."""
        return self.recorded < self.steps or bool(self.unknown)

    @property
    def words(self) -> str:
        """`20 steps`, `12 of 48 steps`, `12 of at least 48 steps`."""
        if not self.partial:
            return counted(self.steps, "step")
        return f"{self.recorded:,} of {'' if self.exact else 'at least '}{counted(self.steps, 'step')}"

    @property
    def alone(self) -> str:
        """`the 12 recorded steps`."""
        return f"the {counted(self.recorded, 'recorded step')}"

    @property
    def others(self) -> str:
        """Who says what the steps are that were not recorded."""
        how = "the caller says, at the recorded σ and q" if self.said else "the optimizer's accountant has them"
        return f"{self.recorded:,} were recorded, {self.steps - self.recorded:,} are as {how}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WholeRun:
    """Settings for the bounds, each one number where all steps have the same: the whole run's where they are known,
    else those of the recorded steps.
    """

    coverage: RunCoverage
    noise_multiplier: Any
    sample_rate: Any
    steps: int

    def of(self, result: R) -> R:
        """The result, which says so where it is of the recorded steps alone."""
        coverage = self.coverage
        if not coverage.unknown:
            return result
        others = coverage.steps - coverage.recorded
        more = f"{'' if coverage.exact else 'at least '}{others:,} more" if others else "perhaps more"
        return noted(result, f"of {coverage.alone} alone, not of their run, which has {more}")


def whole_run(trace: Trace, steps: int | None) -> WholeRun:
    """The run of a trace, whose q is known. steps: its number of steps as the caller says it, for a trace that does not
    know all of them: those not known are taken at the recorded σ and q.

    ValueError where the trace says otherwise, or σ is not one number that could be taken.
    """
    stretches, total = trace.unrecorded, trace.run_steps
    known = trace.complete and all(None not in s for s in stretches)
    if steps is not None:
        total = _agreed(trace, validate.integer(1, _LARGEST, steps=steps))
    if total > _LARGEST:
        raise ValueError(f"`trace` must be of a run of at most {_LARGEST:,} steps, for bounds, got {total:,}")
    sigma = trace.noise_multiplier
    runs = [(float(sigma[0]), trace.sample_rate, trace.steps)]
    if (sigma != sigma[0]).any():
        runs = [(float(s), trace.sample_rate, 1) for s in sigma]
    coverage = RunCoverage(
        recorded=trace.steps,
        steps=total,
        exact=trace.complete or steps is not None,
        said=steps is not None and not known,
        unknown="" if known or steps is not None else _why(trace),
    )
    if not coverage.unknown:
        runs += [
            (
                float(sigma[0]) if s.noise_multiplier is None else s.noise_multiplier,
                trace.sample_rate if s.sample_rate is None else s.sample_rate,
                s.steps,
            )
            for s in stretches
        ]
        if more := total - trace.run_steps:
            runs.append((float(sigma[0]), trace.sample_rate, more))
    counts = [count for *_, count in runs]
    noise, rates = (_one_or_all([run[i] for run in runs], counts) for i in (0, 1))
    return WholeRun(coverage=coverage, noise_multiplier=noise, sample_rate=rates, steps=sum(counts))


def _agreed(trace: Trace, steps: int) -> int:
    if trace.complete and steps != trace.run_steps:
        raise ValueError(
            f"`steps` must be left out, for the trace knows that its run has {trace.run_steps:,}, got {steps}"
        )
    if steps < trace.run_steps:
        raise ValueError(f"`steps` must be at least {trace.run_steps:,}, as many as the trace's run has, got {steps}")
    sigma = trace.noise_multiplier
    taken = steps > trace.run_steps or any(s.noise_multiplier is None for s in trace.unrecorded)
    if taken and (sigma != sigma[0]).any():
        raise ValueError(
            f"`steps` must be left out where σ varies, got {steps}: the recorded steps have σ from {sigma.min():.4g} "
            f"to {sigma.max():.4g}, so that of the others cannot be taken from them; record the run from its first "
            "step, or with Opacus's accountant"
        )
    return steps


def _why(trace: Trace) -> str:
    if trace.complete:
        others = sum(s.steps for s in trace.unrecorded if None in s)
        return (
            f"σ and q of {counted(others, 'step')} that were not recorded are not known: no accountant of Opacus's has "
            "them (steps=, or --steps, says that they are the recorded ones)"
        )
    return (
        "what else was trained is not known: no accountant of Opacus's counted every step, or the file is of a version "
        "that did not say (steps=, or --steps, says how many steps the run has)"
    )


def _one_or_all(values: list[Any], counts: list[int]) -> Any:
    if all(value == values[0] for value in values):
        return values[0]
    if sum(counts) > _WRITTEN_OUT:
        raise ValueError(
            f"`trace` must be of a run of at most {_WRITTEN_OUT:,} steps of different settings, for bounds, got "
            f"{sum(counts):,}"
        )
    return np.repeat(np.array(values, dtype=np.float64), counts)


_SAY = "Say what the run was, if you know it: mechanism=mechanisms.Shuffled(...), for example"
_AGAIN = (
    "Record a run in which each step trains on one whole batch of its DataLoader, and on no batch twice: no mechanism "
    "with a fresh batch in each step describes this one"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MechanismChoice:
    """What a report says of the run's mechanism; texts are empty where there is nothing to say.

    name: as Python writes it. evidence: what says that it is the run's. missing: why none is named. remedy: what to do
    about it. bracketed: whether its ε and bounds are the upper ends of brackets. lower_holds: whether the lower ends
    are proved for this run, too. left_out: what must hold of batches that the loader gave and no
    step trained on. rows_public: whether the run's ε can only be for a public number of rows, as what the program
    divides by says. fixed: what is said of the divisor, q and the number of steps where they count as fixed numbers.
    """

    name: str = ""
    words: str = "sampling not known"
    evidence: str = ""
    missing: str = ""
    remedy: str = ""
    adjacency: Adjacency | None = None
    bracketed: bool = False
    lower_holds: bool = True
    notes: tuple[str, ...] = ()
    left_out: str = ""
    rows_public: bool = False
    fixed: str = ""

    @property
    def assumed(self) -> str:
        """What must hold of the batches."""
        premises = self.premises(self.adjacency)
        return "; ".join([f"the batches follow this scheme: {self.words} ({self.evidence})", *premises])

    def premises(self, adjacency: str | None) -> tuple[str, ...]:
        """What else must hold of the program, for numbers under this relation."""
        divisor = {
            "zero-out": ROWS_PUBLIC,
            "add-remove": NUMBERS_FIXED + (f" ({self.fixed})" if self.fixed else ""),
        }.get(adjacency or "", "")
        return tuple(said for said in (divisor, self.left_out) if said)


def none(why: str, *notes: str) -> tuple[None, MechanismChoice]:
    """No mechanism."""
    return None, MechanismChoice(missing=why, remedy=_SAY, notes=notes)


def choose(trace: Trace, run: WholeRun) -> tuple[Mechanism | None, MechanismChoice]:
    """The mechanism that the trace's record of its sampling names."""
    sampling = trace.sampling
    if sampling.scheme == "unknown":
        refuted = trace.not_poisson
        if sampling.violation:
            return None, MechanismChoice(missing=sampling.evidence, remedy=_AGAIN)
        return none(sampling.evidence, *([f"{refuted}."] if refuted else []))
    if sampling.scheme == "poisson":
        if (sampling.sample_rate or 0) < 1 and trace.not_poisson:
            return none(f"{sampling.evidence}, but {trace.not_poisson}")
        return sampled(run, sampling.evidence)
    if len({float(q) for q in np.atleast_1d(run.sample_rate) if q is not None}) > 1:
        return none(f"the recorded steps are of {sampling.evidence}, and the run's other steps have another rate")
    if sampling.scheme == "full-batch":
        whole = FullBatch(run.noise_multiplier, run.steps)
        return whole, named(whole, sampling.evidence)
    if not (np.asarray(run.noise_multiplier) > 0).all():
        return none(f"nothing is proved of {sampling.evidence} without noise")
    match sampling.scheme:
        case "shuffled":
            return _shuffled(trace, run)
        case "fixed-size":
            assert sampling.batch_size is not None
            assert sampling.dataset_size is not None
            fixed = FixedSize(run.noise_multiplier, sampling.batch_size, sampling.dataset_size, run.steps)
            return fixed, named(fixed, sampling.evidence)


def sampled(run: WholeRun, evidence: str) -> tuple[Mechanism, MechanismChoice]:
    """Poisson sampling at the run's rates."""
    if not np.ndim(run.sample_rate) and run.sample_rate == 1:
        whole = FullBatch(run.noise_multiplier, run.steps)
        return whole, named(whole, evidence)
    poisson = Poisson(run.noise_multiplier, run.sample_rate, run.steps)
    return poisson, named(poisson, evidence)


def _shuffled(trace: Trace, run: WholeRun) -> tuple[Mechanism | None, MechanismChoice]:
    sampling, sigma = trace.sampling, np.asarray(run.noise_multiplier)
    if sigma.ndim:
        return none(
            f"the batches are of {sampling.evidence}, and σ changes between {sigma.min():.4g} and {sigma.max():.4g}, "
            "for which no bound is at hand (mechanisms.Shuffled at the smallest σ is one from above)"
        )
    batches = sampling.batches or 1
    recorded = min(trace.steps, run.steps)
    of_recorded = max(sampling.passes or 0, math.ceil(recorded / batches))
    epochs = of_recorded + math.ceil((run.steps - recorded) / batches)
    notes = list(_order(sampling))
    if run.steps < batches * epochs:
        notes.append(
            f"{counted(run.steps, 'step')} of {counted(batches, 'batch', 'batches')} an epoch are counted as "
            f"{counted(epochs, 'epoch')}, rounded up: the upper limit holds, the lower one is for whole epochs"
        )
    if sampling.passes is None:
        notes.append("epochs that the loop broke off were not counted: there must not be any")
    shuffled = Shuffled(float(sigma), batches, epochs)
    lower_holds = sampling.all_rows and sampling.fresh and run.steps == batches * epochs
    return shuffled, dataclasses.replace(
        named(shuffled, sampling.evidence), notes=tuple(notes), lower_holds=lower_holds
    )


def _order(sampling: Sampling) -> list[str]:
    """What the lower limit of shuffled batches lacks, as the loader says."""
    notes = []
    if not sampling.all_rows:
        notes.append("an epoch leaves out rows: the lower limit is for epochs of all rows")
    if not sampling.fresh:
        notes.append("the order may be the same in each epoch: the lower limit is for fresh orders")
    return notes


def named(mechanism: Mechanism, evidence: str) -> MechanismChoice:
    """What the report says of a mechanism."""
    adjacency = mechanism.adjacency
    return MechanismChoice(
        name=f"{type(mechanism).__name__}(…)" if len(repr(mechanism)) > 200 else repr(mechanism),
        words=_words(mechanism),
        evidence=evidence,
        adjacency=adjacency,
        bracketed=not mechanism.is_exact(adjacency),
    )


def under_its_relation(trace: Trace, mechanism: Mechanism | None, chosen: MechanismChoice) -> MechanismChoice:
    """The relation under which the mechanism's numbers hold for a program that divides as the trace says.

    For Poisson sampling and full batches add-remove and zero-out have one pair, which is that of the sums. Where the
    divisor, q or the number of steps depends on the number of rows, a row more or less changes the noise of every
    coordinate, or the sampling of every row, and only zero-out, in which that number is public, is left.
    """
    if mechanism is None:
        return dataclasses.replace(chosen, rows_public=trace.divisor == "rows")
    if count := trace.sampling.left_out:
        left = "1 batch that the loader gave was" if count == 1 else f"{count:,} batches that the loader gave were"
        why = "for no reason that depends on rows"
        chosen = dataclasses.replace(chosen, left_out=f"{left} not trained on, {why}")
    if chosen.adjacency != "add-remove" or trace.divisor == "constant":
        return chosen
    if trace.divisor is None:
        return dataclasses.replace(chosen, fixed=UNSAID)
    if "zero-out" not in mechanism.adjacencies:
        return dataclasses.replace(chosen, fixed="fixed, as the stated ε for adding or removing a row requires")
    changed = trace.divisor_of_others
    note = (
        "This ε is for zero-out adjacency, with a public number of rows: what the program divides by, q and the number "
        "of steps depend on that number, so that no ε for adding or removing a row follows"
        + (f" ({changed})" if changed else "")
        + ". With numbers that do not, record with divisor='constant'"
    )
    return dataclasses.replace(chosen, adjacency="zero-out", notes=(*chosen.notes, note), rows_public=True)


def _words(mechanism: Mechanism) -> str:
    if isinstance(mechanism, FullBatch):
        return "full batches"
    if isinstance(mechanism, Poisson):
        rates: Any = np.unique(mechanism.sample_rate)
        return f"Poisson sampling q = {rates[0]:.4g}" + (f"–{rates[-1]:.4g}" if len(rates) > 1 else "")
    if isinstance(mechanism, Shuffled):
        return f"shuffled batches, {mechanism.batches:,} in each of {counted(mechanism.epochs, 'epoch')}"
    if isinstance(mechanism, FixedSize):
        return f"a fresh batch of {mechanism.batch_size:,} of {mechanism.dataset_size:,} rows in each step"
    return type(mechanism).__name__


def stated(trace: Trace, run: WholeRun, mechanism: Mechanism) -> tuple[Mechanism, MechanismChoice]:
    """A mechanism that the caller states; ValueError where the trace contradicts it."""
    sigma = getattr(mechanism, "noise_multiplier", None)
    if sigma is not None:
        own, theirs = np.asarray(run.noise_multiplier), np.asarray(sigma)
        if not np.allclose([own.min(), own.max()], [theirs.min(), theirs.max()], rtol=1e-6, atol=0):
            raise ValueError(
                f"`mechanism` must have the recorded σ, {own.min():.6g} to {own.max():.6g}, got {mechanism!r}"
            )
    steps, sampling = steps_of(mechanism), trace.sampling
    _require_scheme(sampling, mechanism)
    if steps is not None and (steps < run.steps or (steps > run.steps and not isinstance(mechanism, Shuffled))):
        raise ValueError(f"`mechanism` must have the run's {counted(run.steps, 'step')}, got {mechanism!r}")
    chosen = named(mechanism, "the caller says so")
    chosen = dataclasses.replace(chosen, lower_holds=steps is None or steps == run.steps)
    return mechanism, limited_by_loader(sampling, mechanism, chosen)


def limited_by_loader(sampling: Sampling, mechanism: Mechanism, chosen: MechanismChoice) -> MechanismChoice:
    """The choice, whose upper limits alone hold if the loader is known to leave out what the lower ones need."""
    lacks: list[str] = []
    whole = sampling.scheme == "full-batch" or (sampling.scheme == "poisson" and sampling.sample_rate == 1)
    if isinstance(mechanism, Shuffled) and sampling.is_known:
        lacks = _order(sampling)
    elif isinstance(mechanism, FullBatch) and sampling.is_known and not whole:
        lacks = [f"the trace recorded {sampling.evidence}: of that, full batches are an upper limit alone"]
    if not lacks:
        return chosen
    return dataclasses.replace(chosen, notes=(*chosen.notes, *lacks), lower_holds=False, bracketed=True)


def _require_scheme(sampling: Sampling, mechanism: Mechanism) -> None:
    """ValueError where the loader is known to draw so that the mechanism's upper limits do not hold.

    Those of full batches hold for each scheme, and a bare claim or a composition is the caller's word for the whole.
    """
    if not sampling.is_known or not isinstance(mechanism, Shuffled | FixedSize | RandomAllocation):
        return
    fits = False
    if isinstance(mechanism, Shuffled):  # each pass holds each row at most once
        passes = sampling.batches if sampling.scheme == "shuffled" else None if sampling.scheme == "poisson" else 1
        fits = passes == mechanism.batches and (sampling.passes or 0) <= mechanism.epochs
    elif isinstance(mechanism, FixedSize):
        fits = sampling.scheme == "fixed-size" and (
            (sampling.batch_size, sampling.dataset_size) == (mechanism.batch_size, mechanism.dataset_size)
        )
    if not fits:
        passed = "" if sampling.passes is None else f", in {counted(sampling.passes, 'pass', 'passes')}"
        raise ValueError(f"`mechanism` must be what the trace recorded, {sampling.evidence}{passed}, got {mechanism!r}")


def steps_of(mechanism: Mechanism) -> int | None:
    """Steps of a mechanism that counts them; of shuffled batches, those of whole epochs."""
    if isinstance(mechanism, Shuffled):
        return mechanism.batches * mechanism.epochs
    steps = getattr(mechanism, "steps", None)
    return steps if isinstance(steps, int) else None  # a composition's is a method


_MOST_CANDIDATES = 2**53
"""Beyond it 1/N and 1/(N + 1) are the same number."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class AuditRequest:
    """The arguments of `audit.from_trace`, checked. trace: with its sampling rate. run: the run it is a part of.

    mechanism: what the run was; None where that is not known. chosen: what says so.
    """

    trace: Trace
    run: WholeRun
    mechanism: Mechanism | None
    chosen: MechanismChoice
    delta: float
    claimed_epsilon: float | None
    num_candidates: int
    coins: bool
    confidence: float

    @property
    def candidate_counts(self) -> tuple[int, ...]:
        """Two candidates, and as many as were asked about."""
        return tuple(dict.fromkeys((2, self.num_candidates)))

    def settings(self) -> dict[str, Any]:
        """The fields of the report that repeat the request."""
        same = ("delta", "claimed_epsilon", "confidence", "coins", "candidate_counts")
        own = {name: getattr(self, name) for name in same}
        return {**own, "run": self.run.coverage, "mechanism": self.chosen}


def parse(
    trace: Trace,
    *,
    delta: float,
    claimed_epsilon: float | None,
    mechanism: Mechanism | float | None,
    steps: int | None,
    num_candidates: int,
    coins: bool,
    confidence: float,
    divisor: Divisor | None,
) -> AuditRequest:
    """The arguments of `audit.from_trace`, checked; ValueError or TypeError as that says."""
    checked: dict[str, Any] = {
        "delta": validate.open_probability(delta=delta),
        "claimed_epsilon": None if claimed_epsilon is None else validate.non_negative(claimed_epsilon=claimed_epsilon),
        "num_candidates": validate.integer(2, _MOST_CANDIDATES, num_candidates=num_candidates),
        "confidence": validate.confidence(confidence=confidence),
        "coins": validate.boolean(coins=coins),
    }
    if divisor is not None:
        trace = dataclasses.replace(trace, divisor=parse_divisor(divisor))
    trace, run, (what, chosen) = _mechanism(trace, mechanism, steps)
    if coins:
        _require_coins(trace)
    chosen = under_its_relation(trace, what, chosen)
    return AuditRequest(trace=trace, run=run, mechanism=what, chosen=chosen, **checked)


def read_trace(trace: Any, *kinds: type[_Recorded], name: str = "trace") -> _Recorded:
    """A trace of one of these kinds: given as such, by its recorder, or as its file, which is read here and once."""
    if isinstance(trace, (str, Path)):
        kind: Any = CanaryTrace if Path(trace).is_file() and holds_canaries(trace) else Trace
        kind = kind if kind in kinds else kinds[0]
        loaded: _Recorded = kind.load(trace)
        return loaded
    recorded = trace if isinstance(trace, kinds) or not callable(getattr(trace, "trace", None)) else trace.trace()
    if isinstance(recorded, kinds):
        return recorded
    what = "what leakcore.record gave" + " with canaries" * (kinds == (CanaryTrace,))
    raise TypeError(f"`{name}` must be {what}, or the file it wrote, got {type(trace).__name__}")


def holds_canaries(path: str | Path) -> bool:
    """Whether a file is a trace of a run with canaries; anything else is left to other readers."""
    try:
        facts, _ = unpack(path, {FACTS})
    except ValueError:
        return False
    return isinstance(facts, dict) and facts.get("schema") == CanaryTrace.schema


def _mechanism(
    trace: Trace, said: Any, steps: int | None
) -> tuple[Trace, WholeRun, tuple[Mechanism | None, MechanismChoice]]:
    """The trace with the sampling rate of its mechanism, its run, and the mechanism; ValueError as `from_trace`."""
    if said is not None:
        _require_fresh(trace, said)
    if isinstance(said, Mechanism):
        if steps is not None:
            raise ValueError(f"`steps` must be left out where a mechanism is passed, got {steps}")
        counted = None if trace.complete else steps_of(said)
        rate = said.sample_rate if isinstance(said, Poisson) and not np.ndim(said.sample_rate) else trace.sample_rate
        part = dataclasses.replace(trace, sample_rate=rate)  # type: ignore[arg-type]
        if isinstance(said, Poisson) and (np.asarray(said.sample_rate) < 1).any():
            _require_loader(trace, repr(said))
            _require_poisson(part)
        run = whole_run(part, None if counted is None else max(counted, trace.run_steps))
        return part, run, stated(part, run, said)
    if said is not None:
        part = _sampled(trace, validate.probability(mechanism=said))
        run = whole_run(part, steps)
        what, chosen = sampled(run, "the caller says so")
        return part, run, (what, limited_by_loader(part.sampling, what, chosen))
    if trace.sampling.scheme == "poisson":
        trace = dataclasses.replace(trace, sample_rate=trace.sampling.sample_rate)
    elif trace.sampling.scheme == "full-batch":
        trace = dataclasses.replace(trace, sample_rate=1.0)
    run = whole_run(trace, steps)
    return trace, run, choose(trace, run)


def _sampled(trace: Trace, rate: float) -> Trace:
    """The trace with the rate that the caller states; ValueError where it is contradicted."""
    recorded, known = trace.sample_rate, trace.sampling
    if known.scheme == "poisson":
        recorded = known.sample_rate
    elif rate < 1:
        _require_loader(trace, f"Poisson sampling at q = {rate:.6g}")
    if recorded is not None and not math.isclose(rate, recorded, rel_tol=1e-9):
        raise ValueError(
            f"`mechanism` must be left out, or the q = {recorded:.12g} at which the trace was recorded, got {rate:.12g}"
        )
    part = dataclasses.replace(trace, sample_rate=rate)
    _require_poisson(part)
    return part


def _require_loader(trace: Trace, said: str) -> None:
    """ValueError where the loader of the trace did not sample by Poisson."""
    if trace.sampling.scheme not in ("poisson", "unknown"):
        raise ValueError(f"`mechanism` must be what the trace recorded, {trace.sampling.evidence}, got {said}")


def _require_fresh(trace: Trace, said: Any) -> None:
    """ValueError where the steps of the trace are known not to be what a known mechanism makes of each."""
    known = trace.sampling.violation
    whole = isinstance(said, FullBatch) or said == 1
    sampled = isinstance(said, (FixedSize, FullBatch, Poisson, RandomAllocation, Shuffled, int, float))
    if known and sampled and not (whole and known == "sampling"):
        raise ValueError(
            f"`mechanism` must be one that allows for what was recorded: {trace.sampling.evidence}. Got {said!r}, in "
            "which a step holds each row at most once, from a batch of its own"
        )


def _require_poisson(trace: Trace) -> None:
    if (trace.sample_rate or 0) < 1 and trace.not_poisson:
        raise ValueError(f"`mechanism` must be another than Poisson sampling, because {trace.not_poisson}")


def _require_coins(trace: Trace) -> None:
    """ValueError where the members of a trace cannot have been decided by fair coins."""
    if trace.members.all() or not trace.members.any():
        raise ValueError("`coins=True` needs fair coins, but all candidates are on the same side")
    if not trace.members_given and trace.sample_rate != 1:
        raise ValueError(
            "`coins=True` needs fair coins, but the trace knows as members only those that sampling picked; record "
            "with members=…, the coins themselves"
        )
    require_fair(int(trace.members.sum()), len(trace.members), "candidates")
