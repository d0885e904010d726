"""Every reader of a user's file, and everything that shows or writes what was read: whatever the file is, the outcome is a
result or an error that names file and key; memory in proportion to the file; nothing that waits, runs, or is obeyed.

A find is told by the member and the seed in the name of its test.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from tests.conformance import reader_mutants as mutants
from tests.conformance.reader_commands import COMMANDS, FOLDERS, WRITTEN
from tests.conformance.reader_files import MEMBERS, NOT_FILES, ONLY_WRITES, TRUSTED, Member

HERE = Path(__file__).resolve().parent
FEW, MANY = 60, 3000
"""Mutants of a member, by default and in the slow tier."""
FREE = 200 * 2**20
"""Bytes that reading any file may take: three times what `files/limits.py` lets it expand to."""
RATIO = 60
"""Times its own size that reading a file may take, where that is more: Python makes as much of `{},{},{}`."""
REFUSED = (ValueError, TypeError, UnicodeDecodeError, FileNotFoundError)


def child(what: str, *names: str) -> list[dict[str, Any]]:
    """What `reader_child.py` says of these members."""
    done = subprocess.run(
        [sys.executable, str(HERE / "reader_child.py"), what, *names], capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (done.returncode, lines[-1:], done.stderr[-2000:])
    return lines


# Memory, waiting, and what is not a file


BOMBED = ("report", "comparison", "result", "cifar-batch", "purchase", "canary-trace", "reconstructor", "drawing", "toml")


@pytest.mark.parametrize("names", [BOMBED, pytest.param(tuple(MEMBERS), marks=pytest.mark.slow)], ids=["few", "all"])
def test_a_small_file_takes_little_memory(names: tuple[str, ...]) -> None:
    tried = child("bombs", *names)
    assert len(tried) > 5 * len(names)
    wrong = [t for t in tried if t["error"] not in ("", "ValueError", "TypeError")]
    assert not wrong
    large = [t for t in tried if t["peak"] > max(FREE, RATIO * t["size"])]
    assert not large


def test_what_is_not_a_file_is_refused_by_name_and_nothing_waits() -> None:
    names = [name for name in MEMBERS if name != "cifar-batch"]  # the bytes of an archive's entry
    tried = child("not-files", *names)
    assert len(tried) == len(names) * len(NOT_FILES)
    wrong = [t for t in tried if t["error"] not in ("ValueError", "TypeError", "FileNotFoundError")]
    assert not wrong
    assert not [t for t in tried if t["peak"] > FREE]
    unnamed = [t for t in tried if "input" not in t["text"] and not t["of"].startswith("report[")]
    assert not unnamed


def test_commands_end_with_2_and_one_error_that_names_the_file() -> None:
    tried = child("commands", *COMMANDS)
    assert len(tried) == len(COMMANDS) * (len(NOT_FILES) + 2)
    wrong = [t for t in tried if t["code"] != 2 or t["error"] != "SystemExit" or "input" not in t["text"]]
    assert not wrong
    assert not [t for t in tried if t["text"].count("\nError: ") + t["text"].startswith("Error: ") != 1]


# Mutants


def _mutant(member: Member, rng: random.Random) -> bytes:
    data = rng.choice(member.good())
    if member.suffix == ".json" and rng.random() < 0.9:
        return mutants.json_bytes(data, rng)
    if member.suffix == ".npz" and rng.random() < 0.8:
        return mutants.npz_bytes(data, rng)
    return mutants.of_bytes(data, rng)


def _read(member: Member, data: bytes, folder: Path) -> BaseException | None:
    path = folder / f"input{member.suffix}"
    path.write_bytes(data)
    try:
        member.read(path)
    except REFUSED as why:
        return why
    finally:
        for left in folder.iterdir():
            left.unlink()
    return None


def _mutants(name: str, number: int, folder: Path) -> None:
    member = MEMBERS[name]
    for data in member.good():
        assert _read(member, data, folder) is None, f"{name}: a good file is refused"
    refused = 0
    for seed in range(number):
        data = _mutant(member, random.Random(f"{name} {seed}"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                why = _read(member, data, folder)
            except Exception as error:
                raise AssertionError(f"{name}, seed {seed}: {type(error).__name__}: {error}") from error
        refused += why is not None
        if why is not None:
            assert type(why) in REFUSED, f"{name}, seed {seed}: {type(why).__name__}: {why}"
            assert str(why).isprintable() or "\n" in str(why), f"{name}, seed {seed}"
            assert not member.named or "input" in str(why), f"{name}, seed {seed}: {why}"
    assert refused > number / 8, "the mutants are harmless, so they prove nothing"


@pytest.mark.parametrize("name", MEMBERS)
def test_mutants_are_read_or_refused_by_name(name: str, tmp_path: Path) -> None:
    _mutants(name, FEW, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", MEMBERS)
def test_many_mutants_are_read_or_refused_by_name(name: str, tmp_path: Path) -> None:
    _mutants(name, MANY, tmp_path)


@pytest.mark.parametrize("name", ["comparison", "report", "result", "experiment", "canary-trace", "trace"])
def test_a_refusal_names_the_key(name: str, tmp_path: Path) -> None:
    """Every value in turn is of a type that nothing has: what is refused for it says where."""
    member = MEMBERS[name]
    tree = json.loads(mutants.facts_of(member.good()[0]))
    named = 0
    for at in mutants.places(tree):
        keys = [key for key in at if isinstance(key, str)]
        if not keys or keys[-1] in ("schema", "class"):
            continue
        data = mutants.with_facts(member.good()[0], mutants.replaced(tree, at, {"no such": [{"key": 0}]}))
        why = _read(member, data, tmp_path)
        if why is not None:
            whole = len(keys) == 1 and "no such" in str(why)  # of `report`, which is the object itself
            assert any(key in str(why) for key in keys) or whole, f"{name}, {at}: {why}"
            named += 1
    assert named > 3


# Codecs: every class that is read from a dict


def _instances() -> dict[str, Any]:
    from tests.audit.report import reports
    from tests.public import test_results

    out: dict[str, Any] = {}
    for whole in (reports.trace(), reports.scores(), reports.canaries(), *test_results._others()):
        for record in test_results._records(whole):
            out.setdefault(type(record).__name__, record)
    return out


def test_dicts_are_read_or_refused_as_values() -> None:
    """from_dict of every record that reports, experiments and lists are made of: ValueError, and nothing else."""
    instances = _instances()
    assert len(instances) > 25
    for name, record in instances.items():
        tree = json.loads(json.dumps(record.to_dict()))
        for seed in range(FEW):
            rng = random.Random(f"{name} {seed}")
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                try:
                    type(record).from_dict(mutants.mutated_tree(tree, rng))
                except ValueError as why:
                    assert type(why) is ValueError, f"{name}, seed {seed}: {type(why).__name__}"
                except Exception as error:
                    raise AssertionError(f"{name}, seed {seed}: {type(error).__name__}: {error}") from error
        deep: Any = []
        for _ in range(5000):
            deep = [deep]
        with pytest.raises(ValueError, match=r"nested too deeply|must be|lacks|has a field"):
            type(record).from_dict({**tree, next(reversed(tree)): deep})
            raise ValueError("must be deep where anything may stand")


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"array": [300], "dtype": "int8", "shape": [1]}, "beyond int8"),
        ({"array": [1.5], "dtype": "int64", "shape": [1]}, "another kind"),
        ({"array": [True], "dtype": "int64", "shape": [1]}, "another kind"),
        ({"array": [2], "dtype": "bool", "shape": [1]}, "another kind"),
        ({"array": ["12"], "dtype": "int64", "shape": [1]}, "another kind"),
        ({"array": ["abc"], "dtype": "<U1", "shape": [1]}, "longer than"),
        ({"array": [1e300], "dtype": "float32", "shape": [1]}, "beyond float32"),
        ({"array": [[1.0]], "dtype": "float64", "shape": [1]}, "deeper than its shape"),
        ({"array": [1.0], "dtype": "float64", "shape": ["1"]}, "not a list of at most"),
        ({"array": [1.0], "dtype": "longdouble", "shape": [1]}, "is none of a number"),
        ({"array": [], "dtype": "f8,(2", "shape": [0]}, "is none of a number"),
        ({"cells": [[0, 1], [0, 2]], "dtype": "int64", "shape": [3]}, "gives a cell twice"),
        ({"cells": [[-1, 1]], "dtype": "int64", "shape": [3]}, "places from 0 to 2"),
        ({"items": [[1, "a"], [1.0, "b"]]}, "gives a key twice"),
    ],
)
def test_a_value_that_would_become_another_is_refused(tree: dict[str, Any], words: str) -> None:
    from leakcore._base.codec import from_plain

    with pytest.raises(ValueError, match=words):
        from_plain({"x": tree}, dict[str, Any])


# The lists: a new reader is missing here


def _public() -> Iterator[tuple[str, Any]]:
    import leakcore

    packages = ["", *(name for name in leakcore.__all__ if inspect.ismodule(getattr(leakcore, name)))]
    inner = ["attacks.labels", "attacks.text", "attacks.inversion", "attacks.membership", "attacks.tensor"]
    for package in (*packages, *inner):
        module = importlib.import_module(f"leakcore.{package}".rstrip("."))
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            where = f"{package}.{name}".lstrip(".")
            if inspect.isclass(value):
                for method in ("load", "from_toml", "from_json", "from_file", "read"):
                    if callable(getattr(value, method, None)):
                        yield f"{where}.{method}", getattr(value, method)
            elif inspect.isfunction(value):
                yield where, value


def _takes_a_path(call: Any) -> bool:
    parameters = inspect.signature(call).parameters.values()
    words = ("Path", "PathLike", "Folder")
    return any(
        any(word in str(p.annotation) for word in words) or p.name in ("path", "file", "folder") for p in parameters
    )


def test_every_public_reader_is_a_member() -> None:
    readers = {name for name, call in _public() if _takes_a_path(call)}
    covered = {name for member in MEMBERS.values() for name in member.covers}
    assert readers - covered - ONLY_WRITES - TRUSTED == set(), "give it a member in tests/conformance/reader_files.py"
    assert (covered | TRUSTED) - readers <= {"audit.read_config"}, "no longer public"
    security = (HERE.parents[1] / "SECURITY.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in security for name in TRUSTED)


def _commands(command: Any, words: tuple[str, ...], context: click.Context) -> Iterator[tuple[str, click.Parameter]]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from _commands(command.get_command(context, name), (*words, name), context)
    else:
        for parameter in command.params:
            if isinstance(parameter.type, (click.Path, click.File)):
                yield " ".join(words), parameter


def test_every_file_of_a_command_is_tried() -> None:
    from leakcore.cli.root import main

    tried = {(tuple(w for w in words if w[0] != "-" and w.islower()), *_named(words)) for words, _ in COMMANDS.values()}
    for command, parameter in _commands(main, (), click.Context(main)):
        if parameter.name in WRITTEN or (parameter.name in FOLDERS and command != "attack membership"):
            continue
        named = parameter.opts[0] if parameter.opts[0].startswith("--") else None
        of_command = {name for name, (words, _) in COMMANDS.items() if " ".join(words).startswith(command)}
        assert any(
            (named in words and words[words.index(named) + 1] == "FILE") if named else "FILE" in words
            for words in (COMMANDS[name][0] for name in of_command)
        ), f"{command} {parameter.opts[0]}: give it a line in tests/conformance/reader_commands.py"  # fmt: skip
    assert tried


def _named(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for word in words if word.startswith("--"))


def test_every_record_is_read_by_the_codec() -> None:
    """A class with a `from_dict` of its own hands it to the codec, which bounds memory and depth."""
    import leakcore

    package = Path(leakcore.__file__).parent
    own = {
        path.relative_to(package).as_posix(): text
        for path in package.rglob("*.py")
        if "def from_dict" in (text := path.read_text(encoding="utf-8"))
    }  # fmt: skip
    words = ("from_plain", "from_fields", "super().from_dict", "checked_sections", "checked(")
    assert [where for where, text in own.items() if not any(word in text for word in words)] == []


@dataclasses.dataclass
class _Wide:
    """An array whose type is stored: what is sparse is written sparse until the value is too large to be read again."""

    arrays: list[np.ndarray]


def test_what_is_written_is_read_again_however_much_it_expands_to() -> None:
    from leakcore._base.codec import from_plain, to_plain

    wide = _Wide([np.zeros(2**20, np.int64) for _ in range(9)])
    plain = to_plain(wide)
    assert [sorted(a) for a in plain["arrays"]].count(["cells", "dtype", "shape"]) == 8
    back = from_plain(plain, _Wide)
    assert all((a == b).all() and a.dtype == b.dtype for a, b in zip(wide.arrays, back.arrays, strict=True))
