"""IMDB reviews, embedded word by word with fixed random vectors: a text set that needs no pretrained embedding."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import zlib
from pathlib import Path

import numpy as np

from leakcore import kernels
from leakcore._base import validate as check
from leakcore._base.files.csv_file import rows_of
from leakcore._base.files.gzip_file import read_gzip
from leakcore._base.printable import names_of, printable
from leakcore.datasets.dataset import Dataset
from leakcore.datasets.files import RemoteFile, find

_SUBSET = RemoteFile("imdb", "imdb_subset.csv.gz", "b20efe106367bdc1628f4da2c069457cc00e5b0aca4a3cd1021c2febe8cb80a5")
_COLUMNS = ("text", "label", "split")
_WORDS = re.compile(r"[a-z']+")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Reviews(Dataset):
    """A `Dataset` of texts. lengths: (rows,) int64, words of each review, of which the first ones are embedded."""

    lengths: np.ndarray

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = check.even_array(lengths=self.lengths)
        if not np.issubdtype(lengths.dtype, np.integer):
            raise TypeError(f"lengths.dtype={lengths.dtype}: must be an integer type")
        if lengths.shape != self.labels.shape:
            raise ValueError(f"lengths.shape={lengths.shape}: must be that of labels, {self.labels.shape}")
        lengths = lengths.astype(np.int64)
        lengths.flags.writeable = False
        object.__setattr__(self, "lengths", lengths)

    def _rows(self, index: np.ndarray) -> Reviews:
        return dataclasses.replace(
            self, features=self.features[index], labels=self.labels[index], lengths=self.lengths[index]
        )


def imdb(
    split: str = "train", *, words: int = 100, embedding: int = 50, path: str | os.PathLike[str] | None = None
) -> Reviews:
    """IMDB reviews, label 1 where positive: a local extract, imdb_subset.csv.gz, of 500 each per split. No download.

    Features are (embedding, words) float32, flattened: the vectors of the first `words` words, N(0, 1/embedding)
    entries drawn from the word's own checksum, so a word has one vector everywhere; zeros after the end. A word is a
    run of letters and apostrophes, in lower case, tags left out. split: "train" or "test". Rows keep the file's order,
    in which labels are sorted.

    path: a folder that holds the file, or a folder imdb of it; None: LEAKCORE_DATA, then the user's cache.
    FileNotFoundError says where it was looked for; ValueError where its SHA-256 is not the extract's.
    """
    which = check.one_of("train", "test", split=split)
    count, size = check.integer(1, None, words=words), check.integer(1, None, embedding=embedding)
    where = find(_SUBSET, path, download=False)
    texts, labels = _read(where, which)
    vectors: dict[str, np.ndarray] = {}
    features = np.zeros((len(texts), size, count), np.float32)
    lengths = np.empty(len(texts), np.int64)
    for i, text in enumerate(texts):
        found = _WORDS.findall(text.lower().replace("<br />", " "))
        lengths[i] = len(found)
        for j, word in enumerate(found[:count]):
            if word not in vectors:
                drawn = _vector(word, size)
                vectors[word] = (drawn / np.sqrt(size)).astype(np.float32)
            features[i, :, j] = vectors[word]
    return Reviews(
        features=features.reshape(len(texts), -1),
        labels=labels,
        num_classes=2,
        name=f"imdb {which} (subset)",
        scaling=f"the first {count} words, each a fixed random vector of {size} numbers",
        source="A. Maas et al., Learning Word Vectors for Sentiment Analysis, ACL 2011",
        licence="none stated; research use",
        shape=(size, count),
        lengths=lengths,
    )


def _vector(word: str, size: int) -> np.ndarray:
    """(size,) standard normals: the word's own, whatever the seed of a run."""
    return kernels.generator(0, kernels.Stream.WORD_VECTORS, row=zlib.crc32(word.encode())).normal(size=size)


def _read(where: Path, split: str) -> tuple[list[str], np.ndarray]:
    rows = rows_of(io.StringIO(read_gzip(where).decode(), newline=""), ",")
    header = next(rows, [])
    if any(header.count(name) != 1 for name in _COLUMNS):
        raise ValueError(f"{printable(where)}: its columns are {names_of(header)}, must hold {', '.join(_COLUMNS)}")
    chosen: list[dict[str, str]] = []
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise ValueError(f"{printable(where)}: row {number} has {len(row)} entries, must have {len(header)}")
        entry = dict(zip(header, row, strict=True))
        if entry["split"] == split:
            chosen.append(entry)
    labels = [int(entry["label"] in ("1", "pos")) for entry in chosen]
    return [entry["text"] for entry in chosen], np.array(labels, np.int64)
