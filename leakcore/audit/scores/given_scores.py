"""The scores that an audit is given: arrays, or npz and csv files of other audit tools. Nothing is ever unpickled."""

from __future__ import annotations

import array
import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from leakcore._base import validate
from leakcore._base.archives import npz_names, read_npz
from leakcore._base.array_record import ArrayRecord
from leakcore._base.progress import timed
from leakcore._base.reading import read_csv
from leakcore._base.score_arrays import is_boolean, require_no_label_at_all
from leakcore._base.text import name_of, names_of, printable

_MOST = 2**27
"""Scores in one array: a hundred million."""


@dataclasses.dataclass(frozen=True)
class ScoreColumns:
    """The names of two arrays or columns: of scores and memberships if `labelled`, else of members and non-members.

    tool: that writes such files. higher: who scores higher.
    """

    first: str
    second: str
    labelled: bool
    tool: str
    higher: str = "members"


_PLAIN = "members and non-members by name"
_PAIRS = (
    "members non_members, member_scores non_member_scores, member_scores nonmember_scores, member non_member, "
    "in_scores out_scores, scores_in scores_out, train_scores test_scores, scores_train scores_test"
)
_LABELLED = "scores and memberships by name"
LAYOUTS = (
    ScoreColumns("membership_scores_train", "membership_scores_test", False, "TensorFlow Privacy, SingleAttackResult"),
    ScoreColumns("loss_train", "loss_test", False, "TensorFlow Privacy, AttackInputData's losses", "non-members"),
    ScoreColumns("scores", "memberships", True, "Privacy Meter, attack_result"),
    ScoreColumns("mia_scores", "target_memberships", True, "Privacy Meter, arrays of its audit"),
    ScoreColumns("prediction", "answers", True, "LiRA (Carlini et al.), plot.py", "non-members"),
    ScoreColumns("scores", "keep", True, "LiRA (Carlini et al.), one model's scores, mean over augmentations"),
    *(ScoreColumns(first, second, False, _PLAIN) for first, second in map(str.split, _PAIRS.split(", "))),
    *(
        ScoreColumns(first, second, True, _LABELLED)
        for first in ("score", "scores")
        for second in ("member", "is_member", "membership", "label", "labels")
    ),
)
"""What is recognised, most specific first; names are compared without case, with - and spaces as _."""
_TRUE = {"1", "1.0", "true", "member", "in", "yes", "train"}
_FALSE = {"0", "0.0", "false", "non-member", "nonmember", "non_member", "out", "no", "test"}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ScoreFile(ArrayRecord):
    """Scores of members and non-members, as they stand in a file.

    Attributes:
        members: (n,) float64.
        non_members: (m,) float64.
        layout: the layout that was recognised.
        name: name of the file.
        higher: who scores higher, "members" or "non-members".
    """

    members: np.ndarray
    non_members: np.ndarray
    layout: ScoreColumns
    name: str
    higher: str


@timed
def read_scores(
    path: str | Path,
    *,
    members: str | None = None,
    non_members: str | None = None,
    values: str | None = None,
    labels: str | None = None,
    higher: str | None = None,
) -> ScoreFile:
    r"""Scores of members and non-members from a file of another tool.

    An .npz file of plain arrays, or a .csv file with a header line (comma, semicolon or tab). These names are
    recognised: Privacy Meter's `scores` and `memberships` (attack_result_*.npz); TensorFlow Privacy's
    `membership_scores_train` and `membership_scores_test`, or `loss_train` and `loss_test`; LiRA's `prediction` and
    `answers`, or `scores` and `keep` of one model; `members` and `non_members`; `score` and `member`; and variants. For
    any other file pass the names.

    Args:
        path: the file, .npz or .csv.
        members: name of the members' array or column.
        non_members: name of the non-members'; the two may differ in length.
        values: name of the array of all scores.
        labels: name of the array of memberships (0 and 1, false and true).
        higher: who scores higher, "members" or "non-members" (losses). None: as the layout says, members if it is
            unknown.

    Returns:
        A `ScoreFile`.

    Raises:
        ValueError: names the file, the array and its fault: unknown or ambiguous names, a shape other than (n,), text
            instead of numbers, a name twice, more than 2²⁷ scores, more than 64 MiB of them from a file a hundredth of
            that, a damaged file. Pickled objects are refused and never loaded.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from leakcore import audit
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "scores.csv"
        ...     _ = path.write_text("score,member\n0.9,1\n0.8,1\n0.1,0\n0.3,0\n")
        ...     audit.read_scores(path).non_members.tolist()
        [0.1, 0.3]
    """
    where = Path(path)
    if higher is not None:
        validate.one_of("members", "non-members", higher=higher)
    asked = _asked(members, non_members, values, labels)
    readers = {".npz": _npz_read, ".csv": _csv_read}
    if where.suffix not in readers:
        raise ValueError(f"`scores` must end in .npz or .csv, got {str(where)!r}; pickled results are never loaded")
    try:
        layout, read = readers[where.suffix](where, asked)
    except FileNotFoundError:
        raise ValueError(f"`scores` must be a file that exists, got {str(where)!r}") from None
    first, second = read[layout.first], read[layout.second]
    if layout.second == "keep" and first.ndim == 2 and first.shape[1]:
        first = first.mean(axis=1)
    for name, side in ((layout.first, first), (layout.second, second)):
        if side.ndim != 1:
            raise ValueError(
                f"{printable(where)}: `{name_of(name)}` must be one number per row, (n,), got shape {side.shape}: "
                "average or combine the others first"
            )
    for name, side in ((layout.first, first), (layout.second, second)):
        if len(bad := np.flatnonzero(np.isnan(side))) and not (layout.labelled and name == layout.second):
            raise ValueError(f"{printable(where)}: `{name_of(name)}[{bad[0]}]` must be a number, got nan")
    if layout.labelled:
        first, second = _parted(where, layout, first, second)
    for name, side in (("members", first), ("non-members", second)):
        if not len(side):
            raise ValueError(f"{printable(where)}: holds no scores of {name}")
    sides = np.asarray(first, np.float64), np.asarray(second, np.float64)
    name = name_of(os.fsencode(where.name).decode("utf-8", "backslashreplace"))  # a name need not be UTF-8
    return ScoreFile(*sides, layout, name, higher or layout.higher)


