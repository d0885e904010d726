"""Membership scores of other tools: which files are read, as what, and which are refused."""

from __future__ import annotations

import csv
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from leakcore import audit
from leakcore._base import reading
from tests.audit.samples import BOTH, INSIDE, LABELS, OUTSIDE, RNG


@pytest.mark.parametrize(
    ("arrays", "tool"),
    [
        ({"fpr": RNG.random(9), "auc": 0.5, "scores": BOTH, "memberships": LABELS}, "Privacy Meter"),
        ({"membership_scores_train": INSIDE, "membership_scores_test": OUTSIDE}, "TensorFlow Privacy"),
        ({"loss_train": -INSIDE, "loss_test": -OUTSIDE, "labels_train": INSIDE}, "TensorFlow Privacy"),
        ({"prediction": -BOTH, "answers": LABELS}, "LiRA"),
        ({"scores": np.stack([BOTH + 1, BOTH - 1], 1), "keep": LABELS}, "LiRA"),
        ({"scores": np.asfortranarray(np.stack([BOTH + 1, BOTH - 1], 1)), "keep": LABELS}, "LiRA"),
        ({"Non-Members": OUTSIDE, "Members": INSIDE}, "members and non-members"),
        ({"score": BOTH.astype("f8"), "is_member": LABELS.astype(np.int8)}, "memberships by name"),
    ],
)
def test_layouts_of_other_tools_are_recognised(arrays: dict[str, Any], tool: str, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "s.npz", **arrays)
    result = audit.from_scores(tmp_path / "s.npz", adjacency="add-remove")
    assert tool in result.source
    assert (result.members, result.non_members) == (300, 280)
    assert result.area.value == pytest.approx(stats.mannwhitneyu(INSIDE, OUTSIDE).statistic / (300 * 280), abs=1e-9)


def test_csv_with_one_row_per_score_and_with_two_columns(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    rows = "".join(f"{s!r};{'Member' if m else 'non-member'}\n" for s, m in zip(BOTH.tolist(), LABELS, strict=True))
    path.write_text("\ufeffscore;member\n" + rows, encoding="utf-8")
    result = audit.read_scores(path)
    np.testing.assert_array_equal(result.members, INSIDE)
    np.testing.assert_array_equal(result.non_members, OUTSIDE)
    path.write_text("a,Members,Non Members\nx,1.5,0.5\nx,2,\n\n", encoding="utf-8")
    result = audit.read_scores(path)
    assert (result.members.tolist(), result.non_members.tolist()) == ([1.5, 2.0], [0.5])
    path.write_text("a,b\n1,0\n2,1\n", encoding="utf-8")
    assert audit.read_scores(path, values="a", labels="b").members.tolist() == [2.0]
    assert audit.read_scores(path, members="a", non_members="b").non_members.tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("arrays", "names", "message"),
    [
        ({"a": INSIDE, "b": OUTSIDE}, {}, "its names are a, b: no layout that is recognised; say which hold what"),
        ({"members": INSIDE, "non_members": OUTSIDE, "scores": BOTH, "memberships": LABELS}, {}, "Say which"),
        ({"a": INSIDE, "b": OUTSIDE}, {"members": "a"}, r"`members` and `non_members` must be.*, got 'a' and None"),
        ({"a": INSIDE, "b": OUTSIDE}, {"members": "a", "non_members": "c"}, "holds no 'c'; there are a, b"),
        (
            {"members": INSIDE[:, None], "non_members": OUTSIDE},
            {},
            r"`members` must be one number per row, \(n,\), got shape \(300, 1\)",
        ),
        (
            {"scores": BOTH, "memberships": LABELS[1:]},
            {},
            "`scores` and `memberships` must have equally many entries, got 580 and 579",
        ),
        ({"scores": BOTH, "memberships": LABELS + 1}, {}, "`memberships` must be 0 or 1, 1 for a member, got 2"),
        ({"scores": BOTH, "memberships": LABELS | True}, {}, "holds no scores of non-members"),
        (
            {"members": INSIDE, "non_members": np.array(["a"])},
            {},
            "non_members is of type <U1, and only numbers are read: objects are never unpickled",
        ),
        ({"members": INSIDE, "non_members": INSIDE + 1j}, {}, "is of type complex128"),
    ],
)
def test_other_files_are_refused_with_the_reason(
    arrays: dict[str, Any], names: dict[str, str], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "s.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        audit.read_scores(tmp_path / "s.npz", **names)


class _Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (Path("sprung"), "x"))


