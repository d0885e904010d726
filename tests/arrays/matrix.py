"""Every array argument of every public function, in every state: the right number or a refusal that names it."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from leakcore.numerics import AccuracyError
from tests.arrays import numpy_states, torch_states
from tests.arrays.compare import difference, leaves, overclaim
from tests.arrays.state import State, direct
from tests.public.arrays import CALLS, resolve
from tests.public.calls import Call, rng

NARROW = {"float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1}
"""Relative agreement with the same numbers in float64."""
CHANGES: dict[str, Callable[[], dict[str, Any]]] = {
    "accounting.epsilon": lambda: {"noise_multiplier": np.array([1.0, 1.2, 0.9]), "sample_rate": np.full(3, 0.5)},
    "attacks.prior_aware": lambda: {"method": "likelihood", "prior": np.array([0.5, 0.2, 0.2, 0.1])},
    "bounds.discrete_prior": lambda: {"steps": 1},
    "bounds.fano_advantage": lambda: {"num_candidates": None, "prior": np.array([0.5, 0.25, 0.25])},
    "bounds.label_epsilon": lambda: {"grad_norms": np.full(4, 10.0)},
    "bounds.reconstruction": lambda: {"noise_multiplier": np.array([1.0, 1.2, 0.9]), "kappa": np.array([0.1, 0.2])},
    "kernels.clip_and_noise": lambda: {"seed": None, "noise": rng().normal(size=5), "out": np.zeros(5)},
    "kernels.mixture_log_ratio": lambda: {"sample_rate": np.array([0.5, 0.25, 0.125])},
    "numerics.clopper_pearson": lambda: {"successes": np.array([1, 3, 5]), "trials": np.array([9, 9, 8])},
    "numerics.gaussian_pair_epsilon": lambda: {"separation": np.array([0.5, 1.0, 2.0])},
}
"""Arrays in place of the numbers of an example call, and arguments that it leaves out."""
NUMBERS = (("accounting.epsilon", "delta"), ("accounting.delta", "steps"), ("bounds.kappa_pixels", "num_pixels"))
"""Arguments that are numbers, which an array of one may stand for."""
_LABELS = ("value", "labels", "determined", "tolerance")
OF_PRECISION = {
    "attacks.labels.KnownHiddenLayer": ("roundoff",),
    "attacks.labels.general": _LABELS,
    "attacks.labels.last_layer": _LABELS,
    "attacks.labels.second_last_layer": (*_LABELS, "residuals", "condition"),
    "leakage.subspace_distance": ("rtol",),
}
"""Fields that tell a narrow type from float64 on purpose: what rounding hides is not determined and spans nothing. The
second last layer has the residuals of the neuron that determines a row best, each on a scale of its own, and the
condition of the singular values that count. `overclaim` looks at what is determined instead."""
BY_LAYER = {
    ("attacks.inversion.ReleasedGradient", "gradient"),
    ("attacks.labels.GradientObservation", "gradient"),
    ("attacks.labels.WeightDifference", "weight_difference"),
}
"""Arguments that may be a list of one array per parameter, of unequal lengths."""

LISTS = {("audit.AuditConfig", "sweep"), ("audit.AuditConfig", "hidden")}
"""Arguments that are lists of numbers, as a configuration file has them, and no arrays."""


def _methods() -> dict[str, Call]:
    return {
        f"defenses.{kind}.apply": Call(lambda: {"gradients": rng().normal(size=(3, 5)), "seed": 0})
        for kind in ("Clip", "ClipSamples", "DPSGD", "GaussianNoise", "Laplace", "Prune")
    } | {"attacks.membership.Guesses.tally": Call(lambda: {"included": np.array([[True, False], [False, True]])})}


METHODS = _methods()


def function(name: str) -> Callable[..., Any]:
    """A public function, or a method of what one makes."""
    if name == "attacks.membership.Guesses.tally":
        from leakcore.attacks import membership

        return membership.Guesses(np.array([[1, -1], [0, 1]], np.int8)).tally
    if name in METHODS:
        kind = name.rpartition(".")[0]
        return resolve(kind)(*((1.0, 1.0) if kind.endswith("DPSGD") else (0.5,))).apply  # type: ignore[no-any-return]
    return resolve(name)  # type: ignore[no-any-return]


def call_of(name: str) -> Call:
    return METHODS[name] if name in METHODS else CALLS[name]


def example(name: str) -> dict[str, Any]:
    return call_of(name).arguments() | CHANGES.get(name, dict)()


def is_array(value: Any) -> bool:
    if isinstance(value, np.ndarray) or hasattr(value, "requires_grad"):
        return True
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(v, (int, float)) for v in value)


READ_WHERE_USED = {"dpsgd.Rows", "dpsgd.PerRun", "leakage.CrossValidation"}
"""Requests whose arrays are checked against what they go with: `Ensemble.run` and `v_information` read them, and the
matrix tries them there."""


def pairs() -> list[tuple[str, str]]:
    """(call, argument) of all arguments that are arrays."""
    calls = [name for name in (*CALLS, *METHODS) if name not in READ_WHERE_USED]
    return [(name, a) for name in calls for a, value in example(name).items() if is_array(value)]


def states(value: Any) -> Iterator[tuple[str, State, Any]]:
    """(name, state, value in the state's library)."""
    array = value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    for state in numpy_states.STATES:
        yield f"NumPy, {state.name}", state, array
    for state in torch_states.STATES:
        yield f"torch, {state.name}", state, torch.from_numpy(array.copy())


def _outcome(call: Callable[[Any], Any], state: State, value: Any) -> tuple[Any, BaseException | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return state.under(call, value), None
        except Exception as error:
            return None, error


def fault(name: str, argument: str, state: State, value: Any) -> str | None:
    """What is wrong with the answer; None if nothing is, or the library has no such array."""
    others = {a: v for a, v in example(name).items() if a != argument}
    if name.startswith("kernels.") and isinstance(value, torch.Tensor):  # which do not mix libraries
        others = {a: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for a, v in others.items()}
    entered = []

    def call(x: Any) -> Any:
        entered.append(True)
        return function(name)(**others, **{argument: x})

    try:
        array = state.make(value)
        wanted_value = None if state.plain is None else state.plain(value)
        if (name, argument) in LISTS and isinstance(array, list) and wanted_value is not None:
            wanted_value = wanted_value.tolist()
    except Exception:
        return None
    result, error = _outcome(call, state, array)
    if error is not None:
        return _unnamed(name, error) if entered else None
    if state.plain is None:
        uneven = state.name == "uneven lists" and (name, argument) in BY_LAYER
        return None if uneven or _of_shapes(result) else f"accepted, with {result!r:.200}"
    wanted, refused = _outcome(call, dataclasses.replace(state, under=direct), wanted_value)
    if refused is not None:
        return f"accepted, though its plain copy is refused: {refused}"
    if state.name not in NARROW:
        return difference(result, wanted, 1e-9)
    but = ("error", *OF_PRECISION.get(name, ()))
    return difference(result, wanted, NARROW[state.name], but) or overclaim(result, wanted)


def _of_shapes(result: Any) -> bool:
    """Whether it has no values either: what torch gets while it traces."""
    kinds = [type(x).__name__ for _, x in leaves(result)]
    return bool(kinds) and set(kinds) == {"FakeTensor"}


def _unnamed(name: str, error: BaseException) -> str | None:
    if isinstance(error, (AccuracyError, FloatingPointError)):
        return None
    if not isinstance(error, (ValueError, TypeError)):
        return f"{type(error).__name__}: {error}"
    words = [*example(name), *call_of(name).also]
    if not any(re.search(rf"\b{re.escape(word)}", str(error)) for word in words):
        return f"names no argument: {error}"
    return None
