"""The scores that an audit is given: two arrays, one array with memberships, or the file that holds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from leakcore._base import validate
from leakcore._base.score_arrays import is_boolean, require_no_label_at_all
from leakcore.audit.scores.file import ScoreFile, read_scores

_NO_LABELS = "pass scores and labels by name, from_scores(scores=…, members=…), or the scores of each side"


class Sides(NamedTuple):
    """Scores of members and of others, larger for likelier members.

    Attributes:
        members: (n,) float64.
        non_members: (m,) float64.
        source: where they come from.
        higher: who scored higher there.
    """

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
