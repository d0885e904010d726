"""Defences inside a training loop, and on recorded runs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from leakcore._base import validate
from leakcore.defenses.transforms import Defense, GaussianNoise, Laplace, part_seed, through

if TYPE_CHECKING:
    from leakcore.dpsgd import EnsembleRun


class Attached:
    """The handle of `attach`, which counts the defended steps in `step`.

    Args:
        optimizer: the optimizer whose steps are defended, as in `attach`.
        defense: the defence, as in `attach`.
        seed: 64-bit seed, as in `attach`.

    Example:
        >>> import torch
        >>> from leakcore import defenses
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> handle = defenses.attach(optimizer, defenses.Prune(0.5))
        >>> model(torch.ones(3, 2)).sum().backward()
        >>> optimizer.step()
        >>> handle.step
        1
        >>> handle.remove()
    """

    def __init__(self, optimizer: Any, defense: Defense, seed: int | None) -> None:
        self.step = 0
        self._defense, self._seed = defense, seed
        self._reduces = any(part.stage in ("samples", "sum") for part in defense.parts)
        self._optimizer = optimizer
        self._opacus = hasattr(optimizer, "attach_step_hook")
        self._handle: Any = None
        self._before: Any = None
        self._removed = False  # a hook that was attached later still calls this one
        if self._opacus:
            # Before anything that watches the release (leakcore.record): what is watched must be what is released.
            self._before = optimizer.step_hook
            optimizer.attach_step_hook(self._in_opacus)
        else:
            self._handle = optimizer.register_step_pre_hook(self._before_step)

    def remove(self) -> None:
        """Remove this defence and no other; a hook that Opacus's optimizer had before it stays or comes back."""
        if not self._opacus:
            self._handle.remove()
            return
        self._removed = True
        if self._optimizer.step_hook == self._in_opacus:
            self._optimizer.attach_step_hook(self._before)

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # torch hands over the optimizer itself as the first of `args`.
        if any(extra is not None and extra is not optimizer for extra in (*args, kwargs.get("closure"))):
            raise ValueError(
                "attach: optimizer.step(closure) computes the gradient again after the defence: call backward(), then "
                "step() without a closure (an optimizer that needs one, as LBFGS, cannot be defended)"
            )
        self._defend()

    def _in_opacus(self, optimizer: Any) -> None:
        if not self._removed:
            self._defend()
        if self._before is not None:
            self._before(optimizer)

    def _defend(self) -> None:
        trained = [p for group in self._optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not trained:
            raise ValueError("attach: optimizer.step() without gradients: call backward() first")
        sparse = next((p for p in trained if p.grad.layout != torch.strided), None)
        if sparse is not None:
            raise ValueError(
                f"attach: the gradient of a parameter of shape {tuple(sparse.shape)} is {sparse.grad.layout}, "
                "and the rows that it holds leak by themselves; make it dense (nn.Embedding's sparse=False)"
            )
        with torch.no_grad():
            if self._reduces:
                per_sample = [_rows(getattr(p, "grad_sample", None)) for p in trained]
                rows = [h for h in per_sample if h is not None]
                if len(rows) < len(per_sample):
                    raise ValueError(
                        "attach: this defence acts on every sample's gradient, and parameters have no grad_sample: "
                        "wrap the model in opacus.GradSampleModule"
                    )
                gradient = torch.cat([h.flatten(1) for h in rows], 1)
                # They are cleared: Opacus would add the next batch's to them, and zero_grad does not clear them.
                for p in trained:
                    p.grad_sample = None
            else:
                gradient = torch.cat([p.grad.flatten() for p in trained])
            out = through(self._defense.parts, gradient, self._seed, self.step, self._reduces)
            for p, part in zip(trained, out.split([p.numel() for p in trained]), strict=True):
                p.grad = part.reshape(p.shape).to(p.grad.dtype, copy=True)
        self.step += 1


def _rows(grad_sample: Any) -> torch.Tensor | None:
    """(B, ...) gradients; Opacus lists those of several backward passes, one entry for each."""
    if isinstance(grad_sample, list) and grad_sample:
        return torch.cat(grad_sample)
    return grad_sample if isinstance(grad_sample, torch.Tensor) else None


def attach(optimizer: Any, defense: Defense, *, seed: int | None = None) -> Attached:
    """From now on every `optimizer.step()` moves the parameters by the defended gradient.

    Args:
        optimizer: any torch.optim.Optimizer that steps without a closure, or Opacus's. There the defence comes after
            Opacus has clipped, summed and added noise, and before `leakcore.record` looks, which must be entered later.
        defense: on the release; on samples or the sum where the model is an `opacus.GradSampleModule` with a plain
            optimizer (all gradients are joined, and the mean steps). The loop itself does what acts on training
            (`LocalSteps`, `Dropout`): several steps, nn.Dropout.
        seed: required where anything is random; each step has draws of its own.

    Returns:
        `Attached`, whose `remove()` takes the defence off.

    Raises:
        ValueError: for a defence that the optimizer cannot apply, and at a step with a closure or without gradients.
        TypeError: for an argument of another type.

    Guarantees:
        A defence after Opacus's is post-processing: ε stays what Opacus reports, also where the defence adds noise.

    Example:
        >>> import torch
        >>> from leakcore import defenses
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> optimizer = torch.optim.SGD([weight], lr=1.0)
        >>> handle = defenses.attach(optimizer, defenses.Clip(max_grad_norm=1.0))
        >>> (weight @ torch.tensor([-3.0, -4.0])).backward()
        >>> optimizer.step()
        >>> [f"{w:.1f}" for w in weight.tolist()], handle.step  # the gradient of length 5 became one of length 1
        (['0.6', '0.8'], 1)
    """
    if not isinstance(defense, Defense):
        raise TypeError(f"`defense` must be a leakcore.defenses.Defense, got {type(defense).__name__}")
    if not hasattr(optimizer, "param_groups") or not hasattr(optimizer, "step"):
        raise TypeError(f"`optimizer` must be a torch.optim.Optimizer, or Opacus's, got {type(optimizer).__name__}")
    for part in defense.parts:
        if part.stage == "training":
            raise ValueError(f"defense: {type(part).__name__} acts on training, which the loop itself does")
        if part.stage != "release" and hasattr(optimizer, "attach_step_hook"):
            raise ValueError(
                f"defense: {type(part).__name__} acts on {part.stage}, which Opacus's optimizer does itself; only what "
                "acts on the release may follow it"
            )
    # A missing seed fails here instead of in the first step.
    trial = torch.zeros((2, 1)) if any(p.stage in ("samples", "sum") for p in defense.parts) else torch.zeros(1)
    through(defense.parts, trial, seed, 0, trial.ndim == 2)
    return Attached(optimizer, defense, seed)


def defended(run: EnsembleRun, defense: Defense, *, seed: int) -> EnsembleRun:
    """A recorded run whose observed gradients have noise on top, for the attacks that take a run.

    Args:
        run: a run of `dpsgd.Ensemble` with thetas and observed (`Observer(record=True)`).
        defense: `GaussianNoise`, `Laplace` or a composition of them, in units of the *sum*. What is not linear in the
            release (clipping, pruning) is refused, since the record holds the sum without the known rows: use `attach`
            in the loop.
        seed: 64-bit seed of the noise, drawn for every run and step, whatever the run's neighbours.

    Returns:
        A copy of the run. The training itself is unchanged, and scores that were computed before (dots, scores) are
        dropped.

    Raises:
        ValueError: for a run without a record, or a defence that is not additive.
        TypeError: for an argument of another type.

    Guarantees:
        Deterministic: a pure function of the run and the seed.

    Example:
        >>> import numpy as np
        >>> from leakcore import defenses, dpsgd
        >>> model = dpsgd.Ensemble((4, 2), noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.1, steps=3, seed=0)
        >>> run = model.run(np.eye(4), np.arange(4) % 2, runs=2, observer=dpsgd.Observer(record=True))
        >>> noisy = defenses.defended(run, defenses.GaussianNoise(0.5), seed=1)
        >>> noisy.observed.shape == run.observed.shape, bool((noisy.observed != run.observed).all())
        (True, True)
    """
    from leakcore.dpsgd import EnsembleRun

    validate.instance(EnsembleRun, run=run)
    validate.instance(Defense, defense=defense)
    if run.observed is None:
        raise ValueError(
            "`run` must hold recorded steps; train it with dpsgd.Ensemble.run(..., "
            "observer=dpsgd.Observer(record=True))"
        )
    for part in defense.parts:
        if not isinstance(part, (GaussianNoise, Laplace)):
            raise ValueError(
                f"defense: {type(part).__name__} is not additive: the run's record holds what is left of the release "
                "without the known rows; use defenses.attach in the training loop"
            )
    runs, steps, size = run.observed.shape
    observed = run.observed
    for number, part in enumerate(defense.parts):
        assert isinstance(part, (GaussianNoise, Laplace))
        drawn = part.drawn(runs * steps, size, seed=part_seed(seed, number), first_row=run.first_run * steps)
        observed = observed + drawn.reshape(observed.shape).astype(observed.dtype)
    return dataclasses.replace(
        run, observed=observed, dots=None, clipped_norms=None, clipped=None, cosine=None, scores={}
    )
