"""The mechanism that a recorded run is an instance of, and what says so; none where nothing does."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from leakcore._base.results import Adjacency
from leakcore.audit.report.format import NUMBERS_FIXED, ROWS_PUBLIC, UNSAID, counted
from leakcore.audit.trace.whole_run import WholeRun
from leakcore.dpsgd import Sampling, Trace
from leakcore.mechanisms import FixedSize, FullBatch, Mechanism, Poisson, RandomAllocation, Shuffled

_SAY = "Say what the run was, if you know it: mechanism=mechanisms.Shuffled(...), for example"
_AGAIN = (
    "Record a run in which each step trains on one whole batch of its DataLoader, and on no batch twice: no mechanism "
    "with a fresh batch in each step describes this one"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chosen:
    """What a report says of the run's mechanism.

    Attributes:
        name: as Python writes it; empty where none is named.
        words: in a few words.
        evidence: what says that it is the run's.
        missing: why none is named; empty where one is.
        remedy: what to do about it; likewise.
        adjacency: the neighbouring relation of its ε and bounds.
        bracketed: whether ε and bounds are the upper ends of brackets.
        lower_holds: whether the lower ends are proved for this run, too.
        notes: further sentences.
        left_out: what must hold of batches that the loader gave and no step trained on; empty where there are none.
        rows_public: whether the run's ε can only be for a public number of rows, as what the program divides by says.
        fixed: what is said of the divisor, q and the number of steps where they count as fixed numbers; empty where the
            trace says so, or the relation does not need it.
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


def none(why: str, *notes: str) -> tuple[None, Chosen]:
    """No mechanism."""
    return None, Chosen(missing=why, remedy=_SAY, notes=notes)


def choose(trace: Trace, run: WholeRun) -> tuple[Mechanism | None, Chosen]:
    """The mechanism that the trace's record of its sampling names."""
    sampling = trace.sampling
    if sampling.scheme == "unknown":
        refuted = trace.not_poisson
        if sampling.violation:
            return None, Chosen(missing=sampling.evidence, remedy=_AGAIN)
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
    if sampling.scheme == "fixed-size":
        assert sampling.batch_size is not None
        assert sampling.dataset_size is not None
        fixed = FixedSize(run.noise_multiplier, sampling.batch_size, sampling.dataset_size, run.steps)
        return fixed, named(fixed, sampling.evidence)
    return _shuffled(trace, run)


def sampled(run: WholeRun, evidence: str) -> tuple[Mechanism, Chosen]:
    """Poisson sampling at the run's rates."""
    if not np.ndim(run.sample_rate) and run.sample_rate == 1:
        whole = FullBatch(run.noise_multiplier, run.steps)
        return whole, named(whole, evidence)
    poisson = Poisson(run.noise_multiplier, run.sample_rate, run.steps)
    return poisson, named(poisson, evidence)


def _shuffled(trace: Trace, run: WholeRun) -> tuple[Mechanism | None, Chosen]:
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


def _holds_all(sampling: Sampling) -> bool:
    return sampling.scheme == "full-batch" or (sampling.scheme == "poisson" and sampling.sample_rate == 1)


def _order(sampling: Sampling) -> list[str]:
    """What the lower limit of shuffled batches lacks, as the loader says."""
    notes = []
    if not sampling.all_rows:
        notes.append("an epoch leaves out rows: the lower limit is for epochs of all rows")
    if not sampling.fresh:
        notes.append("the order may be the same in each epoch: the lower limit is for fresh orders")
    return notes


def named(mechanism: Mechanism, evidence: str) -> Chosen:
    """What the report says of a mechanism."""
    adjacency = mechanism.adjacency
    return Chosen(
        name=f"{type(mechanism).__name__}(…)" if len(repr(mechanism)) > 200 else repr(mechanism),
        words=_words(mechanism),
        evidence=evidence,
        adjacency=adjacency,
        bracketed=not mechanism.is_exact(adjacency),
    )


def under_its_relation(trace: Trace, mechanism: Mechanism | None, chosen: Chosen) -> Chosen:
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
    if chosen.adjacency != "add-remove":
        return chosen
    if trace.divisor == "constant":
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


def stated(trace: Trace, run: WholeRun, mechanism: Mechanism) -> tuple[Mechanism, Chosen]:
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


def limited_by_loader(sampling: Sampling, mechanism: Mechanism, chosen: Chosen) -> Chosen:
    """The choice, whose upper limits alone hold if the loader is known to leave out what the lower ones need."""
    lacks: list[str] = []
    if isinstance(mechanism, Shuffled) and sampling.is_known:
        lacks = _order(sampling)
    elif isinstance(mechanism, FullBatch) and sampling.is_known and not _holds_all(sampling):
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
