"""Score files of other audit tools: npz or csv, recognised by the names in them. Nothing is ever unpickled."""

from __future__ import annotations

import array
import csv
import dataclasses
import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from leakcore._npz import member_of

LARGEST = 2**30
"""Bytes of one array, or of one csv file: a hundred million scores."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """Two names and what stands under them. labelled: scores and who is a member; else members and non-members.
    higher: who scores higher.
    """

    first: str
    second: str
    labelled: bool
    tool: str
    higher: str = "members"


_PLAIN = "members and non-members by name"
_LABELLED = "scores and memberships by name"
LAYOUTS = (
    Layout("membership_scores_train", "membership_scores_test", False, "TensorFlow Privacy, SingleAttackResult"),
    Layout("loss_train", "loss_test", False, "TensorFlow Privacy, AttackInputData's losses", "non-members"),
    Layout("scores", "memberships", True, "Privacy Meter, attack_result"),
    Layout("mia_scores", "target_memberships", True, "Privacy Meter, arrays of its audit"),
    Layout("prediction", "answers", True, "LiRA (Carlini et al.), plot.py", "non-members"),
    Layout("scores", "keep", True, "LiRA (Carlini et al.), one model's scores, mean over augmentations"),
    *(
        Layout(first, second, False, _PLAIN)
        for first, second in (
            ("members", "non_members"), ("member_scores", "non_member_scores"), ("member_scores", "nonmember_scores"),
            ("member", "non_member"), ("in_scores", "out_scores"), ("scores_in", "scores_out"),
            ("train_scores", "test_scores"), ("scores_train", "scores_test"),
        )
    ),
    *(
        Layout(first, second, True, _LABELLED)
        for first in ("score", "scores")
        for second in ("member", "is_member", "membership", "label", "labels")
    ),
)  # fmt: skip
"""What is recognised, most specific first; names are compared without case, with - and spaces as _."""
_TRUE = {"1", "1.0", "true", "member", "in", "yes", "train"}
_FALSE = {"0", "0.0", "false", "non-member", "nonmember", "non_member", "out", "no", "test"}


@dataclasses.dataclass(frozen=True, eq=False)
class ScoreFile:
    """Scores of members and of non-members as the file has them, and what it was taken for."""

    members: np.ndarray
    non_members: np.ndarray
    layout: Layout
    name: str


def read_scores(
    path: str | Path,
    *,
    members: str | None = None,
    non_members: str | None = None,
    values: str | None = None,
    labels: str | None = None,
) -> ScoreFile:
    """Scores of members and non-members from a file of another tool.

    An .npz file of plain arrays, or a .csv file with a header line (comma, semicolon or tab). What stands where is told
    by the names: Privacy Meter's attack_result_*.npz (`scores`, `memberships`), TensorFlow Privacy's
    `membership_scores_train` and `membership_scores_test` (or `loss_train`, `loss_test`: smaller means member), LiRA's
    `prediction` and `answers` (smaller means member) or `scores` and `keep` of one model, `members` and `non_members`,
    `score` and `member`, and variants. Of any other file give the names:

    members, non_members: of the two arrays (columns; they may differ in length).
    values, labels: of the array of all scores and that of memberships (0 and 1, false and true).

    Returns a `ScoreFile`. ValueError names file, array and what is wrong with it: unknown or ambiguous names, a shape
    other than (n,), text where numbers should be, more than 1 GiB, a damaged file. Pickled objects are refused, never
    loaded.
    """
    where = Path(path)
    given = _asked(members, non_members, values, labels)
    if where.suffix == ".npz":
        shapes = _npz_names(where)
        layout = given or _sniffed(where, shapes)
        read: Mapping[str, Any] = {n: _npz_array(where, _own(where, n, shapes)) for n in (layout.first, layout.second)}
    elif where.suffix == ".csv":
        header = _csv_header(where)
        layout = given or _sniffed(where, header)
        read = _csv_columns(where, {n: _own(where, n, header) for n in (layout.first, layout.second)}, layout)
    else:
        raise ValueError(f"scores={str(where)!r}: must end in .npz or .csv; pickled results are never loaded")
    first, second = read[layout.first], read[layout.second]
    if layout.second == "keep" and first.ndim == 2 and first.shape[1]:
        first = first.mean(axis=1)
    for name, side in ((layout.first, first), (layout.second, second)):
        if side.ndim != 1:
            raise ValueError(
                f"{where}: {name} has shape {side.shape}: must be one number per row, (n,); average or combine the "
                "others first"
            )
    for name, side in ((layout.first, first), (layout.second, second)):
        if len(bad := np.flatnonzero(np.isnan(side))) and not (layout.labelled and name == layout.second):
            raise ValueError(f"{where}: {name}[{bad[0]}]=nan: must be a number")
    if layout.labelled:
        first, second = _parted(where, layout, first, second)
    for name, side in (("members", first), ("non-members", second)):
        if not len(side):
            raise ValueError(f"{where}: holds no scores of {name}")
    return ScoreFile(first.astype(np.float64), second.astype(np.float64), layout, _shown(where))


def _shown(where: Path) -> str:
    """The file's name as text that can be written anywhere: a name need not be UTF-8."""
    return os.fsencode(where.name).decode("utf-8", "backslashreplace")


