"""Where the leak sits: what each layer's gradient of the audited model carries, before and after clipping and noise."""

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
from leakcore.audit.hyperparameters import reconstruction_section
from leakcore.audit.hyperparameters.config import AuditConfig
from leakcore.audit.report.format import number
from leakcore.audit.report.leakage_section import at, beyond, limits, nats, told
from leakcore.audit.report.page import Finding, Part, Section
from leakcore.audit.report.tables import Cell, Column, Row, Table

ATTRIBUTE = "texture"
"""The latent attribute: whether neighbouring pixels of a digit differ more than the median digit's do."""
_ROWS, _PERMUTATIONS, _SAMPLES = 400, 9, 16
FAMILY = "magnitudes"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LayerStudy:
    """The measures of the audited model, without the gains of single rows.

    Attributes:
        measures: of gradients of single rows, as the model gives them.
        released: what is left of the attribute in one step's release after subtracting all other rows: the row's
            gradient clipped to C, with noise σC.
        noise_multiplier: σ.
        sizes: (inputs, outputs) of every layer.
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

    def table(self) -> Table:
        """A row per layer."""
        columns = (
            Column("layer", "parameter"),
            Column("parameters", "parameter"),
            Column("sensitivity\n‖∂g/∂x‖", "estimate"),
            Column("per root of\nparameters", "estimate"),
            Column("attribute, nats\nplain gradient", "estimate"),
            Column("attribute, nats\none noisy step", "estimate"),
        )
        rows = []
        latent = self.measures.latent[ATTRIBUTE]
        for i, row in enumerate(self.measures.rows()):
            rows.append(
                Row(
                    (
                        Cell(self.name(i)),
                        Cell(f"{row['parameters']:,}"),
                        Cell(number(row["sensitivity"])),
                        Cell(number(row["per_parameter"], 3)),
                        *(Cell(nats(at(v.value, i)), limits(v, i)) for v in (latent, self.released)),
                    )
                )
            )
        caption = (
            f"Gradients of single rows of one model trained as claimed (σ = {number(self.noise_multiplier, 4)}). "
            f"Sensitivity: mean Frobenius norm over {self.measures.samples[0]} inputs. Attribute: texture above "
            f"the median, {latent.set_sizes[0]} rows with and {latent.set_sizes[1]} without it, matched by digit; nats "
            f"that logistic regression on absolute values reads held out, at most {latent.largest:.3f}, "
            f"beneath it the {100 * (latent.confidence or 0):g}% interval of this gain and, in brackets, "
            f"the largest of {len(latent.null)} permutations of the labels: only what lies above that counts, "
            "for larger layers read more by chance. The last column: the same gradients clipped to C with the noise "
            "of one step, all other rows known. Estimates; no bound on any attack."
        )
        return Table("Where the leak sits", columns, tuple(rows), caption)

    def finding(self) -> Finding:
        """The result, its consequence, and its conditions."""
        latent = self.measures.latent[ATTRIBUTE]
        per = self.measures.sensitivity.per_parameter()
        most = int(np.argmax(per))
        before, after = beyond(latent), beyond(self.released)
        summary = f"{self.name(before[0])} shows most, {told(latent, before[0])}" if before else "no layer shows any"
        left = f"{self.name(after[0])} still shows {told(self.released, after[0])}" if after else "none does"
        sure = f"{100 * (latent.confidence or 0):g}%"
        if after:
            verdict = f"At {sure}: what the task never asks for is in single steps of this run; more noise hides more."
        elif before:
            verdict = (
                f"At {sure} the plain gradient shows what the task never asks for; in one step's release this family "
                "of attackers does not read it."
            )
        else:
            verdict = (
                "Nothing to conclude on the order of layers: this family of attackers reads the attribute in none."
            )
        return Finding(
            f"Where the leak sits: for its size the gradient of {self.name(most)} follows the input most closely "
            f"({number(per[most], 3)} per root of the number of parameters). The task never asks whether a digit has "
            f"more texture than the median: about that {summary}; after clipping and one step's noise {left} "
            f"(by whole intervals, {100 * (latent.confidence or 0):g}%, above every permutation of the labels; "
            "estimates, no guarantee).",
            verdict=verdict,
            assumes="the attacker reads as logistic regression on absolute values does, and sees one step; a better "
            "one, or one with all steps, may read more. The bounds above hold against them, this does not.",
        )

    def part(self) -> Part:
        """What the report shows of it."""
        return Part(
            key="layers",
            findings=(self.finding(),),
            sections=(Section("Where the leak sits, layer by layer", (self.table(),)),),
            content=self.content(),
        )


def study(
    config: AuditConfig, noise: float, pieces: PartialResults, progress: Progress, executor: Executor | None = None
) -> LayerStudy:
    """One training as claimed, and the measures of its final model; a piece once it is done.

    It takes seconds, and is deterministic by the configuration.
    """
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
        run = reconstruction_section.ensemble(config, noise, dtype="float64").run(
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
