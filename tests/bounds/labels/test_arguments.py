"""Label-ε: shapes, types, what it says of itself and what it refuses."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

from leakcore import bounds
from tests.bounds.labels.label_batches import TESTS, batch, bound


def test_probabilities_serve_every_weight_vector() -> None:
    rng = np.random.default_rng(3)
    jacobian, probs, labels = rng.normal(size=(4, 2, 5, 12)), rng.random((2, 5)), rng.integers(0, 2, (2, 5))
    e = np.abs(probs - labels)
    norms = np.stack([e, 1 - e], axis=-2) * np.linalg.norm(jacobian, axis=-1).max(axis=0)[:, None, :]
    for test in TESTS:
        short = bound(jacobian, probs, labels, test=test, grad_norms=norms)
        full = bound(
            jacobian,
            np.broadcast_to(probs, (4, 2, 5)),
            np.broadcast_to(labels, (4, 2, 5)),
            test=test,
            grad_norms=np.broadcast_to(norms, (4, 2, 2, 5)),
        )
        np.testing.assert_array_equal(short.per_row, full.per_row)
        assert short.value.shape == (4, 2)
        assert short.largest == short.value.max()
    with pytest.raises(ValueError, match=r"`probs` must .* to match jacobian of shape \(4, 2, 5, 12\), got \(4, 5\)"):
        bound(jacobian, rng.random((4, 5)), labels)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_rows_whose_squares_leave_the_range_of_floats(scale: float) -> None:
    jacobian, probs, labels = batch(4, 9)
    clip = scale
    result = bound(jacobian * scale, probs, labels, test="likelihood-ratio", max_grad_norm=clip)
    expected = bound(jacobian, probs, labels, test="likelihood-ratio")
    np.testing.assert_allclose(result.separation, expected.separation, rtol=1e-12)


def test_leading_dimensions_are_batches() -> None:
    rng = np.random.default_rng(8)
    jacobian, probs, labels = rng.normal(size=(2, 3, 5, 12)), rng.random((2, 3, 5)), rng.integers(0, 2, (2, 3, 5))
    for test in TESTS:
        result = bound(jacobian, probs, labels, test=test)
        assert result.value.shape == (2, 3)
        assert result.per_row.shape == (2, 3, 5)
        for at in np.ndindex(2, 3):
            one = bound(jacobian[at], probs[at], labels[at], test=test)
            assert result.value[at] == one.value
            np.testing.assert_array_equal(result.per_row[at], one.per_row)
    assert isinstance(bound(jacobian[0, 0], probs[0, 0], labels[0, 0]).value, float)
    assert json.loads(bound(jacobian, probs, labels).to_json())["value"][1][2] > 0


def test_torch_and_float32_agree_with_numpy() -> None:
    jacobian, probs, labels = batch(6, 20)
    reference = bound(jacobian, probs, labels)
    exact = bound(torch.from_numpy(jacobian), torch.from_numpy(probs), torch.from_numpy(labels))
    np.testing.assert_array_equal(exact.per_row, reference.per_row)
    single = bound(jacobian.astype(np.float32), probs.astype(np.float32), labels)
    np.testing.assert_allclose(single.per_row, reference.per_row, rtol=1e-5, atol=1e-6)


def test_the_result_says_what_it_is() -> None:
    for test in TESTS:
        result = bound(*batch(6, 20), test=test)
        assert (result.kind, result.confidence, result.adjacency, result.test) == ("lower", None, "replace", test)
        assert "Yuan" in result.provenance


def test_bad_input_is_named() -> None:
    jacobian, probs, labels = batch(4, 10)
    for bad in (-0.1, 1.1):
        with pytest.raises(ValueError, match=rf"`probs\[2\]` must be in \[0, 1\], got {bad}"):
            bound(jacobian, np.array([0.5, 0.5, bad, 0.5]), labels)
    with pytest.raises(ValueError, match=r"probs.*nan"):
        bound(jacobian, np.array([0.5, 0.5, np.nan, 0.5]), labels)
    with pytest.raises(ValueError, match=r"`labels\[1\]` must be 0 or 1, got 2.0"):
        bound(jacobian, probs, [0, 2, 1, 0])
    with pytest.raises(ValueError, match=r"`labels\[0\]` must be 0 or 1, got -1.0"):
        bound(jacobian, probs, [-1, 1, 1, -1])
    with pytest.raises(ValueError, match=r"`probs` must .* to match jacobian of shape \(4, 10\), got \(3,\)"):
        bound(jacobian, probs[:3], labels)
    with pytest.raises(ValueError, match=r"`labels` must .* to match jacobian of shape \(4, 10\), got \(4, 1\)"):
        bound(jacobian, probs, labels[:, None])
    with pytest.raises(ValueError, match=r"`jacobian` must have shape \(\.\.\., N, d\), got \(10,\)"):
        bound(jacobian[0], probs, labels)
    with pytest.raises(ValueError, match="empty batch"):
        bound(jacobian[:0], probs[:0], labels[:0])
    with pytest.raises(ValueError, match=r"`jacobian\[0, 0\]` must be finite, got inf"):
        bound(np.full((4, 10), np.inf), probs, labels)
    with pytest.raises(ValueError, match=r"`jacobian` must not require grad: pass jacobian.detach\(\)"):
        bound(torch.ones(4, 10, requires_grad=True), probs, labels)
    for name, value, allowed in (
        ("noise_multiplier", -1.0, "at least 0"),
        ("max_grad_norm", 0.0, "above 0"),
        ("max_grad_norm", -1.0, "above 0"),
        ("delta", 1.0, "in [0, 1)"),
        ("delta", -0.1, "in [0, 1)"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"`{name}` must be {allowed}, got {value}")):
            bound(jacobian, probs, labels, **{name: value})
    with pytest.raises(ValueError, match="`test` must be 'paper', 'optimal' or 'likelihood-ratio', got 'best'"):
        bound(jacobian, probs, labels, test="best")
    with pytest.raises(TypeError, match="`complement` must be True or False, got 'yes'"):
        bounds.SignTest(complement="yes")  # type: ignore[arg-type]
    objects = (bounds.SignTest(), bounds.ThresholdTest(), bounds.LikelihoodRatioTest())
    for name, test in zip(TESTS, objects, strict=True):
        by_name, by_object = (bound(jacobian, probs, labels, test=which) for which in (name, test))
        assert by_name.to_dict() == by_object.to_dict()
