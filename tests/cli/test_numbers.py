"""No number ends a command in an error of its own: exit 0 or 2, the option named, no nan printed, all of it bounded."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from leakcore.audit import config_file as file
from tests.cli.numbers import (
    LISTS,
    NO_NUMBERS,
    NUMBERS_IN_TEXT,
    TOML_VALUES,
    Form,
    Outcome,
    commands,
    configurations,
    form_of,
    forms,
    keys,
    numeric,
    outcome,
    values,
    with_key,
)  # fmt: skip

DATA = Path(os.environ.get("LEAKCORE_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
MEMORY = 4 * 2**30
"""Bytes that one call may ask for beyond what is there."""
SECONDS = 300
"""Processor time after which a call counts as one that never ends."""


@pytest.fixture(autouse=True)
def _data(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands read the data sets that the forms need."""
    if DATA.is_dir():
        monkeypatch.setenv("LEAKCORE_DATA", str(DATA))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("numbers")


@pytest.fixture(scope="module")
def quick(place: Path) -> dict[tuple[str, ...], list[Form]]:
    return forms(place)


class _Endless(BaseException):
    pass


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise _Endless

    before = signal.signal(signal.SIGPROF, stop)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, limits[1]))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGPROF, before)


def _tried(words: list[str], folder: Path) -> Outcome:
    try:
        with _bounded():
            return outcome(words, folder / "out")
    except _Endless:
        return Outcome(-1, "", "Error: it never ends")
    finally:
        shutil.rmtree(folder / "out", ignore_errors=True)


def _usable(form: Form) -> bool:
    return not form.needs or (DATA / form.needs).is_dir()


def test_options_that_take_text() -> None:
    for path, command in commands():
        for parameter in command.params:
            if isinstance(parameter.type, click.types.StringParamType):
                assert parameter.name in NUMBERS_IN_TEXT | NO_NUMBERS, (path, parameter.name)


def test_calls_for_every_command(quick: dict[tuple[str, ...], list[Form]]) -> None:
    for path, command in commands():
        assert quick[path] or not numeric(command), path
        for option in numeric(command):
            assert any(not form.only or option.opts[0] in form.only for form in quick[path]), (path, option.name)


@pytest.mark.parametrize("path", [path for path, _ in commands()], ids=" ".join)
def test_bad_option_values(path: tuple[str, ...], quick: dict[tuple[str, ...], list[Form]], place: Path) -> None:
    command = dict(commands())[path]
    for option in numeric(command):
        tried = [form for form in quick[path] if _usable(form) and (not form.only or option.opts[0] in form.only)]
        far = "nan|text|1e308" + ("|0000000000" if isinstance(option.type, click.IntRange) else "")
        for value in [value for value in values(option) if tried and re.search(far, value)]:
            done = outcome([*path, *tried[0].words, f"{option.opts[0]}={value}"], place / "out")
            assert done.faults(option.opts[0]) == [], (option.opts[0], value, done)
            assert done.code == 2, (option.opts[0], value, done)
    shutil.rmtree(place / "out", ignore_errors=True)


GAME = ("attack", "prior-aware", "--num-rows", "20", "--runs", "2", "--steps", "2", "--quiet")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--steps", "0"), ("--noise-multiplier", "1e100"), ("--noise-multiplier", "1e20"), ("--learning-rate", "1e100"),
        ("--learning-rate", "1e30"), ("--sample-rate", "1e-300"), ("--max-grad-norm", "9223372036854775808"),
        ("--max-grad-norm", "1e-30"), ("--max-grad-norm", "1e100"), ("--num-rows", "1798"),
        ("--num-candidates", "1779"), ("--hidden", "1000000000"), ("--delta", "1"), ("--confidence", "1"),
    ],
)  # fmt: skip
def test_bad_training_numbers(option: str, value: str) -> None:
    done = outcome([*GAME, "--noise-multiplier", "1", f"{option}={value}"])
    assert done.code == 2, done
    assert done.faults(option) == [], done


