"""Whole jobs, each compared with what a user would pick instead, in one run: `python -m bench.jobs --out JSON`.

Every call is the first of a new process with one thread: imports and the making of data are not timed. All who do a
job take turns. Then leakcore alone: its time against each size, and on two cores. `--only NAME` measures one job.
`--before CHECKOUT` times leakcore of another checkout as well, which must have been built. `--show JSON --page PAGE`
writes the tables between the marks of a page. Fashion-MNIST is read from LEAKCORE_DATA.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import environment

environment.python_path_first()

from bench import kept_page  # noqa: E402
from bench.jobs import measuring, models, numbers  # noqa: E402

MARKS = ("<!-- jobs -->", "<!-- /jobs -->")
JOBS = {**numbers.JOBS, **models.JOBS}


def measure(options: argparse.Namespace) -> kept_page.Result:
    """Everything that the page says."""
    chosen = {name: job for name, job in JOBS.items() if options.only in (None, name)}
    facts = environment.facts()
    jobs = {name: measuring.measured(name, job, options.rounds) for name, job in chosen.items()}
    before = {} if options.before is None else earlier(chosen, options.before, options.rounds, facts)
    return {"schema": "leakcore.jobs/2", "machine": facts, "jobs": jobs, "before": before}


def earlier(chosen: dict[str, Any], checkout: Path, rounds: int, machine: dict[str, Any]) -> dict[str, Any]:
    """Seconds of leakcore in that checkout and here, by job, and the machine."""
    jobs = {name: measuring.compared(name, job, str(checkout.resolve()), rounds) for name, job in chosen.items()}
    return {"machine": machine, "jobs": jobs}


def text(result: kept_page.Result) -> str:
    """Both tables, and what they say."""
    machine = result["machine"]
    said = (
        f"Seconds are the first call of a new process with one thread of {machine['cpu']}, imports and data left out: "
        "the median of the rounds, in which all took turns. How many times as long others take is the median of the "
        "rounds' ratios. Memory is what the call adds at its peak. "
        f"{_slower(result['jobs'])} {_busiest(result['jobs'])}"
    )
    return "\n".join([*_jobs(result["jobs"]), "", said, "", *_growth(result["jobs"]), *_before(result)])


def _jobs(jobs: dict[str, Any]) -> Iterator[str]:
    yield "| job | who | seconds | of leakcore's | memory | does less or otherwise |"
    yield "|---|---|---|---|---|---|"
    for job in jobs.values():
        title = job["title"]
        for who, row in job["doers"].items():
            if "absent" in row:
                yield f"| {title} | {who} | — | — | — | not run: {row['absent']} |"
            else:
                times = "" if who == "leakcore" else _times(_ratio(job, who))
                yield f"| {title} | {who} | {row['median']:.3g} | {times} | {row['mib']:.0f} MiB | {row['does']} |"
            title = ""


def _ratio(job: dict[str, Any], who: str) -> float:
    """How many times as long as leakcore somebody takes: a machine's speed drifts, but less within a round."""
    doers = job["doers"]
    pairs = zip(doers[who]["seconds"], doers["leakcore"]["seconds"], strict=True)
    return statistics.median(theirs / ours for theirs, ours in pairs)


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} ×" if ratio >= 10 else f"{ratio:.2f} ×"


def _slower(jobs: dict[str, Any]) -> str:
    """Which jobs somebody does faster, those left out that are a part of the job."""
    behind = [
        f"{job['title']} ({who})"
        for job in jobs.values()
        for who, row in job["doers"].items()
        if not row["least"] and "absent" not in row and _ratio(job, who) < 1
    ]
    return f"Slower than its peer: {'; '.join(behind)}." if behind else "No job is slower than its peers."


def _busiest(jobs: dict[str, Any]) -> str:
    """Who kept more than one processor busy, although all were asked to use one thread."""
    more = [
        f"{job['title']} ({who}, {row['processors']:.1f})"
        for job in jobs.values()
        for who, row in job["doers"].items()
        if row.get("processors", 0) > 1.1
    ]
    return f"More than one processor was busy in: {'; '.join(more)}." if more else "None kept a second processor busy."


def _growth(jobs: dict[str, Any]) -> Iterator[str]:
    yield "| leakcore's time of | against | seconds | exponent | between the last two |"
    yield "|---|---|---|---|---|"
    for job in jobs.values():
        title = job["title"]
        for row in job["growth"]:
            at = ", ".join(f"{s:.3g} at {v:,}" for v, s in zip(row["values"], row["seconds"], strict=True))
            yield f"| {title} | {row['what'].replace('_', ' ')} | {at} | {row['exponent']:.2f} | {row['last']:.2f} |"
            title = ""
        if job["cores"]:
            one, two = job["doers"]["leakcore"]["median"], sorted(job["cores"]["two"])
            at = f"{one:.3g} on 1, {two[len(two) // 2]:.3g} on 2"
            yield f"| {title} | cores | {at} | {job['cores']['speedup']:.2f} times as fast | |"


def _before(result: kept_page.Result) -> Iterator[str]:
    """The jobs that take less time than before, by more than a tenth."""
    if not result["before"]:
        return
    taken = result["before"]["jobs"]
    medians = {n: (statistics.median(t["before"]), statistics.median(t["after"])) for n, t in taken.items()}
    faster = sorted((n for n, (b, a) in medians.items() if b > 1.1 * a), key=lambda n: medians[n][1] / medians[n][0])
    yield from ("", "| made faster | before | after | times as fast |", "|---|---|---|---|")
    for name in faster:
        before, after = medians[name]
        title = result["jobs"][name]["title"]
        yield f"| {title} | {before:.3g} s | {after:.3g} s | {before / after:.2g} |"
    slower = [result["jobs"][n]["title"] for n, (b, a) in medians.items() if a > 1.1 * b]
    yield ""
    same = [job["title"] for n, job in result["jobs"].items() if n in medians and n not in faster]
    same = [title for title in same if title not in slower]
    cpu = result["before"]["machine"]["cpu"]
    yield (
        f"Before and after took turns, on {cpu}. Slower than before by more than a tenth: "
        f"{'; '.join(slower) or 'none'}. As before: {'; '.join(same) or 'none'}."
    )


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        name, doer, size = json.loads(sys.argv[2])
        print(json.dumps(measuring.call_once(JOBS[name], doer, size)))
        return
    parser = argparse.ArgumentParser(prog="python -m bench.jobs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=list(JOBS))
    parser.add_argument("--before", type=Path, metavar="CHECKOUT")
    kept_page.main(parser, measure, text, MARKS)


if __name__ == "__main__":
    main()
