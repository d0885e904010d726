"""Every method of the reconstruction bound: options, devices, and agreement with the others."""

from __future__ import annotations

import dataclasses
import inspect
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import pytest

from leakcore import bounds, kernels, mechanisms
from leakcore.bounds import methods
from leakcore.bounds.methods.method import Kappa, ReconstructionBound

OPTIONS: dict[str, Any] = {"num_samples": 4000, "confidence": 0.98, "seed": 11}
KEYWORDS = ("num_samples", "confidence", "seed", "device", "executor")


def _options(name: str) -> dict[str, Any]:
    return {key: value for key, value in OPTIONS.items() if key in methods.TABLE[name].options()}


@pytest.mark.full(keep=3)
@pytest.mark.parametrize("name", methods.TABLE)
def test_methods_by_name_and_object(name: str) -> None:
    setting = (1.0, 1.0 if name == "closed-form" else 0.2, 5)
    by_name = bounds.reconstruction(*setting, kappa=[0.3, 0.01], method=name, **OPTIONS)
    with_options = methods.TABLE[name](**_options(name))
    assert by_name.to_dict() == bounds.reconstruction(*setting, kappa=[0.3, 0.01], method=with_options).to_dict()


def test_defaults_of_keywords_and_objects() -> None:
    signature = inspect.signature(bounds.reconstruction).parameters
    for kind in methods.TABLE.values():
        for field in dataclasses.fields(kind):
            if field.name in KEYWORDS:
                assert signature[field.name].default == field.default, (kind.name, field.name)
    of = inspect.signature(bounds.reconstruction_of).parameters
    for name in set(KEYWORDS) - {"device"}:
        assert of[name].default == signature[name].default


@pytest.mark.parametrize("key", ["num_samples", "confidence", "seed"])
def test_keyword_next_to_an_object(key: str) -> None:
    option, pair = {key: OPTIONS[key]}, mechanisms.FixedSize(1.0, 2, 10, 5)
    for call, first in ((bounds.reconstruction, (1.0, 0.2, 5)), (bounds.reconstruction_of, (pair,))):
        with pytest.raises(ValueError, match=rf"`{key}` must go into the method object, Certified\(\.\.\.\)"):
            call(*first, kappa=0.1, method=methods.Certified(), **option)


