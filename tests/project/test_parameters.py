"""Nobody has to hold more than eight parameters in the head: what belongs together is an object."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "leakcore"
MOST = 8
OF_THE_CONTRACT = {
    "leakcore.kernels.clip_and_noise": "its keywords are the public contract's",
    "leakcore.kernels.mixture_log_ratio": "likewise",
    "leakcore.kernels.mixture_tail": "likewise",
    "leakcore.bounds.reconstruction": "likewise",
    "leakcore.record": "likewise",
    "leakcore.dpsgd.record": "likewise",
    "leakcore.bounds.epsilon_lower_bound_one_run": "three counts, and the keywords of the other lower bounds",
    "leakcore.leakage.mutual_information": "num_classes is a premise that only the user knows",
    "leakcore.audit.from_trace": "the divisor is a premise that only the user knows",
    "leakcore.dpsgd.Recorder": "what record passes on",
    "leakcore.audit.from_scores": "one call for scores of every design; its keywords are the command's options",
}
"""Public functions that may have more, and why."""
INTERNAL = {
    "attacks/labels/hidden_layers.py: recover_up_to_sign": "one call each for three attacks, all by keyword",
    "attacks/poisoning/poisoned_data.py: copies": "one call for each poisoning, which brings all of it",
    "dpsgd/rows/autograd_rows.py: __init__": "one call, in the row check",
    "leakage/mutual_information.py: mutual_information": "num_classes is a premise that only the user knows",
    "audit/trace/request.py: parse": "the arguments of from_trace",
    "audit/trace/from_trace.py: from_trace": "the divisor is a premise that only the user knows",
    "dpsgd/record/recorder.py: __init__": "what record passes on",
    "experiments/driver/context.py: result": "the fields of a result",
    "models/features.py: _train": "one call, with what train_extractor has checked",
    **{
        f"{place}: {name}": "the contract's"
        for place, name in (
            ("kernels/clip.py", "clip_and_noise"), ("kernels/mixture.py", "mixture_log_ratio"),
            ("kernels/mixture.py", "mixture_tail"), ("bounds/reconstruction/reconstruction.py", "reconstruction"),
            ("audit/scores/from_scores.py", "from_scores"),
            ("bounds/audited_epsilon/one_run.py", "epsilon_lower_bound_one_run"),
            ("dpsgd/record/record.py", "record"),
        )
    },
}  # fmt: skip
"""Functions of any kind that have more, and why."""


def _packages() -> list[str]:
    folders = [p.parent for p in PACKAGE.rglob("__init__.py")]
    return sorted(".".join(("leakcore", *folder.relative_to(PACKAGE).parts)) for folder in folders)


def _public() -> Iterator[tuple[str, Any]]:
    """Every public function, class and public method of a class, by the place where users find it."""
    for package in _packages():
        if any(part.startswith("_") for part in package.split(".")) or package.startswith("leakcore.cli"):
            continue
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if inspect.isfunction(value) or (inspect.isclass(value) and not dataclasses.is_dataclass(value)):
                yield f"{package}.{name}", value
            if inspect.isclass(value):
                for method, own in vars(value).items():
                    call = own.__func__ if isinstance(own, classmethod | staticmethod) else own
                    if not method.startswith("_") and isinstance(call, types.FunctionType):
                        yield f"{package}.{name}.{method}", call


def _count(call: Any) -> int:
    try:
        parameters = inspect.signature(call).parameters.values()
    except ValueError:  # a class of C's
        return 0
    return len(
        [p for p in parameters if p.name not in ("self", "cls") and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    )


def test_public_functions_have_at_most_eight_parameters() -> None:
    counted = {name: _count(call) for name, call in _public()}
    assert len(counted) > 200
    assert {name for name, count in counted.items() if count > MOST} == {
        name for name in counted if any(name == own or name == own.replace(".kernels", "") for own in OF_THE_CONTRACT)
    }


def test_no_other_function_has_more_without_a_reason() -> None:
    many = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                a = node.args
                names = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs) if x.arg not in ("self", "cls")]
                if len(names) > MOST:
                    many.add(f"{path.relative_to(PACKAGE).as_posix()}: {node.name}")
    assert many == set(INTERNAL)


@pytest.mark.parametrize("most", [8, 9])
def test_the_count_can_fail(most: int) -> None:
    names = ", ".join(f"a{i}" for i in range(most))
    scope: dict[str, Any] = {}
    exec(f"def call({names}): ...", scope)
    assert (_count(scope["call"]) > MOST) == (most > 8)
