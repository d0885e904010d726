"""ε of each mechanism, and of what dp-accounting and jax_privacy have for the same scheme."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.case import Case, Contender
from leakcore import accounting, mechanisms

DELTA = 1e-5
SAMPLES = 1000
"""Of jax_privacy's Monte-Carlo accountant in one timing."""
NEEDED = 10_745_967
"""The fewest that turn a check at δ/2 into a statement at δ: `delta_calculation.minimum_samples_to_calibrate` of
jax_privacy 2.0 for 5e-6 and 1e-5."""
Build = Callable[[Any], Callable[[], Any]]


def cases(quick: bool) -> list[Case]:
    every = [_poisson("add-remove"), _poisson("replace"), _full(), _composed(), _fixed(), _shuffled(), _allocation()]
    every += [_same_bin(), _cyclic(), _min_separation()]
    return every[2:3] if quick else every


def _case(name: str, ours: mechanisms.Mechanism, *peers: Contender, adjacency: str | None = None) -> Case:
    def build(_: Any) -> Callable[[], Any]:
        return lambda: accounting.epsilon(ours, delta=DELTA, adjacency=adjacency).value

    return Case(
        "mechanisms",
        f"ε, {name}",
        lambda: None,
        (Contender("leakcore", build), *peers),
        1,
        "ε",
        limit="none useful: Fourier transforms and a search, not a stream",
        memory=True,
        seconds=8,
    )


def _dp_accounting(event: Callable[[Any], Any], relation: str = "ADD_OR_REMOVE_ONE") -> Contender:
    """Its accountant by privacy loss distributions; event: from the module."""

    def build(_: Any) -> Callable[[], Any]:
        import dp_accounting
        from dp_accounting import pld

        def run() -> float:
            accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation[relation])
            return float(accountant.compose(event(dp_accounting)).get_epsilon(DELTA))

        return run

    return Contender("dp-accounting", build, against="leakcore", needs=("dp_accounting",))


def _jax_privacy(sigma: float, batch: int, rows: int, steps: int, method: str = "POISSON", cycle: int = 1) -> Contender:
    """Its training accountant, by privacy loss distributions."""

    def build(_: Any) -> Callable[[], Any]:
        from jax_privacy.accounting import accountants, analysis

        accountant = analysis.DpsgdTrainingAccountant(accountants.PldAccountantConfig())
        training = analysis.DpParams(
            noise_multipliers=sigma, num_samples=rows, delta=DELTA, batch_size=batch, cycle_length=cycle,
            sampling_method=analysis.SamplingMethod[method],
        )  # fmt: skip
        return lambda: accountant.compute_epsilon(steps, training)

    return Contender("jax_privacy", build, against="leakcore", needs=("jax_privacy",))


def _poisson(adjacency: str) -> Case:
    def event(dp: Any) -> Any:
        return dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0)), 1000)

    if adjacency == "replace":
        peers: tuple[Contender, ...] = (_dp_accounting(event, "REPLACE_ONE"),)
    else:
        peers = (_dp_accounting(event), _jax_privacy(1.0, 100, 10_000, 1000))
    name = f"Poisson σ=1 q=0.01 T=1000, {adjacency}"
    return _case(name, mechanisms.Poisson(1.0, 0.01, 1000), *peers, adjacency=adjacency)


def _full() -> Case:
    peer = _dp_accounting(lambda dp: dp.SelfComposedDpEvent(dp.GaussianDpEvent(10.0), 100))
    return _case("full batches σ=10 T=100", mechanisms.FullBatch(10.0, 100), peer)


def _composed() -> Case:
    def event(dp: Any) -> Any:
        sampled = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0))
        return dp.ComposedDpEvent(
            [dp.SelfComposedDpEvent(sampled, 500), dp.SelfComposedDpEvent(dp.GaussianDpEvent(20.0), 10)]
        )

    ours = mechanisms.Poisson(1.0, 0.01, 500) @ mechanisms.FullBatch(20.0, 10)
    return _case("Poisson and full batches composed", ours, _dp_accounting(event))


def _fixed() -> Case:
    """jax_privacy: Poisson sampling at half the noise, each direction composed alone, which gives 1.83 against 2.20."""
    peer = _jax_privacy(2.0, 100, 10_000, 1000, "FIXED_BATCH_SIZE")
    return _case("fixed size σ=2 B=100 n=10000 T=1000", mechanisms.FixedSize(2.0, 100, 10_000, 1000), peer)


def _shuffled() -> Case:
    return _case("shuffled σ=1 b=100 E=5, bracket and claim", mechanisms.Shuffled(1.0, 100, 5))


def _allocation() -> Case:
    return _case("random allocation σ=1 b=100 E=5", mechanisms.RandomAllocation(1.0, 100, 5))


def _same_bin() -> Case:
    """jax_privacy: as many samples as δ asks for, by a part of them."""

    def build(_: Any) -> Callable[[], Any]:
        from jax_privacy import batch_selection
        from jax_privacy.experimental.monte_carlo import delta_calculation, sample_generation

        strategy = batch_selection.BallsInBinsSampling(cycle_length=100, iterations=100)

        def run() -> float:
            losses, _ = sample_generation.get_privacy_loss_sample(
                strategy=strategy, noise_multiplier=1.0, c_col=np.ones(1), positive_sample=True, num_samples=SAMPLES,
                seed=0,
            )  # fmt: skip
            return float(delta_calculation.delta_from_epsilon_and_samples(1.0, np.asarray(losses)))

        return run

    peer = Contender(
        "jax_privacy, Monte Carlo, extrapolated",
        build,
        against="leakcore",
        share=SAMPLES / NEEDED,
        needs=("jax_privacy",),
    )
    return _case("random allocation σ=1 b=100 E=1", mechanisms.RandomAllocation(1.0, 100, 1), peer)


def _cyclic() -> Case:
    matrix = mechanisms.square_root(1000, bands=10)
    matrix = matrix / np.linalg.norm(matrix, axis=0).max()
    ours = mechanisms.CorrelatedNoise(matrix, 1.0, mechanisms.CyclicPoisson(0.01))
    peer = _jax_privacy(1.0, 100, 10_000, 1000, cycle=10)
    return _case("correlated noise, cyclic Poisson σ=1 T=1000 10 bands", ours, peer)


def _min_separation() -> Case:
    matrix = mechanisms.square_root(1000)
    ours = mechanisms.CorrelatedNoise(matrix, 4.0, mechanisms.MinSeparation(separation=100, participations=10))
    return _case("correlated noise, T=1000, 10 times 100 apart", ours)
