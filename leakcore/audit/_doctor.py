"""What this installation has and what it lacks, for `leakcore doctor` and for the report's environment section."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from typing import Any

from leakcore import __version__

# Distribution, and what is lost without it.
_PEERS = {
    "torch": "attacks on torch modules and `dpsgd` need it",
    "numpy": "required",
    "scipy": "required",
    "scikit-learn": "bundled data sets need it",
    "matplotlib": "figures need it",
    "jinja2": "the HTML report needs it",
    "dp-accounting": "methods 'pld' and 'rdp' need it (pip install leakcore[accounting])",
}

_ON_CUDA = ("clip_and_noise", "clip_scores", "solve_labels", "mixture_log_ratio", "mixture_tail")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def diagnose() -> dict[str, Any]:
    """Facts by name: leakcore, Python, machine, the native build and its devices, peers, and what is missing."""
    from leakcore import kernels

    facts: dict[str, Any] = {
        "leakcore": __version__,
        "python": f"{sys.version.split()[0]} ({sys.executable})",
        "machine": f"{platform.machine()}, {os.cpu_count()} logical processors, {platform.platform()}",
    }
    info = kernels.build_info()
    facts.update({f"native {key}": value for key, value in info.items()})
    facts["CUDA kernels for"] = list(_ON_CUDA) if info["cuda"] else "nothing: this build has none"
    missing = []
    for name, consequence in _PEERS.items():
        version = _version(name)
        facts[name] = version or "not installed"
        if version is None:
            missing.append(f"{name}: {consequence}")
    facts["missing"] = missing or "nothing"
    return facts


def environment() -> dict[str, Any]:
    """The part of `diagnose` that belongs in a report: no paths of the user's machine."""
    facts = diagnose()
    facts["python"] = sys.version.split()[0]
    return facts
