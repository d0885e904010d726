"""Options that several commands share, each explained once, and what they name: arrays in files, a model."""

from __future__ import annotations

import functools
import importlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from leakcore.cli.numbers import REAL
from leakcore.cli.output import set_verbosity

Option = Callable[[Callable[..., Any]], Callable[..., Any]]

SEED: Option = click.option("--seed", type=int, default=0, show_default=True)


def _set_quiet(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        set_verbosity(context, quiet=True)


QUIET: Option = click.option(
    "--quiet", is_flag=True, expose_value=False, callback=_set_quiet, help="No progress bars and no warnings."
)
MODEL: Option = click.option(
    "--model", metavar="MODULE:FACTORY", help="What returns the torch module when called: package.module:factory."
)
WEIGHTS: Option = click.option(
    "--weights", type=click.Path(dir_okay=False, path_type=Path), help="The model's weights, safetensors."
)
DATA_FOLDER: Option = click.option(
    "--data", type=click.Path(path_type=Path), help="Folder of data sets; else LEAKCORE_DATA."
)


def as_json(what: str = "everything") -> Option:
    """--json, which prints `what`."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what} as JSON.")


def run_folder(report: str, pieces: str) -> Option:
    """--out, a folder for `report`, where finished `pieces` wait until it is whole."""
    return click.option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        help=f"Folder for {report}; finished {pieces} are kept there until then, so that the same command goes on.",
    )


def seed_json_quiet(what: str = "everything") -> Option:
    """The three that end most commands."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        return SEED(as_json(what)(QUIET(command)))

    return decorate


def prior_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Exactly one of --num-candidates, --kappa and --log-kappa must be given. The command gets kappa and log_kappa,
    one of them None.
    """

    @functools.wraps(command)
    def call(*, num_candidates: int | None, kappa: float | None, log_kappa: float | None, **rest: Any) -> Any:
        kappa, log_kappa = _one_kappa(num_candidates, kappa, log_kappa)
        return command(kappa=kappa, log_kappa=log_kappa, **rest)

    for option in (
        click.option("--log-kappa", type=REAL, help="Natural logarithm of κ, for priors too small for a float."),
        click.option("--kappa", type=REAL, help="Prior success probability κ of the attacker, in (0, 1]."),
        click.option("--num-candidates", type=int, metavar="N", help="Uniform prior over N candidates: κ = 1/N."),
    ):
        call = option(call)
    return call


def refuse_mixed(
    values: Mapping[str, Any], *, files: Sequence[str], required: Sequence[str], bundled: Sequence[str]
) -> None:
    """UsageError unless --dataset is given with options of bundled data alone, or the required files without these."""

    def option(name: str) -> str:
        return f"--{name.replace('_', '-')}"

    mixed = [name for name in files if values[name] is not None]
    alone = [name for name in bundled if values[name] is not None]
    missing = [name for name in required if values[name] is None]
    if values["dataset"] is not None:
        if mixed:
            raise click.UsageError(f"give `--dataset` or `{option(mixed[0])}`, not both")
    elif missing:
        raise click.UsageError(f"{option(missing[0])} is missing (or give --dataset)")
    elif alone:
        raise click.UsageError(f"`{option(alone[0])}` is allowed only with --dataset")


def _one_kappa(
    num_candidates: int | None, kappa: float | None, log_kappa: float | None
) -> tuple[float | None, float | None]:
    """(κ, log κ) as the bounds take them, one of them None, from the one of three options that was given."""
    options = (("--num-candidates", num_candidates), ("--kappa", kappa), ("--log-kappa", log_kappa))
    named = [name for name, value in options if value is not None]
    if len(named) != 1:
        raise click.UsageError(
            f"give exactly one of --num-candidates, --kappa, --log-kappa (given: {', '.join(named) or 'none'})"
        )
    if num_candidates is not None:
        if num_candidates < 1:
            raise click.UsageError(f"`--num-candidates` must be at least 1, got {num_candidates}")
        if num_candidates > 1e300:  # beyond what a float holds there is the logarithm
            return None, -math.log(num_candidates)
        kappa = 1.0 / num_candidates
    return kappa, log_kappa


def read_arrays(path: Path) -> dict[str, Any]:
    """Arrays by name; nothing is unpickled."""
    if path.suffix == ".npz":
        from leakcore._base.archives import read_npz

        return dict(read_npz(path))
    if path.suffix == ".safetensors":
        from leakcore.models import read_safetensors

        return dict(read_safetensors(path))
    raise ValueError(f"a file of arrays must end in .safetensors or .npz, got {path}")


def built_model(spec: str) -> Any:
    """The torch module that `package.module:factory` returns; the current folder is searched as well."""
    import torch

    where, _, name = spec.partition(":")
    if not where or not name:
        raise ValueError(f"`model` must be package.module:factory, got {spec!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(where)
    except (Exception, SystemExit) as error:  # a module of the user's raises what it likes
        raise ValueError(
            f"`model` must name a module that can be imported, got {spec!r} ({type(error).__name__}: {error})"
        ) from error
    finally:
        sys.path.remove(str(Path.cwd()))
    factory = getattr(module, name, None)
    if not callable(factory):
        raise ValueError(f"`model` must name a callable, got {spec!r}: {where} has no callable {name!r}")
    try:
        built = factory()
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"`model` must name a factory, got {spec!r}, which failed ({type(error).__name__}: {error})"
        ) from error
    if not isinstance(built, torch.nn.Module):
        raise TypeError(f"`model` must return a torch.nn.Module, got {type(built).__name__} from {spec!r}")
    return built
