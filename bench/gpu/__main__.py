"""`python -m bench.gpu build test bench`: the kernels on the card at hand. `make gpu` is its usual door.

    build   compiles the core for this card's compute capability alone
    test    the kernel tests with LEAKCORE_REQUIRE_CUDA=1, a file at a time, then compute-sanitizer on small calls
    bench   times every row of bench/gpu/rows.py, prints them with their limits, writes bench/results/cuda-<card>.json
    wheels  downloads what a machine without a network may lack, for --python, into build/gpu-wheels

A stage stops before its budget (540 s) is used up and keeps what is done in build/gpu, by the bytes of the sources and
the card, so that the same call goes on from there; what failed is tried again after the rest. Exit codes: 0 all is
done, 1 something failed, 2 something is missing (what, and how to bring it), 75 stopped at the budget: call again.
(make turns every code but 0 into 2, and prints it.)

--emulate runs the same stages on the emulated build, with tiny sizes. What it prints does not measure anything, and it
writes nothing into bench/results.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.gpu import needs
from bench.gpu.state import ROOT, Clock, Done, digest

DONE, FAILED, MISSING, AGAIN = 0, 1, 2, 75
STAGES = ("build", "test", "bench")
RESULTS = ROOT / "bench" / "results"
SCHEMA = "leakcore.gpu/1"
NOT_MEASURED = "emulated: not a measurement"
GRACE = 15.0  # seconds kept back for stopping and writing


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    if "wheels" in options.stages:
        return needs.download(options.python, options.packages)
    if options.emulate and options.out and options.out.resolve().parent == RESULTS:
        raise SystemExit("--out: an emulated run writes nothing into bench/results")
    needs.use_installed()
    lacking = needs.install(needs.missing(options.stages))
    absent = needs.tools(options.stages, options.emulate, bool(options.arch))
    if lacking or absent:
        _say_missing(lacking, absent)
        return MISSING
    for stage in options.stages:
        print(f"== {stage}{f' ({NOT_MEASURED})' if options.emulate else ''}", flush=True)
        code = {"build": _build, "test": _test, "bench": _bench}[stage](options)
        if code != DONE:
            return code
    return DONE


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stages", nargs="*", choices=(*STAGES, "wheels"), help="default: build test bench")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds that each stage may take (default: 540)")
    parser.add_argument("--pieces", type=int, help="how many rows or files each stage may begin (default: all)")
    parser.add_argument("--emulate", action="store_true", help="a rehearsal without a card")
    parser.add_argument("--arch", help="build for this compute capability, as 90, where there is no card")
    parser.add_argument("--only", action="append", metavar="TEXT", help="rows, or files of tests, that contain TEXT")
    parser.add_argument("--state", type=Path, help="where finished pieces are kept (default: build/gpu)")
    parser.add_argument("--out", type=Path, help="the JSON of the bench (default: bench/results/cuda-<card>.json)")
    parser.add_argument("--python", default="3.12", help="wheels: of the machine that they are for (default: 3.12)")
    parser.add_argument("--packages", nargs="+", metavar="NAME", help="wheels: of these packages alone")
    options = parser.parse_args(arguments)
    options.stages = options.stages or list(STAGES)
    if not options.budget > 0:
        parser.error(f"--budget must be above 0, got {options.budget}")
    options.state = options.state or ROOT / "build" / ("gpu-emulated" if options.emulate else "gpu")
    return options


def _say_missing(lacking: list[needs.Need], absent: list[str]) -> None:
    print("missing here:", file=sys.stderr)
    for need in lacking:
        least = f" {need.least} or newer" if need.least else ""
        print(f"  {need.package}{least}, for {', '.join(need.stages)}", file=sys.stderr)
    if lacking:
        minor = f"{sys.version_info.major}.{sys.version_info.minor}"
        names = " ".join(n.package for n in lacking)
        print(
            f'  bring them: where there is a network, `make gpu-wheels ARGS="--python {minor} --packages {names}"`; '
            "then carry the folder build/gpu-wheels here and call again",
            file=sys.stderr,
        )
    for what in absent:
        print(f"  {what}", file=sys.stderr)


def _card(options: argparse.Namespace) -> str:
    """What results are kept under: the card, or that there is none."""
    if options.emulate:
        return "emulated"
    if options.arch:
        return f"compute capability {options.arch}"
    import torch

    return f"{torch.cuda.get_device_name(0)}, {torch.__version__}"


def _build(options: argparse.Namespace) -> int:
    """ninja keeps what it compiled, so a build that is stopped goes on with the next file."""
    environment = {**os.environ, "LEAKCORE_CUDA": "emulate" if options.emulate else "1"}
    if not options.emulate:
        environment["LEAKCORE_CUDA_ARCHS"] = options.arch or _capability()
        print(f"for compute capability {environment['LEAKCORE_CUDA_ARCHS']}", flush=True)
    start = time.monotonic()
    code = _run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], environment, options.budget - GRACE)
    if code is None:
        print(f"stopped after {time.monotonic() - start:.0f} s: call again, the files that are compiled stay")
        return AGAIN
    took = time.monotonic() - start
    print(f"{'built' if code == 0 else 'the build failed'} in {took:.0f} s")
    archs = environment.get("LEAKCORE_CUDA_ARCHS", "emulated")
    built = {"code": code, "seconds": round(took, 1), "compute_capability": archs}
    Done(options.state, "build", digest(_card(options))).keep("build", built)
    return DONE if code == 0 else FAILED


def _capability() -> str:
    import torch

    major, minor = torch.cuda.get_device_capability(0)
    return f"{major}{minor}"


def _run(command: list[str], environment: dict[str, str], seconds: float, log: Path | None = None) -> int | None:
    """A command's exit code; None if it was stopped because its time was up. Ended with all its children."""
    output = open(log, "w") if log else None  # noqa: SIM115
    try:
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, start_new_session=True, stdout=output,
            stderr=subprocess.STDOUT if output else None,
        )  # fmt: skip
        try:
            return child.wait(max(seconds, 1.0))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGINT)  # ninja and pytest end tidily
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            return None
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise
    finally:
        if output:
            output.close()


