"""Results as tidy tables of pandas, which is imported when one is asked for."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

COLUMNS = ("quantity", "kind", "value", "low", "high", "confidence", "adjacency")


def to_frame(result: Any) -> Any:
    """One row for each value of a result. ImportError where pandas is not installed."""
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as why:
        raise ImportError("to_frame() needs pandas: pip install 'leakcore[pandas]'") from why
    value = np.asarray(result.value)
    nothing = (np.nan, np.nan)
    low, high = (np.broadcast_to(np.asarray(end), value.shape) for end in result.interval or nothing)
    columns = {
        "quantity": result.quantity,
        "kind": result.kind,
        "value": value.reshape(-1),
        "low": low.reshape(-1),
        "high": high.reshape(-1),
        "confidence": np.nan if result.confidence is None else result.confidence,
        "adjacency": result.adjacency,
    }
    if value.ndim == 0:
        index = pandas.RangeIndex(1)
    elif value.ndim == 1:
        index = pandas.RangeIndex(len(value), name="index")
    else:
        names = [f"index {axis}" for axis in range(value.ndim)]
        index = pandas.MultiIndex.from_product([range(size) for size in value.shape], names=names)
    return pandas.DataFrame(columns, index=index, columns=list(COLUMNS))
