"""`leakcore attack labels`: a saved module and its aggregated gradient, or the label paper's data."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import click

from leakcore.cli.exit_codes import checked
from leakcore.cli.numbers import REAL, count
from leakcore.cli.options import DATA_FOLDER, MODEL, SEED, WEIGHTS, as_json, built_model, read_arrays, refuse_mixed
from leakcore.cli.output import finish

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("labels")
@MODEL
@WEIGHTS
@click.option("--batch", type=_FILE, help="`inputs` and, to score the attack, `labels`: safetensors or npz.")
@click.option("--gradient", type=_FILE, help="Aggregated gradients by parameter name: safetensors or npz.")
@click.option("--parameter", "parameters", multiple=True, metavar="NAME", help="Use only these of them (repeatable).")
@click.option("--known-probs", is_flag=True, help="Use the model's probabilities: recovers more rows than the rank.")
@click.option("--reduction", type=click.Choice(["mean", "sum"]), default="mean", show_default=True)
@click.option("--batch-size", type=REAL, help="What the mean was divided by, if not the number of rows.")
@click.option("--noise-std", type=REAL, help="Noise in each coordinate of the gradient; 0 for none.")
@click.option("--dataset", type=click.Choice(["cancer", "bank"]), help="Instead of files: the label paper's data.")
@DATA_FOLDER
@click.option("--noise-multiplier", type=REAL, help="With --dataset: σ of the released gradient.  [default: 0]")
@click.option("--max-grad-norm", type=REAL, help="With --dataset: clipping norm C.  [default: 1]")
@click.option("--batches", type=count(1, 10**5), help="With --dataset: how many batches of 50.  [default: 15]")
@click.option(
    "--confidence", type=REAL, default=0.99, show_default=True, help="Confidence that no determined label is wrong."
)
@SEED
@as_json()
def labels(as_json: bool, **options: Any) -> None:
    """Recover the labels of a batch from one aggregated gradient.

    \b
    leakcore attack labels --model mine.nets:build --weights net.safetensors --batch batch.npz --gradient grad.npz
    leakcore attack labels --dataset cancer

    A label that the gradient does not determine is reported as -1, never guessed. Without --noise-std the noise is
    unknown and the labels are estimates.
    """
    refuse_mixed(
        options,
        files=("model", "weights", "batch", "gradient"),
        required=("model", "batch", "gradient"),
        bundled=("noise_multiplier", "max_grad_norm", "batches", "data"),
    )
    recover = _on_files if options["dataset"] is None else _on_data
    report = checked(lambda: recover(types.SimpleNamespace(**options)))
    finish(report, as_json, lambda: (f"{name:<12}{value}" for name, value in report["shown"].items()))


def _on_files(setting: types.SimpleNamespace) -> dict[str, Any]:
    import numpy as np

    from leakcore._base import validate
    from leakcore.attacks import labels as attack
    from leakcore.models import load_safetensors

    gradient, batch, noise_std = setting.gradient, setting.batch, setting.noise_std
    gradients, rows = read_arrays(gradient), read_arrays(batch)
    if "inputs" not in rows:
        raise ValueError(f"{batch}: holds no array named inputs; there are {', '.join(sorted(rows)) or 'none'}")
    module = built_model(setting.model)
    if setting.weights is not None:
        load_safetensors(module, setting.weights)
    module.eval()
    own = [name for name, _ in module.named_parameters()]
    names = list(setting.parameters) or [n for n in own if n in gradients]
    for name in names or [""]:
        if name not in gradients or name not in own:
            where = gradient if name in own or not name else f"the parameters of {setting.model}"
            raise ValueError(
                f"{where}: holds no {name or 'gradient of any parameter'}; {gradient} has "
                f"{', '.join(sorted(gradients))}, the model {', '.join(own)}"
            )
    if noise_std is not None:
        validate.non_negative(noise_std=noise_std)
    recovery = attack.general(
        attack.KnownModel(module, rows["inputs"]),
        attack.GradientObservation(
            [gradients[n] for n in names], reduction=setting.reduction, batch_size=setting.batch_size
        ),
        parameters=names,
        known_probs=setting.known_probs or None,
        noise=None if noise_std is None else attack.Noise(noise_std, setting.confidence if noise_std else None),
    )
    lines = {
        "labels": " ".join(str(int(v)) for v in recovery.labels),
        "determined": f"{int(recovery.determined.sum())} of {len(recovery.labels)}  ({float(recovery.value):.1%}); "
        "the others are -1",
        "system": f"{', '.join(names)}: rank {recovery.rank}, condition {recovery.condition:.3g}",
        "kind": _kind(recovery),
        "assumed": "; ".join(recovery.assumptions.notes),
    }
    out: dict[str, Any] = {"attack": recovery.to_dict(), "parameters": names}
    if "labels" in rows:
        truth = np.asarray(rows["labels"]).reshape(-1)
        if truth.shape != recovery.labels.shape:
            raise ValueError(
                f"{batch}: `labels` must have shape {recovery.labels.shape}, one per input, got {truth.shape}"
            )
        right = int((recovery.labels == truth)[recovery.determined].sum())
        out["right"] = right
        lines["right"] = f"{right} of {int(recovery.determined.sum())} determined"
    return {**out, "shown": lines}


def _on_data(setting: types.SimpleNamespace) -> dict[str, Any]:
    import numpy as np

    from leakcore.audit import guarantee, number, power
    from leakcore.experiments import play

    outcome = play(
        setting.dataset,
        data=setting.data,
        noise_multiplier=setting.noise_multiplier or 0.0,
        max_grad_norm=1.0 if setting.max_grad_norm is None else setting.max_grad_norm,
        batches=setting.batches or 15,
        confidence=setting.confidence,
        seed=setting.seed,
    )
    bound = outcome.bound
    lines = {
        "data": outcome.described,
        "determined": f"{outcome.determined} of {outcome.labels}  ({outcome.determined / outcome.labels:.1%})",
        "right": f"{outcome.right} of {outcome.determined} determined",
        "by sign": f"{outcome.right_by_sign} of {outcome.identifiable} identifiable, were every one named",
        "label-ε ≥": f"{number(bound.largest, kind=bound.kind)}  (largest of {outcome.batches} batches; mean "
        f"{number(float(np.mean(bound.value)), kind=bound.kind)}; test {bound.test}, δ = {power(bound.delta)}; "
        f"{guarantee(bound)})",
        "label-ε ≤": f"{number(bound.replacement)}  (one step, δ = {power(bound.delta)}; "
        f"{guarantee(bound.replacement)})",
        "attacker": outcome.attacker,
    }
    return {**outcome.to_dict(), "shown": lines}


def _kind(recovery: Any) -> str:
    if recovery.kind != "lower":
        return "estimate: no guarantee that a determined label is right (give --noise-std)"
    if recovery.confidence is None:
        return "lower: every determined label is right if all that is assumed is so"
    return (
        f"lower: no determined label is wrong with probability {recovery.confidence:g} over the noise, if all that is "
        "assumed is so"
    )
