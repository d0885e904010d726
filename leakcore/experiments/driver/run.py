"""Run an experiment by name, keep finished pieces, write its figure and numbers."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Executor
from pathlib import Path

from leakcore._base import validate
from leakcore._base.output_folder import require_ours, require_writable
from leakcore._base.progress import Progress
from leakcore._base.run_folder import PartialResults, identity
from leakcore._base.writing import place_in, write_atomically
from leakcore.experiments.driver.context import SCALES, TRAINERS, Context
from leakcore.experiments.driver.registry import find
from leakcore.experiments.driver.result import ExperimentResult


def run(
    name: str,
    *,
    scale: str = "quick",
    seed: int = 0,
    data: str | Path | None = None,
    out: str | Path | None = None,
    trainer: str = "ensemble",
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> ExperimentResult:
    """Reproduce a figure or table of a paper.

    Args:
        name: one of `names()`.
        scale: "quick" (minutes on two cores), "paper" (the paper's sizes) or "tiny" (seconds, too few runs for a
            conclusion).
        seed: what every random number follows from.
        data: folder of data sets. None: LEAKCORE_DATA, then the user's cache. Nothing is downloaded.
        out: folder for NAME.json, NAME.png and NAME.svg, each written atomically at the end. Finished pieces are stored
            in out/partial/NAME until then, and a later call continues from them. They are bound to this experiment,
            scale, seed, versions and content of the data. None: write nothing.
        trainer: what trains the networks of the label figures: "ensemble" (`dpsgd.Ensemble`) or "opacus".
        executor: any `concurrent.futures.Executor`, whose workers play the games, train the models, run the searches
            and fit the readers. None: this process, on all its cores. The data are read here and sent to the workers.
        progress: called here as `progress(task, done, total)`, for the work of all workers.

    Returns:
        An `ExperimentResult`.

    Raises:
        ValueError: names the argument, its value and what is allowed; or `out` holds damaged pieces, pieces of another
            run, or files that are not leakcore's.
        FileNotFoundError: for a data set that is missing.
        ImportError: for `trainer="opacus"` without Opacus.
        OSError: if the disk is full (CannotWrite); the finished pieces remain.

    Guarantees:
        The result is the same whether or not the run was interrupted, and for any number of workers. A folder may be
        begun with workers and finished without.

    Example:
        >>> from leakcore import experiments
        >>> result = experiments.run("reconstruction-table2", scale="tiny")
        >>> result.verdict
        'reproduced'
    """
    experiment = find(name)
    size = validate.one_of(*SCALES, scale=scale)
    start = validate.seed(seed=seed)
    how = validate.one_of(*TRAINERS, trainer=trainer)
    if how != "ensemble" and not name.startswith("labels-"):
        raise ValueError(f"`trainer` must be 'ensemble' for {name}, got {how!r}: only the label figures have several")
    validate.executor(executor=executor)
    validate.callback(progress=progress)
    folder = None if out is None else Path(out)
    where = None if data is None else Path(data)
    if where is not None and not where.is_dir():
        raise ValueError(f"`data` must be a folder that holds the data sets, got {str(data)!r}")
    if folder is not None:
        require_writable(folder, name="out")
        require_ours(folder, f"{name}.json", f"{name}.png", f"{name}.svg")
    # Not the folder of the data: pieces computed from data carry a digest of its content.
    bound_to = identity("reproduce", {"name": name, "scale": size, "trainer": how}, start)
    with PartialResults(folder, name, bound_to) as pieces:
        context = Context(
            experiment=experiment,
            scale=size,
            seed=start,
            data=where,
            pieces=pieces,
            progress=progress or (lambda task, done, total: None),
            trainer=how,
            executor=executor,
        )
        result = experiment.load()(context)
        result = dataclasses.replace(result, departures=tuple(context.departures.values()))
        if folder is not None:
            from leakcore.experiments.driver.draw import draw

            png, svg = draw(result)
            write_atomically(place_in(folder, f"{name}.png"), png)
            write_atomically(place_in(folder, f"{name}.svg"), svg)
            write_atomically(place_in(folder, f"{name}.json"), result.to_json(indent=2) + "\n")
            pieces.remove()
    return result
