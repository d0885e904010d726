"""The family of readers: every call of leakcore's that takes a user's file, good files, and what else a path may be.

The parsers that are fuzzed are members; added are the readers that stand on them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fuzz"))

import targets


@dataclasses.dataclass(frozen=True)
class Member:
    """A reader.

    Attributes:
        suffix: how the file's name ends.
        read: the call; it returns, or refuses by ValueError or TypeError.
        good: contents that it reads.
        named: whether it knows the path, and must name it. A key of a configuration may have come from an option.
        covers: public names that read a file by this very parser.
    """

    suffix: str
    read: Callable[[Path], object]
    good: Callable[[], list[bytes]]
    named: bool = True
    covers: tuple[str, ...] = ()


def _good(name: str) -> Callable[[], list[bytes]]:
    """The fuzzer's files that are good ones."""

    @functools.cache
    def read() -> list[bytes]:
        good = []
        for data in targets.corpus(name):
            with contextlib.suppress(targets.Refused):
                targets.TARGETS[name](data)
                good.append(data)
        return good

    return read


@functools.cache
def report_text() -> str:
    """A small report of scores, as report.json holds it."""
    from leakcore import audit

    rng = np.random.default_rng(0)
    return audit.from_scores(
        rng.normal(1, 1, 60), rng.normal(size=60), coins=True, claimed_epsilon=9.0, claimed_adjacency="add-remove"
    ).to_json()


@functools.cache
def canary_trace() -> bytes:
    from leakcore import mechanisms
    from leakcore._base.codec import to_npz
    from tests.audit.samples import simulated

    return to_npz(simulated(mechanisms.Poisson(1.0, 0.3, 3), 20))


@functools.cache
def reconstructor() -> bytes:
    from leakcore import attacks
    from leakcore._base.codec import to_npz

    return to_npz(attacks.Reconstructor(
        layers=(3, 2, 4), mean=np.zeros(3), basis=None, columns=None, units=0, scale=np.ones(3),
        weights=np.linspace(-1, 1, 20, dtype=np.float32), low=0.0, high=1.0, losses=np.zeros(2), held_out=0.5,
    ))  # fmt: skip


def _reconstructor(path: Path) -> object:
    from leakcore import attacks

    return attacks.Reconstructor.load(path)


@functools.cache
def experiment() -> str:
    from leakcore.experiments.driver.result import ExperimentResult
    from leakcore.experiments.driver.verdict import Check

    result = ExperimentResult(
        name="n", title="t", statement="s", scale="tiny", seed=0, conclusion="c", stated=(),
        checks=(Check(says="a is above b", holds=3, cases=4, chance=0.5, about="size"),), settings={"layers": [3, 2]},
    )  # fmt: skip
    return result.to_json()


DRAWING = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><style>*{stroke-linejoin: round; stroke-linecap: butt}'
    '</style><g id="a"><path d="M 0 0 L 1 1" style="fill: none; stroke: #1f2430"/><title>1</title></g></svg>'
)


def _compared(path: Path) -> object:
    from leakcore import audit

    other = path.with_name("good.json")
    other.write_text(report_text(), encoding="utf-8")
    compared = audit.compare(other, path)
    compared.to_text()
    return compared.to_markdown()


def _scores(path: Path) -> object:
    from leakcore import audit

    scores = audit.read_scores(path)
    with contextlib.suppress(ValueError):  # of too few scores, by then without a file
        audit.from_scores(scores, adjacency="add-remove")
    return scores


def _canaries(path: Path) -> object:
    from leakcore import audit, dpsgd

    trace = dpsgd.CanaryTrace.load(path)
    if trace.canaries < 64 and trace.steps < 8:
        with contextlib.suppress(ValueError):  # of coins that are all alike, by then without a file
            audit.from_canaries(trace)
    return trace


def _sealed(path: Path) -> object:
    from leakcore._base.run_folder import unseal

    return unseal(path)


@functools.cache
def _sealed_good() -> list[bytes]:
    import tempfile

    from leakcore._base.run_folder import seal

    with tempfile.TemporaryDirectory() as folder:
        return [seal(Path(folder), "input", {"a": [1, 2.5, None], "b": "c"}).read_bytes()]