def _test(options: argparse.Namespace) -> int:
    """A file of tests is a piece, and so is each tool of compute-sanitizer."""
    clock, done = Clock(options.budget, options.pieces), Done(options.state, "test", digest(_card(options)))
    pieces = _test_pieces(options)
    for name, command, extra in sorted(pieces, key=lambda piece: piece[0] in done.pieces):
        if _passed(done, name):
            continue
        if clock.over(2 * GRACE):
            break
        fresh = clock.pieces == 0
        clock.pieces += 1
        log = options.state / "log.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        code = _run(command, {**os.environ, **extra}, clock.left - GRACE, log)
        text = log.read_text(errors="replace")
        if code is None and not fresh:
            break  # it gets a call of its own
        result = {"seconds": round(time.monotonic() - start, 1), "code": code, "said": _last_line(text)}
        if code not in (0, 5):
            result["log"] = text[-4000:]
            print(text[-4000:])
        done.keep(name, result)
        print(f"{result['seconds']:6.1f} s  {name}: {result['said']}", flush=True)
    return _outcome(options, done, [name for name, _, _ in pieces])


def _passed(done: Done, name: str) -> bool:
    """5: no test of that file concerns a card."""
    return done.pieces.get(name, {}).get("code") in (0, 5)


def _test_pieces(options: argparse.Namespace) -> list[tuple[str, list[str], dict[str, str]]]:
    """(name, command, environment) of each."""
    files = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "tests" / "kernels").rglob("test_*.py"))
    files = [f for f in files if "device" in (ROOT / f).read_text(encoding="utf-8")]
    chosen = [f for f in files if not options.only or any(text in f for text in options.only)]
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow",
        "-o",
        "addopts=--import-mode=importlib",
    ]
    extra = {
        "OMP_NUM_THREADS": "1",
        **({"LEAKCORE_EMULATION": "1"} if options.emulate else {"LEAKCORE_REQUIRE_CUDA": "1"}),
    }
    pieces = [(f, [*pytest, "-k", "emulat" if options.emulate else "cuda", f], extra) for f in chosen]
    if options.emulate or options.only:
        return pieces
    sanitizer = _sanitizer()
    for tool in ("memcheck", "racecheck"):
        name = f"compute-sanitizer {tool}"
        if sanitizer is None:
            print(f"{name}: not run, there is no compute-sanitizer here (it comes with the CUDA toolkit)")
        else:
            command = [sanitizer, "--tool", tool, "--error-exitcode", "1", sys.executable, "-m", "bench.gpu.rows"]
            pieces.append((name, command, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}))
    return pieces


def _sanitizer() -> str | None:
    usual = Path("/usr/local/cuda/bin/compute-sanitizer")
    return shutil.which("compute-sanitizer") or (str(usual) if usual.exists() else None)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1].strip("= ")


def _outcome(options: argparse.Namespace, done: Done, names: list[str]) -> int:
    left = [name for name in names if name not in done.pieces]
    failed = [name for name in names if name in done.pieces and not _passed(done, name)]
    for name in failed:
        print(f"FAILED: {name}" + (" (longer than the budget)" if done.pieces[name]["code"] is None else ""))
    if left:
        print(f"stopped, call again; left: {', '.join(left)}")
    print(f"kept in {_from_root(done.path)}")
    return FAILED if failed else AGAIN if left else DONE


