"""What the axes of a kernel's arrays mean does not depend on how many there are: axis 0 of per-sample gradients is the
row, whatever follows is one gradient, and runs come first only where `runs=True` says so.

Arrays of two to five dimensions, in every layout and library, against the plain definition on flattened rows. What
privacy accounting relies on is tested by itself: leaving a row out moves a sum by at most C, and another row in its
place by at most 2C.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from leakcore import kernels
from leakcore.defenses import DPSGD
from tests.kernels.layouts import LAYOUTS, laid_out

C = 1.5
EXAMPLES = 150
examples = settings(
    derandomize=True, database=None, deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow]
)
thorough = settings(examples, max_examples=20 * EXAMPLES)

ROWS_FIRST = {"clip_and_noise", "clip_scores"}
"""Kernels of per-sample gradients: axis 0 is the row. The tests below are about them."""
LAST_AXES = {"solve_labels"}
"""Kernels whose problem is in the last axes, and whatever comes before counts problems."""
NO_ROWS = {
    "allocation_log_ratio", "allocation_tail", "arithmetic", "build_info", "generator", "get_include",
    "mixture_log_ratio", "mixture_tail", "num_threads", "philox4x32", "selftest", "set_num_threads",
    "standard_normal", "subseed", "thread_limit", "torch_generator", "torch_seeded", "uniform",
}  # fmt: skip
"""Functions that take no array of rows: numbers, shapes, and where results go."""
RECORDS = {"Allocation", "Clipped", "LabelSolution", "MixtureTail", "Scores", "Stream"}

shapes = st.lists(st.integers(1, 5), min_size=2, max_size=5)
seeds = st.integers(0, 2**32 - 1)
layouts = st.sampled_from(LAYOUTS)
libraries = st.sampled_from(["numpy", "torch", "dlpack"])
dtypes = st.sampled_from(["float32", "float64"])


class Elsewhere:
    """An array of another library, which is known by DLPack alone."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __dlpack__(self, **how: Any) -> Any:
        return self.values.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.values.__dlpack_device__()

    @classmethod
    def from_dlpack(cls, values: Any) -> Elsewhere:
        return cls(np.from_dlpack(values))


def handed_over(values: np.ndarray, library: str, layout: str) -> Any:
    torch = pytest.importorskip("torch") if library == "torch" else None
    values = laid_out(values, layout)
    if torch is not None:
        return torch.from_numpy(values.copy() if min(values.strides, default=0) < 0 else values)
    return Elsewhere(values) if library == "dlpack" else values


def plain(x: Any) -> np.ndarray:
    return x.values if isinstance(x, Elsewhere) else np.asarray(x)


def normals(seed: int, shape: Any, dtype: str = "float64") -> np.ndarray:
    """Some rows are far above C, some below."""
    values = np.random.default_rng(seed).normal(size=tuple(shape)) * np.float64(10.0) ** (seed % 4 - 1)
    return values.astype(dtype)


