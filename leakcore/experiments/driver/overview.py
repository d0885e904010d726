"""All experiments in one folder, and the page that shows what each of them says."""

from __future__ import annotations

import dataclasses
import html
import json
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import ClassVar

from leakcore._base import validate
from leakcore._base.output_folder import require_ours, require_writable
from leakcore._base.pages import drawing, own_names, rendered
from leakcore._base.progress import Progress
from leakcore._base.reading import read_bytes, read_json
from leakcore._base.results import Record
from leakcore._base.tables import Rows, Table
from leakcore._base.text import escape_controls
from leakcore._base.version import PAGE as FRAME
from leakcore._base.version import __version__, need
from leakcore._base.writing import place_in, write_atomically
from leakcore.experiments.driver.context import SCALES
from leakcore.experiments.driver.registry import find, names
from leakcore.experiments.driver.result import ExperimentResult
from leakcore.experiments.driver.run import run
from leakcore.experiments.driver.verdict import VERDICTS

PAGE = "index.html"
_LARGEST = 2**25
"""Bytes of a figure."""
PAPERS = {
    "reconstruction": "Bounding training data reconstruction in DP-SGD (Hayes, Mahloujifar and Balle 2023)",
    "labels": "Deep gradient attacks with strong DP-SGD lower bounds for label privacy (Yuan et al. 2022)",
    "leakage": "Quantifying and localizing private information leakage from neural network gradients (Mo et al. 2021)",
    "auditing": "Auditing differentially private machine learning (Jagielski, Ullman and Oprea 2020)",
    "lecture": "A lecture: the Laplace mechanism, inversion, tensors and defences (Lei 2024)",
    "mechanisms": "Published trainings, scheme by scheme",
}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Reproduction(Record):
    """What all experiments say.

    Attributes:
        scale: the scale at which all of them ran.
        seed: the seed at which all of them ran.
        results: what each experiment says that ran, in the order of `names()`.
        missing: name and reason of those that did not.
    """

    schema: ClassVar[str] = "leakcore.reproduction/1"

    scale: str
    seed: int
    results: tuple[ExperimentResult, ...]
    missing: tuple[tuple[str, str], ...]

    @property
    def word(self) -> str:
        """How many figures and tables are reproduced."""
        return f"{self._counted('reproduced')} of {len(self.results)} figures and tables reproduced."

    @property
    def tone(self) -> str:
        """The page's colour: "good" if all are reproduced, "bad" if one is not, else "neutral"."""
        if self._counted("not reproduced"):
            return "bad"
        return "good" if self.results and self._counted("reproduced") == len(self.results) else "neutral"

    def sentences(self) -> list[str]:
        """The other verdicts, counted, and what was not run."""
        others = [f"{n} {verdict}" for verdict in VERDICTS[1:] if (n := self._counted(verdict))]
        absent = [f"{len(self.missing)} not run"] if self.missing else []
        return [f"The others: {', '.join([*others, *absent])}." if others or absent else "None is missing."]

    def _counted(self, verdict: str) -> int:
        return sum(result.verdict == verdict for result in self.results)

    def table_rows(self) -> Rows:
        """The verdict of each experiment."""
        return [*((r.name, f"{r.verdict}. {r.counts}") for r in self.results), *self.missing]

    def to_json(self, *, indent: int | None = None) -> str:
        """`to_dict` as strict JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False, ensure_ascii=False)

    def to_text(self) -> str:
        """The verdicts for a terminal, a line each."""
        return "\n".join(f"{name:<24} {text}" for name, text in self.table_rows())


def run_all(
    *,
    scale: str = "quick",
    seed: int = 0,
    data: str | Path | None = None,
    out: str | Path,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Reproduction:
    """Reproduce every figure and table, and write one page with all of them.

    Interrupted, the same call goes on: experiments whose result is in `out` at this scale, seed and version are read,
    and the one that was cut off continues from its finished pieces. The page is written again after each experiment.

    Args:
        scale: as in `run`.
        seed: as in `run`.
        data: as in `run`. An experiment whose data are not there is left out, and the page says so.
        out: folder for the files of each experiment and for index.html.
        executor: as in `run`.
        progress: as in `run`.

    Returns:
        A `Reproduction`.

    Raises:
        ValueError: as in `run`.
        OSError: if the disk is full (CannotWrite); the finished experiments remain.

    Guarantees:
        The result is the same whether or not the run was interrupted, and for any number of workers.

    Example:
        >>> from leakcore import experiments
        >>> everything = experiments.run_all(scale="quick", out="figures")  # an hour on two cores  # doctest: +SKIP
        >>> experiments.run_all(scale="huge", out="figures")
        Traceback (most recent call last):
        ValueError: ...
    """
    size, start = validate.one_of(*SCALES, scale=scale), validate.seed(seed=seed)
    need("torch", "sklearn", *FRAME)
    folder = Path(out)
    require_writable(folder, name="out")
    require_ours(folder, PAGE)
    results: list[ExperimentResult] = []
    absent: list[tuple[str, str]] = []
    for name in names():
        done = _finished(folder / f"{name}.json", size, start)
        if done is None:
            try:
                done = run(name, scale=size, seed=start, data=data, out=folder, executor=executor, progress=progress)
            except FileNotFoundError as why:
                absent.append((name, f"not run: {str(why).splitlines()[0]}"))
        if done is not None:
            results.append(done)
        everything = Reproduction(scale=size, seed=start, results=tuple(results), missing=tuple(absent))
        write_atomically(place_in(folder, PAGE), _page(everything, folder))
    return everything


def _finished(path: Path, scale: str, seed: int) -> ExperimentResult | None:
    """A result that is there already; None for one of other settings or of another version."""
    try:
        content = read_json(path)
        result = ExperimentResult.from_dict(content)
        _drawing(path)
    except (FileNotFoundError, ValueError):
        return None
    is_ours = (result.name, result.scale, result.seed, content.get("version")) == (path.stem, scale, seed, __version__)
    return result if is_ours else None


def _drawing(path: Path) -> str:
    """The figure next to a result. It may be anybody's file: only what a drawing holds is taken from it."""
    try:
        return drawing(read_bytes(path.with_suffix(".svg"), _LARGEST).decode("utf-8"))
    except ValueError as why:
        raise ValueError(f"{path.with_suffix('.svg')}: {why}") from why


