"""`leakcore.jax.scores` in a process of its own: JAX's threads and fork, which other tests do, do not go together."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs JAX")
PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/jax.md"

PRELUDE = """
import dataclasses, doctest
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
import leakcore
from leakcore.numerics import step_log_ratio
SETTINGS = {"max_grad_norm": 0.7, "noise_multiplier": 1.3, "sample_rate": 0.2}

def of(n, dtype=jnp.float64, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"w": (3, 2), "b": (4,), "c": ()}
    grads = {k: jnp.asarray(rng.normal(size=(n, *s)) * (1 if k == "w" else 0.1), dtype) for k, s in shapes.items()}
    noise = {k: jnp.asarray(rng.normal(size=s), dtype) for k, s in shapes.items()}
    return grads, noise, jnp.asarray(rng.random(n) < 0.5)

def flat(tree, n=None):
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(
        [leaf.reshape(-1) if n is None else leaf.reshape(n, int(np.prod(leaf.shape[1:]))) for leaf in leaves], axis=-1)

def truth(grads, noise, inside):
    n, C = len(inside), SETTINGS["max_grad_norm"]
    g, z = flat(grads, n), flat(noise)
    norms = np.linalg.norm(g, axis=1)
    c = g * np.minimum(1, C / norms)[:, None]
    inside = np.asarray(inside)
    alone = z + c * inside[:, None]
    together = c @ (z + c[inside].sum(0))
    noise_std, lengths = SETTINGS["noise_multiplier"] * C, np.linalg.norm(c, axis=1)
    return {
        "membership_sum": together / C**2, "pair_sum": alone @ c.T / C**2,
        "membership_likelihood": step_log_ratio(together, lengths, noise_std, 0.2),
        "pair_likelihood": step_log_ratio(alone @ c.T, lengths, noise_std, 0.2),
        "times_seen": inside.astype(int), "clipped_share": (norms >= C * (1 - 1e-6)).astype(float),
    }

def same(scores, expected, error):
    for name, value in expected.items():
        actual = np.asarray(getattr(scores, name), np.float64)
        np.testing.assert_allclose(actual, value, rtol=0, atol=error, err_msg=name)

def scored(grads, noise, inside):
    return leakcore.jax.scores(grads, noise, inside, **SETTINGS)
