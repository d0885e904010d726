"""The layer-wise leakage paper's figures: short name, title, data sets, what the paper says that each shows."""

IMAGES = ("cifar100", "cifar10", "mnist", "fashion_mnist")
"""Four sets of images, as the paper has."""

FIGURES = (
    ("fig3", "Mutual information of each layer's gradient with inputs and labels", ("mnist",),
     ("the first layer's gradient always has the highest mutual information with both; after the first epochs, later "
     "layers have less information about the label")),
    ("fig4", "Original information by V-information, pairs of layers", ("cifar100",),
     "the risk generally decreases from the first pair of layers to the last"),
    ("fig5", "Latent information by V-information, layer by layer", ("cifar100", "imdb", "bank"),
     "the risk grows through the feature extractor, is largest at the first classifier layer, then falls"),
    ("fig6", "Original information by sensitivity, F-norm", IMAGES,
     ("gradients of the first layers are more sensitive than gradients of later layers; sensitivity correlates with "
      "V-information, R = 0.686–0.707")),
    ("fig7", "Latent information by subspace distance", (*IMAGES, "imdb", "bank"),
     ("classifier layers, mostly the first or second, lie farther apart than layers of the feature extractor; "
     "R = 0.686–0.707 with V-information")),
    ("fig8", "Original information by sensitivity, 1-norm and ∞-norm", IMAGES,
     "as with the F-norm, first layers have higher risks"),
    ("fig9", "Aggregation with gradients of other samples", ("cifar100",),
     ("with 30 times as much other information, sensitivity is near zero; 10 times make reconstruction very difficult, "
     "and 30 to 50 times make attributes hard to infer")),
    ("fig10", "Training epochs", IMAGES,
     "the epoch has a negligible effect, except for a fall in the first 10 (original) or 20 (latent) epochs"),
    ("fig11", "Noise on one layer's gradient, clipping norm 1", IMAGES,
     "noise reduces both risks: original information most on the first layers, latent information most on the last"),
)  # fmt: skip
