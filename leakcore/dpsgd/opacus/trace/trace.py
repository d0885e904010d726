"""What a recorded training run left for the adversary: its schedule, and the scores of the candidates."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from leakcore._base.files.json_file import parse_json
from leakcore._base.files.limits import allowed
from leakcore._base.files.npz_file import read_npz
from leakcore._base.files.writing import write_atomically
from leakcore._base.printable import printable
from leakcore._base.version import __version__
from leakcore.dpsgd.opacus.trace.origin import Origin, read_origin
from leakcore.dpsgd.opacus.trace.unrecorded_steps import Stretch, read_unrecorded

SCHEMA = "leakcore.trace/2"
_BEFORE = "leakcore.trace/1"
"""Says nothing of the steps that were not recorded."""
_ARRAYS = {
    "noise_multiplier": 1,
    "max_grad_norm": 1,
    "batch_rows": 1,
    "members": 1,
    "times_seen": 1,
    "clipped_share": 1,
    "membership_sum": 1,
    "membership_likelihood": 1,
    "pair_sum": 2,
    "pair_likelihood": 2,
}
_CHANCE = 1e-6
"""Batch sizes that Poisson sampling gives with less probability are taken for another sampling's."""
_LEAST = {"noise_multiplier": 0, "max_grad_norm": 0, "batch_rows": 0, "times_seen": 0, "clipped_share": 0}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Trace:
    """A recorded DP-SGD run, as scores of n candidates for a white-box adversary.

    The adversary is that of Hayes, Mahloujifar and Balle (2023), section 3. No gradient and no model is stored. Below,
    c_tj is candidate j's clipped gradient at θ_t, and ḡ_t the released sum less the clipped gradients of all rows of
    the batch that are not candidates.

    Attributes:
        noise_multiplier: (steps,) σ_t.
        max_grad_norm: (steps,) C_t.
        batch_rows: (steps,) rows of each batch.
        sample_rate: q, or None if unknown.
        expected_batch_size: as the optimizer has it, or None.
        members: (n,) bool, candidates in the training data.
        members_given: whether the caller named the members; otherwise they were recognised in batches.
        times_seen: (n,) batches with the candidate; all zero if inputs could not be recognised.
        clipped_share: (n,) share of steps in which the gradient was longer than C.
        membership_sum: (n,) Σ_t ⟨c_tj, ḡ_t⟩/C_t².
        membership_likelihood: (n,) Σ_t log(1 − q + q·exp((2⟨c_tj, ḡ_t⟩ − ‖c_tj‖²)/(2σ_t²C_t²))), NaN without q or
            noise.
        pair_sum: (n, n), entry (i, j) is the sum for j if the adversary knows all rows but i.
        pair_likelihood: (n, n), likewise for the likelihood.
        unrecorded: the run's other steps as (after, σ, q, steps): so many steps after so many recorded ones; None for
            an unknown σ or q.
        complete: False if the run may have more steps.
        origin: digests of candidates and parameters, by which `audit.join` recognises parts of a run.
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
    version: str = __version__

    def __post_init__(self) -> None:
        object.__setattr__(self, "unrecorded", tuple(Stretch(*stretch) for stretch in self.unrecorded))

    @property
    def steps(self) -> int:
        """Optimizer steps recorded."""
        return len(self.noise_multiplier)

    @property
    def run_steps(self) -> int:
        """Steps of the run up to the end of the recording; if the trace is not `complete`, at least so many."""
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

    def save(self, path: str | Path) -> None:
        """Write an npz file atomically: plain arrays and one JSON text, nothing pickled.

        Args:
            path: of the file.
        """
        facts = {
            "schema": SCHEMA,
            "version": self.version,
            "sample_rate": self.sample_rate,
            "expected_batch_size": self.expected_batch_size,
            "members_given": self.members_given,
            "unrecorded": self.unrecorded,
            "complete": self.complete,
            "origin": None if self.origin is None else dataclasses.asdict(self.origin),
        }
        buffer = io.BytesIO()
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        np.savez_compressed(buffer, allow_pickle=False, facts=np.array(json.dumps(facts)), **arrays)
        if sum(np.asarray(a).nbytes for a in arrays.values()) > allowed(buffer.tell()) // 2:  # `load` would refuse it
            buffer = io.BytesIO()
            np.savez(buffer, allow_pickle=False, facts=np.array(json.dumps(facts)), **arrays)
        write_atomically(Path(path), buffer.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a file that `save` wrote. Nothing is unpickled.

        Traces of older versions do not mention steps that were not recorded; they are not `complete`.

        Args:
            path: of the file.

        Returns:
            A `Trace`.

        Raises:
            ValueError: says what is wrong with any other file.
        """
        where = printable(path)
        try:
            arrays: dict[str, Any] = read_npz(path, {"facts", *_ARRAYS}, text=True)
        except ValueError as error:
            raise ValueError(f"{error}: cannot be read as a trace of leakcore") from error
        if missing := sorted({"facts", *_ARRAYS} - set(arrays)):
            raise ValueError(f"{where}: is no trace of leakcore: {', '.join(missing)} missing")
        try:
            facts = parse_json(str(arrays.pop("facts")))
        except ValueError as error:
            raise ValueError(f"{where}: cannot be read as a trace of leakcore ({error})") from error
        if not isinstance(facts, dict) or facts.get("schema") not in (SCHEMA, _BEFORE):
            found = facts.get("schema") if isinstance(facts, dict) else facts
            raise ValueError(f"{where}: schema {printable(repr(found), 100)}: must be {SCHEMA!r}")
        _check_shapes(where, arrays)
        return cls(
            **arrays,
            sample_rate=_number(where, "sample_rate", facts.get("sample_rate")),
            expected_batch_size=_number(where, "expected_batch_size", facts.get("expected_batch_size")),
            members_given=bool(facts.get("members_given")),
            unrecorded=read_unrecorded(where, facts.get("unrecorded", []), len(arrays["noise_multiplier"])),
            complete=facts.get("complete") is True,
            origin=read_origin(where, facts.get("origin")),
            version=printable(facts.get("version"), 100),
        )


