"""`leakcore attack membership`: which rows was a model of the user's trained on?"""

from __future__ import annotations

import functools
import io
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leakcore.cli.exit_codes import checked
from leakcore.cli.options import built_model, read_arrays, seed_json_quiet
from leakcore.cli.output import finish

if TYPE_CHECKING:
    import numpy as np

    from leakcore.attacks.membership import Observations, Queries, References

_FILE = click.Path(dir_okay=False, path_type=Path)
_ATTACKS = ("loss", "lira", "lira-offline", "rmia", "loss-trajectory", "label-only", "quantile")
_SCALES = (0.25, 0.5, 1.0, 2.0)
_COPIES = 8
_FPRS = (0.001, 0.01, 0.1)
_CONFIDENCE = 0.95
_ARRAYS = ("scores", "membership")
"""What a file of scores holds."""


@click.command("membership")
@click.option(
    "--model",
    metavar="MODULE:FACTORY",
    required=True,
    help="What returns the torch module when called: package.module:factory.",
)
@click.option(
    "--weights",
    type=_FILE,
    multiple=True,
    required=True,
    help="Weights of the attacked model, safetensors. Several are its checkpoints in order, the final one last.",
)
@click.option(
    "--reference",
    "references",
    multiple=True,
    metavar="FILE[,FILE…]",
    help="Weights of a model that the attacker trained, or its checkpoints in order between commas (repeatable).",
)
@click.option(
    "--data",
    type=_FILE,
    required=True,
    help="npz or safetensors with `inputs`, `labels` and `members` (1 for rows that the model was trained on); "
    "`reference_members` (references, rows), without which no reference was trained on any of the rows; and "
    "`population_inputs` and `population_labels`, rows that no model was trained on.",
)
@click.option(
    "--attack",
    "names",
    type=click.Choice(_ATTACKS),
    multiple=True,
    help="Which attack (repeatable).  [default: each that the files allow]",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the scores, ATTACK.npz, as `leakcore audit scores` reads them.",
)
@seed_json_quiet()
def membership(out: Path | None, as_json: bool, **options: Any) -> None:
    """Score which rows a model was trained on, by attacks with reference models or without.

    \b
    leakcore attack membership --model mine.nets:build --weights net.safetensors --data rows.npz --out scores
    leakcore audit scores scores/loss.npz --coins

    The rates say what each attack reached here. Choose the attack before you look: what `leakcore audit scores`
    proves holds for one attack, not for the best of several.
    """
    if out is not None:
        from leakcore._base.output_folder import require_ours, require_writable

        checked(lambda: require_writable(out, name="out"))
        for name in options["names"] or _ATTACKS:
            checked(functools.partial(require_ours, out, f"{name}.npz", arrays=_ARRAYS))
    setting = types.SimpleNamespace(**options)
    rates, left_out, written = checked(lambda: _attacked(out, setting), names={"references": "--reference"})
    finish({"attacks": rates, "left_out": left_out}, as_json, lambda: _lines(rates, left_out), written)


def _lines(rates: Mapping[str, Any], left_out: Mapping[str, str]) -> Iterator[str]:
    heads = [f"TPR at {100 * rate:g}% FPR" for rate in _FPRS]
    yield f"{'attack':16}" + "".join(f"{head:22}" for head in ("area under the curve", *heads)).rstrip()
    for name, own in rates.items():
        cells = [_cell(own["area"], 1)] + [
            "too few rows" if rate is None else _cell(rate, 100) for rate in own["rates"]
        ]
        yield f"{name:16}" + "".join(f"{cell:22}" for cell in cells).rstrip()
    yield f"Estimates, with {100 * _CONFIDENCE:g}% intervals for rows drawn independently."
    for name, why in left_out.items():
        yield f"{name}: left out: {why}"


def _cell(own: Mapping[str, Any], factor: int) -> str:
    unit = "%" if factor == 100 else ""
    value, (low, high) = own["value"], own["interval"]
    places = 1 if factor == 100 else 3
    return f"{factor * value:.{places}f}{unit} [{factor * low:.{places}f}, {factor * high:.{places}f}]"


