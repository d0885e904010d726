"""`leakcore attack inversion`: inputs from a gradient: your own module and gradient, or bundled ones."""

from __future__ import annotations

import dataclasses
import io
import math
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leakcore.cli.exit_codes import checked
from leakcore.cli.numbers import REAL, count
from leakcore.cli.options import DATA_FOLDER, MODEL, WEIGHTS, built_model, read_arrays, refuse_mixed, seed_json_quiet
from leakcore.cli.output import bars, finish

if TYPE_CHECKING:
    from leakcore.attacks.inversion import Inversion
    from leakcore.defenses import Defense

_FILE = click.Path(dir_okay=False, path_type=Path)
_MOST_NOISE = 1e12
"""The largest noise on the gradient, and the largest weight of the prior: their squares are summed in float32."""
_MOST_WEIGHT = 1e12
_MOST_NUMBERS = 2**24
"""The most numbers in one input."""
_ARRAYS = ("reconstructions", "every", "labels")
"""What inversion.npz holds."""


@click.command("inversion")
@MODEL
@WEIGHTS
@click.option(
    "--gradient",
    type=_FILE,
    help="Mean gradients by parameter name: safetensors or npz. Without it, the gradient of --batch is attacked.",
)
@click.option("--shape", help="Shape of one input: 3,32,32.  [default: as in --batch]")
@click.option(
    "--batch", type=_FILE, help="True `inputs` and, to give them to the attacker, `labels`: npz, safetensors."
)
@click.option(
    "--batch-size", type=count(1, 2**16), help="Rows behind the gradient, if --batch does not say.  [default: 1]"
)
@click.option(
    "--dataset",
    type=click.Choice(["digits", "mnist", "cifar100"]),
    help="Instead of files: the reconstruction paper's MLP (digits, mnist) or DLG's LeNet (cifar100).",
)
@DATA_FOLDER
@click.option("--num-rows", type=count(1, 2**16), help="With --dataset: rows in the batch.  [default: 1]")
@click.option("--noise-std", type=REAL, help="Without --gradient: standard deviation of noise on the gradient.")
@click.option("--keep-fraction", type=REAL, help="Without --gradient: prune it to this share of its entries.")
@click.option(
    "--defense",
    metavar="NAME:NUMBERS",
    help="Without --gradient: what is done to it, as 'clip:1 + laplace:0.01', prune:0.1 or local-steps:4,0.1.",
)
@click.option("--unknown-labels", is_flag=True, help="Optimise the labels with the inputs.")
@click.option("--method", type=click.Choice(["l2", "cosine"]), default="l2", show_default=True)
@click.option("--restarts", type=count(1, 10**4), default=3, show_default=True)
@click.option("--iterations", type=count(1, 10**8), help="Iterations of each search.  [default: the method's]")
@click.option(
    "--total-variation",
    default="0",
    show_default=True,
    metavar="WEIGHT[,WEIGHT…]",
    help="Weight of the prior on images; several are used in turn: 1e-2,3e-3,1e-3,3e-4,1e-4 for a batch.",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write inversion.png and .npz here.")
@seed_json_quiet("the result")
def inversion(out: Path | None, as_json: bool, **options: Any) -> None:
    """Reconstruct the inputs behind one gradient.

    \b
    leakcore attack inversion --dataset digits --out pictures
    leakcore attack inversion --model mine.nets:build --weights net.safetensors --gradient grad.npz --shape 3,32,32
    leakcore attack inversion --model mine.nets:build --batch rows.npz --defense 'clip:1 + gaussian-noise:0.01'

    The last one computes the gradient of your batch under a defence, and attacks that.

    Every restart is reported; the best is chosen by what the attacker sees.
    """
    refuse_mixed(
        options,
        files=("model", "weights", "gradient", "shape", "batch", "batch_size"),
        required=("model",) if options["batch"] is not None else ("model", "gradient", "shape"),
        bundled=("num_rows", "data"),
    )
    for name in ("defense", "noise_std", "keep_fraction"):
        if options["gradient"] is not None and options[name] is not None:
            raise click.UsageError(
                f"`--{name.replace('_', '-')}` is allowed only without --gradient, which holds what was released"
            )
    if options["gradient"] is not None and options["shape"] is None:
        raise click.UsageError("--shape is missing (or leave out --gradient)")
    if out is not None:
        from leakcore._base.output_folder import require_ours, require_writable

        checked(lambda: require_writable(out, name="out"))
        checked(lambda: require_ours(out, "inversion.npz", "inversion.png", arrays=_ARRAYS))
    inverted = checked(lambda: _inverted(out, types.SimpleNamespace(**options)))
    written = [] if out is None else [p for p in (out / "inversion.npz", out / "inversion.png") if p.exists()]
    finish(inverted, as_json, lambda: _lines(inverted), written)


def _lines(inverted: Inversion) -> Iterator[str]:
    import numpy as np

    yield inverted.summary()
    yield f"labels     {' '.join(str(v) for v in np.asarray(inverted.labels).reshape(-1).tolist())}"
    yield f"attacker   {inverted.assumptions.attacker}"


def _weights(total_variation: str) -> tuple[float, ...]:
    """The weights of the prior on images, one after the other."""
    try:
        weights = tuple(float(part) for part in total_variation.split(","))
    except ValueError:
        raise ValueError(f"`total_variation` must be numbers between commas, got {total_variation!r}") from None
    if not all(0 <= weight <= _MOST_WEIGHT for weight in weights):
        raise ValueError(f"`total_variation` must be numbers in [0, {_MOST_WEIGHT:g}], got {total_variation!r}")
    return weights


def _inverted(out: Path | None, setting: types.SimpleNamespace) -> Inversion:
    import numpy as np

    from leakcore._base import validate
    from leakcore._base.writing import place_in, write_atomically
    from leakcore.attacks import inversion as attack

    weights, method = _weights(setting.total_variation), setting.method
    seed = validate.seed(seed=setting.seed)
    protection = _defense(setting.defense, setting.noise_std, setting.keep_fraction)
    read = _from_files if setting.dataset is None else _from_data
    module, gradient, shape, inputs, labels, rows = read(setting, protection)
    batch = rows or 1
    if inputs is not None and inputs.shape != (batch, *shape):
        raise ValueError(
            f"`--batch` must hold inputs of shape {(batch, *shape)}, --batch-size rows of --shape, got {inputs.shape}"
        )
    bar = bars()
    boxed = method == "cosine" and inputs is not None and inputs.min() >= 0 and inputs.max() <= 1
    kind = attack.Cosine if method == "cosine" else attack.L2
    objective = kind(total_variation=weights, box=(0.0, 1.0) if boxed else None)
    changed = {"restarts": setting.restarts, "iterations": setting.iterations}
    optimizer = dataclasses.replace(
        objective.default_optimizer, **{name: number for name, number in changed.items() if number is not None}
    )
    inverted = attack.invert(
        module,
        attack.ReleasedGradient(gradient, batch_size=rows),
        shape,
        labels=None if setting.unknown_labels else labels,
        objective=objective,
        optimizer=optimizer,
        seed=seed,
        progress=None if bar is None else lambda done, total: bar("gradient inversion", done, total),
    )
    if inputs is not None:
        inverted = inverted.compared_with(inputs)
    if out is not None:
        arrays = io.BytesIO()
        np.savez(arrays, **{name: getattr(inverted, name) for name in _ARRAYS})
        write_atomically(place_in(out, "inversion.npz"), arrays.getvalue(), private=True)
        if len(shape) in (2, 3) and (len(shape) == 2 or shape[0] in (1, 3)):
            picture = io.BytesIO()
            inverted.figure().savefig(picture, format="png", dpi=110)
            write_atomically(place_in(out, "inversion.png"), picture.getvalue(), private=True)
    return inverted


def _from_files(setting: types.SimpleNamespace, protection: Defense) -> tuple[Any, ...]:
    import numpy as np

    from leakcore import defenses
    from leakcore.models import load_safetensors

    sizes = None if setting.shape is None else _sizes(setting.shape)
    module = _initial(setting.seed, lambda: built_model(setting.model))
    if setting.weights is not None:
        load_safetensors(module, setting.weights)
    module.eval()
    rows = {} if setting.batch is None else read_arrays(setting.batch)
    labels = None if "labels" not in rows else np.asarray(rows["labels"]).reshape(-1).astype(np.int64)
    inputs = None if "inputs" not in rows else np.asarray(rows["inputs"])
    count = setting.batch_size if setting.batch_size is not None or inputs is None else len(inputs)
    if setting.gradient is not None:
        gradient = {name: np.asarray(part) for name, part in read_arrays(setting.gradient).items()}
        return module, gradient, sizes, inputs, labels, count
    if inputs is None or labels is None:
        missing = "inputs" if inputs is None else "labels"
        raise ValueError(f"`--batch` must hold inputs and labels where there is no --gradient, and lacks {missing}")
    if inputs.ndim < 2 or len(inputs) == 0:
        raise ValueError(f"`--batch` must hold inputs of shape (rows, ...), at least one row, got {inputs.shape}")
    released = defenses.release(module, inputs, labels, defense=protection, seed=setting.seed)
    return module, released, sizes or inputs.shape[1:], inputs, labels, count


def _initial(seed: int, build: Callable[[], Any]) -> Any:
    """The module with initial weights by seed."""
    from leakcore import kernels

    with kernels.torch_seeded(seed, kernels.Stream.COMMAND_MODEL):
        return build()


def _sizes(shape: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in shape.split(","))
    except ValueError:
        raise ValueError(f"`shape` must be numbers between commas, as 3,32,32, got {shape!r}") from None
    if not all(1 <= size <= _MOST_NUMBERS for size in sizes) or math.prod(sizes) > _MOST_NUMBERS:
        raise ValueError(
            f"`shape` must be numbers of at least 1, with a product of at most {_MOST_NUMBERS:,}, got {shape!r}"
        )
    return sizes


def _defense(defense: str | None, noise_std: float | None, keep_fraction: float | None) -> Defense:
    """What is done to the gradient, in this order."""
    from leakcore import defenses
    from leakcore._base import validate

    if noise_std is not None and validate.non_negative(**{"--noise-std": noise_std}) > _MOST_NOISE:
        raise ValueError(
            f"`--noise-std` must be at most {_MOST_NOISE:g}, got {noise_std}: squares of the gradient are summed in "
            "float32"
        )
    parts: list[Defense] = [] if defense is None else [defenses.parse(defense)]
    if keep_fraction is not None:
        parts.append(defenses.Prune(keep_fraction))
    if noise_std is not None:
        parts.append(defenses.GaussianNoise(noise_std))
    return defenses.Compose(*parts)


def _from_data(setting: types.SimpleNamespace, protection: Defense) -> tuple[Any, ...]:
    import numpy as np
    import torch

    from leakcore import datasets, defenses, kernels, models

    data, seed = setting.data, setting.seed
    mlp: Callable[[], torch.nn.Module] | None = None
    if setting.dataset == "digits":
        whole, shape, mlp = datasets.digits(), (1, 8, 8), models.digits_mlp
    elif setting.dataset == "mnist":
        whole, shape, mlp = datasets.mnist("test", path=data, download=False), (1, 28, 28), models.mnist_mlp
    else:
        whole, shape = datasets.cifar100("test", part="subset", path=data, download=False), (3, 32, 32)

    def build() -> torch.nn.Module:
        return models.dlg_lenet(100) if mlp is None else torch.nn.Sequential(torch.nn.Flatten(), mlp())

    count = setting.num_rows or 1
    chosen = kernels.generator(seed, kernels.Stream.COMMAND_ROWS).permutation(len(whole.labels))[:count]
    inputs = np.array(whole.features[chosen], np.float32).reshape(-1, *shape)
    labels = np.array(whole.labels[chosen], np.int64)
    module = _initial(seed, build)
    released = defenses.release(module, inputs, labels, defense=protection, seed=seed)
    return module, released, shape, inputs, labels, count
