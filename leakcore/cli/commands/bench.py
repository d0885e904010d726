"""`leakcore bench`: the kernels timed next to their peers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from leakcore.cli.exit_codes import Failure


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> None:
    """Time the kernels next to their peers: `python -m bench` of a source checkout, with the same options."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "bench" / "__main__.py").exists():
        raise Failure("the benchmark is not in the wheel: run `make bench` in a checkout of the repository")
    sys.exit(subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=root, check=False).returncode)
