"""Numbers far out, for every numeric option of every command and every numeric key of a configuration.

Options come from the command's own tree and keys from the readers' own tables, so that a new one is tried without
being listed here. What is listed: a quick call of each command, in each of its forms.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import numpy as np
from click.testing import CliRunner

from leakcore import audit
from leakcore.audit import config_schema
from leakcore.cli import main

REALS = (
    "-1", "0", "1e-320", "1e-300", "1e-16", "1e9", "1e20", "1e100", "1e308", "nan", "inf", "-inf", "text", "",
    "100000000000000000000",
)  # fmt: skip
INTEGERS = (
    "-1", "0", "1.5", "1000000000", "4294967296", "9223372036854775808", "100000000000000000000", "nan", "text", "",
)  # fmt: skip
"""What each option is given in turn."""
NUMBERS_IN_TEXT = {"sweep", "shape", "total_variation", "defense"}
"""Parameters of type text that are read as numbers."""
NO_NUMBERS = {
    "model", "name", "data", "parameters", "attributes", "members", "non_members", "values", "labels", "json_path",
    "method", "arguments", "words", "references",
}  # fmt: skip
"""Parameters of type text that are not."""
SPELLINGS = {"defense": "prune:{}", "shape": "1,8,{}"}
"""How a number is put into such a text; alone where nothing is said."""


@dataclasses.dataclass(frozen=True)
class Form:
    """A quick call of a command. needs: a folder of data sets that it reads. only: the options to try in it, if not
    all."""

    words: tuple[str, ...]
    needs: str = ""
    only: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a call ended, and what it wrote."""

    code: int
    out: str
    errors: str

    def faults(self, name: str) -> list[str]:
        """What is wrong with it, where an option or key of that name was given a number far out."""
        wrong = []
        if self.code not in (0, 1, 2):
            wrong.append(f"exit code {self.code}")
        if self.code == 1 and "FAILED" not in self.out + self.errors:
            wrong.append("a failed gate that says nothing")
        undecided = "GATE NOT DECIDED: " in self.errors  # a report whose gate lacks facts, not a refusal
        if self.code == 2 and not undecided and name not in self.errors.split("Error: ")[-1]:
            wrong.append("names no option")
        if self.code != 2 and re.search(r"\bnan\b", self.out, re.IGNORECASE):
            wrong.append("prints nan")
        return wrong


def outcome(words: Iterable[str], out: Path | None = None) -> Outcome:
    """Run the command line in this process; what writes a folder without being asked to writes `out`."""
    words = [*words]
    if out is not None and words[0] in ("audit", "reproduce") and words[:2] != ["audit", "plan"]:
        words += ["--out", str(out)]
    done = CliRunner().invoke(main, [*words])
    return Outcome(done.exit_code, done.stdout, done.stderr)


def values(option: click.Option) -> tuple[str, ...]:
    """What the option is tried with, as it takes it."""
    spelling = SPELLINGS.get(str(option.name), "{}")
    whole = isinstance(option.type, click.types.IntParamType)
    return tuple(spelling.format(value) for value in (INTEGERS if whole else REALS))


