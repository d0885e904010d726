"""Loaders of tables on the canonical files where they exist, and on broken ones made here."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from leakcore import datasets
from leakcore.datasets import dataset, tabular

LOCAL = Path(os.environ.get("LEAKCORE_DATA") or Path(__file__).resolve().parents[2].parent / "shared" / "data")
needs_cervical = pytest.mark.skipif(not (LOCAL / "cervical").is_dir(), reason="no folder of data sets")
needs_bank = pytest.mark.skipif(not (LOCAL / "bank").is_dir(), reason="no folder of data sets")


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("LEAKCORE_DATA", raising=False)
    monkeypatch.setenv("LEAKCORE_CACHE", str(tmp_path / "cache"))


def _put(monkeypatch, folder: Path, which: str, content: bytes) -> Path:
    old = getattr(tabular, which)
    (folder / old.name).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    monkeypatch.setattr(tabular, which, dataset.RemoteFile(old.folder, old.name, digest))
    return folder


CERVICAL = """Age,Smokes,Never,Since,Hinselmann,Schiller,Citology,Biopsy
20,0.0,0.0,?,0,1,0,0
30,?,0.0,4.0,0,0,0,1
40,1.0,?,8.0,1,0,0,0
50,1.0,0.0,?,0,0,0,1
"""


def test_missing_values_become_medians_and_constant_columns_zero(monkeypatch, tmp_path) -> None:
    data = datasets.cervical_cancer(path=_put(monkeypatch, tmp_path, "_CERVICAL", CERVICAL.encode()))
    raw = np.array([[20, 0, 6], [30, 1, 4], [40, 1, 8], [50, 1, 6]], float)
    np.testing.assert_allclose(data.features[:, [0, 1, 3]], (raw - raw.mean(0)) / raw.std(0), rtol=1e-14)
    assert (data.features[:, 2] == 0).all()
    assert data.labels.tolist() == [0, 1, 0, 1]
    with_exams = datasets.cervical_cancer(exams=True, path=tmp_path)
    assert with_exams.features.shape == (4, 7)
    assert (with_exams.features[:, :4] == data.features).all()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("40,1.0", "forty,1.0", r"cancer.csv: column 'Age', row 3: 'forty' must be a finite number"),
        ("40,1.0", "inf,1.0", r"column 'Age', row 3: 'inf' must be a finite number"),
        ("40,1.0", "nan,1.0", r"column 'Age', row 3: 'nan' must be a finite number"),
        ("0,0,0,1\n40", "0,0,0,2\n40", r"column 'Biopsy', row 2: '2' must be one of 0, 1"),
        ("0,0,0,1\n40", "0,0,0,?\n40", r"column 'Biopsy', row 2: '\?' must be one of 0, 1"),
        ("8.0,1,0,0,0", "8.0,1,0,0", "row 3 must have 8 entries, got 7"),
        ("Biopsy", "biopsy", r"column 'Biopsy' is missing; there are Age"),
    ],
)
def test_what_cannot_be_read_is_named_by_column_and_row(monkeypatch, tmp_path, old, new, message) -> None:
    assert old in CERVICAL
    _put(monkeypatch, tmp_path, "_CERVICAL", CERVICAL.replace(old, new, 1).encode())
    with pytest.raises(ValueError, match=message):
        datasets.cervical_cancer(path=tmp_path)


def test_a_column_without_any_value_cannot_be_imputed(monkeypatch, tmp_path) -> None:
    text = CERVICAL.replace("4.0", "?").replace("8.0", "?")
    _put(monkeypatch, tmp_path, "_CERVICAL", text.encode())
    with pytest.raises(ValueError, match="column 'Since' has no value in any row"):
        datasets.cervical_cancer(path=tmp_path)
    _put(monkeypatch, tmp_path, "_CERVICAL", CERVICAL.splitlines(keepends=True)[0].encode())
    with pytest.raises(ValueError, match="has no rows"):
        datasets.cervical_cancer(path=tmp_path)


BANK_ROW = {
    "age": "30", "job": "services", "marital": "single", "education": "unknown", "default": "no", "housing": "yes",
    "loan": "no", "contact": "cellular", "month": "may", "day_of_week": "fri", "duration": "10", "campaign": "2",
    "pdays": "999", "previous": "0", "poutcome": "nonexistent", "emp.var.rate": "-1.8", "cons.price.idx": "92",
    "cons.conf.idx": "-46", "euribor3m": "1.3", "nr.employed": "5099.1", "y": "no",
}  # fmt: skip


def _bank(monkeypatch, folder: Path, *changes: dict[str, str], member: str = "bank-additional.csv") -> Path:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(BANK_ROW), delimiter=";", quoting=csv.QUOTE_ALL)
    writer.writeheader()
    for change in changes:
        writer.writerow(BANK_ROW | change)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(f"bank-additional/{member}", text.getvalue())
    return _put(monkeypatch, folder, "_BANK", out.getvalue())


def test_bank_is_standardised_and_one_hot(monkeypatch, tmp_path) -> None:
    folder = _bank(monkeypatch, tmp_path, {}, {"age": "50", "job": "admin.", "y": "yes"}, {"age": "40"})
    data = datasets.bank_marketing(path=folder)
    assert data.features.shape == (3, 63)
    np.testing.assert_allclose(data.features[:, 0], [-np.sqrt(1.5), np.sqrt(1.5), 0], atol=1e-12)
    assert (data.features[:, 1:10] == 0).all()
    # Twelve jobs first: services is the eighth of them, admin. the first.
    assert data.features[:, 10:22].argmax(axis=1).tolist() == [7, 0, 7]
    assert (data.features[:, 10:].sum(axis=1) == 10).all()
    assert data.labels.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"job": "pirate"}, r"bank-additional.csv: column 'job', row 2: 'pirate' must be one of admin\., blue-collar"),
        ({"month": "jan"}, r"column 'month', row 2: 'jan' must be one of mar"),
        ({"pdays": "unknown"}, r"column 'pdays', row 2: 'unknown' must be a finite number"),
        ({"age": "?"}, r"column 'age', row 2: '\?' must be a finite number"),
        ({"y": "maybe"}, r"column 'y', row 2: 'maybe' must be one of no, yes"),
    ],
)
def test_bank_errors_name_column_and_row(monkeypatch, tmp_path, change, message) -> None:
    folder = _bank(monkeypatch, tmp_path, {}, change)
    with pytest.raises(ValueError, match=message):
        datasets.bank_marketing(path=folder)


def test_bank_archive_and_part_are_checked(monkeypatch, tmp_path) -> None:
    folder = _bank(monkeypatch, tmp_path, {}, member="other.csv")
    with pytest.raises(ValueError, match=r"holds no bank-additional-full.csv"):
        datasets.bank_marketing("additional-full", path=folder)
    with pytest.raises(ValueError, match="`part` must be 'additional' or 'additional-full', got 'half'"):
        datasets.bank_marketing("half", path=folder)
    monkeypatch.setitem(BANK_ROW, "extra", "1")
    with pytest.raises(ValueError, match=r"its columns must be age, .*, got age, .*, extra"):
        datasets.bank_marketing(path=_bank(monkeypatch, tmp_path, {}))
    with pytest.raises(FileNotFoundError, match=r"(?s)risk_factors_cervical_cancer.csv of cervical was not found"):
        datasets.cervical_cancer(path=tmp_path)


@needs_cervical
def test_cervical_cancer_is_the_canonical_one() -> None:
    data = datasets.cervical_cancer(path=LOCAL)
    assert data.features.shape == (858, 32)
    assert np.bincount(data.labels).tolist() == [803, 55]
    varies = data.features.std(axis=0) > 0
    assert varies.sum() == 30
    np.testing.assert_allclose(data.features[:, varies].std(axis=0), 1, atol=1e-12)
    np.testing.assert_allclose(data.features.mean(axis=0), 0, atol=1e-12)
    assert datasets.cervical_cancer(exams=True, path=LOCAL).features.shape == (858, 35)
    # The median of those who know the time since their first diagnosis (4 years) stands for the 787 who have none.
    times = data.features[:, 26]
    assert (times == np.median(times)).sum() >= 787


@needs_bank
@pytest.mark.parametrize(("part", "no", "yes"), [("additional", 3668, 451), ("additional-full", 36548, 4640)])
def test_bank_marketing_is_the_canonical_one(part, no, yes) -> None:
    data = datasets.bank_marketing(part, path=LOCAL)
    assert data.features.shape == (no + yes, 63)
    assert np.bincount(data.labels).tolist() == [no, yes]
    np.testing.assert_allclose(data.features[:, :10].mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(data.features[:, :10].std(axis=0), 1, atol=1e-9)
    assert (data.features[:, 10:].sum(axis=1) == 10).all()