def _log_likeliest(rows: float, q: float) -> float:
    """log max_k P(Bin(rows, q) = k), rows rounded."""
    n = max(round(rows), 1)
    k = min(int((n + 1) * q), n)
    ways = -math.log(n + 1) - float(special.betaln(k + 1, n - k + 1))
    return ways + k * math.log(q) + (n - k) * math.log1p(-q)


def _number(where: str, name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**53:
        return float(value)
    raise ValueError(f"{where}: {name}={printable(value, 40)}: must be a number of at least 0, or null")


def _check_shapes(where: str, arrays: dict[str, Any]) -> None:
    steps, n = arrays["noise_multiplier"].shape[:1], arrays["members"].shape[:1]
    for name, dimensions in _ARRAYS.items():
        values = arrays[name]
        per_step = name in ("noise_multiplier", "max_grad_norm", "batch_rows")
        wanted = steps if per_step else n * dimensions
        if values.ndim != dimensions or values.shape != wanted or values.dtype.kind not in "biuf":
            raise ValueError(f"{where}: {name} has shape {values.shape} and type {values.dtype}: damaged")
    if steps == (0,) or n == (0,):
        raise ValueError(f"{where}: holds {steps[0]} steps and {n[0]} candidates: must hold at least one of each")
    for name, low in _LEAST.items():
        values = arrays[name]
        if not (np.isfinite(values) & (values >= low)).all():
            raise ValueError(f"{where}: {name}: must be finite numbers of at least {low}: damaged")
    if arrays["members"].dtype != np.bool_:
        raise ValueError(f"{where}: members is of type {arrays['members'].dtype}, must be bool: damaged")
    for name in ("membership_sum", "pair_sum"):
        if not np.isfinite(arrays[name]).all():
            raise ValueError(f"{where}: {name}: must be finite: damaged")
