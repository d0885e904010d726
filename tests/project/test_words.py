"""The words of words.toml are refused, and the list of folders that still use them can only shrink."""

from __future__ import annotations

import pytest

from tests.project import words


def test_no_refused_word_outside_the_folders_that_are_not_clean_yet() -> None:
    assert words.problems(words.read_words(), words.all_uses(words.read_words())) == []


@pytest.mark.parametrize(
    ("path", "text", "refused"),
    [
        ("a.py", "def f():\n    found = 1\n    return found\n", ["found"]),
        ("a.py", "def f(kept):\n    return kept\n", ["kept"]),
        ("a.py", "class A:\n    given: int\n", []),
        ("a.py", "def test_a_sum_beside_its_bound() -> None: ...\n", ["beside"]),
        ("a.py", "rows = network.found\n", []),
        ("a.py", '"""This is no proof."""\n', ["is no"]),
        ("a.py", "x = 1  # those beside it\n", ["beside"]),
        ("a.py", 'raise ValueError("whoever calls")\n', ["whoever"]),
        ("a.md", "# Title\n\n```python\nfound = 1\n```\n", ["found"]),
        ("a.md", "There is no default.\n\nIt is no larger, and is no longer needed.\n", []),
        ("a.md", "Two bounds, of which one holds.\nThe values are those of NumPy.\n", ["of which", "are those of"]),
    ],
)
def test_words_are_refused_where_they_stand(path: str, text: str, refused: list[str]) -> None:
    assert [use.word for use in words.uses(path, text, words.read_words())] == refused


def test_a_clean_folder_must_leave_the_list() -> None:
    table = words.read_words()._replace(not_yet=("clean", "dirty", "gone"))
    use = words.Use("dirty/a.py", 3, "found", "say what")
    problems = words.problems(table, {"clean": [], "dirty": [use], "other": [use._replace(path="other/a.py")]})
    assert problems == [
        "clean: is clean; take it off not_yet in tests/project/words.toml",
        "other/a.py:3: 'found': say what",
        "gone: no such folder; take it off not_yet in tests/project/words.toml",
    ]
