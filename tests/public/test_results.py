"""The face that all results share: an instance of each class, from the examples of the public functions."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leakcore
from leakcore import audit, bounds, mechanisms
from leakcore._base.results import Record, Result
from leakcore.audit.selftest import Promise, SelfTest
from leakcore.bounds.methods.certified import CertificateState
from leakcore.experiments.driver.overview import Reproduction
from leakcore.experiments.driver.result import Departure, ExperimentResult, Panel, Pictures, Series, Stated, TextTable
from leakcore.experiments.driver.verdict import Check
from leakcore.experiments.labels.released import Released
from tests.audit import samples as reports
from tests.audit.samples import orthogonal, simulated
from tests.public.arrays import CALLS, resolve

NAMES = [name for name in CALLS if not inspect.isclass(resolve(name))]
SHOWN_LINES = 4
"""A `repr` is at most this many lines of a terminal."""
ONLY_IN_THE_REPORT_OF_A_RUN = {"RunReport"}
PARTS_OF_REPORTS = {"MeasuredRate", "Measured", "Separation"}
"""Results that no package offers: the class of the report says what they are."""


def _records(value: Any) -> Iterator[Any]:
    """The records in what a function hands back."""
    if isinstance(value, Record):
        yield value
    if isinstance(value, (list, tuple)):
        parts = list(value)
    elif isinstance(value, dict):
        parts = list(value.values())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, f.name) for f in dataclasses.fields(value)]
    else:
        parts = []
    for part in parts:
        yield from _records(part)


def _others() -> Iterator[Any]:
    """Records that no function of one call hands back."""
    state = bounds.reconstruction(1.0, 0.5, 2, kappa=0.1, method=bounds.methods.Certified(600, 0.9, width=0.9)).state
    yield CertificateState.from_dict(state)
    yield orthogonal(60)
    yield simulated(mechanisms.Poisson(1.0, 0.3, 3), 60)
    promise = Promise(
        mechanism="none", epsilon=0.0, delta=0.0, method="counts", trials=9, audits=3, above=0, rate=0.0,
        interval=(0.0, 0.7), allowed=0.1, mean=0.0, kept=True,
    )  # fmt: skip
    yield bounds.SequentialTest(**CALLS["bounds.SequentialTest"].arguments()).proof()
    yield SelfTest(promises=(promise,), confidence=0.9, audits=3, seed=0)
    label = bounds.label_epsilon(**CALLS["bounds.label_epsilon"].arguments())
    yield Released(
        described="", attacker="", batches=1, labels=2, identifiable=2, determined=1, right=1, right_by_sign=2,
        bound=label,
    )  # fmt: skip
    line = Series(name="a", role="bound", x=np.arange(3.0), y=np.array([0.0, np.nan, np.inf]))
    few, many = (audit.from_scores([5.0] * n, [0.0] * n, coins=True) for n in (50, 500))
    yield audit.compare(few, many)
    number = audit.ListedNumber(
        value=1.5, text="ε ≥ 1.5", kind="lower", guarantee="lower, exact", adjacency="add/remove"
    )
    listed = audit.ListedReport(
        name="a", date="2026-01-01T00:00:00+00:00", audit="claim", title="t", headline="w", tone="good", verdict="v",
        claimed=number, proved=number, accountant=None, version="0.1.0", page="",
    )  # fmt: skip
    yield audit.ReportList(folder="f", reports=(listed,), problems=(("b", "c"),))
    figure = ExperimentResult(
        name="n", title="t", statement="s", scale="tiny", seed=0, conclusion="c",
        checks=(Check(says="a is above b", holds=3, cases=4, chance=0.5, about="size"),),
        stated=(Stated(what="w", paper="3", ours=3, interval=(2.0, np.inf)),),
        panels=(Panel(title="t", x_label="x", y_label="y", series=(line,)),),
        pictures=(Pictures(title="t", row_names=("r",), column_names=("c",), images=np.zeros((1, 1, 2, 2), "f4")),),
        departures=(Departure(what="rows", paper="6,000", here="240"),), settings={"layers": (3, 2)},
        tables=(TextTable(title="t", head=("a", "b"), rows=(("1", "2"),)),),
    )  # fmt: skip
    yield figure
    yield Reproduction(scale="tiny", seed=0, results=(figure,), missing=(("m", "not run: no data"),))


@pytest.fixture(scope="module")
def instances() -> dict[str, Any]:
    """One instance of each class, by its name."""
    out: dict[str, Any] = {}
    own = [name for name in CALLS if name.startswith("mechanisms.") and name not in NAMES]  # made by the user
    for name in (*NAMES, *own):
        for record in _records(resolve(name)(**CALLS[name].arguments())):
            out.setdefault(type(record).__name__, record)
    for whole in (reports.trace(), reports.scores(), reports.canaries(), reports.claim(), *_others()):
        for record in _records(whole):
            out.setdefault(type(record).__name__, record)
    return out


def _classes(base: type) -> Iterator[type]:
    for cls in base.__subclasses__():
        yield cls
        yield from _classes(cls)


def test_classes(instances: dict[str, Any]) -> None:
    for module in pkgutil.walk_packages(leakcore.__path__, "leakcore."):
        if "__main__" not in module.name:
            importlib.import_module(module.name)
    every = {
        cls.__name__ for cls in _classes(Record)
        if cls.__module__.startswith("leakcore.") and dataclasses.is_dataclass(cls) and not inspect.isabstract(cls)
    }  # fmt: skip
    assert every - instances.keys() == ONLY_IN_THE_REPORT_OF_A_RUN, (
        "give the function that returns it a call in tests/public/calls.py, arrays.py or attack_calls.py"
    )


def _check(record: Any) -> None:
    name = type(record).__name__
    text = json.dumps(record.to_dict(), allow_nan=False)
    back = type(record).from_dict(json.loads(text))
    assert back == record, name
    assert hash(back) == hash(record), name
    assert json.dumps(back.to_dict(), allow_nan=False) == text, name
    assert len(repr(record)) <= SHOWN_LINES * 120, repr(record)
    assert "\n" not in repr(record), name
    assert str(record), name
    assert record._repr_html_().startswith("<table>"), name
    with pytest.raises(ValueError, match=r"(must be .*, got 'other/1'|must be .* lacks|has a field schema, which no)"):
        type(record).from_dict({"schema": "other/1"})


def test_json_and_display(instances: dict[str, Any]) -> None:
    for record in instances.values():
        _check(record)


def test_reading_by_the_base(instances: dict[str, Any]) -> None:
    for record in instances.values():
        if isinstance(record, Result):
            back = Result.from_dict(json.loads(record.to_json()))
            assert type(back) is type(record)
            assert back == record


def test_reading_in_a_new_process(instances: dict[str, Any], tmp_path: Path) -> None:
    """Nothing is imported there but the base that `from_dict` is called on."""
    results = {n: r for n, r in instances.items() if isinstance(r, Result) and n not in PARTS_OF_REPORTS}
    whole = [r for r in instances.values() if isinstance(r, audit.AuditReport)]
    (tmp_path / "results.json").write_text(json.dumps([r.to_dict() | {"class": n} for n, r in results.items()]))
    (tmp_path / "reports.json").write_text(json.dumps([r.to_dict() for r in whole]))
    script = """if True:
        import json
        from leakcore._base.results import Result
        names = [(data["class"], type(Result.from_dict(data)).__name__) for data in json.load(open("results.json"))]
        assert all(name == read for name, read in names), names
        from leakcore import audit
        reports = [audit.AuditReport.from_dict(data) for data in json.load(open("reports.json"))]
        print(len(names), *sorted(type(report).__name__ for report in reports))
    """
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    count, *names = done.stdout.split()
    assert int(count) > 30
    assert names == ["CanaryReport", "ClaimReport", "ScoresReport", "TraceReport"]


def test_quantities_and_frames(instances: dict[str, Any]) -> None:
    pytest.importorskip("pandas")
    for name, record in instances.items():
        if not isinstance(record, Result):
            continue
        assert record.quantity != "number", name
        frame = record.to_frame()
        assert len(frame) == np.size(record.value), name
        np.testing.assert_array_equal(frame["value"].to_numpy(), np.ravel(record.value))
        assert list(frame) == ["quantity", "kind", "value", "low", "high", "confidence", "adjacency"]
        assert set(frame["quantity"]) <= {record.quantity}


@pytest.mark.slow
def test_run_report() -> None:
    for record in _records(reports.run()):
        _check(record)


def test_equality_of_reports() -> None:
    report = reports.scores()
    assert dataclasses.replace(report, seconds=report.seconds + 1) == report
    assert dataclasses.replace(report, fail_above=50.0) != report
    with pytest.raises(ValueError, match="lacks report"):
        type(report).from_dict({})
    assert isinstance(report, audit.AuditReport)


def test_pictures(instances: dict[str, Any]) -> None:
    from matplotlib.figure import Figure

    drawn = [name for name, record in instances.items() if hasattr(record, "plot")]
    assert {"ReconstructionBound", "MembershipBound", "ReconstructionGame", "LeakageByLayer"} <= set(drawn)
    for name in drawn:
        axes = Figure().subplots()
        assert instances[name].plot(ax=axes) is axes, name
        assert axes.get_xlabel(), name
        assert axes.has_data(), name