def commands(
    command: click.Command = main, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that does something, by its words."""
    if not isinstance(command, click.Group):
        yield path, command
    else:
        for name, inner in command.commands.items():
            yield from commands(inner, (*path, name))


def numeric(command: click.Command) -> list[click.Option]:
    """The options of a command that take numbers."""
    kinds = (click.types.IntParamType, click.types.FloatParamType)
    options = [p for p in command.params if isinstance(p, click.Option) and not p.is_flag]
    return [p for p in options if isinstance(p.type, kinds) or p.name in NUMBERS_IN_TEXT]


def forms(folder: Path) -> dict[tuple[str, ...], list[Form]]:
    """Quick calls by command; their files are written into the folder."""
    corpus = Path(__file__).parents[1] / "fuzz" / "corpus"
    rng = np.random.default_rng(0)
    rows, classes = 6, 10
    inputs = rng.normal(size=(rows, 64)).astype(np.float32)
    np.savez(folder / "batch.npz", inputs=inputs, labels=np.arange(rows))
    import torch

    from leakcore.models import digits_mlp, save_safetensors

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = digits_mlp()
    loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(inputs)), torch.arange(rows) % classes)
    loss.backward()
    np.savez(folder / "gradient.npz", **{n: p.grad.numpy() for n, p in model.named_parameters()})
    save_safetensors(model, folder / "net.safetensors")
    np.savez(folder / "members.npz", inputs=inputs, labels=np.arange(rows) % classes, members=np.arange(rows) % 2 == 0)
    audit.from_scores([2.0, 3.0], [0.0, 1.0], coins=True).to_json(folder / "report.json")
    batch, gradient = str(folder / "batch.npz"), str(folder / "gradient.npz")
    (folder / "quick.toml").write_text(f"[run]\n{_QUICK}")
    quick = ("--config", str(folder / "quick.toml"))
    trace, scores = (str(corpus / kind / "good.npz") for kind in ("trace", "scores-npz"))
    short = ("--num-rows", "20", "--runs", "4", "--steps", "2", "--quiet")
    of_files = ("--model", "leakcore.models:digits_mlp", "--gradient", gradient)
    sampled = ("--num-samples", "1000", "--steps", "300")
    training = ("--noise-multiplier", "1", "--sample-rate", "0.5", "--steps", "3", "--num-candidates", "10")
    fixed = ("--sampling", "fixed", "--batch-size", "2", "--dataset-size", "4", "--steps", "2", "--kappa", "0.1")
    shuffled = ("--sampling", "shuffled", "--batches", "3", "--epochs", "2", "--kappa", "0.1")
    return {
        ("bound",): [
            Form(training),
            Form((*training, *sampled, "--method", "certified")),
            Form((*training, *sampled, "--method", "importance"), only=("--num-samples", "--confidence")),
            Form((*training, *sampled, "--method", "monte-carlo"), only=("--num-samples",)),
            Form((*training, "--sample-rate", "1", "--steps", "1")),
            Form((*training[:-2], "--kappa", "0.1")),
            Form((*training[:-2], "--log-kappa", "-2")),
            Form(("--noise-multiplier", "1", *fixed), only=("--batch-size", "--dataset-size")),
            Form(("--noise-multiplier", "1", *shuffled), only=("--batches", "--epochs")),
        ],
        ("calibrate",): [
            Form(("--target-success", "0.5", "--sample-rate", "0.5", "--steps", "3", "--num-candidates", "10")),
            Form(("--target-success", "0.5", "--sample-rate", "1", "--steps", "3", "--kappa", "0.1")),
            Form(("--target-success", "0.5", "--sample-rate", "1", "--steps", "3", "--log-kappa", "-2")),
            Form(("--target-success", "0.5", *fixed), only=("--batch-size", "--dataset-size")),
            Form(("--target-success", "0.5", *shuffled), only=("--batches", "--epochs")),
        ],
        ("selftest",): [Form(("--audits", "10", "--quiet"))],
        ("reproduce",): [Form(("reconstruction-table2", "--quiet"))],
        ("doctor",): [Form(())],
        ("bench",): [],
        ("explain",): [Form(("ε",))],
        ("compare",): [Form((str(folder / "report.json"), str(folder / "report.json")))],
        ("reports",): [Form((str(folder),))],
        ("schema",): [Form(("config",))],
        ("completion",): [Form(("bash",))],
        ("attack", "prior-aware"): [
            Form((*short, "--epsilon", "10")),
            Form((*short, "--noise-multiplier", "2", "--sample-rate", "0.5")),
            Form((*short, "--noise-multiplier", "0", "--no-subtraction")),
        ],
        ("attack", "labels"): [
            Form((*of_files, "--batch", batch)),
            Form((*of_files, "--batch", batch, "--noise-std", "0.001", "--known-probs")),
            Form(("--dataset", "cancer", "--batches", "2"), needs="cervical"),
            Form(("--dataset", "cancer", "--batches", "2", "--noise-multiplier", "1"), needs="cervical"),
        ],
        ("attack", "inversion"): [
            Form((*of_files, "--shape", "64", "--iterations", "2", "--restarts", "1", "--quiet")),
            Form(("--model", "leakcore.models:digits_mlp", "--batch", batch, "--iterations", "2", "--restarts", "1",
                  "--quiet"), only=("--defense", "--noise-std", "--keep-fraction")),
            Form(("--dataset", "digits", "--iterations", "2", "--restarts", "1", "--quiet")),
            Form(("--dataset", "digits", "--method", "cosine", "--iterations", "2", "--restarts", "1", "--quiet")),
        ],
        ("attack", "membership"): [
            Form(("--model", "leakcore.models:digits_mlp", "--weights", str(folder / "net.safetensors"), "--data",
                  str(folder / "members.npz"), "--quiet")),
        ],
        ("leakage",): [
            Form(("leakcore.models:digits_mlp", "--data", "digits", "--samples", "1", "--num-rows", "20",
                  "--permutations", "1", "--no-inversion", "--quiet")),
        ],
        ("audit", "run"): [
            Form((*quick, *short), only=("--epsilon", "--delta", "--num-candidates", "--runs", "--fail-above")),
            Form((*quick, *short, "--noise-multiplier", "1", "--sample-rate", "0.5")),
            Form((*quick, *short), only=("--defense", "--sweep")),
        ],
        ("audit", "claim"): [
            Form(("clipbkd", "--num-rows", "20", "--trials", "4", "--steps", "2", "--quiet")),
            Form(("one-run", "--num-rows", "40", "--trials", "4", "--steps", "2", "--quiet")),
        ],
        ("audit", "trace"): [Form((trace, "--sample-rate", "0.5"))],
        ("audit", "scores"): [
            Form((scores, "--adjacency", "replace")),
            Form((scores, "--retrained", "--adjacency", "replace")),
        ],
        ("audit", "plan"): [Form(())],
    }  # fmt: skip


_QUICK = "sweep = []\nlabel_steps = 2\nlabel_trials = 2\nlabel_batch_size = 4\nlabel_hidden = 4\n"


def configurations() -> dict[str, dict[str, str]]:
    """A quick configuration of each form of audit, as text by section."""
    corpus = Path(__file__).parents[1] / "fuzz" / "corpus"
    trials = {"data": "num_rows = 40\n", "mechanism": "noise_multiplier = 2\nsteps = 2\n"}
    return {
        "run": {"run": f"num_rows = 20\nruns = 4\nsteps = 2\n{_QUICK}"},
        "claim": {**trials, "model": "", "fault": "", "claim": "", "audit": "trials = 4\nk = [1]\n"},
        "one-run": {**trials, "audit": "attack = 'one-run'\ncanaries = 10\ntrials = 4\nk = [1]\n"},
        "trace": {"trace": f"file = '{corpus / 'trace' / 'good.npz'}'\nsample_rate = 0.5\n"},
        "scores": {
            "scores": f"file = '{corpus / 'scores-npz' / 'good.npz'}'\nretrained = true\nadjacency = 'replace'\n",
            "report": "",
        },
    }


def form_of(sections: dict[str, str]) -> str:
    """The subcommand of `leakcore audit` that runs such a configuration."""
    return next((form for form in ("run", "trace", "scores") if form in sections), "claim")


def keys() -> dict[str, list[str]]:
    """The keys of every section that take numbers."""
    out: dict[str, list[str]] = {}
    for section, schema in config_schema()["properties"].items():
        for key, what in schema["properties"].items():
            if what.get("items", what).get("type") in ("number", "integer"):
                out.setdefault(section, []).append(key)
    return out


def with_key(sections: dict[str, str], section: str, key: str, value: str) -> str:
    """The configuration's text with one key set; lists get the number as their only entry."""
    texts = dict(sections)
    others = [line for line in texts.get(section, "").splitlines() if not line.startswith(f"{key} =")]
    texts[section] = "\n".join([*others, f"{key} = {value}"]) + "\n"
    return "".join(f"[{name}]\n{text}" for name, text in texts.items())


LISTS = {"sweep", "hidden", "k"}
TOML_VALUES = (
    "-1", "0", "1e-320", "1e-300", "1e-16", "1e9", "1e20", "1e100", "1e308", "nan", "inf", "-inf", "1.5", "1000000000",
    "4294967296", "9223372036854775807", "9223372036854775808", "100000000000000000000", "'text'", "''", "true", "[]",
    "1979-05-27",
)  # fmt: skip
