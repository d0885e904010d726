"""The main job: a configuration becomes a report, piece by piece, so that an interruption loses only seconds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from leakcore._base import validate
from leakcore._base.progress import Progress, timed
from leakcore._base.run_folder import PartialResults, identity
from leakcore._base.version import PAGE, need
from leakcore.audit.hyperparameters import labels, layers, reconstruction
from leakcore.audit.hyperparameters.config import AuditConfig
from leakcore.audit.hyperparameters.layer_and_defense_parts import defense_part, layers_part
from leakcore.audit.hyperparameters.report import RunReport
from leakcore.audit.shared.config_checks import shown
from leakcore.audit.shared.doctor import environment
from leakcore.audit.shared.report import require_report_folder, write_report


@timed
def run(
    config: AuditConfig | Mapping[str, Any] | None = None,
    *,
    folder: str | Path | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> RunReport:
    """Audit one DP-SGD configuration: accountants, bounds, attacks, a label study, and leakage by layer.

    Args:
        config: an `AuditConfig`, or its fields as a mapping; None is the default configuration.
        folder: where report.html and report.json are written, atomically, at the end. Until then finished pieces are
            stored in folder/partial/audit, bound to this configuration, seed and versions, and a later call continues
            from them. None: write nothing.
        executor: any `concurrent.futures.Executor`, whose workers do ranges of 256 runs of all noise levels, the levels
            of the label study, the fits of the layers and the defence's ranges of 32 runs, with one thread each. None:
            all of it here, the attack on as many threads as the kernels use.
        progress: called here as `progress(task, done, total)`; `progress_bars()` makes one for a terminal.

    Returns:
        A `RunReport`; `.passed` is False if an attack proved more leakage than the configuration claims.

    Raises:
        ValueError: names the field, before any work; or the folder holds damaged pieces, pieces of another run, or
            files that are not leakcore's.
        TypeError: for an argument of another type.
        OSError: if the disk is full; finished pieces remain.

    Guarantees:
        The same configuration gives the same numbers on one kind of machine, interrupted or not, for any number of
        threads and workers. A folder may be begun with workers and finished without.

    Example:
        >>> from leakcore import audit
        >>> report = audit.run({"epsilon": 4.0, "runs": 500}, folder="audit-of-4")  # doctest: +SKIP
        >>> audit.run({"epsilon": 4.0, "noise_multiplier": 1.0})
        Traceback (most recent call last):
        ValueError: `epsilon` or `noise_multiplier` must be given, exactly one of the two, got ...
    """
    if config is None or isinstance(config, Mapping):
        config = AuditConfig.from_dict(config or {})
    if not isinstance(config, AuditConfig):
        raise TypeError(f"`config` must be an AuditConfig or a mapping of its fields, got {shown(config)}")
    validate.executor(executor=executor)
    validate.callback(progress=progress)
    show = progress or (lambda task, done, total: None)
    target = None if folder is None else Path(folder)
    if target is not None:
        need("torch", "sklearn", *PAGE)
        require_report_folder(target)
    bound_to = identity("audit", config.to_dict(), config.seed)
    with PartialResults(target, "audit", bound_to) as pieces:
        started = time.monotonic()
        points, curve = reconstruction.study(config, pieces, show, executor)
        label_study = labels.study(config, points, pieces, show, executor)
        claimed = next(p for p in points if p.claimed)
        layer_study = layers.study(config, claimed.noise_multiplier, pieces, show, executor)
        from leakcore.audit.hyperparameters import defense  # it imports torch

        defended = defense.study(config, points, pieces, show, executor)
        report = RunReport(
            config=config,
            points=points,
            curve=curve,
            labels=label_study,
            parts=(layers_part(layer_study), *(() if defended is None else (defense_part(defended),))),
            environment=environment(),
            seconds=time.monotonic() - started,
        )
        if target is not None:
            write_report(report, target, pieces)
        return report
