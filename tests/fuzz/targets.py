"""What is fuzzed: every parser of a file that a user brings. A target takes the file's bytes and calls what users call.

It returns where the bytes are a good file and raises `Refused` where they are refused as documented (ValueError,
TypeError); anything else is a bug: a crash, another exception, memory beyond what the file is worth, unpickling.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path


class Refused(Exception):
    """As documented."""


def _file(suffix: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def target(data: bytes) -> object:
        with tempfile.TemporaryDirectory(prefix="leakcore-fuzz-") as folder:
            path = Path(folder) / f"input{suffix}"
            path.write_bytes(data)
            try:
                return read(path)
            except (ValueError, TypeError) as error:
                if type(error) not in (ValueError, TypeError, UnicodeDecodeError):
                    raise
                if not str(error):
                    raise AssertionError("refused without a reason") from error
                raise Refused(str(error)) from error

    return target


def _trace(path: Path) -> object:
    from leakcore.audit import from_trace
    from leakcore.dpsgd import Trace

    trace = Trace.load(path)
    # An honest long run takes its time, and a second the shortest: one in sixteen is enough to look at what follows.
    if trace.steps > 8 or trace.candidates > 64 or zlib.crc32(path.read_bytes()) % 16:
        return trace
    return from_trace(trace, mechanism=0.5 if trace.steps % 2 else None)


def _scores(path: Path) -> object:
    from leakcore.audit import from_scores, read_scores

    scores = read_scores(path)
    return (
        from_scores(scores, adjacency="add-remove") if len(scores.members) + len(scores.non_members) < 500 else scores
    )


def _arrays(path: Path) -> object:
    from leakcore.cli.options import read_arrays

    return read_arrays(path)


def _toml(path: Path) -> object:
    from leakcore.audit import ClaimConfig

    return ClaimConfig.from_toml(path)


def _idx(path: Path) -> object:
    from leakcore.datasets import images

    return images._read_idx(path, 3)


def _cifar(path: Path) -> object:
    from leakcore.datasets import cifar

    return cifar.read_binary(path, "cifar10", "test", False)


def _cifar_batch(path: Path) -> object:
    from leakcore.datasets import cifar

    return cifar._batch(path.read_bytes(), "labels")


def _purchase(path: Path) -> object:
    from leakcore.datasets import purchase100

    return purchase100(path)


def _zipped(path: Path) -> object:
    from leakcore.datasets import tabular

    return tabular._zipped(path, "t.csv")


def _texts(path: Path) -> object:
    from leakcore.datasets import text

    return text._read(path, "train")


def _json(path: Path) -> object:
    from leakcore._base.reading import read_json

    return read_json(path)


def _checkpoint(path: Path) -> object:
    from leakcore._base.codec import from_plain, unpack
    from leakcore.dpsgd.ensemble import checkpoint
    from leakcore.dpsgd.ensemble.block import BlockOutput

    try:
        return checkpoint._read(path, (0, 2), 0, 2)
    except ValueError:  # what is behind the checksum, which no mutant keeps
        facts, arrays = unpack(path)
        if not isinstance(facts, dict):
            raise
        return from_plain(facts.get("piece"), BlockOutput, arrays=arrays)


def _result(path: Path) -> object:
    from leakcore import bounds
    from leakcore._base.reading import read_json
    from leakcore._base.results import Result
    from leakcore.bounds.methods.certified import CertificateState

    assert bounds.reconstruction  # the classes that the corpus names
    data = read_json(path)
    return (CertificateState if isinstance(data, dict) and "thresholds" in data else Result).from_dict(data)


def _report(path: Path) -> object:
    from leakcore.audit import list_reports

    listed = list_reports(path.rename(path.with_name("report.json")).parent)
    listed.to_text()
    if listed.problems:  # the file is named with the reason, and no other report is lost for it
        raise ValueError(listed.problems[0][1])
    # A page takes a second to draw.
    return listed if zlib.crc32(repr(listed).encode()) % 32 else listed.to_html()


READS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "trace": (".npz", _trace),
    "scores-npz": (".npz", _scores),
    "scores-csv": (".csv", _scores),
    "arrays-npz": (".npz", _arrays),
    "arrays-safetensors": (".safetensors", _arrays),
    "toml": (".toml", _toml),
    "idx": (".gz", _idx),
    "cifar": (".tar.gz", _cifar),
    "cifar-batch": (".batch", _cifar_batch),
    "purchase": (".tgz", _purchase),
    "zip": (".zip", _zipped),
    "texts": (".csv.gz", _texts),
    "json": (".json", _json),
    "result": (".json", _result),
    "checkpoint": (".npz", _checkpoint),
    "report": (".json", _report),
}
"""The name's ending and the call that reads such a file, by the parser's name."""
TARGETS: dict[str, Callable[[bytes], object]] = {name: _file(*how) for name, how in READS.items()}
READERS = (
    "_base/archives", "_base/reading",
    "trace/trace", "trace/question", "trace/measure", "trace/whole_run",
    "trace/checks", "_base/codec", "_base/json_arrays", "scores/from_scores", "scores/file", "config/checking",
    "config/faults", "config/plain", "claim/config", "cli/user_files", "models/safetensors", "datasets/tabular",
    "datasets/text", "datasets/images", "datasets/cifar", "datasets/membership", "ensemble/checkpoint",
    "report_list/list_reports",
)  # fmt: skip
"""Modules whose lines count as coverage."""
CORPUS = Path(__file__).parent / "corpus"


def corpus(name: str) -> list[bytes]:
    """The committed files of a target."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