def _asked(members: str | None, non_members: str | None, values: str | None, labels: str | None) -> Layout | None:
    pair, labelled = (members, non_members), (values, labels)
    if not any((*pair, *labelled)):
        return None
    if all(pair) and not any(labelled):
        return Layout(str(members), str(non_members), False, "names as given")
    if all(labelled) and not any(pair):
        return Layout(str(values), str(labels), True, "names as given")
    raise ValueError(
        f"members={members!r}, non_members={non_members!r}, values={values!r}, labels={labels!r}: give members and "
        "non_members, or values and labels"
    )


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def _sniffed(where: Path, names: list[str]) -> Layout:
    there = {_plain(n) for n in names}
    fits = [layout for layout in LAYOUTS if {layout.first, layout.second} <= there]
    listed = ", ".join(names[:20]) or "none"
    if not fits:
        raise ValueError(
            f"{where}: its names are {listed}: no layout that is recognised; say which hold what, by members and "
            "non_members or by values and labels"
        )
    if len(fits) > 1:
        choices = " or ".join(f"{f.first} and {f.second}" for f in fits)
        raise ValueError(f"{where}: {choices}? Say which, by members and non_members or by values and labels")
    return fits[0]


def _own(where: Path, name: str, names: list[str]) -> str:
    """The file's own spelling."""
    same = [n for n in names if n == name] or [n for n in names if _plain(n) == _plain(name)]
    if not same:
        raise ValueError(f"{where}: holds no {name!r}; there are {', '.join(names[:20]) or 'none'}")
    return same[0]


def _parted(where: Path, layout: Layout, scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if scores.shape != labels.shape:
        raise ValueError(f"{where}: {layout.first} has {len(scores)} entries, {layout.second} {len(labels)}")
    if not np.isin(labels, (0, 1)).all():
        odd = labels[~np.isin(labels, (0, 1))][0].item()
        raise ValueError(f"{where}: {layout.second} holds {odd!r}: must be 0 or 1, 1 for a member")
    inside = labels.astype(bool)
    return scores[inside], scores[~inside]


def _npz_names(where: Path) -> list[str]:
    with _opened(where) as file:
        return [name.removesuffix(".npy") for name in file.namelist()]


def _opened(where: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(where)
    except FileNotFoundError:
        raise ValueError(f"scores={str(where)!r}: no such file") from None
    except Exception as why:
        raise ValueError(f"{where}: is no npz file ({why})") from why


def _npz_array(where: Path, name: str) -> np.ndarray:
    """One array, its size settled by its header before any memory is asked for."""
    with _opened(where) as file:
        try:
            info = next(i for i in file.infolist() if i.filename.removesuffix(".npy") == name)
            if info.file_size > LARGEST:
                raise ValueError(f"holds {info.file_size:,} bytes, allowed is {LARGEST:,}")
            return member_of(file, info, "biuf")
        except Exception as why:  # zipfile, zlib, struct and NumPy each have their own for a damaged file
            said = str(why).removeprefix(f"{name}: ")
            raise ValueError(f"{where}: {name}: {said}") from why


def _lines(where: Path) -> Iterator[list[str]]:
    try:
        if where.stat().st_size > LARGEST:
            raise ValueError(f"{where}: is larger than {LARGEST:,} bytes")
        with where.open(encoding="utf-8-sig", newline="") as file:
            head = file.readline(1 << 20)
            file.seek(0)
            delimiter = max(",;\t", key=head.count)
            yield from csv.reader(file, delimiter=delimiter)
    except FileNotFoundError:
        raise ValueError(f"scores={str(where)!r}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as why:
        raise ValueError(f"{where}: cannot be read as csv ({why})") from why


def _csv_header(where: Path) -> list[str]:
    names = [name.strip() for name in next(_lines(where), [])]
    if not names:
        raise ValueError(f"{where}: is empty; its first line must name the columns")
    return names


def _csv_columns(where: Path, own: Mapping[str, str], layout: Layout) -> dict[str, np.ndarray]:
    header = _csv_header(where)
    for spelt in own.values():
        if header.count(spelt) > 1:
            raise ValueError(f"{where}: has {header.count(spelt)} columns named {spelt!r}; rename all but one")
    at = {asked: header.index(spelt) for asked, spelt in own.items()}
    found = {asked: array.array("d") for asked in own}
    for number, line in enumerate(_lines(where), 1):
        if number == 1 or not any(cell.strip() for cell in line):
            continue
        for asked, column in at.items():
            cell = line[column].strip() if column < len(line) else ""
            if not cell and not layout.labelled:
                continue  # columns of members and non-members may differ in length
            label = layout.labelled and asked == layout.second
            found[asked].append(_label(where, number, asked, cell) if label else _number(where, number, asked, cell))
    return {asked: np.array(values) for asked, values in found.items()}


def _number(where: Path, line: int, column: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ValueError(f"{where}, line {line}: {column}={cell[:40]!r}: must be a number")
    return value


def _label(where: Path, line: int, column: str, cell: str) -> float:
    word = cell.lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(
            f"{where}, line {line}: {column}={cell[:40]!r}: must be 0 or 1 (or false and true, in and out)"
        )
    return float(word in _TRUE)
