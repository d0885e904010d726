"""A recorded training run: its schedule, how its batches were drawn, and the adversary's scores of the candidates."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, cast, get_args

import numpy as np
from scipy import special

from leakcore._base import validate
from leakcore._base.codec import FACTS, from_plain, to_npz, unpack
from leakcore._base.results import Record
from leakcore._base.tables import Rows, as_line, short
from leakcore._base.text import printable, repr_of
from leakcore._base.version import __version__
from leakcore._base.writing import write_atomically

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """Digests by which traces of one run are recognised: of the candidates' inputs and targets, and of the parameters
    before the first recorded step and after the last one (None where they were not seen then); and the parameters'
    shapes.
    """

    candidates: str
    shapes: tuple[tuple[int, ...], ...]
    before: str | None
    after: str | None


class Stretch(NamedTuple):
    """`steps` steps that were not recorded, after `after` recorded ones; σ or q is None where it is not known."""

    after: int
    noise_multiplier: float | None
    sample_rate: float | None
    steps: int


def between(positions: np.ndarray, total: int) -> list[tuple[int, int, int]]:
    """(after, first, end) of every stretch of 0 … total − 1 that `positions`, which grow, leave out."""
    starts, ends = np.append(0, positions + 1), np.append(positions, total)
    return [(int(k), int(starts[k]), int(ends[k])) for k in np.flatnonzero(ends > starts)]


def settings_of(
    history: Sequence[tuple[float, float | None, int]], stretches: Sequence[tuple[int, int, int]]
) -> tuple[Stretch, ...]:
    """The stretches with the settings that an accountant's history has for them, cut where these change."""
    ends = np.cumsum([count for *_, count in history])
    out = []
    for after, first, end in stretches:
        entry = int(np.searchsorted(ends, first, side="right"))
        while first < end:
            sigma, rate, _ = history[entry]
            stop = min(end, int(ends[entry]))
            out.append(Stretch(after, sigma, rate, stop - first))
            first, entry = stop, entry + 1
    return tuple(out)


Scheme = Literal["poisson", "full-batch", "shuffled", "fixed-size", "unknown"]
Violation = Literal["", "sampling", "sensitivity"]
Divisor = Literal["rows", "constant"]
"""What the released sum is divided by, and q and the number of steps: numbers that depend on how many rows there are
("rows": Opacus divides by int(n·q) with q = 1/len(loader)), or numbers that somebody fixed ("constant")."""
NO_LOADER = "the trace does not say by which loader its batches were drawn"