def _asked(members: str | None, non_members: str | None, values: str | None, labels: str | None) -> ScoreColumns | None:
    pair, labelled = (members, non_members), (values, labels)
    if not any((*pair, *labelled)):
        return None
    if all(pair) and not any(labelled):
        return ScoreColumns(str(members), str(non_members), False, "names as given")
    if all(labelled) and not any(pair):
        return ScoreColumns(str(values), str(labels), True, "names as given")
    raise ValueError(
        f"`members` and `non_members` must be given, or `values` and `labels`, got {members!r} and {non_members!r}, "
        f"{values!r} and {labels!r}"
    )


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def _sniffed(where: Path, names: list[str]) -> ScoreColumns:
    there = {_plain(n) for n in names}
    fits = [layout for layout in LAYOUTS if {layout.first, layout.second} <= there]
    if not fits:
        raise ValueError(
            f"{printable(where)}: its names are {names_of(names)}: no layout that is recognised; say which hold what, "
            "by members and non_members or by values and labels"
        )
    if len(fits) > 1:
        choices = " or ".join(f"{f.first} and {f.second}" for f in fits)
        raise ValueError(
            f"{printable(where)}: {choices}? Say which, by members and non_members or by values and labels"
        )
    return fits[0]


def _owns(where: Path, layout: ScoreColumns, names: list[str], sniffed: bool) -> dict[str, str]:
    """The file's own spelling of the layout's two names."""
    own = {}
    for name in (layout.first, layout.second):
        alike = [n for n in names if _plain(n) == _plain(name)]
        same = alike if sniffed else [n for n in names if n == name] or alike
        if not same:
            raise ValueError(f"{printable(where)}: holds no {printable(repr(name))}; there are {names_of(names)}")
        if len(same) > 1:
            several = f"has {len(same)} arrays or columns named {names_of(same)}"
            raise ValueError(f"{printable(where)}: {several}; rename all but one")
        own[name] = same[0]
    return own


