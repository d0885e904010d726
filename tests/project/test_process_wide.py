"""What belongs to the whole process is not changed for other threads, or put back as it was."""

from __future__ import annotations

import ast
import threading
import warnings
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

from leakcore import datasets
from leakcore._base.pictures import figure_style
from tests.datasets.test_membership import _archive
from tests.tolerances import HANG

PACKAGE = Path(__file__).resolve().parents[2] / "leakcore"
BANNED = {
    "os.umask", "os.chdir", "os.putenv", "os.setuid", "os.nice", "locale.setlocale", "warnings.simplefilter",
    "np.seterr", "np.set_printoptions", "matplotlib.use", "matplotlib.rc_context",
    "torch.set_default_dtype", "torch.set_default_device", "torch.use_deterministic_algorithms",
    "sys.setrecursionlimit", "torch.set_num_interop_threads", "torch.set_flush_denormal",
    "torch.set_float32_matmul_precision", "torch.set_printoptions", "torch.set_default_tensor_type",
    "logging.basicConfig", "logging.disable",
    "socket.setdefaulttimeout", "tempfile.tempdir", "faulthandler.enable", "multiprocessing.set_start_method",
}  # fmt: skip
ONLY_IN = {
    # Filters, counted over the blocks of all threads; and torch's generator, which a model's own draws come from.
    "warnings.catch_warnings": {"_base/process_wide.py"},
    "warnings.filterwarnings": {"_base/process_wide.py"},
    # The main thread alone, and only where Python's own handler is in place: SIGINT while results are waited for,
    # SIGTERM while a command runs.
    "signal.signal": {"_base/workers.py", "cli/exit_codes.py"},
    # A recorded model draws from the global generators itself, and is evaluated again; they are put back.
    "np.random.seed": {"gradients/module_state.py"},
    "random.seed": {"gradients/module_state.py"},
    # Networks are made by constructors that know torch's generator alone; it is put back.
    "torch.default_generator.manual_seed": {"kernels/random.py"},
    "torch.manual_seed": set(),
}  # fmt: skip


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return _dotted(node.value)
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return f"{before}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def test_process_wide_settings() -> None:
    uses: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        where = str(path.relative_to(PACKAGE))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                uses.setdefault(_dotted(node), set()).add(where)
            if isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
                for target in [node.target] if isinstance(node, ast.AugAssign) else node.targets:
                    assert not _dotted(target).startswith(("os.environ", "sys.std", "torch.backends")), where
    assert {name: uses[name] for name in BANNED & uses.keys()} == {}
    assert {name: uses.get(name, set()) - files for name, files in ONLY_IN.items()} == {n: set() for n in ONLY_IN}


def test_figures_in_threads() -> None:
    before = dict(matplotlib.rcParams)
    inside, go = threading.Event(), threading.Event()

    def first() -> None:
        with figure_style({"font.size": 30.0}):
            inside.set()
            go.wait(HANG)

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(HANG)
    matplotlib.rcParams["lines.linewidth"] = 7.5  # of the user's own, meanwhile
    calls: list[Any] = []

    def second() -> None:
        with figure_style({"font.size": 20.0, "svg.fonttype": "path"}):
            calls.append(matplotlib.rcParams["font.size"])

    other = threading.Thread(target=second)
    other.start()
    other.join(0.2)
    assert calls == []  # it waits for the first
    go.set()
    thread.join(HANG)
    other.join(HANG)
    assert calls == [20.0]
    assert matplotlib.rcParams["lines.linewidth"] == 7.5
    matplotlib.rcParams["lines.linewidth"] = before["lines.linewidth"]
    assert dict(matplotlib.rcParams) == before


def test_warnings_of_other_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.zeros((3, 600), int)
    _archive(tmp_path / "dataset_purchase.tgz", "".join('"1",' + ",".join(map(str, r)) + "\n" for r in rows).encode())
    before, meanwhile = list(warnings.filters), []

    def noting(real: Any) -> Any:
        def reads(*args: Any, **how: Any) -> Any:
            meanwhile.append(list(warnings.filters))
            return real(*args, **how)

        return reads

    for name in ("loadtxt", "fromstring"):
        monkeypatch.setattr(np, name, noting(getattr(np, name)))
    assert datasets.purchase100(tmp_path).features.shape == (3, 600)
    assert meanwhile == [before]
    for wrong in (b'"1",,1\n', b'"1" 2,0\n', b"\n\n", b'"1",99999\n'):
        _archive(tmp_path / "dataset_purchase.tgz", wrong)
        with pytest.raises(ValueError, match=r"dataset_purchase\.tgz"):
            datasets.purchase100(tmp_path)
