"""What an audit of a claimed ε is asked, as sections of a TOML file: data, model, mechanism, claim, audit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, MinLen

from leakcore._base.reading import of_file, read_toml
from leakcore._base.results import jsonable
from leakcore.audit.shared import config_checks as checks

if TYPE_CHECKING:
    from leakcore import dpsgd

Stop = Literal["early", "never"]
SchemeName = Literal["poisson", "shuffled", "fixed", "allocation"]
_KEYS: Mapping[SchemeName, str] = {
    "poisson": "sample_rate",
    "shuffled": "batch_size",
    "fixed": "batch_size",
    "allocation": "batches",
}
"""The key that says how large the batches of each sampling are."""
BLOCK = 32
"""Models that are trained at once."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """What is trained on. num_rows: None for all. path: folder of data sets; None for the cache.

    features: "frozen", for CIFAR-10 only, trains on the features of a small network, which was trained on the subset of
    CIFAR-100.
    """

    name: Literal["digits", "breast-cancer", "fashion-mnist", "cifar10", "location30", "purchase100"] = "digits"
    num_rows: Annotated[int, Ge(10)] | None = None
    path: checks.Text | None = None
    features: Literal["pixels", "frozen"] = "pixels"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """The network. hidden: sizes of its hidden layers, () for logistic regression."""

    hidden: tuple[checks.Width, ...] = ()
    activation: checks.ActivationName = "relu"
    initialisation: Literal["per-run", "fixed", "glorot", "fixed-glorot"] = "fixed-glorot"
    initialisation_scale: checks.NonNegative = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism:
    """DP-SGD. noise_multiplier: None: computed from the claim.

    sampling: None: "shuffled" with a `batch_size`, else "poisson". sample_rate: q of "poisson"; 1 for full batches.
    batch_size: rows, for "shuffled" and "fixed". batches: in an epoch of "allocation"; each row draws one of them.
    """

    noise_multiplier: checks.NonNegative | None = None
    max_grad_norm: checks.Positive = 1.0
    learning_rate: checks.Positive = 0.15
    steps: checks.Steps = 24
    sampling: SchemeName | None = None
    sample_rate: checks.SampleRate = 1.0
    batch_size: checks.Count | None = None
    batches: checks.Steps | None = None

    def __post_init__(self) -> None:
        if self.scheme not in _KEYS:
            raise ValueError(f"`mechanism.sampling` must be one of {', '.join(_KEYS)}, got {self.sampling!r}")

    @property
    def scheme(self) -> SchemeName:
        """The sampling that is meant."""
        return self.sampling or ("poisson" if self.batch_size is None else "shuffled")

    @property
    def swaps(self) -> bool:
        """Whether batches have one size, so that a row can only be replaced."""
        return _KEYS[self.scheme] == "batch_size"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """An implementation error on purpose, as `dpsgd.Fault`."""

    noise: checks.NonNegative = 1.0
    bias_noise: checks.NonNegative = 1.0
    clip: Literal["sample", "batch"] = "sample"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """What is claimed. epsilon: None for the accountant's ε of the noise multiplier."""

    epsilon: checks.Positive | None = None
    delta: checks.PositiveDelta = 1e-5
    adjacency: checks.AdjacencyName = "add-remove"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """How the claim is tested. confidence: at which the bounds hold together.

    trials: models on each data set, all counted; of "membership" one half learns how rows score. k: numbers of rows
    that the attacker places. adjacency: None: the claim's, or "replace" with shuffled batches or `contrast`, which is
    as in `attacks.poisoning.ClipBKD`. canaries: number for the attack "one-run". stop: "early": when the claim falls,
    or cannot fall any more within the trials.
    """

    attack: Literal["clipbkd", "backdoor", "membership", "zero-input", "crafted-gradient", "one-run"] = "clipbkd"
    trials: checks.Trials = 1000
    k: Annotated[tuple[checks.Count, ...], MinLen(1)] = (1, 2, 4, 8)
    adjacency: checks.AdjacencyName | None = None
    contrast: bool = False
    canaries: checks.CountFrom2 = 500
    stop: Stop = "never"
    confidence: checks.Confidence = 0.99
    seed: checks.Seed = 0


