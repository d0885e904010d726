"""The networks, data and attributes on which the latent measures are tried."""

from __future__ import annotations

import torch

from leakcore.experiments.context import Context
from leakcore.experiments.leakage import study

Job = tuple[str, torch.nn.Module, study.LayerData, str, int]
"""(panel, network, study, attribute, number of layers before the classifier)."""


def jobs(context: Context, *, every_set: bool = False) -> list[Job]:
    """LeNet on images, TextClf on reviews, an MLP on bank clients, each trained briefly.

    every_set: also AlexNet and VGG9, and LeNet on every set of images.
    """
    epochs = context.pick("epochs of training", tiny=0, quick=1, paper=10)
    out: list[Job] = []
    pictures = study.images(context)
    every_network = context.scale == "paper" or (every_set and context.scale != "tiny")
    pairs = [(pictures, kind) for kind in (("lenet", "alexnet", "vgg9") if every_network else ("lenet",))]
    if every_set:
        pairs += [(other, "lenet") for other in study.image_sets(context)[1:]]
    for pictured, kind in pairs:
        (model,) = study.trained(context, pictured, kind, [epochs])
        out += [
            (f"{kind}, {pictured.name}", model, pictured, name, study.CLASSIFIER[kind]) for name in pictured.attributes
        ]
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