def _attacked(out: Path | None, setting: types.SimpleNamespace) -> tuple[dict[str, Any], dict[str, str], list[Path]]:
    import numpy as np

    from leakcore._base import validate
    from leakcore._base.writing import place_in, write_atomically
    from leakcore.attacks import membership as attacks

    seed, data, names = validate.seed(seed=setting.seed), setting.data, setting.names
    arrays = read_arrays(data)
    for name in ("inputs", "labels", "members"):
        if name not in arrays:
            raise ValueError(f"{data}: holds no array named {name}; there are {', '.join(sorted(arrays)) or 'none'}")
    inputs, labels, members = (np.asarray(arrays[name]) for name in ("inputs", "labels", "members"))
    inside = _coins(members, "members", (len(inputs),))
    queries = _queries(arrays, inputs, seed=seed, copied=not names or "label-only" in names)
    target = attacks.observe([_checkpoints(setting.model, setting.weights, seed)], inputs, labels, queries=queries)
    known = _known(setting, arrays, inputs, labels)
    rates: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    written: list[Path] = []
    for name in names or _ATTACKS:
        try:
            scores = attacks.scores(name, target, references=known)[0]  # type: ignore[arg-type]
        except ValueError as error:
            if names:
                raise
            left_out[name] = str(error)
            continue
        rates[name] = _rates(scores[inside], scores[~inside])
        if out is not None:
            file = io.BytesIO()
            np.savez(file, **dict(zip(_ARRAYS, (scores, inside), strict=True)))
            write_atomically(place_in(out, f"{name}.npz"), file.getvalue(), private=True)
            written.append(out / f"{name}.npz")
    return rates, left_out, written


def _rates(members: np.ndarray, others: np.ndarray) -> dict[str, Any]:
    from leakcore.audit import area, area_limits, rate_limits

    whole = area(members, others)
    limits = area_limits(whole, min(len(members), len(others)), _CONFIDENCE)
    measured = [rate_limits(members, others, rate, _CONFIDENCE, ()) for rate in _FPRS]
    return {
        "area": {"value": whole, "interval": limits, "confidence": _CONFIDENCE, "kind": "estimate"},
        "rates": [None if own is None else own.to_dict() for own in measured],
    }


def _coins(array: np.ndarray, name: str, shape: tuple[int, ...]) -> np.ndarray:
    import numpy as np

    if array.shape != shape or not np.isin(array, (0, 1)).all():
        raise ValueError(f"`{name}` must hold 0 and 1 in shape {shape}, got {array.dtype} of shape {array.shape}")
    coins = array.astype(bool)
    if name == "members" and (coins.all() or not coins.any()):
        raise ValueError(f"`members` must hold members and others, got all {int(coins[0])}")
    return coins


def _queries(arrays: Mapping[str, Any], inputs: np.ndarray, *, seed: int, copied: bool) -> Queries:
    import numpy as np

    from leakcore.attacks import membership as attacks

    population = None
    if "population_inputs" in arrays:
        if "population_labels" not in arrays:
            raise ValueError("`population_labels` must be in the data with population_inputs, got none")
        population = (np.asarray(arrays["population_inputs"]), np.asarray(arrays["population_labels"]))
    floating = inputs.dtype.kind == "f"
    copies = attacks.noisy_copies(inputs, scales=_SCALES, count=_COPIES, seed=seed) if copied and floating else None
    return attacks.Queries(population=population, copies=copies)


def _known(
    setting: types.SimpleNamespace, arrays: Mapping[str, Any], inputs: np.ndarray, labels: np.ndarray
) -> References | None:
    import numpy as np

    from leakcore.attacks import membership as attacks

    references, seed = setting.references, setting.seed
    if not references:
        return None
    shape = (len(references), len(inputs))
    members = np.asarray(arrays.get("reference_members", np.zeros(shape, bool)))
    included = _coins(members, "reference_members", shape)
    models = [_checkpoints(setting.model, tuple(map(Path, files.split(","))), seed) for files in references]
    population = _queries(arrays, inputs, seed=seed, copied=False)
    observed: Observations = attacks.observe(models, inputs, labels, queries=population)
    return attacks.References(**vars(observed), included=included)


def _checkpoints(model: str, files: tuple[Path, ...], seed: int) -> tuple[Any, ...]:
    """The module with each file's weights."""
    from leakcore import kernels
    from leakcore.models import load_safetensors

    with kernels.torch_seeded(seed, kernels.Stream.FACTORY_MODELS):  # a factory's initial weights, all replaced
        modules = [built_model(model) for _ in files]
    for module, file in zip(modules, files, strict=True):
        load_safetensors(module, file)
        module.eval()
    return tuple(modules)
