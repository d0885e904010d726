"""The native loops that show what this processor can do, which no shipped module has: csrc/testing/probe."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUILT = ROOT / "build" / f"probe-{sys.implementation.cache_tag}" / f"_probe{sysconfig.get_config_var('EXT_SUFFIX')}"


def build() -> None:
    """Builds the module; takes a quarter of a second where nothing changed. RuntimeError if the build fails."""
    run = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_probe"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise RuntimeError(f"the probe of this processor was not built:\n{run.stdout}{run.stderr}")


@functools.cache
def module() -> Any:
    """`compute(name, count)` and `read(ranges, threads)`, in the instruction tier of this process."""
    spec = importlib.util.spec_from_file_location("_probe", BUILT)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
