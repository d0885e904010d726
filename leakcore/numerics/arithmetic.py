"""Arithmetic that all chapters of numerics share: logarithms that keep their digits, and sums in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import special

_GAUSS_NODES, _GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(8)


class AccuracyError(ArithmeticError):
    """A number could not be computed to the accuracy that is promised; the message says what to use instead."""


def bisect(low: float, high: float, is_low: Callable[[float], bool]) -> tuple[float, float]:
    """The neighbouring floats of [low, high] between which `is_low` turns from true to false."""
    while low < (middle := 0.5 * (low + high)) < high:
        low, high = (middle, high) if is_low(middle) else (low, middle)
    return low, high


def dot(a: np.ndarray, b: np.ndarray) -> float:
    """Σ a_i·b_i of two float64 arrays of one dimension, by NumPy's pairwise sum."""
    return float((a * b).sum())


def log1mexp(x: np.ndarray) -> np.ndarray:
    """log(1 − e^x) for x < 0, accurate at both ends; −inf at 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(x > -0.6931, np.log(-np.expm1(x)), np.log1p(-np.exp(x))))


def log1p(z: np.ndarray) -> np.ndarray:
    """log(1 + z) of complex z, relative to its own size also in the real part, which NumPy's is not."""
    excess = z.real * (2.0 + z.real) + z.imag**2
    near = excess > -0.5
    with np.errstate(divide="ignore"):
        real = np.where(near, 0.5 * np.log1p(np.where(near, excess, 0.0)), np.log(np.abs(1.0 + z)))
    out = np.empty(z.shape, dtype=np.complex128)
    out.real, out.imag = real, np.arctan2(z.imag, 1.0 + z.real)
    return out


def times(count: int, z: np.ndarray) -> np.ndarray:
    """count·z, part by part: −∞ in one part leaves the other alone."""
    out = np.empty(z.shape, dtype=np.complex128)
    out.real, out.imag = float(count) * z.real, float(count) * z.imag
    return out


def log_masses(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """log(Φ(b) − Φ(a)), a < b, to nearly full relative accuracy."""
    flip = a + b < 0.0
    a, b = np.where(flip, -b, a), np.where(flip, -a, b)
    log_a = special.log_ndtr(-a)
    with np.errstate(divide="ignore"):
        wide = log_a + np.log(-np.expm1(special.log_ndtr(-b) - log_a))
    width = b - a
    narrow = (width < 0.6) & (np.maximum(np.abs(a), np.abs(b)) * width < 1.0)
    at, half = np.where(narrow, 0.5 * (a + b), 0.0), np.where(narrow, 0.5 * width, 0.1)
    # Φ(b) − Φ(a) cancels in a narrow cell: integrate φ relative to its value in the middle.
    part = np.zeros_like(at)
    for node, weight in zip(_GAUSS_NODES, _GAUSS_WEIGHTS, strict=True):
        step = half * node
        part += weight * np.exp(-step * (at + 0.5 * step))
    fine = -0.5 * at * at - 0.5 * math.log(2.0 * math.pi) + np.log(half * part)
    return np.asarray(np.where(narrow, fine, wide))


def log_normal_masses(edges: np.ndarray) -> np.ndarray:
    """log of a standard normal variate's mass between neighbouring edges; −∞ where they coincide."""
    out = np.full(len(edges) - 1, -np.inf)
    wide = edges[1:] > edges[:-1]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        out[wide] = log_masses(edges[:-1][wide], edges[1:][wide])
    return out


def log_differences(log_below: np.ndarray, log_above: np.ndarray) -> np.ndarray:
    """log of the mass between neighbouring edges, from the logarithms of what lies below each and above each. The
    smaller of the two is the one that is subtracted, so that neither tail loses its digits."""
    with np.errstate(invalid="ignore", divide="ignore"):
        low = log_below[1:] + log1mexp(np.minimum(log_below[:-1] - log_below[1:], 0.0))
        high = log_above[:-1] + log1mexp(np.minimum(log_above[1:] - log_above[:-1], 0.0))
    out = np.where(log_below[1:] < log_above[:-1], low, high)
    return np.where(np.isnan(out), -np.inf, out)
