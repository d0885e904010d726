"""Tables with sensitive binary labels: Cervical Cancer and Bank Marketing, from their canonical files.

Rows keep the file's order. float64. Standardising uses statistics of the data set itself, which a private training run
would have to pay for; for attacks on gradients it is only a choice of units.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from leakcore._base import validate
from leakcore._base.archives import opened_zip, read_entry
from leakcore._base.reading import read_bytes, table_of
from leakcore.datasets.dataset import Dataset, RemoteFile, find

Folder = str | os.PathLike[str]

_CERVICAL = RemoteFile(
    "cervical",
    "risk_factors_cervical_cancer.csv",
    "8df193ad5c9ff4288fb4c401eef70dcd2cbda404ce7f82ac74c68cfc960ab063",
    ("https://archive.ics.uci.edu/ml/machine-learning-databases/00383/risk_factors_cervical_cancer.csv",),
)
_BANK = RemoteFile(
    "bank",
    "bank-additional.zip",
    "a607b5edab6c6c75ce09c39142a77702c38123bd5aa7ae89a63503bbe17d65cd",
    ("https://archive.ics.uci.edu/ml/machine-learning-databases/00222/bank-additional.zip",),
)
_LARGEST = 2**24
"""Bytes of a table."""
_TARGET = "Biopsy"
_EXAMS = ("Hinselmann", "Schiller", "Citology")
_MISSING = "?"

_CATEGORIES = {
    "job": "admin. blue-collar entrepreneur housemaid management retired self-employed services student technician "
    "unemployed unknown",
    "marital": "divorced married single unknown",
    "education": "basic.4y basic.6y basic.9y high.school illiterate professional.course university.degree unknown",
    "default": "no yes unknown",
    "housing": "no yes unknown",
    "loan": "no yes unknown",
    "contact": "cellular telephone",
    # The bank made no calls in January and February.
    "month": "mar apr may jun jul aug sep oct nov dec",
    "day_of_week": "mon tue wed thu fri",
    "poutcome": "failure nonexistent success",
}
_BANK_COLUMNS = (
    "age job marital education default housing loan contact month day_of_week duration campaign pdays previous "
    "poutcome emp.var.rate cons.price.idx cons.conf.idx euribor3m nr.employed y"
).split()


def cervical_cancer(*, exams: bool = False, path: Folder | None = None, download: bool = True) -> Dataset:
    """Cervical Cancer (UCI 383): 858 patients, 32 risk factors, label 1 where the biopsy was positive (55 patients).

    A missing value becomes the median of its column over the rows that have a value (for a binary column, the more
    frequent value). 3,622 values are missing, 787 in each of the two times since a diagnosis. Each column is then
    standardised to mean 0 and (population) standard deviation 1 over all rows; the two constant columns (cervical
    condylomatosis, AIDS) become 0. 23 rows repeat an earlier one. Rows keep the file's order.

    Args:
        exams: add the results of three other examinations (Hinselmann, Schiller, cytology), which the file also calls
            targets. The task has then 35 features and is easier.
        path: a folder that holds risk_factors_cervical_cancer.csv, directly or in its subfolder `cervical`. None
            searches LEAKCORE_DATA, then the user's cache, then the UCI archive.
        download: whether the archive may be asked when `path` is None.

    Returns:
        A `Dataset` of (858, 32) or (858, 35) float64 features.

    Raises:
        FileNotFoundError: says where the file was looked for.
        ValueError: names the column and the row of an entry that cannot be read, or the file whose SHA-256 is not the
            canonical one.

    Example:
        >>> import tempfile
        >>> from leakcore import datasets
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     datasets.cervical_cancer(path=folder)
        Traceback (most recent call last):
        FileNotFoundError: risk_factors_cervical_cancer.csv of cervical was not found; ...
    """
    where = find(_CERVICAL, path, download)
    header, rows = table_of(read_bytes(where, _LARGEST), where, ",")
    left_out = (_TARGET,) if exams else (_TARGET, *_EXAMS)
    for name in (_TARGET, *_EXAMS):
        if name not in header:
            raise ValueError(f"{where}: column {name!r} is missing; there are {', '.join(header)}")
    features = np.stack([_numbers(where, header, rows, n) for n in header if n not in left_out], axis=1)
    missing = np.isnan(features)
    if missing.all(axis=0).any():
        empty = [n for n in header if n not in left_out][int(np.argmax(missing.all(axis=0)))]
        raise ValueError(f"{where}: column {empty!r} has no value in any row, so missing values cannot be imputed")
    features = np.where(missing, np.nanmedian(features, axis=0), features)
    return Dataset(
        features=_standardised(features),
        labels=_classes(where, header, rows, _TARGET, ("0", "1")),
        num_classes=2,
        name="cervical-cancer" + (", with exams" if exams else ""),
        scaling="missing values set to the column's median, then each feature standardised to mean 0, standard "
        "deviation 1 over all rows",
        source="K. Fernandes, J. S. Cardoso and J. Fernandes, Transfer Learning with Partial Observability Applied to "
        "Cervical Cancer Screening, IbPRIA 2017; UCI Machine Learning Repository 383",
        licence="CC BY 4.0",
    )


def bank_marketing(part: str = "additional", *, path: Folder | None = None, download: bool = True) -> Dataset:
    """Bank Marketing (UCI 222): calls of a Portuguese bank, label 1 where the client subscribed to a term deposit.

    The ten numeric columns come first, standardised to mean 0 and (population) standard deviation 1 over all rows. They
    include `pdays` with its code 999 for "never contacted", and `duration`, which is known only after the call. The ten
    categorical columns follow, one-hot in the order of the file's documentation; "unknown" is a category. Rows keep the
    file's order.

    Args:
        part: "additional" (bank-additional.csv) for 4,119 rows, 451 of them positive, a random tenth of
            "additional-full" (bank-additional-full.csv) with 41,188 rows, 4,640 of them positive.
        path: a folder that holds bank-additional.zip, directly or in its subfolder `bank`. None searches LEAKCORE_DATA,
            then the user's cache, then the UCI archive.
        download: whether the archive may be asked when `path` is None.

    Returns:
        A `Dataset` of (rows, 63) float64 features.

    Raises:
        FileNotFoundError: says where the file was looked for.
        ValueError: names the column and the row of an entry that cannot be read, or the file whose SHA-256 is not the
            canonical one; or for another `part`.

    Example:
        >>> import tempfile
        >>> from leakcore import datasets
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     datasets.bank_marketing(path=folder)
        Traceback (most recent call last):
        FileNotFoundError: bank-additional.zip of bank was not found; ...
    """
    name = f"bank-{validate.one_of('additional', 'additional-full', part=part)}.csv"
    where = find(_BANK, path, download)
    inside = where / name
    header, rows = table_of(_zipped(where, name), inside, ";")
    if header != _BANK_COLUMNS:
        raise ValueError(f"{inside}: its columns must be {', '.join(_BANK_COLUMNS)}, got {', '.join(header)}")
    numeric = np.stack([_numbers(inside, header, rows, n) for n in header if n not in _CATEGORIES and n != "y"], axis=1)
    if np.isnan(numeric).any():
        row, column = (int(i) for i in np.argwhere(np.isnan(numeric))[0])
        named = [n for n in header if n not in _CATEGORIES and n != "y"][column]
        raise ValueError(f"{inside}: column {named!r}, row {row + 1}: {_MISSING!r} must be a finite number")
    one_hot = [
        np.eye(len(kinds.split()))[_classes(inside, header, rows, n, kinds.split())] for n, kinds in _CATEGORIES.items()
    ]
    return Dataset(
        features=np.concatenate([_standardised(numeric), *one_hot], axis=1),
        labels=_classes(inside, header, rows, "y", ("no", "yes")),
        num_classes=2,
        name=f"bank-marketing, {part}",
        scaling="numeric columns standardised to mean 0, standard deviation 1 over all rows; categorical columns "
        "one-hot",
        source="S. Moro, P. Cortez and P. Rita, A Data-Driven Approach to Predict the Success of Bank Telemarketing, "
        "Decision Support Systems 62, 2014; UCI Machine Learning Repository 222",
        licence="CC BY 4.0",
    )


def _zipped(where: Path, name: str) -> bytes:
    """The bytes of the file of that name, in any folder of a zip archive."""
    try:
        with opened_zip(where) as (archive, size):
            matches = [entry for entry in archive.infolist() if Path(entry.filename).name == name]
            if len(matches) != 1:
                raise ValueError(f"holds {f'{len(matches)} files named' if matches else 'no'} {name}")
            return read_entry(archive, matches[0], size)
    except ValueError as why:
        raise ValueError(f"{where}: {why}") from why


def _numbers(where: Path, header: list[str], rows: list[list[str]], name: str) -> np.ndarray:
    """The column as float64, NaN where the entry is missing."""
    at = header.index(name)
    out = np.empty(len(rows))
    for i, row in enumerate(rows):
        entry = row[at]
        try:
            out[i] = np.nan if entry == _MISSING else float(entry)
        except ValueError:
            out[i] = np.inf
        if np.isinf(out[i]) or (np.isnan(out[i]) and entry != _MISSING):
            raise ValueError(f"{where}: column {name!r}, row {i + 1}: {entry!r} must be a finite number") from None
    return out


def _classes(where: Path, header: list[str], rows: list[list[str]], name: str, allowed: Sequence[str]) -> np.ndarray:
    """The column as the position of each entry among those allowed."""
    at = header.index(name)
    place = {entry: i for i, entry in enumerate(allowed)}
    out = np.empty(len(rows), dtype=np.int64)
    for i, row in enumerate(rows):
        if row[at] not in place:
            raise ValueError(f"{where}: column {name!r}, row {i + 1}: {row[at]!r} must be one of {', '.join(allowed)}")
        out[i] = place[row[at]]
    return out


def _standardised(features: np.ndarray) -> np.ndarray:
    deviation = features.std(axis=0)
    constant = features.max(axis=0) == features.min(axis=0)
    centred = np.where(constant, 0.0, features - features.mean(axis=0))
    return np.asarray(centred / np.where(constant, 1.0, deviation))
