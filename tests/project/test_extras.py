"""Without the packages that an extra brings: what works, and that what does not names its extra."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from leakcore._base.version import EXTRAS

ROOT = Path(__file__).resolve().parents[2]
BARE = f"""
import sys
for module in {tuple(EXTRAS)!r}:
    sys.modules[module] = None  # any import of it now raises ModuleNotFoundError
"""
COMMAND = (
    BARE
    + """
from leakcore.cli import main
main(sys.argv[1:], prog_name="leakcore")
"""
)


def _python(code: str, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=cwd, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_table_of_extras() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {"sklearn": "scikit-learn", "dp_accounting": "dp-accounting"}
    for module, extra in EXTRAS.items():
        brought = " ".join(project["optional-dependencies"][extra])
        assert names.get(module, module) in brought, extra
        assert not any(names.get(module, module) in wanted for wanted in project["dependencies"])


@pytest.mark.parametrize(
    "words",
    [
        ("bound", "--noise-multiplier", "1", "--sample-rate", "0.1", "--steps", "3", "--num-candidates", "10"),
        ("calibrate", "--target-success", "0.3", "--sample-rate", "0.1", "--steps", "3", "--num-candidates", "10"),
        ("audit", "plan", "--epsilon", "4"),
        ("explain", "epsilon"),
        ("reproduce", "list"),
    ],
    ids=lambda words: words[0],
)
def test_commands_without_extras(words: tuple[str, ...], tmp_path: Path) -> None:
    done = _python(COMMAND, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_scores_without_the_page(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "scores.npz", members=rng.normal(1, 1, 300), non_members=rng.normal(0, 1, 300))
    done = _python(COMMAND, "audit", "scores", "scores.npz", "--coins", "--out", "report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "report").iterdir()] == ["report.json"]
    assert (
        "report.html is not written: jinja2, matplotlib are not installed: pip install 'leakcore[report]'"
        in done.stderr
    )


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(
    ("words", "lacking"),
    [
        (
            ("audit", "run"),
            "torch, scikit-learn, jinja2, matplotlib are not installed: pip install 'leakcore[torch,report]'",
        ),
        (("audit", "claim", "clipbkd"), "pip install 'leakcore[torch,report]'"),
        (("reproduce", "labels-fig1"), "pip install 'leakcore[torch,report]'"),
    ],
)
def test_missing_extras_of_commands(words: tuple[str, ...], lacking: str, tmp_path: Path) -> None:
    done = _python(COMMAND, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert lacking in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("leakcore.record", "leakcore.dpsgd.record: torch is not installed: pip install 'leakcore[torch]'"),
        ("datasets.digits()", "scikit-learn is not installed: pip install 'leakcore[torch]'"),
        ("bounds.membership(1.0, 1.0, 1, fpr=0.1).plot()", "pip install 'leakcore[report]'"),
        ("accounting.epsilon(1.0, 0.1, 3, delta=1e-5, method='pld')", "leakcore[accounting]"),
    ],
)  # fmt: skip
def test_missing_extras_of_functions(call: str, text: str) -> None:
    code = (
        BARE
        + f"""
import leakcore
from leakcore import accounting, bounds, datasets
try:
    {call}
except ImportError as error:
    print(error)
"""
    )
    assert text in _python(code).stdout
