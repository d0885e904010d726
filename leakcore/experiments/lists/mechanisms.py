"""Comparisons of training schemes: short name, title, what is published about each."""

FIGURES = (
    (
        "trainings",
        "Eight published trainings under each scheme of drawing batches",
        "eight trainings, each with an ε that accounting for its batches as Poisson samples gives",
    ),
    (
        "shuffling",
        "ε that Poisson accounting claims for shuffled batches, against what is proved of them",
        (
            "there can be a substantial gap between shuffled batches and the Poisson accounting that is used for them "
            "(Chua et al. 2024)"
        ),
    ),
)
