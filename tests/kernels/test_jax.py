"""JAX arrays in and out without a copy, in a process of their own: JAX's threads and fork, which other tests do, do not
go together. Needs JAX (CI installs it); the kernels do not."""

import importlib.util
import os
import subprocess
import sys
import textwrap

import pytest

from tests.tolerances import HANG

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs JAX")

PRELUDE = """
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
from leakcore import kernels
rng = np.random.default_rng(7)
x = rng.normal(size=(6, 40))
def same(found, wanted):
    assert isinstance(found, jax.Array), type(found)
    np.testing.assert_array_equal(np.asarray(found), wanted, strict=True)
"""

CASES = {
    "clip_and_noise": """
        for dtype in (jnp.float16, jnp.float32, jnp.float64):
            g = jnp.asarray(x, dtype)
            ours = kernels.clip_and_noise(np.asarray(g), 1.0, 0.5, seed=3)
            result = kernels.clip_and_noise(g, 1.0, 0.5, seed=3)
            same(result.sum, ours.sum)
            same(result.norms, ours.norms)
        """,
    "bfloat16": """
        g = jnp.asarray(x, jnp.bfloat16)
        wanted = kernels.clip_and_noise(np.asarray(g.astype(jnp.float32)), 1.0)
        for given in (g, np.asarray(g)):
            result = kernels.clip_and_noise(given, 1.0)
            np.testing.assert_allclose(np.asarray(result.sum), wanted.sum, rtol=1e-5, atol=1e-6)
        same(kernels.clip_and_noise(g, 1.0).norms, np.asarray(result.norms))
        """,
    "a list of parameters": """
        parts = [jnp.asarray(x, jnp.float32), jnp.asarray(x[:, :12], jnp.float32).reshape(6, 3, 4)]
        wanted = kernels.clip_and_noise([np.asarray(p) for p in parts], 1.0)
        found = kernels.clip_and_noise(parts, 1.0)
        for a, b in zip(found.sum, wanted.sum):
            same(a, b)
        """,
    "clip_scores": """
        wanted = kernels.clip_scores(x, x[:2], 1.0)
        found = kernels.clip_scores(jnp.asarray(x), jnp.asarray(x[:2]), 1.0)
        same(found.dots, wanted.dots)
        same(found.clipped_norms, wanted.clipped_norms)
        """,
    "solve_labels": """
        c, g = rng.normal(size=(2, 5, 20)), rng.normal(size=(2, 20))
        wanted, found = kernels.solve_labels(c, g), kernels.solve_labels(jnp.asarray(c), jnp.asarray(g))
        for name in ("residual", "leverage", "identifiable", "error", "rank"):
            same(getattr(found, name), getattr(wanted, name))
        """,
    "mixture": """
        mechanism = dict(noise_multiplier=1.0, sample_rate=0.1, steps=3)
        same(kernels.mixture_log_ratio(9, like=jnp.zeros(1), **mechanism), kernels.mixture_log_ratio(9, **mechanism))
        wanted = kernels.mixture_tail(9, [0.0, 0.1], **mechanism)
        found = kernels.mixture_tail(9, [0.0, 0.1], like=jnp.zeros(1), **mechanism)
        same(found.counts, wanted.counts)
        """,
    "no copy": """
        g = jnp.asarray(x)
        from leakcore.kernels import arrays as _arrays
        assert _arrays.read("k", "g", g).values.__array_interface__["data"][0] == g.unsafe_buffer_pointer()
        """,
    "results are not copied": """
        from leakcore.kernels import backends as _backends
        handed, give = [], _backends.Host.give
        def watched(self, made):
            given = give(self, made)
            handed.append(given.unsafe_buffer_pointer() == made.__array_interface__["data"][0])
            return given
        _backends.Host.give = watched
        mechanism = dict(noise_multiplier=1.0, sample_rate=0.1, steps=3)
        for dtype in (jnp.float16, jnp.float32, jnp.float64):
            for columns in (1, 7, 40, 100_003):
                g = jnp.ones((3, columns), dtype)
                kernels.clip_and_noise(g, 1.0, 0.5, seed=3)
                kernels.clip_and_noise([g, g], 1.0)
                kernels.clip_scores(g, g[:2], 1.0)
                kernels.clip_scores(g, g[0], 1.0)
                kernels.mixture_log_ratio(columns, like=g, **mechanism)
            kernels.solve_labels(jnp.asarray(rng.normal(size=(5, 20)), dtype), jnp.ones(20, dtype))
        assert len(handed) > 100, len(handed)
        assert all(handed), handed.count(False)
        """,
    "a traced array is refused by name": """
        try:
            jax.jit(lambda g: kernels.clip_and_noise(g, 1.0).sum)(jnp.asarray(x))
        except TypeError as error:
            assert "a DLPack array, got DynamicJaxprTracer" in str(error), error
        else:
            raise AssertionError("not refused")
        """,
}


@pytest.mark.parametrize("case", CASES)
def test_jax(case: str) -> None:
    script = PRELUDE + textwrap.dedent(CASES[case])
    # On the CPU also where JAX has a GPU: results are compared bit for bit, and addresses.
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG, check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