def _bench(options: argparse.Namespace) -> int:
    """Each row in a process of its own: what it holds on the card goes with it, and it can be stopped."""
    clock, done = Clock(options.budget, options.pieces), Done(options.state, "bench", digest(_card(options)))
    names = ["limits", *_row_names(options)]
    for name in [names[0], *sorted(names[1:], key=lambda name: name in done.pieces)]:
        if _passed(done, name):
            continue
        if clock.over(3 * GRACE):
            break
        fresh = clock.pieces == 0
        clock.pieces += 1
        place = ["--emulate"] if options.emulate else []
        answer = options.state / f"row-{os.getpid()}.json"
        answer.parent.mkdir(parents=True, exist_ok=True)
        rates = json.dumps(done.pieces.get("limits", {}).get("limits", {}))
        command = [sys.executable, "-m", "bench.gpu.measure", name, str(answer), rates, *place]
        code = _run(command, dict(os.environ), clock.left - GRACE)
        if code is None and not fresh:
            break
        result = json.loads(answer.read_text()) if code == 0 else {}
        answer.unlink(missing_ok=True)
        done.keep(name, {"code": code, **result})
        print(f"{clock.budget - clock.left:6.1f} s  {name}" + ("" if code == 0 else ": FAILED"), flush=True)
        if name == "limits" and code != 0:
            break
    if done.pieces.get("limits", {}).get("code") == 0:
        report = _report(options, done, names)
        print()
        _show(report)
        _write(options, report)
    return _outcome(options, done, names)


def _row_names(options: argparse.Namespace) -> list[str]:
    from bench.gpu.rows import ROWS

    return [row.name for row in ROWS if not options.only or any(text in row.name for text in options.only)]


def _report(options: argparse.Namespace, done: Done, names: list[str]) -> dict[str, Any]:
    head = done.pieces["limits"]
    key = digest(_card(options))
    built, tested = (Done(options.state, stage, key).pieces for stage in ("build", "test"))
    rows = {name: done.pieces[name] for name in names[1:] if done.pieces.get(name, {}).get("code") == 0}
    return {
        "schema": SCHEMA,
        "emulated": NOT_MEASURED if options.emulate else "",
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "commit": _commit(),
        "machine": head["facts"],
        "build": built.get("build", {}),
        "tests": {name: {k: v for k, v in piece.items() if k != "log"} for name, piece in tested.items()},
        "limits": head["limits"],
        "rows": {name: {k: v for k, v in row.items() if k != "code"} for name, row in rows.items()},
        "left": [name for name in names[1:] if name not in rows],
    }


def _commit() -> str:
    """Of this checkout, with a mark where files differ; LEAKCORE_COMMIT where the copy has no git."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        changed = subprocess.run(
            ["git", "status", "--porcelain", "-uno"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("LEAKCORE_COMMIT", "")
    return head.strip() + ("+changes" if changed.stdout.strip() else "")


def _show(report: dict[str, Any]) -> None:
    from bench.report import table

    machine, limits = report["machine"], report["limits"]
    mark = report["emulated"]
    print(", ".join(f"{k} {v}" for k, v in machine.items()) + (f" — {mark}" if mark else ""))
    if limits:
        print(", ".join(f"{name} {value / 1e9:.4g} G/s" for name, value in limits.items()))
    rows = [["row", "contender", "seconds", "±", "÷ ours", "of limit", "of stated"]]
    for name, row in report["rows"].items():
        for i, (who, times) in enumerate(row["contenders"].items()):
            ours = row["contenders"].get("leakcore")
            ratio = f"{times['median'] / ours['median']:.2f}" if ours and who != "leakcore" else ""
            shares = [f"{times[k]:.0%}" if times.get(k) is not None else "" for k in ("of_limit", "of_stated")]
            spread = "" if mark else f"{times['spread']:.0%}"
            rows.append([name if i == 0 else "", who, f"{times['median']:.3g}", spread, "" if mark else ratio, *shares])
        if row["note"]:
            rows.append(["" if row["contenders"] else name, row["note"]])
    table(rows)
    for where in dict.fromkeys(row["where"] for row in report["rows"].values() if row["where"]):
        print(f"  {where}")
    if mark:
        print(mark)


def _write(options: argparse.Namespace, report: dict[str, Any]) -> None:
    card = re.sub(r"[^a-z0-9]+", "-", report["machine"]["card"].lower()).strip("-")
    folder = options.state if options.emulate else RESULTS
    out = options.out or folder / f"cuda-{card}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\nwrote {_from_root(out)}")


def _from_root(path: Path) -> str:
    path = path.resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


if __name__ == "__main__":
    sys.exit(main())
