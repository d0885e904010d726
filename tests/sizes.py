"""Public calls with sizes that no machine holds, under a ceiling of memory: `python -m tests.sizes NAME …`, run by
`test_sizes.py`. Prints [name, argument, size, what is wrong or null] as a line of JSON for each."""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from tests.public_arrays import CALLS, resolve

SIZES = (10**9, 10**12, 2**62)
CEILING = 3 << 30
"""Bytes on top of what the process has mapped at its start."""
INDICES = ("seed", "step", "first_sample", "first_row", "first_run", "first_trial")
"""Integers that are no sizes."""
AS_LONG_AS_ASKED = {
    "bounds.reconstruction_of": ("num_samples",), "kernels.mixture_tail": ("num_samples",),
    "attacks.gradient": ("iterations",), "attacks.reconstruction_game": ("runs",),
    "attacks.reconstruction_games": ("runs",), "attacks.inversion.invert": ("iterations",),
    "attacks.reconstructor": ("epochs",), "leakage.by_layer": ("permutations",),
    "leakage.mutual_information": ("steps", "permutations"), "leakage.v_information": ("permutations",),
    "leakage.v_information_original": ("iterations",), "defenses.LocalSteps": ("steps",),
}  # fmt: skip
"""Repetitions in constant memory: they end when they are through, and are stopped here after some seconds."""
SECONDS = 2


class StoppedError(Exception):
    pass


def _stop(*_: Any) -> None:
    raise StoppedError


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
    given = size if isinstance(value, int) else type(value)([size, *value[1:]])
    arguments = CALLS[name].arguments() | {argument: given}
    may_last = argument in AS_LONG_AS_ASKED.get(name, ())
    signal.alarm(SECONDS if may_last else 120)
    try:
        resolve(name)(**arguments)
    except StoppedError:
        return None if may_last else "no answer"
    except (ValueError, TypeError, ArithmeticError) as error:
        words = {*arguments, *CALLS[name].also}
        if isinstance(error, ArithmeticError) or any(re.search(rf"\b{re.escape(w)}", str(error)) for w in words):
            return None
        return f"names no argument: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
    return None


def main(names: list[str]) -> None:
    import torch  # noqa: F401 (part of what is mapped)

    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + CEILING, mapped + CEILING))
    signal.signal(signal.SIGALRM, _stop)
    warnings.simplefilter("error")
    for name in names:
        for argument, value in sizes_of(name):
            for size in SIZES:
                sys.stdout.write(json.dumps([name, argument, size, "ends the process"]) + "\n")
                sys.stdout.flush()
                sys.stdout.write(json.dumps([name, argument, size, fault(name, argument, value, size)]) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