"""

CASES = {
    "eagerly and under jit, for any number of candidates": """
        for n in (0, 1, 2, 17):
            grads, noise, inside = of(n)
            for function in (scored, jax.jit(scored)):
                result = function(grads, noise, inside)
                same(result, truth(grads, noise, inside), 1e-12)
                assert result.pair_sum.shape == (n, n), result.pair_sum.shape
        """,
    "every floating type, and mixed ones": """
        for dtype, error in ((jnp.float64, 1e-12), (jnp.float32, 2e-6), (jnp.float16, 2e-6), (jnp.bfloat16, 2e-6)):
            grads, noise, inside = of(9, dtype)
            result = jax.jit(scored)(grads, noise, inside)
            assert result.membership_sum.dtype == (jnp.float64 if dtype == jnp.float64 else jnp.float32)
            same(result, truth(grads, noise, inside), error)  # of the numbers as they were rounded
            mixed = {**grads, "b": grads["b"].astype(jnp.float32)}
            same(jax.jit(scored)(mixed, noise, inside), truth(mixed, noise, inside), 2e-6)
        """,
    "pytrees of tuples, dictionaries and data classes": """
        @jax.tree_util.register_dataclass
        @dataclasses.dataclass
        class Layer:
            w: jax.Array
            b: jax.Array
        grads, noise, inside = of(5)
        expected = truth(grads, noise, inside)
        form = lambda tree: (Layer(w=tree["b"], b=tree["c"]), {"z": (tree["w"],)})
        same(jax.jit(scored)(form(grads), form(noise), inside), expected, 1e-12)
        """,
    "one call of vmap for a batch, also of noise alone, and inside scan": """
        grads, noise, inside = of(6)
        several = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf, 0.1 * leaf]), grads)
        batched = jax.jit(jax.vmap(scored, in_axes=(0, None, None)))(several, noise, inside)
        for k in range(3):
            one = jax.tree.map(lambda leaf: leaf[k], several)
            same(jax.tree.map(lambda value: value[k], batched), truth(one, noise, inside), 1e-12)
        noises = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), noise)
        batched = jax.vmap(jax.vmap(scored, in_axes=(None, 0, None)), in_axes=(0, None, None))(several, noises, inside)
        assert batched.pair_sum.shape == (3, 2, 6, 6)
        same(jax.tree.map(lambda value: value[2, 1], batched),
             truth(jax.tree.map(lambda leaf: leaf[2], several), jax.tree.map(jnp.negative, noise), inside), 1e-12)
        total, _ = jax.lax.scan(
            lambda sums, z: (jax.tree.map(jnp.add, sums, scored(grads, z, inside)), None),
            jax.tree.map(jnp.zeros_like, scored(grads, noise, inside)), noises,
        )
        two = [truth(grads, jax.tree.map(lambda leaf: leaf[k], noises), inside) for k in range(2)]
        same(total, {name: two[0][name] + two[1][name] for name in two[0]}, 1e-12)
        """,
    "σ and q may be traced": """
        grads, noise, inside = of(4)
        function = jax.jit(lambda s, q: leakcore.jax.scores(
            grads, noise, inside, max_grad_norm=0.7, noise_multiplier=s, sample_rate=q))
        same(function(1.3, 0.2), truth(grads, noise, inside), 1e-12)
        whole = function(1.3, 1.0)
        assert np.isfinite(whole.membership_likelihood).all()
        """,
    "a gradient that is not finite makes its scores NaN, and others' only where it is in the batch": """
        grads, noise, inside = of(4)
        grads["b"] = grads["b"].at[2, 0].set(jnp.nan)
        alone = scored(grads, noise, jnp.zeros(4, bool))
        assert np.isnan(alone.membership_sum).tolist() == [False, False, True, False]
        within = scored(grads, noise, jnp.arange(4) == 2)
        assert np.isnan(within.membership_sum).all()
        """,
    "a zero gradient and a long one": """
        grads, noise, _ = of(3)
        scale = jnp.array([0.0, 1.0, 1e8])
        grads = jax.tree.map(lambda leaf: leaf * scale.reshape(3, *[1] * (leaf.ndim - 1)), grads)
        inside = jnp.ones(3, bool)
        with np.errstate(divide="ignore", invalid="ignore"):
            expected = {k: v for k, v in truth(jax.tree.map(lambda leaf: leaf[1:], grads), noise, inside[1:]).items()}
        result = scored(grads, noise, inside)
        np.testing.assert_allclose(result.membership_sum[1:], expected["membership_sum"], rtol=1e-9)
        assert result.membership_sum[0] == 0
        """,
    "what is refused": """
        grads, noise, inside = of(4)
        def refused(kind, text, call):
            try:
                call()
            except kind as error:
                assert text in str(error), error
            else:
                raise AssertionError(f"not refused: {text}")
        more = {"noise_multiplier": 1.0, "sample_rate": 0.1}
        slope = jax.grad(lambda g: scored(g, noise, inside).membership_sum.sum())
        refused(TypeError, "cannot be differentiated", lambda: slope(grads))
        refused(TypeError, "`max_grad_norm` must be a number that is known", lambda: jax.jit(
            lambda c: leakcore.jax.scores(grads, noise, inside, max_grad_norm=c, **more))(1.0))
        refused(ValueError, "`max_grad_norm` must be", lambda: leakcore.jax.scores(
            grads, noise, inside, max_grad_norm=0.0, **more))
        refused(ValueError, "`inside` must be bool of shape (4,)", lambda: scored(grads, noise, inside[:3]))
        refused(ValueError, "`inside` must be bool of shape (4,)", lambda: scored(grads, noise, inside.astype(int)))
        refused(ValueError, "`noise` must be a pytree like `grads`", lambda: scored(grads, {"w": noise["w"]}, inside))
        refused(ValueError, "`noise` must have leaves like one gradient, (3, 2), got (2, 3)", lambda: scored(
            grads, {**noise, "w": noise["w"].T}, inside))
        refused(ValueError, "`grads` must have one first dimension", lambda: scored(
            {**grads, "b": grads["b"][:3]}, noise, inside))
        refused(ValueError, "got an empty pytree", lambda: scored({}, {}, inside))
        refused(TypeError, "of a floating type, got int64", lambda: scored(
            {**grads, "b": grads["b"].astype(int)}, noise, inside))
        """,
    "an error inside the target is the error of the program": """
        scored(*of(2))  # registers the target
        shapes = (jax.ShapeDtypeStruct((1, 2), jnp.float32), jax.ShapeDtypeStruct((2,), jnp.float32))
        call = jax.ffi.ffi_call("leakcore_clip_scores", shapes)
        try:
            jax.block_until_ready(call(jnp.ones((2, 3), int), jnp.ones((1, 3), int), max_grad_norm=np.float64(1)))
        except Exception as error:
            assert "arrays must be of float16, float32, float64, bfloat16, got XLA's type" in str(error), error
        else:
            raise AssertionError("not refused")
        """,
    "32-bit numbers, as JAX has them by default, and the examples": """
        jax.config.update("jax_enable_x64", False)
        grads, noise, inside = of(9)
        assert grads["w"].dtype == jnp.float32
        same(jax.jit(scored)(grads, noise, inside), truth(grads, noise, inside), 2e-6)
        import leakcore.jax.scores
        tried = doctest.testmod(sys.modules["leakcore.jax.scores"])
        assert tried.attempted >= 6 and not tried.failed, tried
        """,
}


def _run(script: str, timeout: int = 200) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=timeout, check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_scores() -> None:
    """All cases in one process, which takes JAX two seconds to start."""
    code = "\n".join(
        f"def case_{i}():\n{textwrap.indent(textwrap.dedent(case), '    ')}\ncase_{i}()\n"
        for i, case in enumerate(CASES.values())
    )
    _run("import sys\n" + PRELUDE + code)


TRUTH = """
# The same training again, step by step, with the truth in NumPy.
def gradients(params):
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    out = []
    for i in np.asarray(candidates):
        inputs, target = np.asarray(x[i], np.float64), int(y[i])
        hidden = np.tanh(inputs @ p["hidden"]["w"] + p["hidden"]["b"])
        logits = hidden @ p["out"]["w"] + p["out"]["b"]
        delta = np.exp(logits - logits.max())
        delta = delta / delta.sum() - np.eye(3)[target]
        back = (p["out"]["w"] @ delta) * (1 - hidden**2)
        parts = {"hidden": {"w": np.outer(inputs, back), "b": back}, "out": {"w": np.outer(hidden, delta), "b": delta}}
        out.append(np.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(parts)]))
    return np.stack(out)

