"""Benchmarks: the kernels against what a user could pick instead, and against what the hardware allows.

From the repository's root: `python -m bench` (at most about ten minutes), `--quick` (about a minute, a smoke test),
`--list`, `--only TEXT` (cases whose "kernel size" contains TEXT; may be repeated), `--device cuda`.

To time another checkout's kernels with these cases, build it and put it first on the path; every process of the
benchmark imports `leakcore` from there:

    PYTHONPATH=/path/to/other/checkout python -m bench --only "mixture N=1e5 T=100"

Long runs can be made in pieces: `--out part1.json --only mixture`, `--out part2.json --only clip`, and then
`--report part1.json part2.json` prints one report with the table of claims.
"""
