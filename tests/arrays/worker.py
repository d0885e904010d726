"""A process that makes the calls of the matrix, which may end it: `python -m tests.arrays.worker`.

Reads lines of JSON, [call, argument, names of states to leave out]; answers each with lines of JSON: ["begin", state],
["end", state, what is wrong or null], … and ["done"].
"""

from __future__ import annotations

import json
import os
import sys
import warnings


def main() -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is not part of the answer
    import torch

    from tests.arrays import matrix

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what torch imports at its first forward-mode derivative
        torch.func.jvp(lambda x: x, (torch.ones(1),), (torch.ones(1),))

    def say(*parts: object) -> None:
        out.write(json.dumps(parts) + "\n")

    for line in sys.stdin:
        name, argument, without = json.loads(line)
        for label, state, value in matrix.states(matrix.example(name)[argument]):
            if label not in without:
                say("begin", label)
                say("end", label, matrix.fault(name, argument, state, value))
        say("done")


if __name__ == "__main__":
    main()