rng = np.random.default_rng(0)
rng.normal(size=(60, 8))
again = {"hidden": layer(8, 16), "out": layer(16, 3)}
place = privatizer.init(again)
n = len(candidates)
expected = {"membership_sum": np.zeros(n), "pair_sum": np.zeros((n, n)),
            "membership_likelihood": np.zeros(n), "pair_likelihood": np.zeros((n, n))}
times = np.zeros(n)
from leakcore.numerics import step_log_ratio
for batch in sampling.batch_iterator(ROWS, rng=1):
    zero = jax.tree.map(jnp.zeros_like, again)
    noise = np.concatenate([np.asarray(leaf, np.float64).reshape(-1)
                            for leaf in jax.tree.leaves(privatizer.update(zero, place, again)[0])])
    g = gradients(again)
    c = g * np.minimum(1, CLIP / np.linalg.norm(g, axis=1))[:, None]
    inside = np.isin(np.asarray(candidates), batch)
    times += inside
    together, pairs = c @ (noise + c[inside].sum(0)), (noise + c * inside[:, None]) @ c.T
    lengths = np.linalg.norm(c, axis=1)
    expected["membership_sum"] += together / CLIP**2
    expected["pair_sum"] += pairs / CLIP**2
    expected["membership_likelihood"] += step_log_ratio(together, lengths, SIGMA * CLIP, RATE)
    expected["pair_likelihood"] += step_log_ratio(pairs, lengths, SIGMA * CLIP, RATE)
    again, place, _ = step(again, place, batch_selection.pad_to_multiple_of(batch, 16))
assert times[:10].sum() > 10 and not times[10:].any()
np.testing.assert_array_equal(trace.times_seen, times)
for name, value in expected.items():
    np.testing.assert_allclose(getattr(trace, name), value, rtol=0, atol=1e-5 * STEPS, err_msg=name)

# The report, and what the scores say in the other way in.
assert report.passed and report.members == 10, report
assert report.epsilon.value > 0 and report.epsilon.kind == "upper"
members = trace.members
plain = leakcore.audit.from_scores(
    trace.membership_likelihood[members], trace.membership_likelihood[~members], adjacency="add-remove"
)
assert 0 <= plain.area.value <= 1 and plain.epsilon.kind == "estimate"
trace.save("trace.npz")
assert leakcore.dpsgd.Trace.load("trace.npz").steps == STEPS
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax_privacy") is None, reason="needs jax_privacy")
def test_a_whole_training_of_jax_privacy_is_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(PAGE.parents[2]))
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    _run(code + TRUTH)


def test_the_version_of_the_interface_is_read_from_its_header(tmp_path: Path) -> None:
    """In all JAX that there is it is 0.x; another one is refused by name."""
    from leakcore.jax.call_frame import _versions

    (tmp_path / "c_api.h").write_text("#define XLA_FFI_API_MAJOR 1\n#define XLA_FFI_API_MINOR 12\n")
    assert _versions(tmp_path / "c_api.h") == (1, 12)
    (tmp_path / "c_api.h").write_text("")
    with pytest.raises(ImportError, match="does not state the version"):
        _versions(tmp_path / "c_api.h")


def test_another_interface_is_refused() -> None:
    _run("""
import jax
from leakcore.jax import call_frame
call_frame._versions = lambda header: (1, 0)
try:
    call_frame.register("x", print)
except ImportError as error:
    assert "has XLA's FFI 1.0, leakcore knows 0.x" in str(error), error
else:
    raise AssertionError("not refused")
""")
