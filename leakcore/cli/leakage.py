"""`leakcore leakage`: where the leak sits in a model of the user's."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from leakcore.cli.exit_codes import checked
from leakcore.cli.numbers import count
from leakcore.cli.options import WEIGHTS, built_model, read_arrays, run_folder, seed_json_quiet
from leakcore.cli.output import as_json_text, bars, finish, require_place

_NAMED = ("digits", "breast-cancer", "mnist", "fashion-mnist", "cifar10", "cifar100", "bank", "lfw")


@click.command()
@click.argument("model", metavar="MODULE:FACTORY")
@click.option(
    "--data",
    required=True,
    metavar="FILE|NAME",
    help="npz or safetensors with `inputs` and `targets` (or `labels`), and attributes as arrays of 0 and 1; or one of "
    + ", ".join(_NAMED)
    + ": the first two are bundled, lfw is looked for in scikit-learn's data folder, the others in "
    "LEAKCORE_DATA.",
)
@WEIGHTS
@click.option(
    "--attribute",
    "attributes",
    multiple=True,
    metavar="NAME",
    help="Array of the file that holds a latent attribute (repeatable).  [default: plain features of the inputs]",
)
@click.option(
    "--loss", type=click.Choice(["cross-entropy", "mse", "logistic"]), default="cross-entropy", show_default=True
)
@click.option(
    "--family",
    type=click.Choice(["logistic", "magnitudes", "random-forest", "mlp"]),
    default="magnitudes",
    show_default=True,
)
@click.option(
    "--samples", type=count(1, 10**5), default=4, show_default=True, help="Inputs for sensitivity and inversion."
)
@click.option(
    "--num-rows",
    type=count(20, 10**6),
    default=400,
    show_default=True,
    help="At most this many gradients for the latent measures, half of them with the attribute; at least 20.",
)
@click.option("--permutations", type=count(0, 10**5), default=9, show_default=True, help="Permutations for each null.")
@click.option("--no-inversion", is_flag=True, help="Leave out original information: inverting takes longest.")
@click.option("--figure", type=click.Path(dir_okay=False, path_type=Path), help="Write the heat map: png, svg or pdf.")
@run_folder("leakage.json", "measures")
@seed_json_quiet()
def leakage(model: str, figure: Path | None, as_json: bool, **options: Any) -> None:
    """Say how much original and latent information each layer's gradient carries.

    MODULE:FACTORY is what returns the torch module when called; the current folder is searched as well. Of a model of
    token ids, the layers behind the embedding are measured, by the embeddings of the tokens.

    \b
    leakcore leakage leakcore.models:digits_mlp --data digits
    leakcore leakage mine.nets:build --weights net.safetensors --data rows.npz --attribute smoker --figure leak.png
    """
    if figure is not None and figure.suffix not in (".png", ".svg", ".pdf"):
        raise click.UsageError(f"`--figure` must end in .png, .svg or .pdf, got {figure}")
    if figure is not None:
        require_place("--figure", figure)
    pieces = None if options["out"] is None else options["out"] / "partial" / "leakage"
    report = checked(lambda: _measured(model, **options), pieces=pieces)
    if figure is not None:
        checked(lambda: _drawn(report, figure))
    finish(report.without_samples().to_dict(), as_json, report.to_text, [] if figure is None else [figure])


def _drawn(report: Any, figure: Path) -> None:
    import io

    from leakcore._base.writing import write_atomically

    picture = io.BytesIO()
    report.figure().savefig(picture, format=figure.suffix[1:], dpi=130)
    try:
        write_atomically(figure, picture.getvalue())
    except OSError as error:
        raise ValueError(f"`figure` must be writable, got {str(figure)!r} ({error.strerror})") from error


def _measured(
    model: str,
    *,
    data: str,
    weights: Path | None,
    attributes: tuple[str, ...],
    loss: str,
    seed: int,
    out: Path | None,
    num_rows: int,
    **sizes: Any,
) -> Any:
    import numpy as np
    import torch

    from leakcore import kernels
    from leakcore._base import validate
    from leakcore._base.output_folder import require_ours, require_writable
    from leakcore._base.run_folder import PartialResults, identity
    from leakcore._base.writing import place_in, write_atomically
    from leakcore.cli.token_inputs import on_embeddings, reads_tokens
    from leakcore.gradients import LayeredModel
    from leakcore.leakage import LayerMeasures, measure_layers
    from leakcore.models import load_safetensors

    if out is not None:
        require_writable(out, name="out")
        require_ours(out, "leakage.json")

    validate.seed(seed=seed)
    inverted = not sizes.pop("no_inversion")
    inputs, targets, chosen = _data(data, attributes)
    with kernels.torch_seeded(seed, kernels.Stream.FACTORY_MODEL):  # a factory's initial weights
        module = built_model(model)
    if weights is not None:
        load_safetensors(module, weights)
    module.eval()
    anchor = next(module.parameters(), None)
    if reads_tokens(module, inputs):
        module, x = on_embeddings(module, inputs)
        module.eval()
        if chosen is None:
            chosen = {"many different tokens": _many_tokens(inputs)}
    else:
        x = torch.from_numpy(np.array(inputs))
        if anchor is not None:
            x = x.to(anchor)
    y = torch.from_numpy(np.array(targets))
    losses = {
        "cross-entropy": None,
        "mse": lambda out, t: (out - t.reshape(out.shape).to(out)).square().mean(),
        "logistic": lambda out, t: torch.nn.functional.binary_cross_entropy_with_logits(
            out, t.reshape(out.shape).to(out)
        ),
    }
    if loss == "cross-entropy":
        y = _classes(module, x, y)
    settings = {
        "model": model,
        "loss": loss,
        "num_rows": num_rows,
        **sizes,
        "inversion": inverted,
        "attributes": None if chosen is None else list(chosen),
        "content": _content(
            [*module.state_dict().items(), ("x", x), ("y", y), *(chosen or {}).items(), *_behaviour(module, x[:2])]
        ),
    }
    with PartialResults(out, "leakage", identity("leakage", settings, seed)) as pieces:
        report = measure_layers(
            LayeredModel.of(module, x, y, loss=losses[loss]),
            LayerMeasures(attributes=chosen, rows=num_rows, iterations=100 if inverted else 0, **sizes),
            pieces,
            seed=seed,
            progress=bars(),
        )
        if out is not None:
            write_atomically(place_in(out, "leakage.json"), as_json_text(report.without_samples().to_dict()) + "\n")
            pieces.remove()
    return report


def _many_tokens(tokens: Any) -> Any:
    """Whether a row has more different tokens than the median row."""
    import numpy as np

    counts = np.array([len(np.unique(row)) for row in np.asarray(tokens)])
    return (counts > np.median(counts)).astype(np.int64)


def _behaviour(module: Any, x: Any) -> Iterable[tuple[str, Any]]:
    """Outputs of a few inputs and their derivative: two models with the same weights may still compute other things."""
    import torch

    from leakcore._base.process_wide import one_thread

    with one_thread(), torch.enable_grad():
        try:
            out = module(x)
        except RuntimeError:
            return  # the measures say what does not fit
        if not isinstance(out, torch.Tensor):
            raise TypeError(f"`model` must return a tensor, got {type(out).__name__}")
        trained = [p for p in module.parameters() if p.requires_grad] if out.requires_grad else []
        moved = torch.autograd.grad((out * out.detach()).sum(), trained, allow_unused=True) if trained else ()
    yield "outputs", out.detach()
    yield from ((f"derivative {i}", g) for i, g in enumerate(moved) if g is not None)


def _content(named: Iterable[tuple[str, Any]]) -> str:
    """A digest of arrays and tensors by name."""
    from leakcore._base.digest import digest

    return digest(*(part for pair in named for part in pair))


def _classes(module: Any, x: Any, y: Any) -> Any:
    """Targets for cross-entropy; ValueError where inputs do not fit the model, or targets its outputs."""
    import torch

    from leakcore.gradients import targets_of

    try:
        with torch.no_grad():
            out = module(x[:1])
    except RuntimeError as error:
        raise ValueError(
            f"`data` must hold inputs that fit the model, got shape {tuple(x.shape[1:])} ({error})"
        ) from error
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"`model` must return a tensor, got {type(out).__name__}")
    if out.ndim != 2:
        raise ValueError(
            "`model` must return shape (1, classes), or (1, 1) for a logit, for one input and cross-entropy, got "
            f"{tuple(out.shape)}"
        )
    wanted = targets_of(None, y, out)
    return wanted.to(x.dtype) if wanted.is_floating_point() else wanted


def _data(data: str, attributes: tuple[str, ...]) -> tuple[Any, Any, dict[str, Any] | None]:
    """(inputs, targets, attributes or None for plain features of the inputs)."""
    if data in _NAMED:
        if attributes:
            raise ValueError(
                f"`--attribute` must be left out with --data {data}, which has none, got {attributes[0]!r}"
            )
        dataset = _named(data)
        return (dataset.images() if dataset.shape is not None else dataset.features), dataset.labels, None
    if not Path(data).is_file():
        raise ValueError(f"`--data` must be a file, or one of {', '.join(_NAMED)}, got {data!r}")
    arrays = read_arrays(Path(data))
    names = ", ".join(sorted(arrays)) or "none"
    kind = "targets" if "targets" in arrays else "labels"
    for name in ("inputs", kind, *attributes):
        if name not in arrays:
            raise ValueError(f"{data}: holds no array named {name}; there are {names}")
    return arrays["inputs"], arrays[kind], {a: arrays[a] for a in attributes} or None


def _named(name: str) -> Any:
    from leakcore import datasets

    if name == "digits":
        return datasets.digits()
    if name == "breast-cancer":
        return datasets.breast_cancer()
    if name == "bank":
        return datasets.bank_marketing(download=False)
    if name == "lfw":
        return datasets.lfw()
    if name == "cifar10":
        return datasets.cifar10("train", part="airplane-automobile", download=False)
    if name == "cifar100":
        return datasets.cifar100("train", part="subset", labels="coarse", download=False)
    return (datasets.mnist if name == "mnist" else datasets.fashion_mnist)("test", download=False)
