"""`python reader_child.py bombs|not-files|commands MEMBER…`: what cannot be tried in the process of the tests.

Files that stand for gigabytes, pipes that wait for good, devices without an end: each is read under a limit of memory
and with an alarm clock, and a line of JSON says what came of it.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import resource
import signal
import sys
import tempfile
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.conformance import reader_mutants as mutants
from tests.conformance.reader_files import MEMBERS, NOT_FILES, Member
from tests.tolerances import HANG

PATIENCE = int(HANG)
"""Seconds after which a read counts as one that never ends."""
SPACE = 2**31
"""Bytes of address space beyond what the imports take."""


class Waits(BaseException):
    """A read that does not come back."""


def _alarm(*_: object) -> None:
    raise Waits


def outcome(call: Callable[[], object]) -> dict[str, Any]:
    """What became of a call: the type of its error, the words, and the most memory that Python and NumPy had."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    signal.alarm(PATIENCE)
    try:
        call()
        error: BaseException | None = None
    except BaseException as why:
        error = why
    finally:
        signal.alarm(0)
    peak = tracemalloc.get_traced_memory()[1] - before
    return {"error": "" if error is None else type(error).__name__, "text": str(error or "")[:500], "peak": peak}


def bombs(name: str, member: Member) -> Iterator[bytes]:
    good = member.good()[0]
    if member.suffix == ".json":
        yield from mutants.json_bombs(good)
    elif member.suffix == ".npz":
        yield from mutants.npz_bombs(good)
    elif member.suffix == ".svg":
        yield from mutants.svg_bombs()
    elif name == "cifar-batch":
        yield from mutants.pickle_bombs()
    elif name in ("purchase", "cifar"):
        yield from mutants.tar_bombs()
    if member.suffix.endswith("gz"):
        yield gzip.compress(bytes(300 << 20), 1)
    if member.suffix == ".safetensors":
        yield len(b"[" * 300_000).to_bytes(8, "little") + b"[" * 300_000
        yield (450_006).to_bytes(8, "little") + b'{"a":[' + b"[]," * 149_999 + b"0]}"
        yield (2**62).to_bytes(8, "little")
    if member.suffix == ".toml":
        yield b"a = [" + b"[]," * 80_000 + b"]"
        yield b"a = " + b"[" * 100_000
        yield b"".join(b"[[a.b.c.d]]\n" for _ in range(20_000))


def try_bombs(name: str, member: Member, folder: Path) -> Iterator[dict[str, Any]]:
    for number, data in enumerate(bombs(name, member)):
        path = folder / f"input{member.suffix}"
        path.write_bytes(data)
        yield {"of": f"{name}[{number}]", "size": len(data), **outcome(lambda: member.read(path))}


def try_not_files(name: str, member: Member, folder: Path) -> Iterator[dict[str, Any]]:
    for kind in NOT_FILES:
        inside = folder / kind.__name__
        inside.mkdir()
        path = inside / f"input{member.suffix}"
        kind(path)
        yield {"of": f"{name}[{kind.__name__}]", "size": 0, **outcome(lambda: member.read(path))}


def try_commands(name: str, member: Member, folder: Path) -> Iterator[dict[str, Any]]:
    """The command line that ends in one word that is a file: everything that is none, and a file of noise."""
    from click.testing import CliRunner

    from leakcore.cli.root import main
    from tests.conformance.reader_commands import COMMANDS, prepared

    words, suffix = COMMANDS[name]
    for kind in COMMANDED:
        inside = folder / kind.__name__
        inside.mkdir()
        path = inside / f"input{suffix}"
        kind(path)
        arguments = [str(path) if word == "FILE" else word for word in prepared(words, inside)]
        said: list[Any] = []

        def run() -> None:
            said.append(CliRunner().invoke(main, arguments))

        ended = outcome(run)
        done = said[0] if said else None
        error = ended["error"] or (type(done.exception).__name__ if done and done.exception else "")
        yield {
            "of": f"{name}[{kind.__name__}]", "size": 0, "peak": ended["peak"], "error": error,
            "code": done.exit_code if done else None, "text": (done.output if done else "")[-800:],
        }  # fmt: skip


def _noise(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 40)


def _deep(path: Path) -> None:
    path.write_bytes(b"[" * 100_000)


COMMANDED = (*NOT_FILES[:2], *NOT_FILES[4:], _noise, _deep)
"""What a command is given for a file."""
TRIES = {"bombs": try_bombs, "not-files": try_not_files, "commands": try_commands}


def main(what: str, names: list[str]) -> None:
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _alarm)
    if what != "commands":
        for name in names:  # what is imported at first use does not count
            with tempfile.TemporaryDirectory() as place, contextlib.suppress(ValueError, TypeError):
                path = Path(place) / f"input{MEMBERS[name].suffix}"
                path.write_bytes(MEMBERS[name].good()[0])
                MEMBERS[name].read(path)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + SPACE, now + SPACE))
    if what != "commands":  # what these import is traced in twice the time, and counted by nobody
        tracemalloc.start()
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            for line in TRIES[what](name, MEMBERS.get(name, MEMBERS["json"]), Path(place)):
                sys.stdout.write(json.dumps(line) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
