"""Runs every `run:` step of .github/workflows here, each once, in a clone of its own and an empty environment.

python .ci/workflows.py               all of them: about an hour on two cores
python .ci/workflows.py --only bare   the steps of one job
python .ci/workflows.py --list        print them
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".github" / "workflows"


def steps(folder: Path = FOLDER) -> Iterator[tuple[str, str, str]]:
    """(workflow, job, command) of every `run:` step."""
    from ruamel.yaml import YAML

    for path in sorted(folder.glob("*.yml")):
        workflow: dict[Any, Any] = YAML(typ="safe").load(path)
        for job, what in workflow["jobs"].items():
            for step in what.get("steps", ()):
                if "run" in step:
                    yield path.stem, job, step["run"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="JOB")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    chosen = [step for step in steps() if options.only in (None, step[1])]
    if options.list:
        print("\n".join(": ".join(step) for step in chosen))
        return
    for job in dict.fromkeys(job for _, job, _ in chosen):
        with tempfile.TemporaryDirectory() as work:
            clone, home = Path(work) / "clone", Path(work) / "venv"
            subprocess.run(["git", "clone", "--quiet", "--local", str(ROOT), str(clone)], check=True)
            venv.create(home, with_pip=True)
            path = f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"
            for command in [step[2] for step in chosen if step[1] == job]:
                began = time.monotonic()
                done = subprocess.run(command, shell=True, cwd=clone, env={**os.environ, "PATH": path}, check=False)
                print(f"{job}: {command}: exit code {done.returncode}, {time.monotonic() - began:.0f} s", flush=True)
                if done.returncode:
                    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
