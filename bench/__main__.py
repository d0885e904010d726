"""`python -m bench`: every case, a table each, and bench/results/<time>.json."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

from bench import cases, harness
from leakcore import kernels


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and short: a smoke test, not a measurement")
    parser.add_argument("--only", choices=sorted(cases.ALL), action="append", help="run this case (may be repeated)")
    parser.add_argument("--out", type=Path, help="where to write the JSON (default: bench/results/<time>.json)")
    arguments = parser.parse_args()

    limits = harness.Limits.measured()
    bandwidth, speed = limits.read_bytes_per_second / 1e9, limits.flops / 1e9
    print(f"{kernels.num_threads()} threads; this machine reads {bandwidth:.1f} GB/s and computes {speed:.0f} Gflop/s")
    results = {}
    for name in arguments.only or cases.ALL:
        case = cases.ALL[name](limits, arguments.quick)
        timings = harness.measure(case, rounds=3 if arguments.quick else 9, seconds=2 if arguments.quick else 6)
        harness.show(case, timings)
        results[name] = (case, timings)
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    out = arguments.out or Path(__file__).resolve().parent / "results" / f"{stamp}.json"
    harness.write(out, limits, results)
    print(f"\nwrote {out}")


if __name__ == "__main__":
    main()
