"""The reconstruction game where the server, and the attacker, see each release through a defence.

The same rules as `attacks.reconstruction_game`; the attacker compares what was released with what the defence, without
its noise, would have made of the known rows and each candidate. Undefended that is least squares on all noisy
gradients, the optimum for Gaussian noise.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import torch

from leakcore import datasets, kernels, models
from leakcore.attacks import draw_candidates
from leakcore.audit.hyperparameters import reconstruction_section, scheme
from leakcore.audit.hyperparameters.config import AuditConfig
from leakcore.defenses import Clip, Defense, Dropout, LocalSteps, Prune
from leakcore.dpsgd import Streams


@dataclasses.dataclass(frozen=True, eq=False)
class Played:
    """The outcome of a game.

    Attributes:
        hits: correct guesses.
        accuracy: of the final models on the rows of the pool, mean over all runs.
    """

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

    def start(self, first: int, runs: int) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
        """(R, D) initial parameters, (R, n) candidates as rows of the pool, (R,) the target's place among them."""
        config = self.config
        candidates, target = draw_candidates(config.seed, first, runs, config.num_candidates, len(self.pool[1]))
        plain = reconstruction_section.ensemble(dataclasses.replace(config, defense=None), self.noise)
        untrained = plain.replace(steps=0).run(
            self.rows[0][:1].numpy(), self.rows[1][:1].numpy(), runs=range(first, first + runs)
        )
        return torch.from_numpy(untrained.parameters.copy()), torch.from_numpy(candidates), target

    def expected(self, theta: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
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

    def released(
        self, theta: torch.Tensor, candidates: torch.Tensor, target: np.ndarray, release: int, first: int
    ) -> torch.Tensor:
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
            for number, part in enumerate(self.after):
                # Each run and part has noise of its own, whichever range the run is played in.
                key = kernels.subseed(self.config.seed, kernels.Stream.DEFENDED_GAME, step=number, row=first + run)
                row = part.apply(row, seed=key, step=release)
            out.append(row)
        return torch.from_numpy(np.stack(out))

    def misfit(self, released: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
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

    def accuracy(self, theta: torch.Tensor) -> float:
        hidden = self.pool[0].expand(len(theta), -1, -1)
        apply = models.activation_module(self.config.activation)
        weights = self._split(theta)
        for weight, bias in weights[:-1]:
            hidden = apply(hidden @ weight.mT + bias[:, None])
        logits = hidden @ weights[-1][0].mT + weights[-1][1][:, None]
        return float((logits.argmax(-1) == self.pool[1]).double().mean())

    def _sum(
        self, theta: torch.Tensor, chosen: torch.Tensor, *, step: int | None = None, first: int = 0
    ) -> torch.Tensor:
        """(R, D), the sum over the known rows and each run's own row; `step` is for training itself, in which units are
        dropped.
        """
        x, y = self.pool[0][chosen], self.pool[1][chosen]
        if self.dropout is None or step is None:
            return self._clipped(theta, *self.rows).sum(1) + self._clipped(theta, x, y).sum(1)
        x = torch.cat([self.rows[0].expand(len(theta), -1, -1), x], 1)
        y = torch.cat([self.rows[1].expand(len(theta), -1), y], 1)
        return self._clipped(theta, x, y, masks=self._masks(len(theta), x.shape[1], step, first)).sum(1)

    def _masks(self, runs: int, rows: int, step: int, first: int) -> list[torch.Tensor]:
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
        self,
        theta: torch.Tensor,
        x: torch.Tensor,
        y: torch.Tensor,
        *,
        masks: list[torch.Tensor] | None = None,
        apart: bool = False,
    ) -> torch.Tensor:
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

    def _split(self, theta: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(R, out, in) weights and (R, out) biases of every layer."""
        out, start = [], 0
        for fan_in, fan_out in itertools.pairwise(self.layers):
            middle = start + fan_in * fan_out
            out.append((theta[:, start:middle].reshape(-1, fan_out, fan_in), theta[:, middle : middle + fan_out]))
            start = middle + fan_out
        return out
