"""The methods of `bounds.reconstruction`: small frozen objects, each with its own options.

    from leakcore.bounds import methods, reconstruction
    reconstruction(1.0, 0.1, 10, kappa=0.1, method=methods.Certified(num_samples=10**7, width=1e-3))

| method | name | covers | kind |
|---|---|---|---|
| `Auto()` | "auto" | the first of closed-form, exact, importance that serves | upper |
| `ClosedForm()` | "closed-form" | q = 1 in every step, one step, σ = 0 | upper |
| `Exact()` | "exact" | everything, to a numerical error that it reports | upper |
| `PLD()` | "pld" | σ > 0, by dp-accounting | upper |
| `MonteCarlo()` | "monte-carlo" | everything | estimate |
| `Certified()` | "certified" | everything; of no use for κ far below 1/num_samples | upper, at its confidence |
| `Importance()` | "importance" | everything, κ ≪ 1/num_samples included | upper, at its confidence |
| `DKW()` | "dkw-bennett" | σ > 0: the paper's own interval | estimate |

To add one: a file here with a `Method`, and its line in `TABLE`.
"""

from __future__ import annotations

from typing import Any

from leakcore._base import validate
from leakcore.bounds.methods.certified import Certified
from leakcore.bounds.methods.deterministic import PLD, Auto, ClosedForm, Exact
from leakcore.bounds.methods.importance import Importance
from leakcore.bounds.methods.method import CHECKS, Method
from leakcore.bounds.methods.monte_carlo import DKW, MonteCarlo

TABLE: dict[str, type[Method]] = {
    kind.name: kind for kind in (Auto, ClosedForm, Exact, PLD, MonteCarlo, Certified, Importance, DKW)
}
"""Methods by the name that `reconstruction(method=)` takes."""
_DEFAULTS = {"num_samples": 1_000_000, "confidence": 0.999, "seed": 0, "device": None, "executor": None}
"""Defaults of the keywords of `reconstruction`."""


def taking(option: str) -> tuple[str, ...]:
    """Names of the methods that have an option of this name."""
    return tuple(name for name, kind in TABLE.items() if option in kind.options())


def method_of(method: str | Method, /, **keywords: Any) -> Method:
    """The method that a call asks for, by name and keywords or as an object, which holds its options itself. Every
    keyword is checked. A method without such an option leaves num_samples, confidence and seed aside; a device or an
    executor that it could not use, and keywords next to an object, are a ValueError."""
    checked = {key: CHECKS[key](value) for key, value in keywords.items()}
    if isinstance(method, Method):
        for key, value in checked.items():
            if value != _DEFAULTS[key]:
                kind = type(method).__name__
                raise ValueError(
                    f"`{key}` must go into the method object, {kind}(...), which holds its options, got {value!r}"
                )
        return method
    name = validate.one_of(*TABLE, method=method)
    options = TABLE[name].options()
    for key in ("device", "executor"):
        if checked.get(key) not in (None, "cpu") and key not in options:
            raise ValueError(
                f"`{key}` must be None with method={name!r}, got {checked[key]!r}: only methods {taking(key)} take it"
            )
    return TABLE[name](**{key: value for key, value in checked.items() if key in options})


__all__ = ["DKW", "PLD", "TABLE", "Auto", "Certified", "ClosedForm", "Exact", "Importance", "Method", "MonteCarlo"]
