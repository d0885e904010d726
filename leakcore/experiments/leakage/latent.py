"""The networks, data and attributes on which the latent measures are tried."""

from __future__ import annotations

import torch

from leakcore.experiments.context import Context
from leakcore.experiments.leakage import study

Job = tuple[str, torch.nn.Module, study.LayerData, str, int]
"""(panel, network, study, attribute, number of layers before the classifier)."""


def jobs(context: Context) -> list[Job]:
    """LeNet on images, TextClf on reviews, an MLP on bank clients, each trained briefly."""
    epochs = context.pick("epochs of training", tiny=0, quick=1, paper=10)
    out: list[Job] = []
    pictures = study.images(context)
    kinds = [("lenet", 2)] if context.scale != "paper" else [("lenet", 2), ("alexnet", 5), ("vgg9", 6)]
    for kind, before in kinds:
        (model,) = study.trained(context, pictures, kind, [epochs])
        out += [(f"{kind}, CIFAR-100", model, pictures, name, before) for name in pictures.attributes]
    text = study.reviews(context)
    (model,) = study.trained(context, text, "textclf", [epochs])
    out.append(("TextClf, IMDB", model, text, "length", 2))
    for attribute in ("housing", "married"):
        for with_column in (True, False):
            clients = study.bank(context, attribute, with_column=with_column)
            (model,) = study.trained(context, clients, "mlp", [epochs])
            out.append(
                (f"MLP, Bank, {attribute} {'in' if with_column else 'not in'} the inputs", model, clients, attribute, 0)
            )
    return out
