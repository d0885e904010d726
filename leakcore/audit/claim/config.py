"""What an audit of a claimed ε is asked to do, as sections of a TOML file: data, model, mechanism, claim, audit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakcore._base import validate as check
from leakcore._base.files.toml_file import read_toml
from leakcore._base.printable import name_of, printable
from leakcore._base.results import jsonable
from leakcore.audit.config.keys import (
    Keys,
    adjacency,
    flag,
    nearest,
    optional,
    read_section,
    require_known,
    text,
    whole,
    wholes,
    words,
)

if TYPE_CHECKING:
    from leakcore import dpsgd

DATA = ("digits", "breast-cancer", "fashion-mnist", "cifar10", "location30", "purchase100")
ATTACKS = ("clipbkd", "backdoor", "membership", "zero-input", "one-run")
COINS = ("membership", "one-run")
"""Attacks on rows that are in or out by coins: adjacency add/remove."""
INITIALISATIONS = ("per-run", "fixed", "glorot", "fixed-glorot")


KEYS: dict[str, Keys] = {
    "data": {
        "name": ("digits", words(*DATA)),
        "num_rows": (None, optional(whole(10))),
        "path": (None, optional(text)),
        "features": ("pixels", words("pixels", "frozen")),
    },
    "model": {
        "hidden": ((), wholes(1)),
        "activation": ("relu", words("elu", "relu", "tanh", "gelu", "silu", "sigmoid", "softplus", "leaky_relu")),
        "initialisation": ("fixed-glorot", words(*INITIALISATIONS)),
        "initialisation_scale": (1.0, check.non_negative),
    },
    "mechanism": {
        "noise_multiplier": (None, optional(check.non_negative)),
        "max_grad_norm": (1.0, check.positive),
        "learning_rate": (0.15, check.positive),
        "steps": (24, whole(1, 2**24 - 1)),
        "sample_rate": (1.0, check.probability),
        "batch_size": (None, optional(whole(1))),
    },
    "fault": {
        "noise": (1.0, check.non_negative),
        "bias_noise": (1.0, check.non_negative),
        "clip": ("sample", words("sample", "batch")),
    },
    "claim": {
        "epsilon": (None, optional(check.positive)),
        "delta": (1e-5, check.open_probability),
        "adjacency": ("add-remove", adjacency),
    },
    "audit": {
        "attack": ("clipbkd", words(*ATTACKS)),
        "trials": (500, whole(2)),
        "k": ((1, 2, 4, 8), wholes(1)),
        "adjacency": (None, optional(adjacency)),
        "contrast": (False, flag),
        "canaries": (500, whole(2)),
        "select": ("split", words("split", "correction")),
        "confidence": (0.99, check.confidence),
        "seed": (0, check.seed),
    },
}
"""Section, key: default and how it is read. Errors name section.key."""


@dataclasses.dataclass(frozen=True, eq=False)
class ClaimConfig:
    """One audit of one claim, by section, with the default of every key filled in.

    Create it by `from_dict` or `from_toml`. docs/how-to/config.md lists all keys.

    Attributes:
        data: `name`; `num_rows` (None: all); `path` of a folder of data sets; `features`, "pixels" or "frozen"
            (CIFAR-10 only: features of a small network that was trained on the subset of CIFAR-100).
        model: `hidden` sizes ([] for logistic regression), `activation`, `initialisation`, `initialisation_scale`.
        mechanism: `noise_multiplier` σ (None: computed from the claim), `max_grad_norm` C, `learning_rate`, `steps`,
            and `sample_rate` (Poisson; 1 for full batches) or `batch_size` (shuffled).
        fault: an implementation error on purpose, as `dpsgd.Fault`.
        claim: `epsilon` (None: the accountant's for σ), `delta`, `adjacency`.
        audit: `attack`; `trials` per data set, to choose threshold and k, and as many to count; `k`; `adjacency` (None:
            the claim's, or "replace" with shuffled batches or `contrast`); `contrast`, as in
            `attacks.poisoning.ClipBKD`; `canaries` of the attack "one-run"; `select`, "split" (`bounds.SplitThreshold`)
            or "correction" (`bounds.SimultaneousThreshold`, which counts all trials); `confidence`; `seed`.

    Raises:
        ValueError: names section.key, its value and what is allowed.
        TypeError: for a value of another type.

    Example:
        >>> from leakcore import audit
        >>> config = audit.ClaimConfig.from_dict({"mechanism": {"noise_multiplier": 1.0}, "audit": {"trials": 100}})
        >>> config.audit["attack"], config.adjacency
        ('clipbkd', 'add-remove')
    """

    data: Mapping[str, Any]
    model: Mapping[str, Any]
    mechanism: Mapping[str, Any]
    fault: Mapping[str, Any]
    claim: Mapping[str, Any]
    audit: Mapping[str, Any]

    @classmethod
    def from_dict(cls, sections: Mapping[str, Any]) -> ClaimConfig:
        """The checked configuration, with defaults for missing keys.

        Args:
            sections: mappings of keys, by section.

        Returns:
            A `ClaimConfig`.

        Raises:
            ValueError: names section.key, its value and what is allowed.
            TypeError: for a value of another type.
        """
        for name, section in sections.items():
            if name not in KEYS:
                raise ValueError(
                    f"[{name_of(name)}]: no such section; there are {', '.join(KEYS)}{nearest(name, KEYS)}"
                )
            if not isinstance(section, Mapping):
                raise TypeError(f"{name}={printable(repr(section), 60)}: must be a section, [{name}]")
            require_known(name, section, KEYS[name], {n: k for n, k in KEYS.items() if n != name})
        read = {name: read_section(name, sections.get(name, {}), keys) for name, keys in KEYS.items()}
        config = cls(**read)
        config._check_together()
        return config

    @classmethod
    def from_toml(cls, path: str | Path, *, override: Mapping[str, Mapping[str, Any]] | None = None) -> ClaimConfig:
        """The configuration of a TOML file.

        Args:
            path: of the file.
            override: keys by section that take precedence over the file's.

        Returns:
            A `ClaimConfig`.

        Raises:
            ValueError: names the file, or section.key, its value and what is allowed.
            TypeError: for a value of another type.
        """
        sections = read_toml(path)
        for name, keys in (override or {}).items():
            section = sections.get(name, {})
            sections[name] = {**section, **keys} if isinstance(section, dict) else section
        return cls.from_dict(sections)

    def _check_together(self) -> None:
        m, c, a = self.mechanism, self.claim, self.audit
        if m["noise_multiplier"] is None and c["epsilon"] is None:
            raise ValueError("mechanism.noise_multiplier, claim.epsilon: give one of the two, or both")
        if m["sample_rate"] == 0:
            raise ValueError("mechanism.sample_rate=0: must be in (0, 1]")
        if m["batch_size"] is not None and m["sample_rate"] != 1:
            raise ValueError("mechanism.batch_size, mechanism.sample_rate: shuffled or Poisson batches, not both")
        if not a["k"] or len(set(a["k"])) != len(a["k"]):
            raise ValueError(f"audit.k={list(a['k'])}: must be distinct, at least one")
        if a["attack"] in COINS and self.adjacency == "replace":
            raise ValueError(
                f"audit.adjacency='replace': coins decide whether a row is there, {a['attack']} is add-remove"
            )
        if a["contrast"] and (self.adjacency == "add-remove" or a["attack"] not in ("clipbkd", "zero-input")):
            raise ValueError(
                "audit.contrast=true: puts rows of D₀ in the poison's place: with clipbkd or zero-input, and "
                "audit.adjacency='replace' or none"
            )
        if self.data["features"] == "frozen" and self.data["name"] != "cifar10":
            raise ValueError(f"data.features='frozen': goes with data.name='cifar10', not {self.data['name']!r}")
        if c["adjacency"] == "replace" and self.adjacency == "add-remove":
            raise ValueError(
                "claim.adjacency='replace', audit.adjacency='add-remove': an ε against replacing a row says nothing of "
                "adding one; audit by replacement, or state the claim under add-remove"
            )
        if self.adjacency == "add-remove" and m["batch_size"] is not None:
            raise ValueError("mechanism.batch_size: shuffled batches go with audit.adjacency='replace' only")
        if m["noise_multiplier"] == 0 and c["epsilon"] is None:
            raise ValueError("mechanism.noise_multiplier=0: claims nothing; give claim.epsilon")

    @property
    def adjacency(self) -> str:
        """The adjacency of the audit."""
        if self.audit["adjacency"] is not None:
            return str(self.audit["adjacency"])
        if self.audit["attack"] in COINS:
            return "add-remove"
        swapped = self.mechanism["batch_size"] is not None or self.audit["contrast"]
        return "replace" if swapped else str(self.claim["adjacency"])

    def to_dict(self) -> dict[str, Any]:
        """The sections, JSON-ready."""
        return dict(jsonable({f.name: dict(getattr(self, f.name)) for f in dataclasses.fields(self)}))

    def ensemble(self, inputs: int, outputs: int, noise_multiplier: float, rows: int) -> dpsgd.Ensemble:
        """The mechanism under audit, for `rows` training rows."""
        from leakcore import dpsgd

        m, model = self.mechanism, self.model
        initialisation = dpsgd.Initialisation(model["initialisation"], scale=model["initialisation_scale"])
        return dpsgd.Ensemble(
            dpsgd.Network((inputs, *model["hidden"], outputs), model["activation"], initialisation=initialisation),
            noise_multiplier=noise_multiplier,
            max_grad_norm=m["max_grad_norm"],
            learning_rate=m["learning_rate"],
            steps=m["steps"],
            sample_rate=dpsgd.PoissonBatches(m["sample_rate"], expected_batch_size=m["sample_rate"] * rows)
            if m["batch_size"] is None
            else dpsgd.ShuffledBatches(m["batch_size"]),
            fault=dpsgd.Fault(**self.fault),
            seed=self.audit["seed"],
        )
