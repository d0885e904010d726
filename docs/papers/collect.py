"""Put results of `leakcore reproduce` into the pages of this folder.

    leakcore reproduce labels-fig3 --out figures     (and others)
    python docs/papers/collect.py figures [more folders]

Reads NAME.json and NAME.png of every folder, puts verdict, conclusion and stated numbers of each into results.json and
a small picture of some into img/, and rewrites what stands between the marks <!-- NAME --> … <!-- /NAME --> on the
pages. Without a folder it only rewrites the pages. Of a run at a later seed than the one that is shown only the verdict
and its counts are kept, and the page says in how many seeds each statement holds.
"""

from __future__ import annotations

import html
import json
import re
import sys
from pathlib import Path
from typing import Any

from leakcore import experiments
from leakcore._base.reading import read_json
from leakcore.experiments.driver.registry import quick_of_all
from leakcore.experiments.driver.result import shown
from leakcore.experiments.driver.verdict import VERDICTS, Check, counted, together, verdict

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
LARGEST = 100_000
"""Bytes of a picture."""
TIMED = "That is the sum of single times on two cores of an AMD EPYC with other work."
UNCOUNTED = "No verdict: this run is older than the rule for verdicts."


def kept() -> dict[str, dict[str, Any]]:
    """Results by name."""
    return dict(read_json(RESULTS)) if RESULTS.exists() else {}


def collect(folder: Path) -> dict[str, dict[str, Any]]:
    """What the folder's files say."""
    results: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        result: dict[str, Any] = read_json(path)
        if result.get("schema") != "leakcore.experiment/1" or result["name"] not in experiments.names():
            continue
        results[result["name"]] = {key: str(result[key]) for key in ("scale", "seed", "conclusion")}
        results[result["name"]].update({key: result[key] for key in ("verdict", "checks") if key in result})
        rows = [[row["what"], row["paper"], ours(row)] for row in result["stated"]]
        results[result["name"]]["stated"] = [row for row in rows if row[2]]
        for field in ("tables", "data", "departures"):
            if result.get(field):
                results[result["name"]][field] = result[field]
    return results


