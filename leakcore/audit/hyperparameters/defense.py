"""The reconstruction attack against the claimed configuration, with a defence and without.

The server, and the attacker, see each release through the defence. The rules are those of
`attacks.reconstruction_game`; the attacker compares what was released with what the defence, without its noise, would
have made of the known rows and each candidate. Undefended that is least squares on all noisy gradients, the optimum for
Gaussian noise.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from concurrent.futures import Executor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leakcore import accounting, bounds, datasets, kernels, models, numerics
from leakcore._base.process_wide import one_thread
from leakcore._base.progress import Progress
from leakcore._base.results import Assumptions, Result
from leakcore._base.run_folder import PartialResults
from leakcore.attacks import draw_candidates
from leakcore.audit.hyperparameters import scheme
from leakcore.audit.hyperparameters.config import AuditConfig, noise_under_defense, parsed_defense, why_bounds_hold
from leakcore.audit.hyperparameters.reconstruction import ReconstructionPoint, ensemble
from leakcore.defenses import Clip, Defense, Dropout, LocalSteps, Prune
from leakcore.dpsgd import Streams


@dataclasses.dataclass(frozen=True, eq=False)
class Played:
    """Correct guesses of a game, and the share of the pool that the final models classify rightly, over all runs."""

    hits: int
    accuracy: float


def play(config: AuditConfig, noise: float, defense: Defense | None, first: int, runs: int) -> Played:
    """Runs [first, first + runs); everything random is a function of (seed, run, step)."""
    game = _DefendedGame(config, noise, defense)
    theta, candidates, target = game.start(first, runs)
    scores = torch.zeros(candidates.shape, dtype=torch.float64)
    for release in range(scheme.total_steps(config) // game.local):
        expected = game.expected(theta, candidates)
        released = game.released(theta, candidates, target, release, first)
        scores -= game.misfit(released, expected).double()
        theta = theta - config.learning_rate * game.local * released
    guess = scores.argmax(1).numpy()
    return Played(hits=int((guess == target).sum()), accuracy=game.accuracy(theta))


class _DefendedGame:
    def __init__(self, config: AuditConfig, noise: float, defense: Defense | None) -> None:
        data = datasets.digits()
        parts = () if defense is None else defense.parts
        self.config, self.noise = config, noise
        self.after = [part for part in parts if part.stage == "release"]
        self.local = next((part.steps for part in parts if isinstance(part, LocalSteps)), 1)
        self.dropout = next((part for part in parts if isinstance(part, Dropout)), None)
        features = torch.from_numpy(np.array(data.features, dtype=np.float32))
        labels = torch.from_numpy(np.array(data.labels, dtype=np.int64))
        known = config.num_rows - 1
        self.layers = (features.shape[1], *config.hidden, data.num_classes)
        self.rows, self.pool = (features[:known], labels[:known]), (features[known:], labels[known:])

    def start(self, first: int, runs: int) -> tuple[Tensor, Tensor, np.ndarray]:
        """(R, D) initial parameters, (R, n) candidates as rows of the pool, (R,) the target's place among them."""
        config = self.config
        candidates, target = draw_candidates(config.seed, first, runs, config.num_candidates, len(self.pool[1]))
        plain = ensemble(dataclasses.replace(config, defense=None), self.noise)
        untrained = plain.replace(steps=0).run(
            self.rows[0][:1].numpy(), self.rows[1][:1].numpy(), runs=range(first, first + runs)
        )
        return torch.from_numpy(untrained.parameters.copy()), torch.from_numpy(candidates), target

    def expected(self, theta: Tensor, candidates: Tensor) -> Tensor:
        """(R, n, D), the mean gradient of k steps without noise for each candidate, which the attacker can compute."""
        if self.local == 1:
            known = self._clipped(theta, *self.rows).sum(1)
            each = self._clipped(theta, self.pool[0][candidates], self.pool[1][candidates], apart=True)
            return (known[:, None] + each) / self.config.num_rows
        out = []
        for i in range(candidates.shape[1]):
            chosen = candidates[:, i : i + 1]
            path, total = theta, torch.zeros_like(theta)
            for _ in range(self.local):
                mean = self._sum(path, chosen) / self.config.num_rows
                path, total = path - self.config.learning_rate * mean, total + mean
            out.append(total / self.local)
        return torch.stack(out, 1)

    def released(self, theta: Tensor, candidates: Tensor, target: np.ndarray, release: int, first: int) -> Tensor:
        """(R, D), what server and attacker see."""
        chosen = torch.gather(candidates, 1, torch.from_numpy(target)[:, None])
        path, total = theta, torch.zeros_like(theta)
        for j in range(self.local):
            step = release * self.local + j
            clipped = self._sum(path, chosen, step=step, first=first)
            drawn = Streams(self.config.seed, "float32").noise(len(theta), theta.shape[1], step, first_run=first)
            noisy = clipped + self.noise * self.config.max_grad_norm * torch.from_numpy(drawn).to(theta)
            mean = noisy / self.config.num_rows
            path, total = path - self.config.learning_rate * mean, total + mean
        out = []
        for run, row in enumerate((total / self.local).numpy()):
            for place, part in enumerate(self.after):
                # Each run and part has noise of its own, whichever range the run is played in.
                key = kernels.subseed(self.config.seed, kernels.Stream.DEFENDED_GAME, step=place, row=first + run)
                row = part.apply(row, seed=key, step=release)
            out.append(row)
        return torch.from_numpy(np.stack(out))

    def misfit(self, released: Tensor, expected: Tensor) -> Tensor:
        """(R, n), the squared distance of the release from what each candidate would give.

        Pruned entries are ignored. If the release may have been scaled by a factor that depends on its noise, one
        factor is fitted for all candidates and undone. A factor for each candidate would let the length of the noise
        decide between them more than the release does.
        """
        if any(isinstance(part, Prune) for part in self.after):
            expected = expected * (released != 0)[:, None]
        if not any(isinstance(part, Clip) for part in self.after):
            return (released[:, None] - expected).square().sum(-1)
        tiny = torch.finfo(released.dtype).tiny
        typical = expected.mean(1)
        factor = (released * typical).sum(-1) / typical.square().sum(-1).clamp(min=tiny)
        return ((released / factor.clamp(min=1e-6, max=1)[:, None])[:, None] - expected).square().sum(-1)

    def accuracy(self, theta: Tensor) -> float:
        hidden = self.pool[0].expand(len(theta), -1, -1)
        apply = models.activation_module(self.config.activation)
        weights = self._split(theta)
        for weight, bias in weights[:-1]:
            hidden = apply(hidden @ weight.mT + bias[:, None])
        logits = hidden @ weights[-1][0].mT + weights[-1][1][:, None]
        return float((logits.argmax(-1) == self.pool[1]).double().mean())

    def _sum(self, theta: Tensor, chosen: Tensor, *, step: int | None = None, first: int = 0) -> Tensor:
        """(R, D), the sum over the known rows and each run's own row; `step` is for training itself, in which units are
        dropped.
        """
        x, y = self.pool[0][chosen], self.pool[1][chosen]
        if self.dropout is None or step is None:
            return self._clipped(theta, *self.rows).sum(1) + self._clipped(theta, x, y).sum(1)
        x = torch.cat([self.rows[0].expand(len(theta), -1, -1), x], 1)
        y = torch.cat([self.rows[1].expand(len(theta), -1), y], 1)
        return self._clipped(theta, x, y, masks=self._masks(len(theta), x.shape[1], step, first)).sum(1)

    def _masks(self, runs: int, rows: int, step: int, first: int) -> list[Tensor]:
        """(R, rows or 1, units) for every hidden layer: 0, or 1 over the probability to be kept."""
        assert self.dropout is not None
        keep, drawn = self.dropout.keep_probability, rows if self.dropout.per_sample else 1
        sizes = self.layers[1:-1]
        u = kernels.uniform(
            (runs, drawn * sum(sizes)),
            seed=self.config.seed,
            purpose=kernels.Stream.DEFENDED_GAME_MASKS,
            step=step,
            first_row=first,
        )
        masks = torch.from_numpy((u < keep) / keep).float().reshape(runs, drawn, -1)
        return list(torch.split(masks, list(sizes), dim=-1))

    def _clipped(
        self, theta: Tensor, x: Tensor, y: Tensor, *, masks: list[Tensor] | None = None, apart: bool = False
    ) -> Tensor:
        """Gradients of rows x, (R, N, inputs) or (N, inputs), clipped to C: (R, 1, D) summed, or (R, N, D) each."""
        apply = models.activation_module(self.config.activation)
        weights = self._split(theta)
        inputs, slopes = [x], []
        for i, (weight, bias) in enumerate(weights):
            before = inputs[-1] @ weight.mT + bias[:, None]
            if i == len(weights) - 1:
                break
            with torch.enable_grad():
                leaf = before.detach().requires_grad_()
                after = apply(leaf)
                (slope,) = torch.autograd.grad(after.sum(), leaf)
            mask = 1.0 if masks is None else masks[i]
            inputs.append(after.detach() * mask)
            slopes.append(slope * mask)
        deltas = [before.softmax(-1) - torch.nn.functional.one_hot(y, self.layers[-1]).to(before)]
        for (weight, _), slope in zip(weights[:0:-1], slopes[::-1], strict=True):
            deltas.insert(0, (deltas[0] @ weight) * slope)
        square = torch.zeros(())
        for h, delta in zip(inputs, deltas, strict=True):
            square = square + (h.square().sum(-1) + 1) * delta.square().sum(-1)
        factor = (self.config.max_grad_norm * square.clamp(min=torch.finfo(theta.dtype).tiny).rsqrt()).clamp(max=1)
        out = []
        for h, delta in zip(inputs, deltas, strict=True):
            delta = delta * factor[..., None]
            if apart:
                out += [(delta[..., None] * h[..., None, :]).flatten(2), delta]
            else:
                out += [(delta.mT @ h).flatten(1)[:, None], delta.sum(1, keepdim=True)]
        return torch.cat(out, -1)

    def _split(self, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
        """(R, out, in) weights and (R, out) biases of every layer."""
        out, start = [], 0
        for fan_in, fan_out in itertools.pairwise(self.layers):
            middle = start + fan_in * fan_out
            out.append((theta[:, start:middle].reshape(-1, fan_out, fan_in), theta[:, middle : middle + fan_out]))
            start = middle + fan_out
        return out


MOST_RUNS = 128
"""Trainings on either side: each is played step by step, as the defence wants it."""
_PIECE = 32


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Side:
    """One row of the table: the same attacker on the same runs, with ε and bound that hold for this release."""

    attack: Result
    accuracy: float
    epsilon: Result
    bound: Result


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class DefenseStudy:
    """The same attack on the same runs without a defence and with it.

    released_noise: σ with the noise that the defence adds. why: why bound and ε hold under the defence.
    """

    config: AuditConfig
    noise_multiplier: float
    released_noise: float
    runs: int
    plain: Side
    defended: Side
    why: str


def study(
    config: AuditConfig,
    points: list[ReconstructionPoint],
    pieces: PartialResults,
    progress: Progress,
    executor: Executor | None = None,
) -> DefenseStudy | None:
    """The attack without the defence and with it; None without a defence."""
    defense = parsed_defense(config.defense)
    if defense is None:
        return None
    point = next(p for p in points if p.claimed)
    runs = min(config.runs, MOST_RUNS)
    counts = {first: min(_PIECE, runs - first) for first in range(0, runs, _PIECE)}
    sides = []
    for name in ("without", "with"):
        firsts = {f"defense-{name}-{first}": first for first in counts}
        jobs = {
            piece: functools.partial(_played, config, point.noise_multiplier, name == "with", first, counts[first])
            for piece, first in firsts.items()
        }
        results, done = {}, 0
        for piece, played in pieces.each(jobs, executor):
            results[firsts[piece]] = played
            done += counts[firsts[piece]]
            progress(f"attack {name} the defence", done, runs)
        hits, right = 0, 0.0
        # In the order of runs, not of finishing, because the accuracies are summed as floats.
        for first, count in counts.items():
            hits, right = hits + results[first]["hits"], right + results[first]["accuracy"] * count
        sides.append(_side(config, point, hits, runs, right / runs, name == "with"))
    return DefenseStudy(
        config=config,
        noise_multiplier=point.noise_multiplier,
        released_noise=_released_noise(config, point) or point.noise_multiplier,
        runs=runs,
        plain=sides[0],
        defended=sides[1],
        why=why_bounds_hold(defense),
    )


def _played(config: AuditConfig, noise: float, defended: bool, first: int, count: int) -> dict[str, Any]:
    """Runs [first, first + count) as a piece, created from the configuration alone, wherever it is called."""
    with one_thread():
        defence = parsed_defense(config.defense) if defended else None
        return dataclasses.asdict(play(config, noise, defence, first, count))


def _side(
    config: AuditConfig, point: ReconstructionPoint, hits: int, runs: int, accuracy: float, defended: bool
) -> Side:
    low, high = numerics.clopper_pearson(hits, runs, confidence=config.confidence)
    more = _released_noise(config, point) if defended else None
    attack = Result(
        quantity="success probability",
        value=hits / runs,
        kind="estimate",
        confidence=config.confidence,
        interval=(float(low), float(high)),
        method="least squares against the noiseless release of each candidate",
        assumptions=Assumptions(
            "add-remove",
            f"knows all rows but the target, {config.num_candidates} candidates for it"
            + (", the defence, and every defended release" if defended else ", and every release"),
            ("a better attack on the defended release may exist",) if defended else (),
        ),
        seed=config.seed,
        provenance="the game of Hayes et al. 2023, Section 3.4",
    )
    if more is None:
        return Side(attack=attack, accuracy=accuracy, epsilon=point.epsilon, bound=point.bound)
    released = more, 1.0, scheme.total_steps(config)
    epsilon = accounting.epsilon(*released, delta=config.delta)
    bound = bounds.reconstruction(*released, kappa=1 / config.num_candidates)
    return Side(attack=attack, accuracy=accuracy, epsilon=epsilon, bound=bound)


def _released_noise(config: AuditConfig, point: ReconstructionPoint) -> float | None:
    """σ of what the defence releases, where its first part adds Gaussian noise."""
    defense = parsed_defense(config.defense)
    return noise_under_defense(defense, point.noise_multiplier, config.num_rows, config.max_grad_norm)