def test_a_number_that_is_none_is_named_where_it_stands(tmp_path: Path) -> None:
    scores = BOTH.copy()
    scores[7] = np.nan
    np.savez(tmp_path / "s.npz", scores=scores, memberships=LABELS)
    with pytest.raises(ValueError, match=r"s\.npz: `scores\[7\]` must be a number, got nan"):
        audit.from_scores(tmp_path / "s.npz", adjacency="add-remove")


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("s.npz", members=np.array([_Trap()], dtype=object), non_members=OUTSIDE)
    Path("s.pkl").write_bytes(pickle.dumps(_Trap()))
    Path("t.npz").write_bytes(pickle.dumps(_Trap()))
    for name in ("s.npz", "s.pkl", "t.npz"):
        with pytest.raises(ValueError, match=r"s\.npz|s\.pkl|t\.npz"):
            audit.read_scores(name)
    assert not Path("sprung").exists()


def test_a_header_that_asks_for_more_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", members=INSIDE, non_members=OUTSIDE)
    with zipfile.ZipFile(tmp_path / "s.npz") as file:
        raw = {n: file.read(n) for n in file.namelist()}
    raw["members.npy"] = raw["members.npy"].replace(b"(300,), }" + b" " * 12, b"(300000000000,), }   ")
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as file:
        for name, content in raw.items():
            file.writestr(name, content)
    with pytest.raises(ValueError, match=r"members: claims .* 2,400,000,000,000 bytes; the file holds"):
        audit.read_scores(tmp_path / "t.npz")


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_file_is_refused_or_says_what_it_says(seed: int, tmp_path: Path) -> None:
    """An archive has checksums: another number is never read out of a damaged one. A line of text has none: what is
    read is what Python's own reader finds there."""
    rng = np.random.default_rng(seed)
    refused = {"t.npz": 0, "t.csv": 0}
    np.savez_compressed(tmp_path / "s.npz", members=INSIDE[:20], non_members=OUTSIDE[:20])
    whole = (tmp_path / "s.npz").read_bytes()
    text = b"score,member\n" + b"".join(b"%f,%d\n" % (v, i % 2) for i, v in enumerate(INSIDE[:20]))
    for _ in range(60):
        for name, content in (("t.npz", bytearray(whole)), ("t.csv", bytearray(text))):
            for at in rng.integers(0, len(content), rng.integers(1, 6)):
                content[at] = rng.integers(256)
            (tmp_path / name).write_bytes(content[: rng.integers(1, len(content) + 1)])
            try:
                scores = audit.read_scores(tmp_path / name)
            except ValueError as why:
                assert name in str(why)  # noqa: PT017 - which damage is met is random
                refused[name] += 1
                continue
            if name == "t.npz":
                np.testing.assert_array_equal(scores.members, INSIDE[:20])
                np.testing.assert_array_equal(scores.non_members, OUTSIDE[:20])
            else:
                lines = list(csv.DictReader((tmp_path / name).read_text(encoding="utf-8").splitlines()))
                for flag, values in (("1", scores.members), ("0", scores.non_members)):
                    np.testing.assert_array_equal(values, [float(r["score"]) for r in lines if r["member"] == flag])
    assert refused["t.npz"] > 40
    assert 0 < refused["t.csv"] < 60


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("score,member\nx,1\n", "line 2: `score` must be a number, got 'x'"),
        ("score,member\n1,maybe\n", r"line 2: `member` must be 0 or 1 \(or .*\), got 'maybe'"),
        ("score,member\n1\n", r"line 2: `member` must be 0 or 1 \(or .*\), got ''"),
        ("score,member\nnan,1\n", "line 2: `score` must be a number, got 'nan'"),
        ("score,member\n1,1\n", "holds no scores of non-members"),
    ],
)
def test_csv_lines_are_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        audit.read_scores(tmp_path / "s.csv")


def test_who_scores_higher_is_said_where_the_file_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", members=-INSIDE, non_members=-OUTSIDE)
    read = audit.read_scores(tmp_path / "s.npz", higher="non-members")
    report, plain = (audit.from_scores(*scores, coins=True) for scores in ((read,), (INSIDE, OUTSIDE)))
    assert (report.higher, plain.higher) == ("non-members", "members")
    assert (report.area.value, report.epsilon.value) == (plain.area.value, plain.epsilon.value)
    with pytest.raises(ValueError, match="`higher` must be 'members' or 'non-members', got 'nobody'"):
        audit.read_scores(tmp_path / "s.npz", higher="nobody")


def test_files_of_no_known_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`scores` must end in .npz or .csv, got .*x.pkl"):
        audit.read_scores(tmp_path / "x.pkl")
    for name in ("x.npz", "x.csv"):
        with pytest.raises(ValueError, match=f"`scores` must be a file that exists, got .*{name}"):
            audit.read_scores(tmp_path / name)
    assert reading.LARGEST_CSV == 2**30
