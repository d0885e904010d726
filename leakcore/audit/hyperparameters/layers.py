"""Where the leak sits in the audited model, layer by layer, before and after clipping and noise."""

from __future__ import annotations

import dataclasses
import itertools
from concurrent.futures import Executor
from typing import Any

import numpy as np

from leakcore import datasets, kernels, leakage
from leakcore._base.process_wide import one_thread
from leakcore._base.progress import Progress
from leakcore._base.results import jsonable
from leakcore._base.run_folder import PartialResults
from leakcore.audit.hyperparameters.config import AuditConfig
from leakcore.audit.hyperparameters.reconstruction import ensemble

ATTRIBUTE = "texture"
"""The latent attribute: whether neighbouring pixels of a digit differ more than the median digit's do."""
_ROWS, _PERMUTATIONS, _SAMPLES = 400, 9, 16
FAMILY = "magnitudes"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LayerStudy:
    """The measures of the audited model, without the gains of single rows.

    measures: what gradients of single rows carry. released: what is left of the attribute in one step's release after
    subtracting all other rows: the row's gradient clipped to C, with noise σC. sizes: (inputs, outputs) of every layer.
    """

    measures: leakage.LeakageByLayer
    released: leakage.VInformation
    noise_multiplier: float
    sizes: tuple[tuple[int, int], ...]

    def content(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "measures": self.measures.without_samples().to_dict(),
            "released": jsonable(self.released),
            "noise_multiplier": self.noise_multiplier,
        }

    def name(self, layer: int) -> str:
        """The layer as the report calls it."""
        return f"layer {layer + 1} ({self.sizes[layer][0]}→{self.sizes[layer][1]})"


def study(
    config: AuditConfig, noise: float, pieces: PartialResults, progress: Progress, executor: Executor | None = None
) -> LayerStudy:
    """One training as claimed, and the measures of its final model; a piece once it is done."""
    measured: LayerStudy = pieces.get_or_run("layers", lambda: _measured(config, noise, progress, executor), LayerStudy)
    return measured


def _measured(config: AuditConfig, noise: float, progress: Progress, executor: Executor | None) -> LayerStudy:
    import torch

    from leakcore.attacks import attributes
    from leakcore.leakage import CrossValidation, LayerMeasures, by_layer, input_attributes, v_information

    def shown(task: str, done: int, total: int) -> None:
        if not task.startswith("attributes"):
            progress(f"where it sits, {task}", done, total)

    data = datasets.digits()
    features = np.array(data.features, dtype=np.float64)
    labels = np.array(data.labels, dtype=np.int64)
    with one_thread():
        run = ensemble(config, noise, dtype="float64").run(
            features[: config.num_rows], labels[: config.num_rows], runs=1
        )
        model = run.module(run.first_run).eval()
        x, y = torch.from_numpy(features), torch.from_numpy(labels)
        has = input_attributes(features.reshape(-1, 1, 8, 8))[ATTRIBUTE]
        wanted = LayerMeasures(
            attributes={ATTRIBUTE: has},
            family=FAMILY,
            samples=_SAMPLES,
            rows=_ROWS,
            permutations=_PERMUTATIONS,
            iterations=0,
        )
        measures = by_layer(model, x, y, measures=wanted, seed=config.seed, executor=executor, progress=shown)
        batches = attributes.matched_batches(has, labels, limit=_ROWS // 2, seed=config.seed)
        plain = attributes.layer_gradients(model, x, y, batches=batches.rows)
        released = v_information(
            _released(plain, config.max_grad_norm, noise, config.seed),
            batches.attribute,
            family=FAMILY,
            permutations=_PERMUTATIONS,
            validation=CrossValidation(strata=batches.targets),
            seed=config.seed,
            executor=executor,
            progress=lambda done, total: shown("after noise", done, total),
        )
    sizes = (features.shape[1], *config.hidden, data.num_classes)
    latent = {name: _without_gains(measure) for name, measure in measures.latent.items()}
    return LayerStudy(
        measures=dataclasses.replace(measures, latent=latent),
        released=_without_gains(released),
        noise_multiplier=noise,
        sizes=tuple(itertools.pairwise(sizes)),
    )


def _without_gains(measure: leakage.VInformation) -> leakage.VInformation:
    return dataclasses.replace(measure, gains=np.empty(0))


def _released(plain: dict[str, np.ndarray], bound: float, noise: float, seed: int) -> dict[str, np.ndarray]:
    """Each row's gradient clipped to C by its joint norm, plus N(0, σ²C²)."""
    rng = kernels.generator(seed, kernels.Stream.RELEASED_LAYERS)
    norms = np.sqrt(sum((g.astype(np.float64) ** 2).sum(axis=1) for g in plain.values()))
    scale = (bound / np.maximum(norms, bound))[:, None]
    return {name: g * scale + noise * bound * rng.normal(size=g.shape) for name, g in plain.items()}
