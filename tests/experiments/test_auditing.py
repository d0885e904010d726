"""The auditing paper's figure and table at their smallest scale, and their attacks."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from leakcore import accounting, experiments
from leakcore.experiments import auditing
from tests.experiments.contexts import context

DATA = Path(os.environ.get("LEAKCORE_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
pytestmark = pytest.mark.skipif(not (DATA / "fashion_mnist").is_dir(), reason="no folder of data sets: LEAKCORE_DATA")


@pytest.mark.full
@pytest.mark.parametrize("name", ["auditing-fig2", "auditing-table2"])
def test_the_smallest_scale_writes_its_files(name: str, tmp_path: Path) -> None:
    result = experiments.run(name, scale="tiny", data=DATA, out=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{name}.{e}" for e in ("json", "png", "svg")]
    written = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert written == json.loads(result.to_json())
    assert result.provenance.startswith("Jagielski")
    assert all(s.ours is not None and s.ours >= 0 for s in result.stated)


def test_without_noise_from_a_fixed_start_inference_is_perfect() -> None:
    """k = 1: what counts of this size can prove at most; T = 40."""
    rows = auditing.fashion_mnist(context(data=DATA), 120)
    result = auditing.audited(
        context(data=DATA), rows, auditing.AuditedTraining((), 0.0, batches=4), "clipbkd", (1,), 40, "a task"
    )
    assert result.hits == (40, 0)
    assert result.chosen == "k = 1"


@pytest.mark.slow
def test_without_noise_500_trials_prove_all_that_they_can() -> None:
    """k = 1, T = 500, a fixed start: 4.54."""
    rows = auditing.fashion_mnist(context(data=DATA), 240)
    result = auditing.audited(
        context(data=DATA), rows, auditing.AuditedTraining((32,), 0.0, batches=4), "clipbkd", (1,), 500, "a task"
    )
    assert result.hits == (500, 0)
    assert float(result.value) == pytest.approx(4.5419, abs=1e-4)


def test_full_batches_without_noise_are_constant() -> None:
    rows = auditing.fashion_mnist(context(data=DATA), 60)
    poisoned = auditing.attack(rows, "clipbkd", 1, 0)
    ensemble = auditing.AuditedTraining((), 0.0, batches=1).ensemble(rows, 0)
    scores = auditing.poisoning.poisoning_scores(ensemble, poisoned, trials=40)
    assert len(np.unique(scores.scores_in)) == len(np.unique(scores.scores_out)) == 1


def test_cells_are_draws_of_their_own_and_from_a_fixed_start_c_changes_the_step_alone() -> None:
    """The noise scales with C: with the same draw, three clipping norms are one experiment."""
    rows = auditing.fashion_mnist(context(data=DATA), 60)

    def hits(clip: float, draw: int) -> tuple[int, int]:
        mechanism = auditing.AuditedTraining((), 5.0, batches=1, clip=clip)
        best = auditing.audited(context(data=DATA), rows, mechanism, "clipbkd", (4,), 60, "a task", draw=draw)
        counted = best.hits
        return int(counted[0]), int(counted[1])

    assert hits(0.5, 0) == hits(1.0, 0) == hits(2.0, 0)
    assert hits(1.0, 0) != hits(1.0, 1)
    assert not set(auditing.drawn(3, 1000)) & set(auditing.drawn(4, 1000))


def test_purchase_100_is_read_where_its_file_is_and_replaced_by_name_where_it_is_not(tmp_path: Path) -> None:
    table = np.random.default_rng(0).integers(0, 2, (260, 601))
    table[:, 0] = np.arange(260) % 100 + 1
    text = "\n".join(",".join(map(str, row)) for row in table).encode()
    with tarfile.open(tmp_path / "dataset_purchase.tgz", "w:gz") as archive:
        member = tarfile.TarInfo("dataset_purchase")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    own = context(data=tmp_path)
    real = auditing.purchase100(own, 1000)
    assert (real.name, len(real.labels), real.classes) == ("Purchase-100", 60, 100)
    assert not own.departures
    other = context(data=DATA)
    assert auditing.purchase100(other, 60).name == "Location-30"
    assert [d.here for d in other.departures.values()] == ["Location-30, since Purchase-100's file is not there"]


def test_the_stand_ins_are_named() -> None:
    location = auditing.location30(context(data=DATA), 300)
    assert "is not it" in location.described
    assert (location.classes, location.shape) == (30, None)
    assert math.isinf(auditing.provable(0.0, 1, "replace"))
    assert auditing.provable(auditing.noise_for(4.0, 1), 1, "replace") == pytest.approx(9.08, abs=0.01)


def test_a_batch_is_of_250_rows_as_in_the_paper_where_there_are_as_many_rows() -> None:
    rows = auditing.fashion_mnist(context(data=DATA), 120)
    sizes = {120: 24, 1000: 24, 6000: 24, 10_000: 40}
    for count, batches in sizes.items():
        assert auditing.batches(dataclasses.replace(rows, labels=np.zeros(count))) == batches
    ensemble = auditing.AuditedTraining((), auditing.noise_for(4.0, 24), batches=24).ensemble(rows, 0)
    assert (ensemble.sample_rate, ensemble.steps, ensemble.expected_batch_size) == (1 / 24, 24 * 24, 5.0)
    spent = accounting.epsilon(ensemble.noise_multiplier, 1 / 24, ensemble.steps, delta=auditing.DELTA)
    assert 3.9 < float(spent.value) <= 4.0