def test_large_epsilon(place: Path) -> None:
    done = outcome(["audit", "run", "--sweep=", *GAME[2:], "--epsilon", "1e9"], place / "out")
    shutil.rmtree(place / "out", ignore_errors=True)
    assert done.code == 2, done
    assert done.faults("--epsilon") == [], done


@pytest.mark.parametrize("section", list(file.SECTIONS))
def test_bad_key_values(section: str, place: Path) -> None:
    sections = next(s for s in configurations().values() if section in s)
    for key in keys().get(section, []):
        for value in ("nan", "100000000000000000000", "'text'"):
            text = with_key(sections, section, key, f"[{value}]" if key in LISTS else value)
            (place / "a.toml").write_text(text)
            done = outcome(["audit", form_of(sections), "--config", str(place / "a.toml"), "--quiet"], place / "out")
            assert done.code == 2, (key, value, done)
            assert done.faults(f"{section}.{key}") == [], (key, value, done)


@pytest.mark.parametrize(
    ("form", "key", "value"),
    [
        ("claim", "mechanism.noise_multiplier", "1e100"), ("claim", "mechanism.sample_rate", "1e-300"),
        ("claim", "model.hidden", "[1000000000]"), ("claim", "model.initialisation_scale", "1e100"),
        ("claim", "fault.noise", "1e100"),
        ("one-run", "audit.canaries", "1000000000"), ("trace", "trace.sample_rate", "1e-16"),
        ("trace", "trace.steps", "4294967296"), ("trace", "trace.num_candidates", "9223372036854775807"),
        ("run", "run.max_grad_norm", "9223372036854775807"), ("run", "run.sample_rate", "1e-300"),
    ],
)  # fmt: skip
def test_key_named_as_in_the_file(form: str, key: str, value: str, place: Path) -> None:
    section, _, name = key.partition(".")
    (place / "a.toml").write_text(with_key(configurations()[form], section, name, value))
    done = _tried(["audit", form_of(configurations()[form]), "--config", str(place / "a.toml"), "--quiet"], place)
    assert done.faults(key) == [], done
    assert done.code == 2, done


def test_option_named_as_typed(place: Path) -> None:
    (place / "a.toml").write_text(with_key(configurations()["trace"], "trace", "delta", "1e-6"))
    call = ["audit", "trace", "--config", str(place / "a.toml"), "--quiet"]
    assert outcome([*call, "--sample-rate", "0.25"]).faults("`--sample-rate` must be") == []
    assert outcome([*call, "--steps", "1"]).faults("`--steps` must be") == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("path", [path for path, _ in commands()], ids=" ".join)
def test_every_option_far_out(path: tuple[str, ...], quick: dict[tuple[str, ...], list[Form]], place: Path) -> None:
    wrong = []
    for form in (form for form in quick[path] if _usable(form)):
        assert _tried([*path, *form.words], place).code == 0, form
        for option in numeric(dict(commands())[path]):
            if form.only and option.opts[0] not in form.only:
                continue
            for value in values(option):
                done = _tried([*path, *form.words, f"{option.opts[0]}={value}"], place)
                if faults := done.faults(option.opts[0]):
                    wrong.append((form.words[:2], option.opts[0], value, faults, done.errors[-200:]))
    assert wrong == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("form", list(configurations()))
def test_every_key_far_out(form: str, place: Path) -> None:
    sections = configurations()[form]
    (place / "a.toml").write_text("".join(f"[{name}]\n{text}" for name, text in sections.items()))
    assert _tried(["audit", form_of(sections), "--config", str(place / "a.toml"), "--quiet"], place).code == 0
    wrong = []
    for section in sections:
        for key in keys().get(section, []):
            for value in TOML_VALUES:
                (place / "a.toml").write_text(with_key(sections, section, key, f"[{value}]" if key in LISTS else value))
                done = _tried(["audit", form_of(sections), "--config", str(place / "a.toml"), "--quiet"], place)
                if faults := done.faults(f"{section}.{key}"):
                    wrong.append((section, key, value, faults, done.errors[-200:]))
    assert wrong == []