def clipped(params: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The definition, in float64: rows flattened, joined over parameters and clipped; and their norms before."""
    rows = np.concatenate([np.asarray(p, np.float64).reshape(len(p), -1) for p in params], axis=1)
    norms = np.sqrt((rows**2).sum(axis=1))
    return rows / np.maximum(norms / C, 1.0)[:, None], norms


def check_sum(seed: int, shape: list[int], dtype: str, layout: str, library: str) -> None:
    grads = normals(seed, shape, dtype)
    mask = np.random.default_rng(seed + 1).random(len(grads)) < 0.7
    result = kernels.clip_and_noise(handed_over(grads, library, layout), C, mask=mask if library == "numpy" else None)
    rows, norms = clipped([grads])
    wanted = rows[mask].sum(axis=0) if library == "numpy" else rows.sum(axis=0)
    assert plain(result.sum).shape == tuple(shape[1:])
    close = 1e-12 if dtype == "float64" else 2e-6
    np.testing.assert_allclose(plain(result.norms), norms, rtol=close)
    np.testing.assert_allclose(plain(result.sum).ravel(), wanted, rtol=0, atol=close * C * shape[0])
    seeded = kernels.clip_and_noise(handed_over(grads, library, layout), C, 0.5, seed=seed).sum
    noise = kernels.standard_normal((1, wanted.size), seed=seed, purpose="clip_noise")
    without = kernels.clip_and_noise(handed_over(grads, library, layout), C).sum
    np.testing.assert_allclose(
        plain(seeded).ravel(), plain(without).ravel() + 0.5 * C * noise[0], rtol=0, atol=5e-6 * C * shape[0]
    )
    out = np.full(shape[1:], np.nan, dtype)
    ready = noise.reshape(shape[1:]).astype(dtype)
    if library == "numpy":
        filled = kernels.clip_and_noise(laid_out(grads, layout), C, 0.5, noise=ready, out=out)
        assert filled.sum is out
        np.testing.assert_allclose(out, plain(seeded), rtol=0, atol=5e-6 * C * shape[0])


def check_scores(seed: int, shape: list[int], observations: int, dtype: str, layout: str, library: str) -> None:
    grads, observed = normals(seed, shape, dtype), normals(seed + 2, [observations, *shape[1:]], dtype)
    given_grads = handed_over(grads, library, layout)
    several = kernels.clip_scores(given_grads, handed_over(observed, library, layout), C)
    rows, norms = clipped([grads])
    wanted = observed.reshape(observations, -1).astype(np.float64) @ rows.T
    atol = (1e-11 if dtype == "float64" else 1e-5) * C * max(1.0, float(np.abs(observed).max()) * rows.shape[1])
    np.testing.assert_allclose(plain(several.dots), wanted, rtol=0, atol=atol)
    np.testing.assert_allclose(plain(several.clipped_norms), np.minimum(norms, C), rtol=3e-6)
    lone = kernels.clip_scores(given_grads, handed_over(observed[0], library, layout), C)
    np.testing.assert_allclose(plain(lone.dots), wanted[0], rtol=0, atol=atol)


def check_influence(seed: int, shape: list[int], layout: str) -> None:
    """A row that is left out moves the sum by at most C, another row by at most 2C, whatever the shape."""
    grads = 100 * normals(seed, shape)
    swapped = grads.copy()
    swapped[0] *= -1
    total, other, fewer = (
        np.asarray(kernels.clip_and_noise(laid_out(x, layout), C).sum) for x in (grads, swapped, grads[1:])
    )
    assert np.linalg.norm(total - other) <= 2 * C * (1 + 1e-12)
    assert np.linalg.norm(total - fewer) <= C * (1 + 1e-12)


@examples
@example(seed=3, shape=[10, 10, 20], dtype="float32", layout="contiguous", library="torch")
@given(seed=seeds, shape=shapes, dtype=dtypes, layout=layouts, library=libraries)
def test_a_sum_is_that_of_flattened_rows(seed: int, shape: list[int], dtype: str, layout: str, library: str) -> None:
    check_sum(seed, shape, dtype, layout, library)


@examples
@given(seed=seeds, shape=shapes, observations=st.integers(1, 5), dtype=dtypes, layout=layouts, library=libraries)
def test_scores_are_the_scores_of_flattened_rows(
    seed: int, shape: list[int], observations: int, dtype: str, layout: str, library: str
) -> None:
    check_scores(seed, shape, observations, dtype, layout, library)


@examples
@example(seed=3, shape=[10, 10, 20], layout="contiguous")
@example(seed=3, shape=[8, 3, 5], layout="contiguous")
@given(seed=seeds, shape=shapes, layout=layouts)
def test_a_row_moves_the_sum_by_at_most_its_share(seed: int, shape: list[int], layout: str) -> None:
    check_influence(seed, shape, layout)


@examples
@given(
    seed=seeds, rows=st.integers(1, 5), inner=st.lists(st.lists(st.integers(1, 4), max_size=4), min_size=1, max_size=4),
    layout=layouts, library=libraries,
)  # fmt: skip
def test_a_list_is_clipped_by_the_joint_norm(
    seed: int, rows: int, inner: list[list[int]], layout: str, library: str
) -> None:
    params = [normals(seed + i, [rows, *shape]) for i, shape in enumerate(inner)]
    result = kernels.clip_and_noise([handed_over(p, library, layout) for p in params], C)
    wanted, norms = clipped(params)
    assert [plain(s).shape for s in result.sum] == [tuple(shape) for shape in inner]
    joined = np.concatenate([plain(s).ravel() for s in result.sum])
    np.testing.assert_allclose(joined, wanted.sum(axis=0), rtol=0, atol=1e-11)
    np.testing.assert_allclose(plain(result.norms), norms, rtol=1e-12)


@examples
@given(seed=seeds, shape=st.lists(st.integers(1, 4), min_size=3, max_size=5), several=st.booleans(), layout=layouts)
def test_each_run_is_the_call_on_its_rows(seed: int, shape: list[int], several: bool, layout: str) -> None:
    grads, observed = normals(seed, shape), normals(seed + 2, [shape[0], 2, *shape[2:]])
    mask = np.random.default_rng(seed).random(shape[:2]) < 0.6
    both = [laid_out(grads, layout), laid_out(grads[..., :1], layout)] if several else laid_out(grads, layout)
    result = kernels.clip_and_noise(both, C, 1.0, runs=True, seed=seed, mask=mask, first_run=7)
    scores = kernels.clip_scores(laid_out(grads, layout), laid_out(observed, layout), C, runs=True)
    lone = kernels.clip_scores(grads, observed[:, 1], C, runs=True)
    for r in range(shape[0]):
        own = [grads[r], grads[r, ..., :1]] if several else grads[r]
        alone = kernels.clip_and_noise(own, C, 1.0, seed=seed, mask=mask[r], first_run=7 + r)
        for got, wanted in zip(*((s.sum if several else [s.sum]) for s in (result, alone)), strict=True):
            np.testing.assert_array_equal(got[r], wanted)
        np.testing.assert_array_equal(result.norms[r], alone.norms)
        np.testing.assert_array_equal(scores.dots[r], kernels.clip_scores(grads[r], observed[r], C).dots)
        np.testing.assert_array_equal(lone.dots[r], scores.dots[r, 1])


@examples
@given(seed=seeds, lead=st.lists(st.integers(1, 3), max_size=3), size=st.tuples(st.integers(1, 4), st.integers(1, 5)))
def test_systems_are_in_the_last_axes(seed: int, lead: list[int], size: tuple[int, int]) -> None:
    jacobian, gradient = normals(seed, [*lead, *size]), normals(seed + 1, [*lead, size[1]])
    together = kernels.solve_labels(jacobian, gradient)
    for where in np.ndindex(*lead):
        alone = kernels.solve_labels(jacobian[where], gradient[where])
        np.testing.assert_array_equal(together.residual[where], alone.residual)
        np.testing.assert_array_equal(together.identifiable[where], alone.identifiable)


@settings(examples, max_examples=40)
@given(shape=shapes, runs=st.booleans())
def test_tensors_without_values_have_the_shapes_of_results(shape: list[int], runs: bool) -> None:
    torch = pytest.importorskip("torch", minversion="2.4")
    from torch._subclasses import FakeTensorMode

    if runs:
        shape = [2, *shape][:5]
    grads = torch.ones(shape)
    one = (grads[:, 0] if runs else grads[0]).contiguous()

    def called(x: Any, o: Any) -> list[tuple[int, ...]]:
        done = kernels.clip_and_noise(x, C, runs=runs)
        several = kernels.clip_and_noise([x, x], C, runs=runs)
        scores = kernels.clip_scores(x, o, C, runs=runs), kernels.clip_scores(x, x, C, runs=runs)
        results = [done.sum, done.norms, *several.sum, several.norms]
        results += [array for s in scores for array in (s.dots, s.clipped_norms)]
        return [tuple(r.shape) for r in results]

    with FakeTensorMode() as mode:
        fake = called(mode.from_tensor(grads), mode.from_tensor(one))
    assert fake == called(grads, one)


@pytest.mark.parametrize("library", ["numpy", "torch", "dlpack"])
@pytest.mark.parametrize("shape", [(), (5,), (0,)])
def test_an_array_without_rows_and_gradients_is_refused(shape: tuple[int, ...], library: str) -> None:
    grads = handed_over(np.ones(shape), library, "contiguous")
    for call in (lambda: kernels.clip_and_noise(grads, C), lambda: kernels.clip_scores(grads, grads, C)):
        with pytest.raises(ValueError, match=r"`grads` must have shape \(B, ...\), rows before their gradients, got"):
            call()
    with pytest.raises(ValueError, match=r"`grads` must have shape \(runs, B, ...\), as runs=True says, got"):
        kernels.clip_and_noise(grads, C, runs=True)


def test_what_does_not_fit_is_refused_by_name() -> None:
    grads = np.ones((4, 3, 5))
    with pytest.raises(ValueError, match=r"`grads\[1\]` must have the 4 rows of grads\[0\], got 3 rows"):
        kernels.clip_and_noise([grads, np.ones((3, 2))], C)
    with pytest.raises(ValueError, match=r"`grads\[1\]` must have the 4 runs and 3 rows of grads\[0\], got 4 runs and"):
        kernels.clip_and_noise([grads, np.ones((4, 2, 2))], C, runs=True)
    with pytest.raises(ValueError, match=r"`grads\[1\]` must have shape \(B, ...\), .*, got \(\)"):
        kernels.clip_and_noise([grads, np.ones(())], C)
    for name in ("noise", "out"):
        with pytest.raises(ValueError, match=rf"`{name}` must have shape \(3, 5\), got \(4, 5\)"):
            kernels.clip_and_noise(grads, C, **{name: np.ones((4, 5))})
    with pytest.raises(ValueError, match=r"`mask` must have shape \(4,\), got \(4, 3\)"):
        kernels.clip_and_noise(grads, C, mask=np.ones((4, 3), bool))
    for shape in ((15,), (2, 15), (5, 3), (4, 3), (2, 2, 3, 5)):
        with pytest.raises(ValueError, match=r"`observed` must have shape \(3, 5\) or \(M, 3, 5\), for grads is"):
            kernels.clip_scores(grads, np.ones(shape), C)
    for runs in (1, None, "yes"):
        with pytest.raises(TypeError, match="`runs` must be True or False, got"):
            kernels.clip_and_noise(grads, C, runs=runs)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="`runs` must be True or False, got"):
            kernels.clip_scores(grads, grads, C, runs=runs)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`gradients` must have shape \(B, D\), one row per sample, got \(4, 3, 5\)"):
        DPSGD(C, 0.0).apply(grads)


def test_every_public_kernel_says_what_its_axes_are() -> None:
    listed = ROWS_FIRST | LAST_AXES | NO_ROWS | RECORDS
    public = set(kernels.__all__)
    assert public - listed == set(), "say in this file what the axes of a new kernel mean"
    assert listed - public == set(), "these are no longer there"
    for name in NO_ROWS | LAST_AXES:
        taken = set(inspect.signature(getattr(kernels, name)).parameters)
        assert not taken & {"grads", "rows", "observed"}, name
    for name in ROWS_FIRST:
        assert "runs" in inspect.signature(getattr(kernels, name)).parameters, name


@pytest.mark.slow
@thorough
@given(seed=seeds, shape=shapes, observations=st.integers(1, 9), dtype=dtypes, layout=layouts, library=libraries)
def test_many_shapes(seed: int, shape: list[int], observations: int, dtype: str, layout: str, library: str) -> None:
    wider = [*shape[:-1], shape[-1] * (1 + seed % 400 // math.prod(shape[1:-1]))]
    check_sum(seed, wider, dtype, layout, library)
    check_scores(seed, wider, observations, dtype, layout, library)
    check_influence(seed, wider, layout)
