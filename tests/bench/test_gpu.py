"""`make gpu` rehearsed without a card: stages stop and go on, name what is missing, and no number becomes a result that
was not measured on a card.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.gpu import __main__ as gpu
from bench.gpu import measure, needs, rows, state

WANTED = (
    "clip (256, 10⁶) float32", "clip (256, 10⁶) bfloat16", "list of 24", "clip_scores, 1", "clip_scores, 4",
    "tail, 10⁹", "log ratio, 10⁷ × 100, float32", "log ratio, 10⁷ × 100, float64", "solve_labels, 65,536",
    "allocation", "ensemble", "launch overhead", "graph capture",
)  # fmt: skip


class Here:
    """NumPy arrays in a card's place: rows are built and called as they are there, on the CPU's kernels."""

    emulated = True
    like = np.zeros(1)

    def normal(self, *shape: int, dtype: str = "float32") -> np.ndarray:
        kind = "float16" if dtype == "bfloat16" else dtype
        return np.random.default_rng(shape).standard_normal(shape).astype(kind)

    def tensor(self, x: np.ndarray) -> Any:
        return pytest.importorskip("torch").from_numpy(x)

    def wait(self) -> None:
        pass

    def seconds(self, call: Any, budget: float) -> list[float]:
        call()
        return [1.0, 2.0, 4.0]

    def host_seconds(self, call: Any) -> list[float]:
        return self.seconds(call, 0.0)


def test_every_row_that_was_asked_for_is_there() -> None:
    names = [row.name for row in rows.ROWS]
    assert len(set(names)) == len(names)
    assert [text for text in WANTED if not any(text in name for name in names)] == []


@pytest.mark.parametrize("row", rows.ROWS, ids=lambda row: row.name)
def test_rows_run_and_say_what_the_limit_is(row: rows.Row) -> None:
    work = row.make(Here(), True)
    rates = dict.fromkeys(("copy_bytes", "stated_bytes", "fma_float64", "issue_slots"), 1.0)
    result = measure.measure(row, Here(), rates)
    assert list(result["contenders"]) == list(work.calls)
    assert work.calls or work.note
    for times in result["contenders"].values():
        assert times["median"] == 2.0
        assert (times["of_limit"] == work.amount / 2) if work.limit else times["of_limit"] is None
    assert json.loads(json.dumps(result)) == result


def test_what_leakcore_and_its_peer_compute_is_the_same() -> None:
    for name in ("clip_scores, 4 observations", "solve_labels, 65,536 of 200×50"):
        row = next(row for row in rows.ROWS if row.name == name)
        ours, theirs = (call() for call in row.make(Here(), True).calls.values())
        if name.startswith("clip"):
            np.testing.assert_allclose(ours.dots, theirs.numpy(), rtol=1e-3, atol=1e-4)
        else:
            np.testing.assert_allclose(ours.residual, theirs[0][..., 0].numpy(), rtol=1e-6)
            np.testing.assert_allclose(ours.leverage, theirs[1].numpy(), rtol=1e-6)


def test_a_stage_that_is_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    done = state.Done(tmp_path, "bench", "0")
    done.keep("first", {"code": 0})
    assert state.Done(tmp_path, "bench", "0").pieces == {"first": {"code": 0}}
    assert state.Done(tmp_path, "bench", "1").pieces == {}, "other sources or another card start again"
    clock = state.Clock(1e9)
    assert not clock.over(2e9), "the first piece of a call always begins"
    clock.pieces = 1
    assert clock.over(2e9)
    assert not clock.over(50.0)
    assert state.Clock(1e9, most=1, pieces=1).over(50.0)


def test_the_key_follows_the_sources_and_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "a.cu").write_text("1")
    monkeypatch.setattr(state, "ROOT", tmp_path)
    first = state.digest("card")
    assert first == state.digest("card") != state.digest("another card")
    (tmp_path / "csrc" / "a.cu").write_text("2")
    assert state.digest("card") != first


def test_what_is_missing_is_named_with_how_to_bring_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(needs, "WHEELS", tmp_path / "none")
    monkeypatch.setattr(needs, "PACKAGES", (needs.Need("no-such-package", "no_such_package", ("build",), "2"),))
    monkeypatch.setattr(needs, "tools", lambda *_: ["nvcc: take an image with it"])
    assert gpu.main(["build"]) == gpu.MISSING
    said = capsys.readouterr().err
    assert "no-such-package 2 or newer, for build" in said
    assert "make gpu-wheels" in said
    assert "carry the folder build/gpu-wheels here" in said
    assert "nvcc: take an image with it" in said
    assert needs.missing(["test"]) == []


@pytest.mark.full
def test_no_stage_needs_a_package_that_it_does_not_name() -> None:
    """Kernels, ensembles and rows import none of leakcore's other dependencies."""
    other = (
        "pydantic",
        "pydantic_core",
        "annotated_types",
        "filelock",
        "click",
        "tqdm",
        "sklearn",
        "matplotlib",
        "jinja2",
        "opacus",
    )
    program = (
        f"import sys\nfor name in {other}: sys.modules[name] = None\n"
        "from bench.gpu import rows\nfrom tests.bench.test_gpu import Here\n"
        "for row in rows.ROWS:\n    for call in row.make(Here(), True).calls.values(): call()\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=state.ROOT, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr


def test_an_old_version_counts_as_missing() -> None:
    assert not needs._have(needs.Need("pytest", "pytest", ("test",), "9999.1"))
    assert needs._have(needs.Need("pytest", "pytest", ("test",), "7"))


def test_an_emulated_run_gives_no_result(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="an emulated run writes nothing into bench/results"):
        gpu.main(["bench", "--emulate", "--out", str(gpu.RESULTS / "cuda-a-card.json")])
    for path in gpu.RESULTS.glob("cuda-*.json"):
        report = json.loads(path.read_text(encoding="utf-8"))
        assert report["schema"] == gpu.SCHEMA, path.name
        assert report["emulated"] == "", path.name
        assert report["left"] == [], path.name


def _rehearsal(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """`python -m bench.gpu` with these arguments, emulated."""
    command = [sys.executable, "-m", "bench.gpu", *arguments, "--emulate"]
    return subprocess.run(command, cwd=state.ROOT, capture_output=True, text=True, check=False, **more)


BUILT = list((state.ROOT / "build" / f"emulated-{sys.implementation.cache_tag}").glob("_C*.so"))


@pytest.mark.skipif(not BUILT, reason="needs the emulated build: make test-emulated")
def test_the_rehearsal_prints_its_table_and_goes_on(tmp_path: Path) -> None:
    before = sorted(p.name for p in gpu.RESULTS.iterdir())
    some = ["--only", "clip_scores", "--only", "tail, 10⁹", "--state", str(tmp_path)]
    first = _rehearsal("bench", *some, "--pieces", "2")
    assert first.returncode == gpu.AGAIN, first.stderr
    assert "call again; left: clip_scores, 4 observations, tail" in first.stdout
    last = _rehearsal("bench", *some, "--budget", "10000")
    assert "clip_scores, 1 observation" not in last.stdout.split("row ")[0], "it was done by the first call"
    assert last.returncode == gpu.DONE, last.stdout + last.stderr
    assert last.stdout.count(gpu.NOT_MEASURED) >= 3
    assert sorted(p.name for p in gpu.RESULTS.iterdir()) == before
    (path,) = tmp_path.glob("cuda-*.json")
    report = json.loads(path.read_text(encoding="utf-8"))
    assert report["emulated"] == gpu.NOT_MEASURED
    assert report["left"] == []
    assert len(report["rows"]) == 4
