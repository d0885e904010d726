"""IMDB reviews, embedded word by word with fixed random vectors: a text set that needs no pretrained embedding."""

from __future__ import annotations

import dataclasses
import os
import re
import zlib
from pathlib import Path

import numpy as np

from leakcore import kernels
from leakcore._base import validate
from leakcore._base.archives import read_gzip
from leakcore._base.reading import table_of
from leakcore._base.text import names_of, printable
from leakcore.datasets.dataset import Dataset, RemoteFile, find

_SUBSET = RemoteFile("imdb", "imdb_subset.csv.gz", "b20efe106367bdc1628f4da2c069457cc00e5b0aca4a3cd1021c2febe8cb80a5")
_COLUMNS = ("text", "label", "split")
_WORDS = re.compile(r"[a-z']+")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Reviews(Dataset):
    """A `Dataset` of texts, which also knows the length of each text.

    Attributes:
        lengths: (rows,) int64, the number of words of each text, including those that were not embedded.

    Raises:
        ValueError: if `lengths` is not as long as `labels`; otherwise as `Dataset`.
        TypeError: if `lengths` are not integers; otherwise as `Dataset`.

    Example:
        >>> import numpy as np
        >>> from leakcore import datasets
        >>> texts = datasets.Reviews(
        ...     features=np.zeros((2, 6)), labels=[0, 1], num_classes=2, name="two texts", scaling="none",
        ...     source="generated", licence="CC0", shape=(2, 3), lengths=[3, 17],
        ... )
        >>> int(texts.lengths.max())
        17
    """

    lengths: np.ndarray

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = validate.even_array(lengths=self.lengths)
        if not np.issubdtype(lengths.dtype, np.integer):
            raise TypeError(f"`lengths` must be integers, got {lengths.dtype}")
        if lengths.shape != self.labels.shape:
            raise ValueError(f"`lengths` must have the shape of labels, {self.labels.shape}, got {lengths.shape}")
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
    """IMDB reviews, label 1 where positive, from a local extract of 500 reviews of each label in each split.

    A word is a run of letters and apostrophes in lower case; tags are left out. Each word has a fixed random vector
    with entries N(0, 1/embedding), drawn from the checksum of the word, so it is the same everywhere. Positions after
    the end of a review are zero. Rows keep the file's order, which is sorted by label. The file is never downloaded.

    Args:
        split: "train" or "test".
        words: how many words of each review are embedded.
        embedding: numbers in the vector of a word.
        path: a folder that holds imdb_subset.csv.gz, directly or in its subfolder `imdb`. None searches LEAKCORE_DATA,
            then the user's cache.

    Returns:
        A `Reviews` of (1000, embedding·words) float32 features, with `shape` (embedding, words).

    Raises:
        FileNotFoundError: says where the file was looked for.
        ValueError: if the SHA-256 of the file is not that of the extract, or for another `split`.

    Example:
        >>> import tempfile
        >>> from leakcore import datasets
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     datasets.imdb(path=folder)
        Traceback (most recent call last):
        FileNotFoundError: imdb_subset.csv.gz of imdb was not found; ...
    """
    which = validate.one_of("train", "test", split=split)
    count, size = validate.integer(1, None, words=words), validate.integer(1, None, embedding=embedding)
    where = find(_SUBSET, path, download=False)
    texts, labels = _read(where, which)
    vectors: dict[str, np.ndarray] = {}
    features = np.zeros((len(texts), size, count), np.float32)
    lengths = np.empty(len(texts), np.int64)
    for i, text in enumerate(texts):
        tokens = _WORDS.findall(text.lower().replace("<br />", " "))
        lengths[i] = len(tokens)
        for j, word in enumerate(tokens[:count]):
            if word not in vectors:
                # Of the word alone, not of the seed of a run.
                own = kernels.generator(0, kernels.Stream.WORD_VECTORS, row=zlib.crc32(word.encode()))
                vectors[word] = (own.normal(size=size) / np.sqrt(size)).astype(np.float32)
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


def _read(where: Path, split: str) -> tuple[list[str], np.ndarray]:
    header, rows = table_of(read_gzip(where), where, ",")
    if any(header.count(name) != 1 for name in _COLUMNS):
        raise ValueError(f"{printable(where)}: its columns must be {', '.join(_COLUMNS)}, got {names_of(header)}")
    text, label, part = (header.index(name) for name in ("text", "label", "split"))
    chosen = [row for row in rows if row[part] == split]
    labels = [int(row[label] in ("1", "pos")) for row in chosen]
    return [row[text] for row in chosen], np.array(labels, np.int64)