def joined(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """A kept result with a repetition at a later seed; anything else replaces it, and its repetitions with it."""
    if old is None or "checks" not in old or old["scale"] != new["scale"] or int(new["seed"]) <= int(old["seed"]):
        return new
    if asks(old) != asks(new):
        raise SystemExit(
            f"seed {new['seed']} counts other statements than the kept run of seed {old['seed']}, which is of another "
            f"version: collect seed {old['seed']} first. Kept: {asks(old)}; now: {asks(new)}"
        )
    others = old.get("seeds", {}) | {new["seed"]: {"verdict": new["verdict"], "checks": new["checks"]}}
    return old | {"seeds": dict(sorted(others.items(), key=lambda item: int(item[0])))}


def asks(result: dict[str, Any]) -> list[str]:
    """The statements that it counts."""
    return [row["says"] for row in result.get("checks", ())]


def by_seed(result: dict[str, Any]) -> dict[str, tuple[Check, ...]]:
    """The checks of every seed."""
    runs = {result["seed"]: result} | result.get("seeds", {})
    return {seed: tuple(Check.from_dict(row) for row in run["checks"]) for seed, run in runs.items()}


def joint(result: dict[str, Any]) -> tuple[str, list[Check]]:
    """The verdict of the cases of all seeds together, and their counts."""
    whole = list(together(list(by_seed(result).values())))
    return verdict(whole), whole


def alone(result: dict[str, Any]) -> list[str]:
    """The verdict of each seed."""
    return [verdict(checks) for checks in by_seed(result).values()]


def tally(words: list[str]) -> str:
    """ "2 reproduced, 1 not reproduced"."""
    return ", ".join(f"{words.count(word)} {word}" for word in VERDICTS if word in words)


def over_seeds(result: dict[str, Any]) -> list[str]:
    """A table of the counts at every seed and together, and a sentence on the verdict."""
    if not result.get("seeds"):
        return []
    runs = by_seed(result)
    word, whole = joint(result)
    lines = [
        [c.says, *(f"{run[i].holds} of {run[i].cases}" for run in runs.values()), str(c).removeprefix(f"{c.says}: ")]
        for i, c in enumerate(whole)
    ]
    return [
        "",
        f"*The same at {len(runs)} seeds*: {tally(alone(result))}; all cases together: **{word}**.",
        "",
        f"| statement | {' | '.join(f'seed {seed}' for seed in runs)} | together |",
        "|---" * (len(runs) + 2) + "|",
        *(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines),
    ]


def ours(row: dict[str, Any]) -> str:
    """Our number with its interval, as the command prints it; empty where the statement is not a number.

    Older files have neither kind nor confidence, and write ∞ as "inf", as the newer do.
    """
    if row["ours"] is None:
        return ""
    ends = None if row["interval"] is None else [_value(end) for end in row["interval"]]
    return shown(_value(row["ours"]), ends, row.get("kind", ""), row.get("confidence"))


def _value(written: float | str) -> float:
    return float(written) if isinstance(written, str) else written


def shrink(source: Path, target: Path) -> None:
    """At most 1,000 pixels wide, 256 colours or fewer, at most 100 kB."""
    from PIL import Image

    with Image.open(source) as opened:
        whole = opened.convert("RGB")
    target.parent.mkdir(exist_ok=True)
    for share in (1.0, 0.8, 0.6):  # photographs take more than curves
        image = whole.copy()
        image.thumbnail((1000 * share, 1400 * share))
        for colours in (256, 128, 64, 32):
            # The palette that covers all colours: the usual one gives the few pixels of a marker a curve's colour.
            image.quantize(colours, method=Image.Quantize.MAXCOVERAGE).save(target, optimize=True)
            if target.stat().st_size <= LARGEST:
                return
    raise SystemExit(f"{target} is larger than {LARGEST:,} bytes")


def differences(result: dict[str, Any]) -> list[str]:
    """What was read, and what the run does otherwise than the paper."""
    rows = [[row["what"], row["paper"], row["here"]] for row in result.get("departures", ())]
    rows += [["data", "", line] for line in result.get("data", ())]
    return table("Data, and what differs from the paper", ["what", "the paper", "here"], rows)


def table(summary: str, names: list[str], rows: list[list[str]]) -> list[str]:
    """A folded table: HTML, which needs no extension of Markdown."""
    cells = [f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows]
    head = f"<tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>"
    folded = f"<details><summary>{summary}</summary><table><thead>"
    return ["", folded, head, "</thead><tbody>", *cells, "</tbody></table></details>"]


def judged(result: dict[str, Any]) -> str:
    """The verdict, with the counts that it rests on."""
    if "checks" not in result:
        return UNCOUNTED
    word = result["verdict"]
    return f"**{word[0].upper()}{word[1:]}.** {counted([Check.from_dict(row) for row in result['checks']])}".rstrip()


def printed(cells: dict[str, Any]) -> list[str]:
    """A result's own table, in Markdown."""
    lines = [[cell.replace("|", "\\|") for cell in row] for row in (cells["head"], *cells["rows"])]
    head, *rows = (f"| {' | '.join(line)} |" for line in lines)
    return ["", f"*{cells['title']}*", "", head, "|---" * len(cells["head"]) + "|", *rows]


def entry(name: str, results: dict[str, dict[str, Any]]) -> str:
    """What a page says of one figure."""
    experiment = experiments.find(name)
    takes = f" ({experiment.quick} on two cores)" if experiment.quick else ""
    lines = [f"`leakcore reproduce {name}`{takes}. The paper: {experiment.statement}.", ""]
    result = results.get(name)
    if result is None:
        lines.append("This page holds no result of it; the command prints one, next to the paper's numbers.")
    else:
        lines.append(f"{judged(result)} {result['conclusion']} *({result['scale']} scale, seed {result['seed']})*")
        lines += over_seeds(result)
        for cells in result.get("tables", ()):
            lines += printed(cells)
        if result.get("stated"):
            lines += table("The paper's numbers and ours", ["what", "the paper", "ours"], result["stated"])
        if "data" in result or "departures" in result:
            lines += differences(result)
    return "\n".join(lines)


def survives(result: dict[str, Any]) -> str:
    """The joint verdict, and the verdicts of the seeds alone."""
    if "verdict" not in result:
        return "not judged yet"
    word, words = joint(result)[0], alone(result)
    if len(words) == 1:
        return f"{word}; one seed"
    if words == [word] * len(words):
        return f"{word}; the same at each of {len(words)} seeds"
    return f"{word} over {len(words)} seeds; alone: {tally(words)}"


def verdicts(results: dict[str, dict[str, Any]]) -> str:
    """A table of all experiments."""
    lines = ["| figure | the paper says | verdict | counted in our numbers |", "|---|---|---|---|"]
    for name in experiments.names():
        result = results.get(name, {})
        counts = "; ".join(map(str, joint(result)[1])) if "checks" in result else ""
        cells = [f"[{name}]({name.partition('-')[0]}.md)", experiments.find(name).statement, survives(result), counts]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    judged_ones = [joint(result)[0] for result in results.values() if "verdict" in result]
    said = f"{len(judged_ones)} of {len(experiments.names())} have a verdict: {tally(judged_ones)}."
    return "\n".join([f"{said} All together take {quick_of_all()}. {TIMED}", "", *lines])


def rewritten(page: str, results: dict[str, dict[str, Any]]) -> str:
    """The page with every mark filled."""

    def fill(match: re.Match[str]) -> str:
        if match[1] not in ("all-verdicts", *experiments.names()):
            return match[0]  # of a measurement: `bench.kept_page`
        text = verdicts(results) if match[1] == "all-verdicts" else entry(match[1], results)
        return f"<!-- {match[1]} -->\n{text}\n<!-- /{match[1]} -->"

    return re.sub(r"<!-- ([a-z]+-[a-z0-9]+) -->.*?<!-- /\1 -->", fill, page, flags=re.DOTALL)


def main(folders: list[str]) -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(HERE.glob("*.md"))}
    pictured = {name for text in pages.values() for name in re.findall(r"\]\(img/([\w-]+)\.png\)", text)}
    results = kept()
    for folder in folders:
        for name, new in collect(Path(folder)).items():
            results[name] = joined(results.get(name), new)
            picture = Path(folder) / f"{name}.png"
            if results[name] is new and name in pictured and picture.exists():
                shrink(picture, HERE / "img" / picture.name)
    order = {name: results[name] for name in experiments.names() if name in results}
    text = json.dumps(order, indent=1, ensure_ascii=False) + "\n"
    cell = r'"(?:[^"\\]|\\.)*"'
    row = re.compile(rf"\[\s+({cell}(?:,\n\s+{cell})*)\s+\]")
    text = row.sub(lambda match: "[" + re.sub(r",\n\s+", ", ", match[1]) + "]", text)  # a row a line
    RESULTS.write_text(text, encoding="utf-8")
    for path, page in pages.items():
        path.write_text(rewritten(page, order), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
