"""The notebooks of the tutorials run from top to bottom; what they assert holds, and their kept outputs are true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.project.script import ROOT, load
from tests.tolerances import HANG

TUTORIALS = ROOT / "docs" / "tutorials"
NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))


def test_kept_outputs() -> None:
    nbformat = pytest.importorskip("nbformat", reason="pip install '.[docs]' reads notebooks")
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
        assert len(outputs) >= 3, path.name
        assert not [output for output in outputs if output.output_type == "error"], path.name
        assert any("assert" in cell.source for cell in notebook.cells if cell.cell_type == "code"), path.name
        assert path.stat().st_size <= 200_000, path.name


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="pip install '.[docs]' runs notebooks")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel", reason="pip install '.[docs]' runs notebooks")
    if "opacus" in path.stem:
        pytest.importorskip("opacus")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(path, as_version=4)
    committed = printed(notebook)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=HANG, kernel_name="python3", resources=resources).execute()
    words, numbers = printed(notebook)
    assert words == committed[0]
    # Another processor rounds otherwise: a guess or two of an attack may turn out otherwise, too.
    np.testing.assert_allclose(numbers, committed[1], rtol=0.05, atol=0.3)


def printed(notebook: Any) -> tuple[list[str], list[float]]:
    """What the cells print: the words between numbers, and the numbers."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    text = "".join(out.text for cell in cells for out in cell.outputs if out.output_type == "stream")
    number = r"\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?"
    return re.split(number, text), [float(n.replace(",", "")) for n in re.findall(number, text)]


def test_pages_of_notebooks() -> None:
    fenced = load("docs/hooks/notebooks.py").fenced
    code = "```python\nfor i in a:\n    f(i)\n\n    g(i)\n```"
    page = f"See [b](b.ipynb).\n\n{code}\n\n    1\n\n    2\n\n\nThen text.\n"
    output = "```{ .text .output }\n1\n\n2\n```\n"
    assert fenced(page) == f"See [b](b.md).\n\n{code}\n\n{output}\n\nThen text.\n"
