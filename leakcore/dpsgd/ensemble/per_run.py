"""What differs between runs: extra rows, a gradient that an attacker inserts, and ready-made draws."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from leakcore._base import validate
from leakcore.dpsgd.ensemble import arguments
from leakcore.dpsgd.ensemble.network import ModuleNetwork, Network
from leakcore.dpsgd.ensemble.rows import Rows


@dataclasses.dataclass(frozen=True, eq=False)
class CraftedGradient:
    """A gradient that the attacker chooses before training and inserts as if it were a row's.

    The mechanism clips it as any row's gradient and adds it to the sum of a step. This is the attacker of Cebere,
    Bellet and Papernot (2024): the guarantee of DP-SGD holds for every loss, hence for every sequence of gradients.

    Args:
        gradient: (parameters,) for every step, or (steps, parameters); flat in the order of
            `models.mlp(...).parameters()` or of the module's parameters.
        batches: (runs, steps) bool, True for a step that holds it.

    Raises:
        ValueError: for a value or shape that is not allowed; the text names the argument.
        TypeError: for an argument of another type.

    Example:
        >>> import numpy as np
        >>> from leakcore import dpsgd
        >>> crafted = dpsgd.CraftedGradient(np.eye(5)[0], np.ones((1, 3), bool))
        >>> model = dpsgd.Ensemble(
        ...     (4, 1), noise_multiplier=0.0, max_grad_norm=1.0, learning_rate=1.0, steps=3, seed=0
        ... )
        >>> rows, labels = np.zeros((2, 4)), [0, 1]
        >>> changed = model.run(rows, labels, runs=1, per_run=dpsgd.PerRun(crafted=crafted)).parameters
        >>> as_it_was = model.run(rows, labels, runs=1).parameters
        >>> (changed - as_it_was).round(3).tolist()  # three steps of 1, divided by two rows
        [[-1.5, 0.0, 0.0, 0.0, 0.0]]
    """

    gradient: Any
    batches: Any

    def draws(self, shape: tuple[int, int, int], dtype: str) -> tuple[np.ndarray, np.ndarray]:
        """The gradients (1 or steps, parameters) and the batches, checked; shape: (runs, steps, parameters)."""
        runs, steps, size = shape
        each = (size,) if np.ndim(self.gradient) == 1 else (steps, size)
        gradient = arguments.injected(
            self.gradient, name="gradient", shape=each, dtype=dtype, kinds="f", allowed="a real floating type"
        )
        batches = arguments.injected(
            self.batches, name="batches", shape=(runs, steps), dtype="bool", kinds="b", allowed="type bool"
        )
        assert gradient is not None
        assert batches is not None
        return np.atleast_2d(gradient), batches


@dataclasses.dataclass(frozen=True, eq=False)
class PerRun:
    """What differs between runs, besides their random numbers.

    Args:
        extra: further training rows of each run. In batches they are numbered after the common rows.
        initial: ready-made initial parameters, (parameters,) or (runs, parameters), flat in the order of
            `models.mlp(...).parameters()` or of the module's parameters.
        noise: ready-made standard normal variates (runs, steps, parameters), in the same order.
        batches: ready-made batches, bool (runs, steps, common rows + extra rows).
        crafted: a gradient that an attacker inserts.

    Raises:
        TypeError: if `extra` is not a `Rows`, or `crafted` not a `CraftedGradient`.

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
    crafted: CraftedGradient | None = None

    def __post_init__(self) -> None:
        if self.extra is not None:
            validate.instance(Rows, extra=self.extra)
        if self.crafted is not None:
            validate.instance(CraftedGradient, crafted=self.crafted)

    def draws(
        self, network: Network | ModuleNetwork, shape: tuple[int, int, int], *, noisy: bool
    ) -> dict[str, np.ndarray | None]:
        """The initial parameters, noise, batches and crafted gradient, checked against the network and the sizes.

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
        gradient, inside = (None, None)
        if self.crafted is not None:
            gradient, inside = self.crafted.draws((runs, steps, size), network.dtype)
        return {"initial": start, "noise": ready, "batches": taken, "crafted": gradient, "crafted_batches": inside}