def _parted(where: Path, layout: ScoreColumns, scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if scores.shape != labels.shape:
        raise ValueError(
            f"{printable(where)}: `{name_of(layout.first)}` and `{name_of(layout.second)}` must have equally many "
            f"entries, got {len(scores)} and {len(labels)}"
        )
    if not np.isin(labels, (0, 1)).all():
        odd = labels[~np.isin(labels, (0, 1))][0].item()
        raise ValueError(f"{printable(where)}: `{name_of(layout.second)}` must be 0 or 1, 1 for a member, got {odd!r}")
    inside = labels.astype(bool)
    return scores[inside], scores[~inside]


def _npz_read(where: Path, asked: ScoreColumns | None) -> tuple[ScoreColumns, Mapping[str, Any]]:
    names = npz_names(where)
    layout = asked or _sniffed(where, names)
    own = _owns(where, layout, names, asked is None)
    arrays = read_npz(where, set(own.values()), at_least=8)  # whatever they are there, scores are float64 here
    read = {name: arrays[spelt] for name, spelt in own.items()}
    for name, side in read.items():
        if side.size > _MOST:
            raise ValueError(
                f"{printable(where)}: `{name_of(name)}` must have at most {_MOST:,} entries, got {side.size:,}"
            )
    return layout, read


def _csv_read(where: Path, asked: ScoreColumns | None) -> tuple[ScoreColumns, Mapping[str, Any]]:
    header = [name.strip() for name in next(read_csv(where), [])]
    if not header:
        raise ValueError(f"{printable(where)}: is empty; its first line must name the columns")
    layout = asked or _sniffed(where, header)
    own = _owns(where, layout, header, asked is None)
    at = {name: header.index(spelt) for name, spelt in own.items()}
    columns = {name: array.array("d") for name in own}
    for number, line in enumerate(read_csv(where), 1):
        if number == 1 or not any(cell.strip() for cell in line):
            continue
        for name, column in at.items():
            cell = line[column].strip() if column < len(line) else ""
            if not cell and not layout.labelled:
                continue  # columns of members and non-members may differ in length
            read = _label if layout.labelled and name == layout.second else _number
            columns[name].append(read(where, number, name, cell))
    return layout, {name: np.frombuffer(values, np.float64) for name, values in columns.items()}


def _number(where: Path, line: int, column: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ValueError(f"{printable(where)}, line {line}: `{name_of(column)}` must be a number, got {cell[:40]!r}")
    return value


def _label(where: Path, line: int, column: str, cell: str) -> float:
    word = cell.lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(
            f"{printable(where)}, line {line}: `{name_of(column)}` must be 0 or 1 (or false and true, in and out), got "
            f"{cell[:40]!r}"
        )
    return float(word in _TRUE)


_NO_LABELS = "pass scores and labels by name, from_scores(scores=…, members=…), or the scores of each side"


class Sides(NamedTuple):
    """Scores of members and of others, float64, larger for likelier members. higher: who scored higher."""

    members: np.ndarray
    non_members: np.ndarray
    source: str
    higher: str


def sides_of(members: Any, non_members: Any, scores: Any) -> Sides:
    """The checked sides; ValueError or TypeError names the argument."""
    if scores is not None:
        return _labelled(scores, members, non_members)
    if isinstance(members, (str, Path)):
        members = read_scores(members)
    if isinstance(members, ScoreFile):
        if non_members is not None:
            raise TypeError("`non_members` must be None with a file, which holds them")
        sign = 1.0 if members.higher == "members" else -1.0
        arrays = {name: _checked(name, getattr(members, name)) for name in ("members", "non_members")}
        source = f"{members.name} ({members.layout.tool})"
        if not members.layout.labelled:
            require_no_label_at_all(arrays, arrays, f"name scores and labels of {members.name} by values and labels")
        return Sides(sign * arrays["members"], sign * arrays["non_members"], source, members.higher)
    if members is None:
        raise TypeError("`members` must be given: scores of members, or with scores=… who is a member, got None")
    if non_members is None:
        raise TypeError("`non_members` must be given, or the file that holds the scores of both, got None")
    arguments = {"members": members, "non_members": non_members}
    arrays = {name: _checked(name, values) for name, values in arguments.items()}
    require_no_label_at_all(arguments, arrays, _NO_LABELS)
    return Sides(arrays["members"], arrays["non_members"], "scores as given", "members")


def _checked(name: str, values: Any) -> np.ndarray:
    side, _ = validate.host_array(finite=False, **{name: values})
    if side.ndim != 1 or side.size < 2:
        raise ValueError(f"`{name}` must be one score per row, at least two, got shape {side.shape}")
    if np.isnan(side).any():
        raise ValueError(f"`{name}[{int(np.flatnonzero(np.isnan(side))[0])}]` must be a number, got nan")
    return side


def _labelled(scores: Any, members: Any, non_members: Any) -> Sides:
    """The sides of one array of scores and one of memberships."""
    if non_members is not None:
        raise TypeError("`non_members` must be None with scores=…, where `members` says who is a member")
    if members is None:
        raise TypeError("`members` must be given with scores=…: for each score True or 1 if its row was trained on")
    if isinstance(scores, (str, Path, ScoreFile)):
        raise TypeError("`scores` must be an array; a file holds the memberships as well: pass it alone")
    every = _checked("scores", scores)
    if is_boolean(scores):
        raise ValueError(
            "`scores` must hold scores, got truth values, which look like labels: pass labels as members=…"
        )
    labels, _ = validate.host_array(finite=False, members=members)
    if labels.shape != every.shape:
        raise ValueError(f"`members` must have the shape of scores, {every.shape}, got {labels.shape}")
    if not np.isin(labels, (0, 1)).all():
        odd = labels[~np.isin(labels, (0, 1))][0].item()
        raise ValueError(f"`members` must be True and False, or 1 and 0, with scores=…, got {odd!r}")
    if members is scores or np.shares_memory(np.asarray(members), np.asarray(scores)):
        raise ValueError("`members` must differ from scores, got the same array twice")
    inside = labels.astype(bool)
    for name, count in (("members", int(inside.sum())), ("non-members", int((~inside).sum()))):
        if count < 2:
            raise ValueError(f"`members` must say of at least two rows that they are {name}, got {count}")
    return Sides(every[inside], every[~inside], "scores as given", "members")