def parse_divisor(divisor: str) -> Divisor:
    """ValueError for anything but "rows" and "constant"."""
    return cast(Divisor, validate.one_of("rows", "constant", divisor=divisor))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the batches of the recorded steps were drawn.

    Attributes:
        scheme: "poisson": each row by its own coin in each step. "full-batch": all rows in each step. "shuffled": each
            pass over the data puts each row into at most one batch. "fixed-size": a fresh subset in each step.
            "unknown": none of these is known to hold.
        evidence: the source of that knowledge, such as the sampler; for "unknown" why it is not known.
        sample_rate: q of "poisson".
        batch_size: rows of a batch, the expected number for "poisson"; None where it is not known.
        dataset_size: rows of the data set; likewise.
        batches: batches of one pass, over all processes.
        passes: passes over the data in which there are recorded steps; None where they were not counted.
        all_rows: whether a pass holds all rows.
        fresh: whether each pass shuffles them again.
        left_out: batches that these passes gave to the loop and no step trained on.
        violation: "sampling" if steps are known not to be fresh samples (a batch used again, or in part), "sensitivity"
            if a row can be in a step's sum several times; else "".

    Example:
        >>> from leakcore import dpsgd
        >>> dpsgd.Sampling(scheme="poisson", sample_rate=0.1, evidence="written by hand").scheme
        'poisson'
    """

    scheme: Scheme = "unknown"
    evidence: str = NO_LOADER
    sample_rate: float | None = None
    batch_size: int | None = None
    dataset_size: int | None = None
    batches: int | None = None
    passes: int | None = None
    all_rows: bool = False
    fresh: bool = False
    left_out: int = 0
    violation: Violation = ""

    def __post_init__(self) -> None:
        validate.one_of(*get_args(Scheme), scheme=self.scheme)

    @property
    def is_known(self) -> bool:
        """Whether the scheme is known."""
        return self.scheme != "unknown"


def unknown(why: str) -> Sampling:
    """No scheme, and why."""
    return Sampling(evidence=why)


_AT_LEAST_0 = ("noise_multiplier", "max_grad_norm", "batch_rows", "times_seen", "clipped_share")
_PER_STEP = ("noise_multiplier", "max_grad_norm", "batch_rows")
_PER_CANDIDATE = ("members", "times_seen", "clipped_share", "membership_sum", "membership_likelihood")
_PER_PAIR = ("pair_sum", "pair_likelihood")
_HEX = frozenset("0123456789abcdef")
_MOST = 2**53


def _check_arrays(trace: Trace) -> None:
    steps, n = trace.noise_multiplier.shape[:1], trace.members.shape[:1]
    for name, dimensions in trace.arrays.items():
        values = getattr(trace, name)
        wanted = steps if name in _PER_STEP else n * dimensions
        if values.ndim != dimensions or values.shape != wanted or values.dtype.kind not in "biuf":
            raise ValueError(
                f"`{name}` must be real numbers of shape {wanted}, got {values.dtype} of shape {values.shape}"
            )
    if steps == (0,) or n == (0,):
        raise ValueError(f"a trace must hold at least one step and one candidate, got {steps[0]} and {n[0]}")
    for name in _AT_LEAST_0:
        values = getattr(trace, name)
        if not (np.isfinite(values) & (values >= 0)).all():
            raise ValueError(f"`{name}` must be finite numbers of at least 0")
    if trace.members.dtype != np.bool_:
        raise ValueError(f"`members` must be of type bool, got {trace.members.dtype}")
    for name in ("membership_sum", "pair_sum"):
        if not np.isfinite(getattr(trace, name)).all():
            raise ValueError(f"`{name}` must be finite")


def _check_sampling(sampling: Sampling) -> None:
    numbers = (sampling.batch_size, sampling.dataset_size, sampling.batches, sampling.passes, sampling.left_out)
    rate = sampling.sample_rate
    needs = {"poisson": rate, "shuffled": sampling.batches, "fixed-size": sampling.batch_size}
    if (
        any(value is not None and not 0 <= value < _MOST for value in numbers)
        or not (rate is None or 0 <= rate <= 1)
        or needs.get(sampling.scheme, 1) is None
        or (sampling.scheme == "shuffled" and sampling.batches == 0)
        or (sampling.scheme == "fixed-size" and not 1 <= (sampling.batch_size or 0) <= (sampling.dataset_size or 0))
    ):
        raise ValueError("`sampling` must be a scheme with its numbers")


def _is_possible(stretch: Stretch, before: int, steps: int) -> bool:
    settings = ((stretch.noise_multiplier, math.inf), (stretch.sample_rate, 1.0))
    known = [(value, high) for value, high in settings if value is not None]
    return (
        before <= stretch.after <= steps
        and 1 <= stretch.steps <= _MOST
        and all(0 <= value <= min(high, 2.0**1000) for value, high in known)
    )


def _is_origin(origin: Origin) -> bool:
    digests = [d for d in (origin.candidates, origin.before, origin.after) if d is not None]
    return all(len(d) == 64 and _HEX.issuperset(d) for d in digests) and all(
        0 <= size < 2**63 for shape in origin.shapes for size in shape
    )


_CHANCE = 1e-6
"""Batch sizes that Poisson sampling gives with less probability count as another sampling."""
_NOT_KNOWN = Sampling()


class SavedTrace(Record):
    """A recorded run with a file of its own, an npz of plain arrays and one JSON text.

    `kind` names the form in errors; `arrays` holds the dimensions of each field that is an array.
    """

    schema: ClassVar[str]
    kind: ClassVar[str]
    arrays: ClassVar[dict[str, int]]

    def save(self, path: str | Path) -> None:
        """Write an npz file atomically: plain arrays and one JSON text, nothing pickled. Only its owner may read it.

        Args:
            path: file name, usually with the suffix .npz.
        """
        write_atomically(Path(path), to_npz(self, compressed=True), private=True)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file that `save` wrote. Nothing is unpickled.

        Args:
            path: file name, usually with the suffix .npz.

        Returns:
            The trace.

        Raises:
            ValueError: says what is wrong with any other file.
        """
        where = printable(path)
        try:
            facts, arrays = unpack(path, {FACTS, *cls.arrays})
        except ValueError as error:
            raise ValueError(f"{where}: cannot be read as {cls.kind} ({printable(error)})") from error
        if missing := sorted(cls.arrays.keys() - arrays.keys()):
            raise ValueError(f"{where}: not {cls.kind}: {', '.join(missing)} missing")
        if not isinstance(facts, dict) or facts.get("schema") != cls.schema:
            schema = facts.get("schema") if isinstance(facts, dict) else facts
            raise ValueError(f"{where}: `schema` must be {cls.schema!r}, got {repr_of(schema, 100)}")
        try:
            facts["version"] = printable(facts.get("version"), 100)
            trace: Self = from_plain(facts, cls, arrays=arrays)
            trace.check_file()
        except ValueError as error:
            raise ValueError(f"{where}: {error}: damaged") from error
        return trace

    def check_file(self) -> None:
        """ValueError that names the field in which a trace that was read from a file cannot be one."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Trace(SavedTrace):
    """A recorded DP-SGD run, as scores of n candidates for a white-box adversary.

    The adversary is that of Hayes, Mahloujifar and Balle (2023), section 3. No gradient and no model is stored. c_tj
    is candidate j's clipped gradient at θ_t, ḡ_t the released sum without the rows that are not
    candidates.

    Attributes:
        noise_multiplier: (steps,) σ_t.
        max_grad_norm: (steps,) C_t.
        batch_rows: (steps,) rows of each batch.
        sample_rate: q by which scores are weighed, or None.
        expected_batch_size: divisor of the optimizer, or None.
        members: (n,) bool, candidates in the training data.
        members_given: whether the caller named them; otherwise they were recognised in batches.
        times_seen: (n,) batches with the candidate; all zero if inputs could not be recognised.
        clipped_share: (n,) share of steps in which the gradient was longer than C.
        membership_sum: (n,) Σ_t ⟨c_tj, ḡ_t⟩/C_t².
        membership_likelihood: (n,) Σ_t log(1 − q + q·exp((2⟨c_tj, ḡ_t⟩ − ‖c_tj‖²)/(2σ_t²C_t²))), NaN without q or
            noise.
        pair_sum: (n, n), entry (i, j): the sum for j if the adversary knows all rows but i.
        pair_likelihood: (n, n), likewise.
        unrecorded: the other steps as (after, σ, q, steps): `steps` after `after` recorded ones; None: not known.
        complete: False if the run may have more steps.
        origin: digests of candidates and parameters, by which `audit.join` recognises parts of a run.
        sampling: how the batches were drawn, and what says so.
        divisor: "rows" if divisor, q or steps depend on the number of rows; "constant" if all are fixed; None: not
            said.
        version: leakcore's version.

    Example:
        >>> import numpy as np
        >>> from leakcore import dpsgd
        >>> z, zz = np.zeros(2), np.zeros((2, 2))
        >>> trace = dpsgd.Trace(
        ...     noise_multiplier=np.ones(5), max_grad_norm=np.ones(5), batch_rows=np.full(5, 9), sample_rate=0.1,
        ...     expected_batch_size=9.0, members=np.array([True, False]), members_given=True, times_seen=z,
        ...     clipped_share=z, membership_sum=z, membership_likelihood=z, pair_sum=zz, pair_likelihood=zz,
        ... )
        >>> trace.steps, trace.candidates
        (5, 2)
    """

    schema: ClassVar[str] = "leakcore.trace/5"
    kind: ClassVar[str] = "a trace of leakcore"
    arrays: ClassVar[dict[str, int]] = dict.fromkeys(_PER_STEP + _PER_CANDIDATE, 1) | dict.fromkeys(_PER_PAIR, 2)

    noise_multiplier: np.ndarray
    max_grad_norm: np.ndarray
    batch_rows: np.ndarray
    sample_rate: float | None
    expected_batch_size: float | None
    members: np.ndarray
    members_given: bool
    times_seen: np.ndarray
    clipped_share: np.ndarray
    membership_sum: np.ndarray
    membership_likelihood: np.ndarray
    pair_sum: np.ndarray
    pair_likelihood: np.ndarray
    unrecorded: tuple[Stretch, ...] = ()
    complete: bool = True
    origin: Origin | None = None
    sampling: Sampling = _NOT_KNOWN
    divisor: Divisor | None = None
    version: str = __version__

    def __post_init__(self) -> None:
        object.__setattr__(self, "unrecorded", tuple(Stretch(*stretch) for stretch in self.unrecorded))

    def table_rows(self) -> Rows:
        """What is shown of it, as (name, value in words)."""
        sigma, norm = np.unique(self.noise_multiplier), np.unique(self.max_grad_norm)
        return [
            ("steps", f"{self.steps} recorded of {'' if self.complete else 'at least '}{self.run_steps}"),
            ("noise multiplier", short(sigma)),
            ("clipping norm", short(norm)),
            ("sample rate", "not known" if self.sample_rate is None else short(self.sample_rate)),
            ("sampling", f"{self.sampling.scheme}: {self.sampling.evidence}"),
            ("candidates", f"{self.candidates}, {int(self.members.sum())} of them members"),
        ]

    def __repr__(self) -> str:
        return as_line("Trace", self.table_rows())

    @property
    def steps(self) -> int:
        """Optimizer steps recorded."""
        return len(self.noise_multiplier)

    @property
    def run_steps(self) -> int:
        """Steps of the run up to the end of the recording; if the trace is not `complete`, at least this many."""
        return self.steps + sum(s.steps for s in self.unrecorded)

    @property
    def candidates(self) -> int:
        """The number n of candidates."""
        return len(self.members)

    @property
    def not_poisson(self) -> str:
        """A sentence if the batches are too equal in size for Poisson samples, else "".

        It is "" where nothing can be said: q = 1, one step, unknown q or expected size, or unknown batches. Under
        Poisson sampling of n rows a size has probability at most p = max_k P(Bin(n, q) = k), so all but m of T steps
        have one size with probability at most binom(T, m)·p^(T − m − 1). The sentence appears if that is below 1e-6.
        The last batch of an epoch may differ.
        """
        q, expected = self.sample_rate, self.expected_batch_size
        if not q or q >= 1 or not expected or self.steps < 2 or not self.batch_rows.any():
            return ""
        sizes, counts = np.unique(self.batch_rows, return_counts=True)
        same, steps = int(counts.max()), self.steps
        ways = -math.log(steps + 1) - float(special.betaln(same + 1, steps - same + 1))
        if ways + (same - 1) * _log_likeliest(min(expected / q, 2.0**53), q) >= math.log(_CHANCE):
            return ""
        which = "all" if same == steps else f"{same} of"
        return (
            f"{which} {steps} batches have {int(sizes[counts.argmax()])} rows, as Poisson sampling at q = {q:.4g} "
            f"would give them with probability below {_CHANCE:.0e}"
        )

    @property
    def divisor_of_others(self) -> str:
        """A sentence if one row more or less changes what `make_private` divides a mean loss by, int(n·q), else "".

        q stays in it: with q = 1/len(loader) one row more may change that, too. It is "" where the optimizer's expected
        batch size is another number.
        """
        n, q = self.sampling.dataset_size, self.sample_rate
        if self.divisor != "rows" or n is None or not q or self.expected_batch_size is None:
            return ""
        own, others = int(n * q), {n + k: int((n + k) * q) for k in (-1, 1)}
        if not math.isclose(self.expected_batch_size, own, rel_tol=1e-9):
            return ""
        changed = [f"{rows:,} rows by {divisor:,}" for rows, divisor in others.items() if divisor != own]
        return (
            f"Opacus divides the sum of {n:,} rows by {own:,}, and at the same q of {' and of '.join(changed)}, unless "
            "loss_reduction='sum'"
            if changed
            else ""
        )

    def check_file(self) -> None:
        """ValueError that names the field in which a trace that was read from a file cannot be one."""
        _check_arrays(self)
        for name in ("sample_rate", "expected_batch_size"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < _MOST:
                raise ValueError(f"`{name}` must be a number of at least 0 or null, got {value}")
        before, total = 0, self.steps
        for stretch in self.unrecorded:
            total += stretch.steps
            if not _is_possible(stretch, before, self.steps) or total > _MOST:
                raise ValueError(
                    "`unrecorded` must be a list of [recorded steps before, noise_multiplier, sample_rate, steps]"
                )
            before = stretch.after
        _check_sampling(self.sampling)
        if self.origin is not None and not _is_origin(self.origin):
            raise ValueError("`origin` must be digests of candidates and parameters, and shapes")


def _log_likeliest(rows: float, q: float) -> float:
    """log max_k P(Bin(rows, q) = k), rows rounded."""
    n = max(round(rows), 1)
    k = min(int((n + 1) * q), n)
    ways = -math.log(n + 1) - float(special.betaln(k + 1, n - k + 1))
    return ways + k * math.log(q) + (n - k) * math.log1p(-q)