def _experiment(path: Path) -> object:
    from leakcore._base.reading import read_json
    from leakcore.experiments.driver.result import ExperimentResult

    return ExperimentResult.from_dict(read_json(path)).to_text()


def _svg(path: Path) -> object:
    from leakcore.experiments.driver import overview

    return overview._drawing(path.with_suffix(".json"))


def _config(path: Path) -> object:
    from leakcore.audit import read_settings
    from leakcore.audit.config_file import read_config

    form, sections = read_config(path)
    return read_settings(form or "run", sections)


def _load_weights(path: Path) -> object:
    from leakcore import models

    return models.load_safetensors(models.mlp((4, 2)), path)


@functools.cache
def _weights() -> list[bytes]:
    import tempfile

    from leakcore import models

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w.safetensors"
        models.save_safetensors(models.mlp((4, 2)), path)
        return [path.read_bytes()]


MEMBERS: dict[str, Member] = {
    name: Member(
        suffix, read, _good(name), named=name not in ("cifar-batch", "result", "checkpoint", "report", "toml"),
        covers={
            "trace": ("dpsgd.Trace.load", "audit.from_trace", "audit.join"),
            "scores-npz": ("audit.read_scores",),
            "report": ("audit.list_reports",),
            "arrays-safetensors": ("models.read_safetensors",),
            "toml": ("audit.ClaimConfig.from_toml",),
            "purchase": ("datasets.purchase100", "datasets.location30"),
            "idx": ("datasets.mnist", "datasets.fashion_mnist"),
            "cifar": ("datasets.cifar10", "datasets.cifar100"),
            "zip": ("datasets.bank_marketing", "datasets.cervical_cancer"),
            "texts": ("datasets.imdb",),
        }.get(name, ()),
    )
    for name, (suffix, read) in targets.READS.items()
}  # fmt: skip
MEMBERS |= {
    "scores-npz": dataclasses.replace(MEMBERS["scores-npz"], read=_scores),
    "scores-csv": dataclasses.replace(MEMBERS["scores-csv"], read=_scores),
    "comparison": Member(".json", _compared, lambda: [report_text().encode()], covers=("audit.compare",)),
    "canary-trace": Member(
        ".npz", _canaries, lambda: [canary_trace()], covers=("dpsgd.CanaryTrace.load", "audit.from_canaries")
    ),
    "reconstructor": Member(".npz", _reconstructor, lambda: [reconstructor()], covers=("attacks.Reconstructor.load",)),
    "sealed": Member(
        ".json", _sealed, _sealed_good, covers=("experiments.run", "experiments.run_all", "audit.run", "audit.claim")
    ),
    "experiment": Member(".json", _experiment, lambda: [experiment().encode()], named=False),
    "drawing": Member(".svg", _svg, lambda: [DRAWING.encode()]),
    "config": Member(
        ".toml",
        _config,
        lambda: [b"[run]\nsteps = 4\nsweep = [1.0, 2.0]\n"],
        named=False,
        covers=("audit.read_config",),
    ),
    "weights": Member(".safetensors", _load_weights, _weights, covers=("models.load_safetensors",)),
}
ONLY_WRITES = {
    "record", "dpsgd.record", "models.save_safetensors", "clip_and_noise", "mixture_log_ratio",
    "kernels.clip_and_noise", "kernels.mixture_log_ratio", "kernels.standard_normal", "kernels.uniform",
}  # fmt: skip
"""Public names with an `out` or a path that nothing is read from."""
TRUSTED = {"datasets.lfw"}
"""Readers of files that SECURITY.md says are trusted."""


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


def plug(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as plug_in:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's name has at most 108 bytes
        try:
            plug_in.bind(path.name)
        finally:
            os.chdir(here)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


NOT_FILES: tuple[Callable[[Path], None], ...] = (fifo, endless, folder, plug, loop, dangling)


def npz_of(arrays: dict[str, np.ndarray]) -> bytes:
    """An npz file, objects included."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def as_json(tree: object) -> bytes:
    """JSON as Python writes it, NaN and infinities included."""
    return json.dumps(tree).encode()