def _page(everything: Reproduction, folder: Path) -> str:
    """One page, whose pictures stand in it: it can be sent as a single file."""
    import markupsafe

    content = "".join([*_summary(everything), *_figures(everything, folder)])
    return rendered(
        "overview.html", "leakcore.experiments", everything=everything, content=markupsafe.Markup(content), rule=_RULE
    )


def _summary(everything: Reproduction) -> Iterator[str]:
    yield "<table><thead><tr><th>figure</th><th>verdict</th><th>what was counted</th></tr></thead><tbody>"
    for result in everything.results:
        yield (
            f'<tr><td><a href="#{result.name}">{result.name}</a></td><td>{_word(result.verdict)}</td>'
            f"<td>{_escaped(result.counts)}</td></tr>"
        )
    for name, why in everything.missing:
        yield f"<tr><td>{name}</td><td>—</td><td>{_escaped(why)}</td></tr>"
    yield "</tbody></table>"


def _figures(everything: Reproduction, folder: Path) -> Iterator[str]:
    paper = ""
    for number, result in enumerate(everything.results):
        of = result.name.partition("-")[0]
        if of != paper:
            paper = of
            yield f"<h2>{_escaped(PAPERS[of])}</h2>"
        svg = _drawing(folder / f"{result.name}.json")
        yield f'<section id="{result.name}"><h3>{_escaped(result.title)}</h3>'
        yield f'<p class="soft"><code>leakcore reproduce {result.name}</code></p>'
        yield f"<p>The paper: {_escaped(find(result.name).statement)}.</p>"
        yield f"<p>{_word(result.verdict)} {_escaped(result.counts)} {_escaped(result.conclusion)}</p>"
        yield f'<div class="scroll">{own_names(svg, f"r{number}")}</div>'
        yield from _details("The paper's numbers and ours", _stated(result))
        for table in result.tables:
            yield from _details(table.title, Table(table.head, table.rows).to_html())
        differs = [(d.what, d.paper, d.here) for d in result.departures]
        yield from _details(
            "What differs from the paper", Table(("what", "the paper", "here"), differs).to_html() if differs else ""
        )
        remarks = [*result.data, *result.notes]
        yield from _details("Data and notes", "".join(f"<p>{_escaped(line)}</p>" for line in remarks))
        yield "</section>"


def _details(title: str, content: str) -> Iterator[str]:
    if content:
        yield f"<details><summary>{_escaped(title)}</summary><div class=scroll>{content}</div></details>"


def _stated(result: ExperimentResult) -> str:
    rows = [(s.what, s.paper, s.shown(), s.comment) for s in result.stated]
    return Table(("what", "the paper", "ours", ""), rows).to_html() if rows else ""


def _escaped(text: str) -> str:
    return html.escape(escape_controls(text))


def _word(verdict: str) -> str:
    return f'<strong class="{verdict.replace(" ", "-")}">{verdict[:1].upper()}{verdict[1:]}.</strong>'


_RULE = (
    "Reproduced: every statement holds in all of its cases, and chance would do as much in one of twenty at most. "
    "Direction only: what the paper says of a direction holds in more than half of the cases, and beyond chance. "
    "Not comparable: there is nothing to count. Not reproduced: anything else; few cases may be the reason."
)
