"""Registers, spills and static shared memory of every CUDA kernel, as the compiler prints them, against the kept table.

    .venv/bin/python .ci/cuda_resources.py           compile for compute capability 9.0, compare; exit code 1 if worse
    .venv/bin/python .ci/cuda_resources.py --keep    compile, and write the table

Occupancy falls with registers, and a spill is traffic with memory: a kernel that needs more of either than the table
says must be looked at. A kernel that needs less is a reason to write the table anew. Wants nvcc; no GPU.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "csrc" / "core" / "runtime" / "cuda_resources.json"
ARCH = "90"
FIELDS = ("registers", "spilled", "shared")
_KERNEL = re.compile(r"Compiling entry function '(\S+)' for 'sm_\d+'")
_SPILL = re.compile(r"(\d+) bytes spill stores")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def compiled(source: Path) -> str:
    """What the compiler prints for one file."""
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc")
    if nvcc is None:
        raise SystemExit("no nvcc here")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "leakcore_build.h").write_text(
            '#define LEAKCORE_COMPILER ""\n#define LEAKCORE_CUDA_ARCHS ""\n#define LEAKCORE_VERSION ""\n'
        )
        command = [
            nvcc, "-std=c++17", "-O3", "-fmad=false", "-DLEAKCORE_WITH_CUDA=1", "-DLEAKCORE_X86_TIERS=1", "-DNDEBUG",
            f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'leakcore' / 'include'}", f"-I{folder}", f"-arch=sm_{ARCH}", "-cubin",
            "-Xptxas", "-v", str(source), "-o", str(Path(folder) / "out.cubin"),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stderr


def read(text: str) -> dict[str, dict[str, int]]:
    """{kernel: registers per thread, bytes that a thread spills, bytes of static shared memory per block}."""
    out: dict[str, dict[str, int]] = {}
    name = ""
    for line in text.splitlines():
        if match := _KERNEL.search(line):
            name = match[1]
            out[name] = dict.fromkeys(FIELDS, 0)
        elif name:
            for field, pattern in (("spilled", _SPILL), ("registers", _USED), ("shared", _SHARED)):
                if match := pattern.search(line):
                    out[name][field] = int(match[1])
    return out


def plain(names: list[str]) -> dict[str, str]:
    """Names as a person would write them."""
    filt = shutil.which("c++filt")
    if filt is None:
        return {name: name for name in names}
    lines = subprocess.run([filt], input="\n".join(names), capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    return {name: _short(line) for name, line in zip(names, lines, strict=False)}


def _short(line: str) -> str:
    without = re.sub(r"leakcore::|\(anonymous namespace\)::|^void ", "", line)
    depth = 0
    for k, letter in enumerate(without):  # the arguments begin at the first bracket outside the template's
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            return without[:k]
    return without


def measured() -> dict[str, dict[str, int]]:
    """Every kernel of the CUDA sources."""
    sources = sorted(p for p in (ROOT / "csrc").rglob("*.cu") if "testing" not in p.parts)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        tables = [read(text) for text in pool.map(compiled, sources)]
    table = {name: row for each in tables for name, row in each.items()}
    names = plain(list(table))
    return dict(sorted((names[name], row) for name, row in table.items()))


def worse(allowed: dict[str, dict[str, int]], now: dict[str, dict[str, int]]) -> list[str]:
    """What needs more than the table allows, and kernels that it lacks."""
    out = []
    for name, row in now.items():
        if name not in allowed:
            out.append(f"{name}: not in the table")
            continue
        for field in FIELDS:
            if row[field] > allowed[name][field]:
                out.append(f"{name}: {row[field]} {field}, the table allows {allowed[name][field]}")
    return out


def main(arguments: list[str]) -> None:
    now = measured()
    spills = {name: row["spilled"] for name, row in now.items() if row["spilled"]}
    print(
        f"{len(now)} kernels, {len(spills)} of them spill, at most {max(spills.values(), default=0)} bytes a thread; "
        f"at most {max(row['registers'] for row in now.values())} registers"
    )
    version = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"release ([\d.]+)", version)
    release = match[1] if match else ""
    if "--keep" in arguments:
        table: dict[str, Any] = {
            "schema": "leakcore.cuda-resources/1", "arch": ARCH, "nvcc": release, "kernels": now,
        }  # fmt: skip
        lines = json.dumps(table, indent=1)
        lines = re.sub(r"\{\n\s+(\"registers\"[^}]*?)\n\s+\}", lambda m: "{" + re.sub(r"\s+", " ", m[1]) + "}", lines)
        TABLE.write_text(lines + "\n")
        return
    kept = json.loads(TABLE.read_text())
    if kept["nvcc"] != release:
        print(f"the table is of nvcc {kept['nvcc']}, and this is {release}: not compared")
        return
    if problems := worse(kept["kernels"], now):
        print("\n".join(problems))
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
