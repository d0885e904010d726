"""What this installation has and what it lacks, for `leakcore doctor` and for the report's environment section."""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import subprocess
import sys
from typing import Any

from leakcore._base.process_wide import quiet
from leakcore._base.version import EXTRAS, __version__, install
from leakcore._base.version import version_of as _version

_WITHOUT_TORCH = (
    "models, defenses, leakage, training (`dpsgd.Ensemble`, `record`), attacks and the commands attack, leakage, "
    "reproduce, audit run and audit claim need it; bounds, accounting, mechanisms, kernels, audit plan, audit trace "
    "and audit scores do not"
)
# Distribution: its module, and what is lost without it.
_PEERS = {
    "torch": ("torch", _WITHOUT_TORCH),
    "numpy": ("numpy", "required"),
    "scipy": ("scipy", "required"),
    "scikit-learn": ("sklearn", "bundled data sets and the families of leakage need it"),
    "threadpoolctl": ("threadpoolctl", "audits, attacks on labels and leakage need it"),
    "tqdm": ("tqdm", "progress bars need it"),
    "matplotlib": ("matplotlib", "figures need it"),
    "jinja2": ("jinja2", "the HTML report needs it"),
    "pydantic": ("pydantic", "configurations of audits are checked by it"),
    "filelock": ("filelock", "run folders are locked by it"),
    "lazy_loader": ("lazy_loader", "required"),
    "dp-accounting": ("dp_accounting", "methods 'pld' and 'rdp' need it"),
    "opacus": ("opacus", "`record` and `FusedDPOptimizer` need it"),
    "distributed": ("distributed", "a Dask cluster as executor needs it"),
}

_ON_CUDA = ("clip_and_noise", "clip_scores", "solve_labels", "mixture_log_ratio", "mixture_tail")
_OF_NATIVE = {"LEAKCORE_ISA": "simd", "LEAKCORE_NUM_THREADS": "num_threads"}
"""Environment variables that the native core refuses when they are wrong: the fact that each decides."""
_ASK = """
import json
from leakcore import kernels
try:
    print(json.dumps({"info": kernels.build_info()}))
except ValueError as error:
    print(json.dumps({"wrong": str(error)}))
"""


def _import_error(module: str) -> str | None:
    """Why an installed module cannot be used; a broken binary raises whatever it likes."""
    try:
        with quiet():
            importlib.import_module(module)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip()}"
    return None


def _native() -> tuple[dict[str, Any], list[str]]:
    """(what the native core says of itself, what is wrong). A refused environment variable is left out in a process of
    its own: in this one it stays refused, by every kernel.
    """
    try:
        from leakcore import kernels

        return kernels.build_info(), []
    except ImportError as error:
        return {}, [f"native core: cannot be imported ({error})"]
    except ValueError as error:
        wrong = [str(error)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    while (name := _named(wrong[-1])) in _OF_NATIVE and environment.pop(name, None) is not None:
        done = subprocess.run(
            [sys.executable, "-c", _ASK], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            wrong.append(f"native core: does not answer without {name} either ({done.stderr.strip()[-200:]})")
            break
        answer = json.loads(done.stdout)
        if "info" in answer:
            refused = {_OF_NATIVE[_named(w)]: "refused, see wrong" for w in wrong}
            return {**answer["info"], **refused}, wrong
        wrong.append(answer["wrong"])
    return {}, wrong


def _named(refusal: str) -> str:
    """The environment variable that a refusal begins with."""
    match = re.match(r"`?(\w+)", refusal)
    return "" if match is None else match[1]


def _facts(*, imported: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "leakcore": __version__,
        "python": f"{sys.version.split()[0]} ({sys.executable})",
        "machine": f"{platform.machine()}, {os.cpu_count()} logical processors, {platform.platform()}",
    }
    info, wrong = _native()
    facts.update({f"native {key}": value for key, value in info.items()})
    if info:
        facts["CUDA kernels for"] = list(_ON_CUDA) if info["cuda"] else "nothing: this build has none"
    missing = []
    for name, (module, consequence) in _PEERS.items():
        version = _version(name)
        facts[name] = version or "not installed"
        if version is None:
            extra = f" ({install(EXTRAS[module])})" if module in EXTRAS else ""
            missing.append(f"{name}: {consequence}{extra}")
        elif imported and (why := _import_error(module)) is not None:
            facts[name] = f"{version}, cannot be imported"
            wrong.append(f"{name}: cannot be imported ({why}); {consequence}")
    facts["missing"] = missing or "nothing"
    facts["wrong"] = wrong or "nothing"
    return facts


def diagnose() -> dict[str, Any]:
    """Facts about this installation, for `leakcore doctor` and bug reports.

    Returns:
        A dict: leakcore, Python, the machine, the native build and its devices, the peer packages (each is imported);
        `missing`, what is not installed and what needs it; `wrong`, environment variables that the native core refuses
        and packages that cannot be imported.

    Example:
        >>> from leakcore import audit
        >>> facts = audit.diagnose()
        >>> facts["wrong"]
        'nothing'
    """
    return _facts(imported=True)


def environment() -> dict[str, Any]:
    """The part of `diagnose` that belongs in a report: without paths of the user's machine, and without importing
    anything. ValueError if the native core refuses an environment variable.
    """
    facts = _facts(imported=False)
    facts["python"] = sys.version.split()[0]
    if (wrong := facts.pop("wrong")) != "nothing":
        raise ValueError(wrong[0])
    return facts