@pytest.mark.parametrize("name", methods.TABLE)
def test_executors(name: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        call: dict[str, Any] = {"kappa": [0.3, 0.01], "method": name, **OPTIONS}
        if "executor" in methods.TABLE[name].options():
            shared, alone = (bounds.reconstruction(1.0, 0.2, 5, **call, executor=e) for e in (pool, None))
            np.testing.assert_array_equal(shared.log_value, alone.log_value)
        else:
            with pytest.raises(
                ValueError, match=rf"`executor` .*method='{name}', got .*: only methods \('monte-carlo', "
            ):
                bounds.reconstruction(1.0, 0.2, 5, **call, executor=pool)


@pytest.mark.parametrize("name", methods.TABLE)
def test_keywords_of_every_method(name: str) -> None:
    for key, value in (("num_samples", 0), ("confidence", 1.0), ("seed", -1), ("device", "tpu")):
        with pytest.raises(ValueError, match=f"`{key}` must be .*, got {value!r}"):
            bounds.reconstruction(1.0, 0.2, 5, kappa=0.1, method=name, **{key: value})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: methods.MonteCarlo(under="both"), "`under` must be 'alternative' or 'null', got 'both'"),
        (lambda: methods.MonteCarlo(num_samples=0), r"`num_samples` must be in \[1, 1099511627776\], got 0"),
        (lambda: methods.Certified(num_samples=5), r"`num_samples` must be at least \d+ for .*confidence=.*, got 5"),
        (lambda: methods.Certified(width=-1.0), r"`width` must be above 0, got -1.0"),
        (lambda: methods.Importance(num_samples=5), r"`num_samples` must be at least \d+ for confidence=.*, got 5"),
        (lambda: methods.DKW(num_samples=1), r"`num_samples` must be in \[2, 67108864\], got 1"),
        (lambda: methods.Auto(seed=2**64), r"`seed` must be in \[0,.*, got 18446744073709551616"),
    ],
)
def test_options_of_objects(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_outside_pair_takes_certified_only() -> None:
    pair = mechanisms.FixedSize(1.0, 2, 10, 5)
    for method in ("exact", methods.Importance()):
        with pytest.raises(ValueError, match=r"`method` must be 'certified' or a bounds\.methods\.Certified, got "):
            bounds.reconstruction_of(pair, kappa=0.1, method=method)  # type: ignore[arg-type]
    by_name = bounds.reconstruction_of(pair, kappa=0.1, **OPTIONS)
    with_options = methods.Certified(**_options("certified"))
    assert by_name.to_dict() == bounds.reconstruction_of(pair, kappa=0.1, method=with_options).to_dict()
    with pytest.raises(
        ValueError, match="`device` must be None, since a pair from outside draws its own samples, got 'cpu'"
    ):
        bounds.reconstruction_of(pair, kappa=0.1, method=methods.Certified(device="cpu"))


def test_empty_values() -> None:
    with pytest.raises(TypeError, match="sample_log_ratio"):
        bounds.StatedPair(object())
    with pytest.raises(TypeError, match="`dominates` must be True, False or None, got 2"):
        bounds.StatedPair(mechanisms.FixedSize(1.0, 2, 10, 5), dominates=2)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class Trivial(methods.Method):
    """B_κ ≤ 1."""

    name: ClassVar[str] = "trivial"
    seed: int = 0

    def bound(self, mechanism: mechanisms.Poisson, prior: Kappa) -> ReconstructionBound:
        one = methods.ClosedForm().bound(mechanisms.Poisson(0.0, 1.0, 1), prior)
        return dataclasses.replace(one, method=self.name, seed=self.seed)


def test_add_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(methods.TABLE, Trivial.name, Trivial)
    bound = bounds.reconstruction(1.0, 0.1, 3, kappa=[0.5, 0.1], method="trivial", seed=4)
    assert (bound.method, bound.seed) == ("trivial", 4)
    np.testing.assert_array_equal(bound.value, 1.0)
    with pytest.raises(ValueError, match=r"`method` must be 'auto', 'closed-form', 'exact',.*, got 'fourier'"):
        bounds.reconstruction(1.0, 0.1, 3, kappa=0.1, method="fourier")


SURE = 1.0 - 1e-7
"""200 settings, two intervals each: a miss at this confidence (P < 4e-5 in all) is an error, no chance."""


def _settings(count: int, seed: int) -> list[tuple[Any, Any, int, float]]:
    """(σ, q, T, log κ); every third a schedule of up to three kinds of steps, some with q = 1 or q = 0."""
    rng = np.random.default_rng(seed)
    out: list[tuple[Any, Any, int, float]] = []
    for index in range(count):
        steps = round(math.exp(rng.uniform(0.0, math.log(200.0))))
        sigma, rate = math.exp(rng.uniform(math.log(0.4), math.log(8.0))), math.exp(rng.uniform(math.log(0.005), 0.0))
        log_kappa = math.log(rng.uniform(0.01, 0.99)) if index % 2 else -rng.uniform(1.0, 40.0)
        if index % 3 == 0:
            kinds = rng.integers(0, 3, steps)
            sigmas = sigma * np.array([1.0, 1.5, 3.0])
            rates = np.array([rate, min(1.0, 2.0 * rate), rng.choice([0.0, 1.0, rate])])
            out.append((sigmas[kinds], rates[kinds], steps, log_kappa))
        else:
            out.append((sigma, rate, steps, log_kappa))
    return out


def _check(setting: tuple[Any, Any, int, float], *, pld: bool) -> None:
    pytest.importorskip("dp_accounting")
    sigma, rate, steps, log_kappa = setting
    arguments: dict[str, Any] = {"log_kappa": log_kappa}
    exact = bounds.reconstruction(sigma, rate, steps, method="exact", **arguments)
    truth = exact.log_value
    assert exact.log_interval[0] <= truth <= exact.log_interval[1]
    slack = 1e-9
    for method in ("certified", "importance"):
        bound = bounds.reconstruction(
            sigma, rate, steps, method=method, num_samples=20_000, confidence=SURE, **arguments
        )
        low, high = bound.log_interval
        assert low <= truth + slack, (method, setting)
        assert truth <= high + slack, (method, setting)
    assert bounds.reconstruction_rdp(sigma, rate, steps, **arguments).log_value >= truth - 1e-6
    if pld and log_kappa > math.log(1e-6):
        low, high = bounds.reconstruction(sigma, rate, steps, method="pld", **arguments).interval
        assert low <= exact.value * (1.0 + 1e-9)
        assert exact.value * (1.0 - 1e-9) <= high
    estimate = bounds.reconstruction(sigma, rate, steps, method="monte-carlo", num_samples=20_000, **arguments)
    if estimate.effective_sample_size > 1000:
        # Six standard errors, and the bias of a threshold taken from the same sample.
        assert abs(estimate.value - exact.value) <= 6.0 * estimate.standard_error + 0.002, setting


@pytest.mark.full(keep=2)
@pytest.mark.parametrize("index", range(15))
def test_methods_agree(index: int) -> None:
    _check(_settings(15, 2023)[index], pld=index < 4)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_methods_agree_on_two_hundred_settings(part: int) -> None:
    for index, setting in enumerate(_settings(200, 7)[20 * part : 20 * part + 20]):
        _check(setting, pld=index % 4 == 0)


@pytest.mark.full
def test_published_package_below_the_truth() -> None:
    pytest.importorskip("dp_accounting")
    # Its ν comes from the ADD distribution, whose far tail cancels: .0168 where the truth is .1814.
    arguments = (0.4576, 0.02, 1000)
    exact = bounds.reconstruction(*arguments, kappa=1e-6)
    # The noise multiplier is printed to four digits.
    assert exact.value == pytest.approx(0.1814, abs=3e-4)
    for method in ("pld", "importance"):
        bound = bounds.reconstruction(*arguments, kappa=1e-6, method=method, num_samples=20_000)
        assert bound.interval[0] <= exact.value <= bound.interval[1]
        assert bound.value > 10.0 * 0.0168
    # Curves by the dual of the REMOVE distribution stay above the truth on finer grids, too.
    from leakcore.numerics.dp_accounting_peer import DiscreteLoss

    pytest.importorskip("dp_accounting")
    loss = mechanisms.Poisson(*arguments).added_loss
    for interval in (1e-3, 5e-4):
        upper = DiscreteLoss(loss, pessimistic=True, interval=interval).log_blow_up(np.array([math.log(1e-6)]))[0]
        assert exact.log_value <= upper < exact.log_value + 0.05


@pytest.mark.full
def test_reported_error_of_exact() -> None:
    # Closed forms are the truth; the numerical route must hold them within its reported error.
    kappa = np.concatenate((np.geomspace(1e-12, 0.5, 40), 1.0 - np.geomspace(0.4, 1e-12, 20)))
    for sigma, rate in [(0.5, 0.1), (1.0, 0.01), (2.0, 0.5), (0.8, 0.9)]:
        truth = bounds.reconstruction(sigma, rate, 1, kappa=kappa, method="closed-form").log_value
        bound = bounds.reconstruction(sigma, rate, 1, kappa=kappa, method="exact")
        low, high = bound.log_interval
        slack = 3e-14 * (1.0 + np.abs(truth))
        assert (low <= truth + slack).all(), (sigma, rate)
        assert (truth <= high + slack).all(), (sigma, rate)
        assert (high - low <= 1e-8 * (1.0 + np.abs(truth))).all()
    # Two routes to the same law: steps of one kind, and the same split into two kinds that differ by a hair.
    for steps in (10, 200):
        first = bounds.reconstruction(0.9, 0.05, steps, kappa=kappa[::5])
        second = bounds.reconstruction(
            np.r_[np.full(steps // 2, 0.9), np.full(steps // 2, 0.9 * (1 + 1e-15))], 0.05, steps, kappa=kappa[::5]
        )
        np.testing.assert_allclose(first.log_value, second.log_value, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("method", ["auto", "exact", "certified", "importance", "monte-carlo"])
def test_limits_of_every_method(method: str) -> None:
    def of(*arguments: Any, **prior: Any) -> float:
        return float(bounds.reconstruction(*arguments, method=method, num_samples=20_000, **prior).value)

    loose = {"certified": 0.05, "monte-carlo": 0.05, "importance": 0.01}.get(method, 1e-12)
    assert bounds.reconstruction(1.0, 0.1, 10, kappa=[], method=method, num_samples=20_000).value.shape == (0,)
    assert of(1.0, 0.1, 10, kappa=1.0) == 1.0
    assert of(math.inf, 0.1, 10, kappa=0.1) == pytest.approx(0.1, abs=loose)
    assert of(1e6, 0.1, 10, kappa=0.1) == pytest.approx(0.1, abs=max(loose, 1e-5))
    assert of(1.0, 0.1, 0, kappa=0.1) == pytest.approx(0.1, abs=loose)
    assert of(1.0, 0.0, 10, kappa=0.1) == pytest.approx(0.1, abs=loose)
    assert of(0.0, 0.1, 5, kappa=0.1) == pytest.approx(1 - 0.9**5 * 0.9, abs=loose)
    below = bounds.reconstruction(1.0, 0.1, 10, log_kappa=-2000.0, method=method, num_samples=20_000)
    assert below.kappa == 0.0
    assert below.log_kappa == -2000.0
    assert below.log_value >= -2000.0


SETTING = {"kappa": 0.1, "num_samples": 20_000}


def without_cuda() -> str:
    """Why this machine or build cannot sample on a GPU; empty where it can."""
    info = kernels.build_info()
    if not info["cuda"]:
        return "must be None or 'cpu' in a build of leakcore without CUDA kernels, got 'cuda'"
    return "" if info["devices"] else "must be one that torch or CuPy can use here, got 'cuda'"


@pytest.mark.parametrize("method", ["monte-carlo", "certified"])
def test_device(method: str) -> None:
    why = without_cuda()
    if why:
        with pytest.raises(ValueError, match=f"`device` {why}"):
            bounds.reconstruction(1.0, 0.1, 20, method=method, device="cuda", **SETTING)
        return
    there = bounds.reconstruction(1.0, 0.1, 20, method=method, device="cuda", **SETTING)
    here = bounds.reconstruction(1.0, 0.1, 20, method=method, **SETTING)
    np.testing.assert_allclose(there.value, here.value, rtol=1e-12)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", 0, "cuda:"])
def test_bad_names(device: object) -> None:
    with pytest.raises(ValueError, match=f"`device` must be None, 'cpu', 'cuda' or 'cuda:N', got {device!r}"):
        bounds.reconstruction(1.0, 0.1, 20, kappa=0.1, method="certified", device=device)  # type: ignore[arg-type]


@pytest.mark.skipif(not kernels.build_info()["cuda"], reason="without CUDA kernels the device is refused before")
def test_device_without_sampling() -> None:
    with pytest.raises(
        ValueError, match=r"`device` .*method='exact'.*: only methods \('monte-carlo', 'certified'\) take it"
    ):
        bounds.reconstruction(1.0, 0.1, 20, kappa=0.1, method="exact", device="cuda")
