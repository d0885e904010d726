"""Public calls with sizes that no machine holds, under a ceiling of memory: `python -m tests.public.sizes NAME …`,
run by `test_sizes.py`. Prints [name, argument, size, what is wrong or null] as a line of JSON for each."""

from __future__ import annotations

import json
import os
import re
import resource
import select
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from tests.public.arrays import CALLS, resolve

SIZES = (10**9, 10**12, 2**62)
CEILING = 3 << 30
"""Bytes on top of what the process has mapped at its start."""
INDICES = ("seed", "step", "first_sample", "first_row", "first_run", "first_trial")
"""Integers that are not sizes."""
AS_LONG_AS_ASKED = {
    "bounds.reconstruction_of": ("num_samples",), "kernels.mixture_tail": ("num_samples",),
    "kernels.allocation_tail": ("num_samples",),
    "attacks.reconstruction_game": ("runs",), "attacks.reconstruction_games": ("runs",),
    "leakage.by_layer": ("permutations", "iterations"),
    "leakage.mutual_information": ("steps", "permutations"), "leakage.v_information": ("permutations",),
    "leakage.v_information_original": ("iterations",), "defenses.LocalSteps": ("steps",),
}  # fmt: skip
"""Repetitions in constant memory: they end when they are through, and are stopped here after some seconds."""
SECONDS = 2


def sizes_of(name: str) -> list[tuple[str, Any]]:
    """Arguments that are sizes, or shapes, with the example's value."""
    return [
        (argument, value)
        for argument, value in CALLS[name].arguments().items()
        if argument not in INDICES
        and (
            (isinstance(value, int) and not isinstance(value, bool))
            or (isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value))
        )
    ]


def fault(name: str, argument: str, value: Any, size: int) -> str | None:
    """What is wrong with the answer to that size."""
    changed = size if isinstance(value, int) else type(value)([size, *value[1:]])
    arguments = CALLS[name].arguments() | {argument: changed}
    try:
        resolve(name)(**arguments)
    except (ValueError, TypeError, ArithmeticError) as error:
        words = {*arguments, *CALLS[name].also}
        if isinstance(error, ArithmeticError) or any(re.search(rf"\b{re.escape(w)}", str(error)) for w in words):
            return None
        return f"names no argument: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return None


def fault_within(name: str, argument: str, value: Any, size: int) -> str | None:
    """`fault` in a process of its own, for as many seconds as its time is spared; past them there is none."""
    patience = SECONDS if argument in AS_LONG_AS_ASKED.get(name, ()) else 120
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(writing, "w") as out:
            out.write(json.dumps(fault(name, argument, value, size)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        ready, _, _ = select.select([answer], [], [], patience)
        if not ready:
            os.kill(child, signal.SIGKILL)
        text = answer.read()
    os.waitpid(child, 0)
    if ready:
        return json.loads(text) if text else "ends the process"  # type: ignore[no-any-return]
    return None if patience == SECONDS else "no answer"


def main(names: list[str]) -> None:
    import torch  # noqa: F401 (part of what is mapped)

    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + CEILING, mapped + CEILING))
    warnings.simplefilter("error")
    for name in names:
        resolve(name)(**CALLS[name].arguments())  # imports what every child would import again
        for argument, value in sizes_of(name):
            for size in SIZES:
                sys.stdout.write(json.dumps([name, argument, size, fault_within(name, argument, value, size)]) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
