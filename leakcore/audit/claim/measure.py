"""Audit a claimed ε: train with and without the attacker's rows, and compare what is proved with the claim."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from leakcore import attacks, bounds, datasets, dpsgd, kernels, mechanisms, models
from leakcore._base import validate
from leakcore._base.progress import Progress, timed
from leakcore._base.run_folder import PartialResults, identity
from leakcore._base.text import renaming
from leakcore._base.version import PAGE, need
from leakcore.attacks import membership, poisoning
from leakcore.audit.claim.config import SECTIONS, ClaimConfig, Stop
from leakcore.audit.claim.proofs import ClaimedEpsilon, Proof, Scores, Stopped, claim_of, prove, until_decided
from leakcore.audit.claim.report import ClaimReport
from leakcore.audit.scores.statistics import audited, provable
from leakcore.audit.shared.config_checks import shown
from leakcore.audit.shared.doctor import environment
from leakcore.audit.shared.report import require_report_folder, write_report

if TYPE_CHECKING:
    import torch

_HELD_OUT = 0.2
_WIDTH, _EPOCHS = 16, 8
"""Size of the frozen network: half a minute of training; 64 features."""


@dataclasses.dataclass(frozen=True, eq=False)
class ClaimRows:
    """The rows of a claim's audit, (n, d) float32 with their classes, and those that are held out.

    shape: (channels, height, width) of images. described: the data in words, for the report. extractor: the frozen
    network, if there is one, of whose features the rows are; images, test_images: the images behind these.
    """

    features: np.ndarray
    labels: np.ndarray
    test_features: np.ndarray
    test_labels: np.ndarray
    classes: int
    shape: tuple[int, ...] | None
    described: str
    images: np.ndarray | None = None
    test_images: np.ndarray | None = None
    extractor: torch.nn.Module | None = None


def load(config: ClaimConfig, pieces: PartialResults, show: Progress) -> ClaimRows:
    """The configured rows: the first `data.num_rows` of the training part after a seeded shuffle.

    A frozen network is trained once and stored, because its rounding depends on torch's threads.
    """
    name, path, seed = config.data.name, config.data.path, config.audit.seed
    test: datasets.Dataset | None = None
    where: dict[str, Any] = {"path": path, "download": False}
    if name == "digits":
        whole = dataclasses.replace(datasets.digits(), shape=(1, 8, 8))
    elif name == "breast-cancer":
        whole = datasets.breast_cancer()
    elif name == "fashion-mnist":
        whole, test = (datasets.fashion_mnist(split, part="classes-0-1", **where) for split in ("train", "test"))
    elif name == "cifar10":
        whole, test = (datasets.cifar10(split, part="airplane-automobile", **where) for split in ("train", "test"))
    elif name == "location30":
        whole = datasets.location30(path=path)
    else:
        if path is None:
            raise ValueError("`data.path` must say where your copy of purchase100 is, which is not redistributed")
        whole = datasets.purchase100(path)
    held_out = round(_HELD_OUT * len(whole)) if test is None else 0
    train, rest = whole.split(len(whole) - held_out, seed=seed)
    test = rest if test is None else test
    rows = config.data.num_rows
    if rows is not None:
        if rows > len(train):
            raise ValueError(f"`data.num_rows` must be at most the {len(train)} training rows of {name}, got {rows}")
        train = dataclasses.replace(train, features=train.features[:rows], labels=train.labels[:rows])
    loaded = ClaimRows(
        train.features.astype(np.float32),
        train.labels,
        test.features.astype(np.float32),
        test.labels,
        whole.num_classes,
        whole.shape,
        f"{whole.name}: {len(train):,} training rows, {train.features.shape[1]} features, {whole.num_classes} classes "
        f"({whole.scaling}; {whole.source})",
    )
    return loaded if config.data.features == "pixels" else _through(config, loaded, pieces, show)


def _through(config: ClaimConfig, rows: ClaimRows, pieces: PartialResults, show: Progress) -> ClaimRows:
    """The rows as features of a small convolutional network that was trained on the subset of CIFAR-100."""
    public = datasets.cifar100("train", part="subset", path=config.data.path, download=False)
    with kernels.torch_seeded(config.audit.seed, kernels.Stream.EXTRACTOR_INIT):
        network = models.conv_extractor(_WIDTH)

    def train() -> dict[str, Any]:
        accuracy = models.train_extractor(
            network,
            public.images(),
            public.labels,
            epochs=_EPOCHS,
            seed=config.audit.seed,
            progress=lambda done, total: show("frozen network", done, total),
        )
        return {"accuracy": accuracy, "state": models.state_arrays(network)}

    models.load_state_arrays(network, pieces.get_or_run("frozen-network", train)["state"])
    extractor = models.standardised(network, public.images())
    assert rows.shape is not None
    images = (part.reshape(-1, *rows.shape) for part in (rows.features, rows.test_features))
    inside, outside = (models.extract_features(extractor, part) for part in images)
    return dataclasses.replace(
        rows,
        features=inside,
        test_features=outside,
        images=rows.features,
        test_images=rows.test_features,
        extractor=extractor,
        described=f"{rows.described}, as {inside.shape[1]} features of a frozen convolutional network that was trained "
        f"on {len(public):,} images of CIFAR-100 for {_EPOCHS} epochs and standardised by them",
    )


_KEYS = {
    field.name: f"{section}.{field.name}"
    for section, cls in SECTIONS.items()
    if section != "fault"
    for field in dataclasses.fields(cls)
} | {
    "network": "(inputs, *model.hidden, outputs)",
    "initialisation.scale": "model.initialisation_scale",
    "expected_batch_size": "mechanism.sample_rate × rows",
    "count": "audit.canaries",
    "trials": "audit.trials",
    "runs": "audit.trials",
}
"""section.key by the argument that takes its value where the mechanism is made, attacked and accounted for."""
_TEST_ROWS = 200
"""Held-out rows on which a backdoor is tested: enough for a mean, a fraction of the cost of training."""


@timed
def claim(
    config: ClaimConfig | Mapping[str, Any],
    *,
    stop: Stop | None = None,
    folder: str | Path | None = None,
    executor: Executor | None = None,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> ClaimReport:
    """Try to disprove a claimed ε by attacking thousands of trained models (Jagielski, Ullman and Oprea 2020).

    `trials` models are trained on D₀ and as many on D₁ for each k (`dpsgd.Ensemble`). All of them are counted, by tests
    that hold for every threshold and every k at once. The attack "one-run" trains one model with many canaries
    (Steinke, Nasr and Jagielski 2023).

    Args:
        config: a `ClaimConfig`, or its sections as a mapping.
        stop: "early": when the claim falls or cannot fall; "never". None: as configured.
        folder: where report.html and report.json are written. Until then it stores finished models, from which a later
            call continues to the same JSON. None: write nothing.
        executor: any `concurrent.futures.Executor`, whose workers train models.
        num_threads: threads, here or in each worker.
        progress: called as `progress(task, done, total)`.

    Returns:
        A `ClaimReport`; `.passed` is False if the audited ε exceeds the claimed one.

    Raises:
        ValueError: names section.key, before any work; or the folder holds damaged models, models of another run, or
            files that are not leakcore's.
        TypeError: for an argument of another type.
        FileNotFoundError: if the data are missing.
        OSError: if the disk is full; finished models remain.

    Guarantees:
        All bounds hold together at the stated confidence. The claim is first converted to the audit's adjacency, so a
        correct mechanism is called broken with probability at most 1 − confidence. The result is deterministic on one
        machine, for any number of threads and workers; with "frozen" features, for one number of torch threads.

    Example:
        >>> from leakcore import audit
        >>> report = audit.claim({
        ...     "data": {"name": "breast-cancer", "num_rows": 40}, "mechanism": {"noise_multiplier": 1.0, "steps": 2},
        ...     "claim": {"epsilon": 5.0}, "audit": {"trials": 20, "k": [1]},
        ... })
        >>> report.passed
        True
    """
    if isinstance(config, Mapping):
        config = ClaimConfig.from_dict(config)
    if not isinstance(config, ClaimConfig):
        raise TypeError(f"`config` must be a ClaimConfig or a mapping of its sections, got {shown(config)}")
    if stop is not None:
        validate.one_of("early", "never", stop=stop)
        config = dataclasses.replace(config, audit=dataclasses.replace(config.audit, stop=stop))
    validate.executor(executor=executor)
    validate.callback(progress=progress)
    target = None if folder is None else Path(folder)
    if target is not None:
        need("torch", "sklearn", *PAGE)
        require_report_folder(target)
    bound_to = identity("audit --attack", config.to_dict(), config.audit.seed)
    show = progress or (lambda task, done, total: None)
    with PartialResults(target, "audit-attack", bound_to, checkpoints=True) as pieces, renaming(_KEYS):
        started = time.monotonic()
        rows = load(config, pieces, show)
        claimed = claim_of(config, len(rows.labels))
        ensemble = config.ensemble(rows.features.shape[1], rows.classes, claimed.noise_multiplier, len(rows.labels))
        pieces.begin()
        how = {"executor": executor, "num_threads": num_threads, "checkpoint": pieces.folder}
        play = _PLAYED.get(config.audit.attack, _poisoning)
        scores, proofs, stopped = play(_Game(config, rows, claimed, ensemble, show, how))
        report = ClaimReport(
            config=config,
            claim=claimed,
            data=rows.described,
            parameters=ensemble.num_parameters,
            scores=scores,
            proofs=proofs,
            stopped=stopped,
            environment=environment(),
            seconds=time.monotonic() - started,
        )
        if target is not None:
            write_report(report, target, pieces)
        return report


_Outcome = tuple[Scores, tuple[Proof, ...], Stopped | None]


@dataclasses.dataclass(frozen=True, eq=False)
class _Game:
    """What every attack is played on. how: the executor, threads and checkpoint of the trainings."""

    config: ClaimConfig
    rows: ClaimRows
    claimed: ClaimedEpsilon
    ensemble: dpsgd.Ensemble
    show: Progress
    how: dict[str, Any]

    def execution(self, before: int = 0, total: int | None = None) -> dpsgd.Execution:
        """How models are trained, whose progress counts on from `before`, up to `total` if that is more."""
        task = f"{self.config.audit.attack}: models"
        return dpsgd.Execution(progress=lambda done, all_: self.show(task, before + done, total or all_), **self.how)

    def decided(self, train: Callable[[range], Scores]) -> _Outcome:
        """Train every trial, or chunks of them until the claim is decided, and prove what follows."""
        audit = self.config.audit
        if audit.stop == "early":
            return until_decided(train, self.claimed, audit)
        scores = train(range(audit.trials))
        return scores, prove(scores, self.claimed, audit.confidence, audit.seed), None


def _poisoned(config: ClaimConfig, rows: ClaimRows) -> attacks.poisoning.Poisoning:
    most = max(config.audit.k)
    if most >= len(rows.labels):
        raise ValueError(f"`audit.k` must be below the {len(rows.labels)} training rows, got {most}")
    more: dict[str, Any] = {"k": most, "adjacency": config.adjacency, "seed": config.audit.seed}
    name = config.audit.attack
    if name == "backdoor":
        if rows.shape is None:
            raise ValueError(
                f"`audit.attack` must need no images with {config.data.name}, which has none, got 'backdoor'"
            )
        backdoor = poisoning.Backdoor(rows.shape, label=1, patch=min(5, *rows.shape[1:]))
        others = np.flatnonzero(rows.test_labels != 1)[:_TEST_ROWS]
        x, held_out = (rows.features, rows.test_features) if rows.extractor is None else (rows.images, rows.test_images)
        assert held_out is not None
        poisoned = backdoor.poison(x, rows.labels, held_out[others], rows.test_labels[others], **more)
        return poisoned if rows.extractor is None else poisoning.through(poisoned, rows.extractor, rows.shape)
    contrast = config.audit.contrast
    if name == "clipbkd" and rows.extractor is not None:
        if contrast:
            raise ValueError("`audit.contrast` must be false with data.features='frozen', whose poison is an image")
        assert rows.shape is not None
        return poisoning.FrozenClipBKD(rows.extractor, rows.shape).poison(rows.images, rows.labels, **more)
    attack = poisoning.ClipBKD(contrast=contrast) if name == "clipbkd" else poisoning.ZeroInput(contrast=contrast)
    return attack.poison(rows.features, rows.labels, **more)


def _poisoning(game: _Game) -> _Outcome:
    ks, trials = game.config.audit.k, game.config.audit.trials
    sides, poisoned = 1 + len(ks), _poisoned(game.config, game.rows)

    def train(part: range) -> Scores:
        execution = game.execution(sides * part.start, sides * trials)
        swept = poisoning.poisoning_sweep(game.ensemble, poisoned, ks, trials=part, execution=execution)
        return {f"k = {k}": (swept[k].scores_in, swept[k].scores_out, k) for k in ks}

    return game.decided(train)


def _crafted_gradient(game: _Game) -> _Outcome:
    rows, trials = game.rows, game.config.audit.trials

    def train(part: range) -> Scores:
        execution = game.execution(2 * part.start, 2 * trials)
        played = poisoning.crafted_gradient_scores(
            game.ensemble, rows.features, rows.labels, trials=part, execution=execution
        )
        return {"k = 1": (played.scores_in, played.scores_out, 1)}

    return game.decided(train)


def _membership(game: _Game) -> _Outcome:
    config, rows, claimed, ensemble = game.config, game.rows, game.claimed, game.ensemble
    learning = config.audit.trials // 2
    learnt = membership.coins(learning, len(rows.labels), seed=ensemble.seed)
    if (learnt.all(axis=0) | ~learnt.any(axis=0)).any():
        raise ValueError(
            f"`audit.trials` must give models with and without each of {len(rows.labels)} rows for the likelihood "
            f"ratio, got {config.audit.trials}: the coins of the half that learns left some row on one side; take more"
        )
    played = membership.play(ensemble, rows.features, rows.labels, runs=config.audit.trials, execution=game.execution())
    references, target = played[:learning], played[learning:]
    included = target.included
    statistics: dict[str, Literal["loss", "lira"]] = {"loss threshold": "loss", "likelihood ratio": "lira"}
    level = 1 - (1 - config.audit.confidence) / len(statistics)
    proofs, scores = [], {}
    for name, attack in statistics.items():
        measured = membership.scores(attack, target, references=references)
        scores[name] = (measured[included], measured[~included], 1)
        # All rows for the loss threshold, as the text does; the clearest fifth where the statistic ranks them.
        share = 1.0 if name == "loss threshold" else 0.2
        correct, guesses = membership.guess(measured, share=share).tally(included)
        proof, ceiling = (
            bounds.epsilon_from_membership(
                right, guesses, coins="rows", rows=included.size, confidence=level, delta=claimed.delta
            )
            for right in (correct, guesses)
        )
        proofs.append(Proof(method="guesses at coins", what=name, found=proof, ceiling=float(ceiling.value)))
    return scores, tuple(proofs), None


def _one_run(game: _Game) -> _Outcome:
    config, rows, claimed, ensemble = game.config, game.rows, game.claimed, game.ensemble
    points, labels = membership.canaries(
        rows.features, rows.classes, count=config.audit.canaries, seed=config.audit.seed
    )
    there = membership.canary_coins(1, len(points), seed=ensemble.seed)[0]
    if there.all() or not there.any():
        raise ValueError(
            f"`audit.canaries` must have coins on both sides, got {len(there)} on one side: take more, or another seed"
        )
    played = membership.play_canaries(ensemble, rows.features, rows.labels, points, labels, execution=game.execution())
    scores = played.scores[0]
    families: dict[str, str | mechanisms.Mechanism] = {"guesses at coins, (ε, δ)": "dp"}
    if claimed.noise_multiplier > 0 and config.mechanism.scheme == "poisson":
        m = config.mechanism
        ran = mechanisms.Poisson(claimed.noise_multiplier, m.sample_rate, m.steps)
        families["guesses at coins, the claimed mechanism with some noise"] = ran
    level = 1 - (1 - config.audit.confidence) / len(families)
    proofs = tuple(
        Proof(
            method=name,
            what=f"{len(there):,} canaries in one run",
            found=audited(scores, there, claimed.delta, level, family=family),
            ceiling=provable(there, claimed.delta, level, family),
        )
        for name, family in families.items()
    )
    return {"canaries": (scores[there], scores[~there], 1)}, proofs, None


_PLAYED = {"membership": _membership, "one-run": _one_run, "crafted-gradient": _crafted_gradient}
"""Attacks that do not place rows."""
