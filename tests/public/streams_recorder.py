"""Which random numbers a call draws, read where they are made: at the native core and at the doors to libraries."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leakcore import _C
from leakcore.kernels import Stream
from leakcore.kernels import random as generators

PACKAGE = Path(generators.__file__).resolve().parents[1]
NATIVE = ("fill_rows", "clip_and_noise", "mixture_log_ratio", "mixture_tail", "allocation_log_ratio", "allocation_tail")
CALLER = "the caller"


@dataclasses.dataclass(frozen=True)
class Draw:
    """Rows [first, stop) of one stream word under one seed, and the function of the package that asked for them."""

    seed: int
    word: int
    first: int
    stop: int
    site: str

    def meets(self, other: Draw) -> bool:
        """Whether some number is the same one."""
        return (self.seed, self.word) == (other.seed, other.word) and max(self.first, other.first) < min(
            self.stop, other.stop
        )


@contextlib.contextmanager
def recorded() -> Iterator[list[Draw]]:
    """The draws of the block in this process, its threads included."""
    draws: list[Draw] = []
    native = {name: getattr(_C, name) for name in NATIVE}
    read = generators._read

    def add(seed: int, words: list[int], first: int, stop: int) -> None:
        site = _site()
        draws.extend(Draw(seed, int(word), first, stop, site) for word in words)

    def fill_rows(*, num_rows: int, seed: int, stream: int, first_row: int, **rest: Any) -> Any:
        add(seed, [stream], first_row, first_row + num_rows)
        return native["fill_rows"](num_rows=num_rows, seed=seed, stream=stream, first_row=first_row, **rest)

    def clip_and_noise(**arguments: Any) -> Any:
        if arguments["noise_scale"] > 0 and not arguments["noise"]:
            first = arguments["first_run"]
            add(arguments["seed"], [Stream.CLIP_NOISE + arguments["step"]], first, first + arguments["num_runs"])
        return native["clip_and_noise"](**arguments)

    def mixture(name: str) -> Any:
        def call(**arguments: Any) -> Any:
            first, count, alternative = arguments["first_sample"], arguments["num_samples"], arguments["alternative"]
            for normals, picks, size in (
                (Stream.MIXTURE, Stream.MIXTURE_PICK, 1), (Stream.MIXTURE_ONE, Stream.MIXTURE_ONE_PICK, 4),
            ):  # fmt: skip
                words = [normals + alternative, *([picks, picks + 1] if alternative else [])]
                add(arguments["seed"], words, first // size, -(-(first + count) // size))
            return native[name](**arguments)

        return call

    def allocation(name: str) -> Any:
        def call(**arguments: Any) -> Any:
            first, alternative = arguments["first_sample"], arguments["alternative"]
            words = [Stream.ALLOCATION + alternative, *([Stream.ALLOCATION_PICK] if alternative else [])]
            add(arguments["seed"], words, first, first + arguments["num_samples"])
            return native[name](**arguments)

        return call

    def door(seed: int, purpose: Any, step: int, row: int) -> tuple[int, int, int]:
        out = read(seed, purpose, step, row)
        add(out[0], [out[1]], out[2], out[2] + 1)
        return out

    doubles = {
        "fill_rows": fill_rows,
        "clip_and_noise": clip_and_noise,
        "mixture_log_ratio": mixture("mixture_log_ratio"),
        "mixture_tail": mixture("mixture_tail"),
        "allocation_log_ratio": allocation("allocation_log_ratio"),
        "allocation_tail": allocation("allocation_tail"),
    }
    try:
        for name, double in doubles.items():
            setattr(_C, name, double)
        generators._read = door
        yield draws
    finally:
        for name, function in native.items():
            setattr(_C, name, function)
        generators._read = read


def overlaps(draws: list[Draw]) -> list[str]:
    """Numbers that two functions of the package drew; each pair of functions once."""
    by_word: dict[tuple[int, int], list[Draw]] = {}
    for draw in dict.fromkeys(draws):
        if draw.site != CALLER:
            by_word.setdefault((draw.seed, draw.word), []).append(draw)
    pairs = {}
    for same in by_word.values():
        for i, one in enumerate(same):
            for other in same[:i]:
                if one.site != other.site and one.meets(other):
                    first, second = sorted((one.site, other.site))
                    pairs[first, second] = f"seed {one.seed}, {_named(one.word)}, row {max(one.first, other.first)}"
    return [f"{a} and {b}: {where}" for (a, b), where in pairs.items()]


def _named(word: int) -> str:
    member = max(s for s in Stream if s <= word)
    return f"{member.name} step {word - member}"


def _site() -> str:
    """The innermost function of the package that stands outside the kernels."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            name = path.relative_to(PACKAGE)
            if name.parts[0] != "kernels":
                return f"{name}:{frame.f_code.co_name}"
        frame = frame.f_back
    return CALLER