SECTIONS: dict[str, type] = {
    "data": Data,
    "model": Model,
    "mechanism": Mechanism,
    "fault": Fault,
    "claim": Claim,
    "audit": Audit,
}
_BY_COINS = ("membership", "one-run")
"""Attacks on rows that are in or out by coins."""
_ADDED = (*_BY_COINS, "crafted-gradient")
"""Attacks that add what they test: adjacency add-remove, Poisson or full batches."""


@dataclasses.dataclass(frozen=True)
class ClaimConfig:
    """One audit of one claim, by section, with the default of every key filled in.

    Create it by `from_dict` or `from_toml`. docs/how-to/config.md lists all keys.

    Attributes:
        data: `name`, `num_rows`, `path`, `features`.
        model: `hidden`, `activation`, `initialisation`, `initialisation_scale`.
        mechanism: `noise_multiplier`, `max_grad_norm`, `learning_rate`, `steps`, `sampling`, `sample_rate`,
            `batch_size`, `batches`.
        fault: an implementation error on purpose, as `dpsgd.Fault`.
        claim: `epsilon`, `delta`, `adjacency`.
        audit: `attack`, `trials`, `k`, `adjacency`, `contrast`, `canaries`, `stop`, `confidence`, `seed`.

    Raises:
        ValueError: lists every fault by section.key, its value and what is allowed.
        TypeError: the same, where each of them is a value of another type.

    Example:
        >>> from leakcore import audit
        >>> config = audit.ClaimConfig.from_dict({"mechanism": {"noise_multiplier": 1.0}, "audit": {"trials": 100}})
        >>> config.audit.attack, config.adjacency
        ('clipbkd', 'add-remove')
    """

    data: Data
    model: Model
    mechanism: Mechanism
    fault: Fault
    claim: Claim
    audit: Audit

    def __post_init__(self) -> None:
        if faults := list(self._at_odds()):
            raise ValueError("\n".join(faults))

    @classmethod
    def from_dict(cls, sections: Mapping[str, Any]) -> ClaimConfig:
        """The checked configuration, with defaults for missing keys.

        Args:
            sections: mappings of keys, by section.

        Returns:
            A `ClaimConfig`.

        Raises:
            ValueError: lists every fault by section.key, its value and what is allowed.
            TypeError: the same, where each of them is a value of another type.
        """
        read = checks.checked_sections(SECTIONS, sections)
        return cls(**{name: section(**read[name]) for name, section in SECTIONS.items()})

    @classmethod
    def from_toml(cls, path: str | Path, *, override: Mapping[str, Mapping[str, Any]] | None = None) -> ClaimConfig:
        """The configuration of a TOML file.

        Args:
            path: the TOML file.
            override: keys by section that take precedence over the file's.

        Returns:
            A `ClaimConfig`.

        Raises:
            ValueError: names the file, and lists every fault by section.key, its value and what is allowed.
            TypeError: the same, where each fault is a value of another type.
        """
        sections = read_toml(path)
        for name, keys in (override or {}).items():
            section = sections.get(name, {})
            sections[name] = {**section, **keys} if isinstance(section, dict) else section
        with of_file(path):
            return cls.from_dict(sections)

    def _at_odds(self) -> Iterator[str]:
        """What does not go together."""
        m, c, a = self.mechanism, self.claim, self.audit
        if m.noise_multiplier is None and c.epsilon is None:
            yield "`mechanism.noise_multiplier` or `claim.epsilon` must be given, or both"
        if m.noise_multiplier == 0 and c.epsilon is None:
            yield "`claim.epsilon` must be given: mechanism.noise_multiplier=0 claims nothing"
        yield from self._misfits()
        if len(set(a.k)) != len(a.k):
            yield f"`audit.k` must be distinct numbers, got {list(a.k)}"
        if a.attack in _ADDED and self.adjacency == "replace":
            why = "coins decide whether a row is there" if a.attack in _BY_COINS else "a gradient is added"
            yield f"`audit.adjacency` must be 'add-remove' with audit.attack={a.attack!r}, got 'replace': {why}"
        if a.stop == "early" and a.attack in _BY_COINS:
            yield (
                f"`audit.stop` must be 'never' with audit.attack={a.attack!r}, got 'early': "
                + ("one training leaves nothing to stop" if a.attack == "one-run" else "its first half only learns")
            )
        elif a.stop == "early" and a.trials <= BLOCK:
            yield (
                f"`audit.trials` must be above {BLOCK} with audit.stop='early', got {a.trials}: the first {BLOCK} only "
                "choose the first bet"
            )
        if a.contrast and (self.adjacency == "add-remove" or a.attack not in ("clipbkd", "zero-input")):
            yield (
                "`audit.contrast` must be false unless audit.attack is clipbkd or zero-input and audit.adjacency is "
                f"'replace', got {a.attack} and {self.adjacency!r}: it puts rows of D₀ in the poison's place"
            )
        if self.data.features == "frozen" and self.data.name != "cifar10":
            yield (
                f"`data.features` must be 'pixels' with data.name={self.data.name!r}, got 'frozen', which only "
                "cifar10 has"
            )
        if c.adjacency == "replace" and self.adjacency == "add-remove":
            yield (
                "`audit.adjacency` must be 'replace' with claim.adjacency='replace', got 'add-remove': an ε against "
                "replacing a row says nothing of adding one; or state the claim under add-remove"
            )
        if self.adjacency == "add-remove" and m.swaps:
            yield f"`mechanism.batch_size` must be left out unless audit.adjacency is 'replace', got {m.batch_size}"
        if m.scheme == "fixed" and c.adjacency != "replace":
            yield (
                f"`claim.adjacency` must be 'replace' with mechanism.sampling='fixed', got {c.adjacency!r}: nothing is "
                "proved of adding a row to batches of a fixed size"
            )
        if m.scheme not in ("poisson", "shuffled") and a.attack in _ADDED:
            yield (
                f"`audit.attack` must be a poisoning attack with mechanism.sampling={m.scheme!r}, got {a.attack!r}: "
                "it needs Poisson or full batches"
            )

    def _misfits(self) -> Iterator[str]:
        """Keys of [mechanism] that do not go with its sampling."""
        m = self.mechanism
        wanted = _KEYS[m.scheme]
        for name, absent in (("batch_size", None), ("batches", None), ("sample_rate", 1.0)):
            value = getattr(m, name)
            if name != wanted and value != absent:
                left = "1" if name == "sample_rate" else "left out"
                yield f"`mechanism.{name}` must be {left} with {m.scheme} batches, got {value:g}"
            if name == wanted and value is None:
                yield f"`mechanism.{name}` must be given with mechanism.sampling={m.scheme!r}"
        if m.scheme == "allocation" and m.batches is not None and m.steps % m.batches:
            yield f"`mechanism.steps` must be whole epochs of {m.batches} batches, got {m.steps}"

    @property
    def adjacency(self) -> str:
        """The adjacency of the audit."""
        if self.audit.adjacency is not None:
            return self.audit.adjacency
        if self.audit.attack in _ADDED:
            return "add-remove"
        swapped = self.mechanism.swaps or self.audit.contrast
        return "replace" if swapped else self.claim.adjacency

    def to_dict(self) -> dict[str, Any]:
        """The sections, JSON-ready."""
        return dict(jsonable(self))

    def ensemble(self, inputs: int, outputs: int, noise_multiplier: float, rows: int) -> dpsgd.Ensemble:
        """The mechanism under audit, for `rows` training rows."""
        from leakcore import dpsgd

        m, model = self.mechanism, self.model
        initialisation = dpsgd.Initialisation(model.initialisation, scale=model.initialisation_scale)
        return dpsgd.Ensemble(
            dpsgd.Network((inputs, *model.hidden, outputs), model.activation, initialisation=initialisation),
            noise_multiplier=noise_multiplier,
            max_grad_norm=m.max_grad_norm,
            learning_rate=m.learning_rate,
            steps=m.steps,
            sample_rate=_batches(m, rows),
            fault=dpsgd.Fault(**vars(self.fault)),
            seed=self.audit.seed,
        )


def _batches(
    m: Mechanism, rows: int
) -> dpsgd.PoissonBatches | dpsgd.ShuffledBatches | dpsgd.FixedBatches | dpsgd.AllocatedBatches:
    """How the ensemble draws batches; divided by what does not depend on whether the attacker's rows are there."""
    from leakcore import dpsgd

    size: Any = m.batch_size
    match m.scheme:
        case "poisson":
            return dpsgd.PoissonBatches(m.sample_rate, expected_batch_size=m.sample_rate * rows)
        case "shuffled":
            return dpsgd.ShuffledBatches(size)
        case "fixed":
            return dpsgd.FixedBatches(size)
        case "allocation":
            assert m.batches is not None
            return dpsgd.AllocatedBatches(m.batches, expected_batch_size=rows / m.batches)
