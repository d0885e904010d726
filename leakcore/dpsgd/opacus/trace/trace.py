"""A recorded training run: its schedule, and the adversary's scores of the candidates."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import ClassVar

import numpy as np
from scipy import special

from leakcore._base.codec import FACTS, from_plain, to_npz, unpack
from leakcore._base.results import Record
from leakcore._base.tables import Rows, as_line, short
from leakcore._base.text import printable, repr_of
from leakcore._base.version import __version__
from leakcore._base.writing import write_atomically
from leakcore.dpsgd.opacus.trace.checks import ARRAYS, check_file
from leakcore.dpsgd.opacus.trace.origin import Origin
from leakcore.dpsgd.opacus.trace.sampling import Divisor, Sampling
from leakcore.dpsgd.opacus.trace.unrecorded_steps import Stretch

_CHANCE = 1e-6
"""Batch sizes that Poisson sampling gives with less probability count as another sampling."""
_NOT_KNOWN = Sampling()


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Trace(Record):
    """A recorded DP-SGD run, as scores of n candidates for a white-box adversary.

    The adversary is that of Hayes, Mahloujifar and Balle (2023), section 3. No gradient and no model is stored. c_tj
    is candidate j's clipped gradient at θ_t, ḡ_t the released sum without the rows that are not
    candidates.

    Attributes:
        noise_multiplier: (steps,) σ_t.
        max_grad_norm: (steps,) C_t.
        batch_rows: (steps,) rows of each batch.
        sample_rate: q by which scores are weighed, or None.
        expected_batch_size: as the optimizer has it, or None.
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
        version: of leakcore.

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

    def save(self, path: str | Path) -> None:
        """Write an npz file atomically: plain arrays and one JSON text, nothing pickled. Only its owner may read it.

        Args:
            path: of the file.
        """
        write_atomically(Path(path), to_npz(self, compressed=True), private=True)

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a file that `save` wrote. Nothing is unpickled.

        Args:
            path: of the file.

        Returns:
            A `Trace`.

        Raises:
            ValueError: says what is wrong with any other file.
        """
        where = printable(path)
        try:
            facts, arrays = unpack(path, {FACTS, *ARRAYS})
        except ValueError as error:
            raise ValueError(f"{where}: cannot be read as a trace of leakcore ({printable(error)})") from error
        if missing := sorted(ARRAYS.keys() - arrays.keys()):
            raise ValueError(f"{where}: not a trace of leakcore: {', '.join(missing)} missing")
        if not isinstance(facts, dict) or facts.get("schema") != cls.schema:
            schema = facts.get("schema") if isinstance(facts, dict) else facts
            raise ValueError(f"{where}: `schema` must be {cls.schema!r}, got {repr_of(schema, 100)}")
        try:
            facts["version"] = printable(facts.get("version"), 100)
            trace: Trace = from_plain(facts, cls, arrays=arrays)
            check_file(trace)
        except ValueError as error:
            raise ValueError(f"{where}: {error}: damaged") from error
        return trace


def _log_likeliest(rows: float, q: float) -> float:
    """log max_k P(Bin(rows, q) = k), rows rounded."""
    n = max(round(rows), 1)
    k = min(int((n + 1) * q), n)
    ways = -math.log(n + 1) - float(special.betaln(k + 1, n - k + 1))
    return ways + k * math.log(q) + (n - k) * math.log1p(-q)
