"""`python -m bench`: a table per kernel, the claims, and bench/results/<time>.json."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import time
from pathlib import Path
from typing import Any

from bench import environment

# This process starts the others and waits; it computes nothing, but it imports NumPy to know the cases.
os.environ.update(environment.VARIABLES, OPENBLAS_NUM_THREADS="1")
environment.python_path_first()

from bench import cases, claims, harness, probe, report  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and short: a smoke test, not a measurement")
    parser.add_argument("--only", action="append", metavar="TEXT", help='cases whose "kernel size" contains TEXT')
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument("--out", type=Path, help="where to write the JSON (default: bench/results/<time>.json)")
    parser.add_argument(
        "--report", type=Path, nargs="+", metavar="JSON", help="print these results as one, time nothing"
    )
    options = parser.parse_args(arguments)

    if options.report:
        try:
            merged = report.read(options.report)
        except (OSError, ValueError) as error:
            parser.error(str(error))
        merged["claims"] = claims.judge(merged["cases"], merged["device"])
        report.show(merged)
        if options.out:
            report.write(options.out, merged)
        return 0

    every = cases.all_cases(options.device, options.quick)
    chosen = [c for c in every if not options.only or any(text in c.key for text in options.only)]
    if options.list or not chosen:
        print("\n".join(case.key for case in chosen or every))
        return 0 if chosen else 2
    if options.device == "cuda" and (why := _without_cuda()):
        print(f"no CUDA device: {why}", file=sys.stderr)
        return 2
    measured = measure(chosen, options.device, options.quick)
    print()
    report.show(measured)
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    out = options.out or Path(__file__).resolve().parent / "results" / f"{stamp}.json"
    report.write(out, measured)
    print(f"\nwrote {out}")
    return 0


def measure(chosen: list[Any], device: str, quick: bool) -> dict[str, Any]:
    """The report of these cases; progress goes to standard error."""
    if device == "cpu":
        probe.build()
    bench = harness.Bench(device, quick)
    start = time.monotonic()
    results = []
    try:
        for i, case in enumerate(chosen, 1):
            print(f"[{i}/{len(chosen)}, {time.monotonic() - start:.0f} s] {case.key}", file=sys.stderr, flush=True)
            results.append(bench.run(case))
        return {
            "schema": report.SCHEMA,
            "device": device,
            "quick": quick,
            "machine": bench.facts,
            "limits": bench.limits(),
            "cases": results,
            "claims": claims.judge(results, device),
        }
    finally:
        bench.close()


def _without_cuda() -> str:
    """Why nothing can be timed on a GPU here; "" if it can."""
    from leakcore import kernels

    info = kernels.build_info()
    if not info["cuda"]:
        return "this build of leakcore has no CUDA kernels"
    if not info["devices"]:
        return str(info["device_message"])
    import torch

    return "" if torch.cuda.is_available() else "this build of torch has no CUDA"


if __name__ == "__main__":
    sys.exit(main())
