"""What differs between runs: extra rows, and ready-made draws instead of the generator's."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from leakcore._base import validate as check
from leakcore.dpsgd.ensemble import arguments
from leakcore.dpsgd.ensemble.network import ModuleNetwork, Network
from leakcore.dpsgd.ensemble.rows import Rows


@dataclasses.dataclass(frozen=True, eq=False)
class PerRun:
    """What differs between runs, besides their random numbers.

    Args:
        extra: further training rows of each run. In batches they are numbered after the common rows.
        initial: ready-made initial parameters, (parameters,) or (runs, parameters), flat in the order of
            `models.mlp(...).parameters()` or of the module's parameters.
        noise: ready-made standard normal variates (runs, steps, parameters), in the same order.
        batches: ready-made batches, bool (runs, steps, common rows + extra rows).

    Raises:
        TypeError: if `extra` is not a `Rows`.

    Example:
        >>> import numpy as np
        >>> from leakcore import dpsgd
        >>> zeros = dpsgd.PerRun(initial=np.zeros(5, dtype=np.float32))
        >>> ensemble = dpsgd.Ensemble(
        ...     (4, 1), noise_multiplier=0.0, max_grad_norm=1.0, learning_rate=1.0, steps=1, seed=0
        ... )
        >>> result = ensemble.run(np.ones((6, 4)), [0, 1, 1, 1, 1, 1], runs=2, per_run=zeros)
        >>> bool(np.array_equal(result.parameters[0], result.parameters[1]))  # nothing random is left
        True
    """

    extra: Rows | None = None
    initial: Any = None
    noise: Any = None
    batches: Any = None

    def __post_init__(self) -> None:
        if self.extra is not None:
            check.instance(Rows, extra=self.extra)

    def draws(
        self, network: Network | ModuleNetwork, shape: tuple[int, int, int], *, noisy: bool
    ) -> dict[str, np.ndarray | None]:
        """The initial parameters, noise and batches, checked against the network and the sizes.

        Args:
            network: whose parameters are initialised.
            shape: (runs, steps, rows of a training set).
            noisy: whether the mechanism adds noise.

        Returns:
            A dict of arrays; None for what is drawn instead.
        """
        runs, steps, _ = shape
        size = network.num_parameters
        initial = network.initial() if self.initial is None else self.initial
        if initial is not None and np.ndim(initial) == 1:
            initial = np.broadcast_to(initial, (runs, np.shape(initial)[0]))
        real: dict[str, Any] = {"dtype": network.dtype, "kinds": "f", "allowed": "a real floating type"}
        start = arguments.injected(initial, name="initial", shape=(runs, size), **real)
        ready = arguments.injected(self.noise, name="noise", shape=(runs, steps, size), **real)
        if ready is not None and not noisy:
            raise ValueError("`noise` must be None with noise_multiplier=0, which adds no noise")
        taken = arguments.injected(
            self.batches, name="batches", shape=shape, dtype="bool", kinds="b", allowed="type bool"
        )
        return {"initial": start, "noise": ready, "batches": taken}
