"""`leakcore doctor`: what is missing is named, what is wrong is named, and neither keeps the rest from being said."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leakcore import audit
from leakcore.audit.shared import doctor
from leakcore.cli import main


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments])


def test_facts_and_nothing_wrong() -> None:
    done = run()
    assert done.exit_code == 0, done.output
    for word in ("leakcore", "native compiler", "native simd", "native cuda", "torch", "numpy", "missing", "opacus"):
        assert word in done.output
    assert done.output.splitlines()[-1].split() == ["wrong", "nothing"]


@pytest.mark.full(keep=1)
@pytest.mark.parametrize(
    ("variables", "messages"),
    [
        ({"LEAKCORE_NUM_THREADS": "abc"}, ["`LEAKCORE_NUM_THREADS` must be a positive integer, got 'abc'"]),
        ({"LEAKCORE_NUM_THREADS": "0"}, ["`LEAKCORE_NUM_THREADS` must be a positive integer, got '0'"]),
    ],
)
def test_a_refused_variable_is_named_and_the_rest_is_said(
    variables: dict[str, str], messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = run("--json")
    assert done.exit_code == 2
    content = json.loads(done.stdout)
    assert content["wrong"] == messages
    assert content["native simd"] in content["native simd_available"]
    assert content["native num_threads"] == "refused, see wrong"
    assert content["numpy"][0].isdigit()
    assert messages[0] in run().stdout
    with pytest.raises(ValueError, match="`LEAKCORE_NUM_THREADS` must be a positive integer, got"):
        doctor.environment()


@pytest.mark.full
def test_both_variables_in_a_process_that_has_not_chosen_its_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    monkeypatch.setenv("LEAKCORE_ISA", "foo")
    monkeypatch.setenv("LEAKCORE_NUM_THREADS", "abc")
    done = subprocess.run(
        [sys.executable, "-m", "leakcore.cli", "doctor", "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    content = json.loads(done.stdout)
    assert content["wrong"][0].startswith("`LEAKCORE_ISA` must be one of what this processor and build have (baseline")
    assert content["wrong"][1] == "`LEAKCORE_NUM_THREADS` must be a positive integer, got 'abc'"
    assert content["native simd"] == content["native num_threads"] == "refused, see wrong"
    assert "baseline" in content["native simd_available"]


def test_a_package_that_is_installed_but_cannot_be_imported_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    done = run("--json")
    assert done.exit_code == 2
    content = json.loads(done.stdout)
    assert content["torch"].endswith(", cannot be imported")
    (why,) = [line for line in content["wrong"] if line.startswith("torch: cannot be imported (")]
    for part in ("models", "defenses", "leakage", "attacks", "audit claim"):
        assert part in why


def test_what_is_not_installed_is_missing_with_what_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"opacus": "`record`", "distributed": "Dask", "torch": "audit claim"}
    known = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name in absent else known(name))
    result = audit.diagnose()
    lines = {line.partition(":")[0]: line for line in result["missing"]}
    for name, part in absent.items():
        assert result[name] == "not installed"
        assert part in lines[name]


def test_a_report_names_no_place_of_the_machine_and_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_import_error", lambda module: pytest.fail(f"imported {module}"))
    result: dict[str, Any] = doctor.environment()
    assert str(Path(sys.executable).parent) not in json.dumps(result)
    assert "wrong" not in result


def test_a_core_that_cannot_be_loaded_is_wrong_and_the_rest_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "leakcore.kernels", None)
    monkeypatch.delattr("leakcore.kernels", raising=False)
    result = doctor._facts(imported=False)
    assert result["wrong"][0].startswith("native core: cannot be imported (")
    assert result["torch"]
