"""The paper's training with Opacus itself: its per-sample gradients, its optimizer, its noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from leakcore import kernels, models
from leakcore._base.quiet import quiet
from leakcore.dpsgd import Ensemble, Streams

TRAINED = "models are trained by Opacus (GradSampleModule and DPOptimizer), on the batches that dpsgd.Ensemble draws"


def train(
    ensemble: Ensemble,
    features: np.ndarray,
    labels: np.ndarray,
    *,
    initial: np.ndarray,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> np.ndarray:
    """(runs, parameters) float32 of the ensemble's networks after DP-SGD from `initial` (runs, parameters).

    ensemble: of ReLU networks with one logit, with Poisson batches, without a fault of its own. Batches are a function
    of (seed, run, step), the same as the ensemble's; noise comes from a torch generator per run. Raises ImportError
    where Opacus is not installed.
    """
    import torch

    # Opacus's own code on the newest torch; and its hooks, whose input is data and needs no gradient.
    with quiet(category=DeprecationWarning), quiet(category=FutureWarning), quiet("Full backward hook is firing"):
        try:
            from opacus import GradSampleModule
            from opacus.optimizers import DPOptimizer
        except ImportError as error:
            raise ImportError("`trainer='opacus'` needs Opacus: pip install 'leakcore[opacus]'") from error
        # Copies: torch warns of arrays that may not be written, and the parameters become views of theirs.
        x, y = (torch.from_numpy(np.array(a, dtype=np.float32)) for a in (features, labels))
        out = np.empty((len(initial), models.num_parameters(ensemble.layers)), dtype=np.float32)
        for run, start in enumerate(initial):
            plain = models.mlp(ensemble.layers, "relu")
            flat = torch.from_numpy(np.array(start, dtype=np.float32))
            torch.nn.utils.vector_to_parameters(flat, plain.parameters())
            module = GradSampleModule(plain, loss_reduction="sum")
            optimizer = DPOptimizer(
                torch.optim.SGD(module.parameters(), lr=ensemble.learning_rate),
                noise_multiplier=ensemble.noise_multiplier,
                max_grad_norm=ensemble.max_grad_norm,
                expected_batch_size=ensemble.expected_batch_size,
                loss_reduction="mean",
                generator=kernels.torch_generator(ensemble.seed, kernels.Stream.OPACUS_NOISE, row=run),
            )
            for step in range(ensemble.steps):
                rows = torch.as_tensor(_batch(ensemble, len(x), run=run, step=step))
                optimizer.zero_grad()
                logits = module(x[rows])[:, 0]
                loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, y[rows], reduction="sum")
                torch.autograd.backward(loss)
                optimizer.step()
            out[run] = torch.cat([p.detach().flatten() for p in plain.parameters()]).numpy()
            progress(run + 1, len(initial))
    return out


def _batch(ensemble: Ensemble, rows: int, *, run: int, step: int) -> np.ndarray:
    streams = Streams(ensemble.seed, "float32")
    return np.flatnonzero(streams.batch(1, rows, ensemble.sample_rate, step, first_run=run)[0])
