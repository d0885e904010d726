"""The figures and tables by name: title, what the paper says that each shows, data sets, module, and time.

The function that makes a figure is imported when it is asked for.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable

from leakcore.experiments.driver.result import ExperimentResult


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A figure or table of a paper that leakcore can reproduce.

    Attributes:
        name: by which `run` and `leakcore reproduce` find it, such as "reconstruction-fig3".
        title: what it is about.
        statement: what the paper says that it shows.
        needs: names of the data sets that it reads; empty if it computes bounds only.
        module: in leakcore.experiments, which is imported when the experiment runs. Its function has the last part of
            the name: "fig3".
        seconds: at the quick scale, on two cores of an AMD EPYC that had other work as well.

    Example:
        >>> from leakcore import experiments
        >>> experiment = experiments.find("labels-fig1")
        >>> experiment.module, len(experiment.needs) > 0
        ('labels.noise_and_clipping', True)
    """

    name: str
    title: str
    statement: str
    needs: tuple[str, ...]
    module: str
    seconds: int

    @property
    def quick(self) -> str:
        """How long it takes at the quick scale on two cores, roughly, such as "about 10 s"."""
        return _rounded(self.seconds)

    def load(self) -> Callable[..., ExperimentResult]:
        """Import the experiment's module.

        Returns:
            The function that makes the figure from a `Context`.
        """
        module = importlib.import_module(f"leakcore.experiments.{self.module}")
        function: Callable[..., ExperimentResult] = getattr(module, self.name.partition("-")[2])
        return function


def _rounded(seconds: int) -> str:
    if seconds < 100:
        return f"about {seconds} s"
    return f"about {seconds / 60:.1f} min" if seconds < 1000 else f"about {seconds / 60:.0f} min"


def quick_of_all() -> str:
    """How long all of them take at the quick scale."""
    return _rounded(sum(experiment.seconds for experiment in EXPERIMENTS.values()))


_IMAGE_SETS = ("cifar100", "cifar10", "mnist", "fashion_mnist")
"""Four sets of images, as the leakage paper has."""
_ROWS: dict[str, tuple[tuple[str, str, int, tuple[str, ...], str, str], ...]] = {
    "reconstruction": (
        ("fig1", "reconstruction.fig1", 255, ("mnist", "cifar10"),
         "Model-based and gradient-based attacks: error of reconstructions",
         ("gradient-based attacks beat model-based ones by orders of magnitude at larger ε; the best attack starts "
          "to perform well at 10² < ε < 10³ on MNIST and 10³ < ε < 10⁴ on CIFAR-10")),
        ("fig2", "reconstruction.best_rate", 235, ("cifar10",),
         "Attacks against bounds on CIFAR-10, last layer trained",
         ("our bound improves on the RDP bound, which is trivial at ε = 10 and 100; the prior-aware attack is very "
          "close to the bound in all settings")),
        ("fig3", "reconstruction.sweeps", 92, ("mnist",),
         "How the number of candidates affects reconstruction",
         ("bound and attack fall as the prior grows; the gap widens for larger ε and priors, and is tight for ε < "
          "10 and priors up to 2¹⁰")),
        ("fig4", "reconstruction.best_rate", 272, ("mnist",),
         "Plain and improved prior-aware attack with mini-batches, q = 0.02",
         ("the improved attack is fairly tight to the bound, and there is a large difference between the two "
          "attacks")),
        ("fig5", "reconstruction.best_rate", 209, ("mnist",),
         "σ against q at (4, 10⁻⁵)-DP, T = 100: bound and attack",
         "q = 0.01: bound ≈ 0.20, attack ≈ 0.15; q = 0.99: bound ≈ 0.35, attack ≈ 0.32"),
        ("fig6", "reconstruction.pictures", 75, ("mnist", "cifar10"),
         "Examples of reconstructions by the gradient-based attack",
         "reconstructions become recognisable as ε grows"),
        ("table2", "reconstruction.bounds_alone", 2, (),
         "Advantage: our bound and Fano's (Guo et al. 2022b), exact values",
         "our bound on the advantage is below Guo et al.'s for σ from 0.5 to 3 and priors of 10 and 100"),
        ("fig7", "reconstruction.sweeps", 103, ("mnist",),
         "Model size and the prior-aware attack",
         "almost no difference in attack success between hidden layers of 10, 100 and 1,000"),
        ("fig8", "reconstruction.sweeps", 75, ("mnist",),
         "Gradient-based and prior-aware attack for priors of 2, 8 and 128",
         "an order of magnitude between the gradient-based and the prior-aware attack"),
        ("fig9", "reconstruction.sweeps", 129, ("mnist",),
         "The prior's distribution: digits or noise",
         "little difference between the two; both are close to the upper bound"),
        ("fig10", "reconstruction.sweeps", 105, ("mnist",),
         "Without subtraction of known gradients",
         "a minor effect at |D₋| = 4; the attack fails completely at |D₋| = 128"),
        ("fig11", "reconstruction.bounds_alone", 2, (),
         "Advantage over σ: our bound and Fano's, prior of 10",
         "our bound is tighter than Guo et al.'s and than its Monte-Carlo approximation"),
        ("fig12", "reconstruction.pictures", 179, ("mnist", "cifar10"),
         "Very small priors: pixels within 32/255",
         "prior probability of success 9.66e-473 (MNIST) and 2.96e-1850 (CIFAR-10) at ρ = 1"),
        ("fig13", "reconstruction.sweeps", 139, ("mnist",),
         "Clipping norm 0.1 and 1",
         ("at C = 0.1 all gradients are clipped and the attack is tight; at C = 1 the mean norm falls from 0.9 (ε = "
          "1) to 0.5 (ε = 40) and the gap grows")),
        ("fig14", "reconstruction.sweeps", 105, ("mnist",),
         "Bound and improved attack over q at fixed ε",
         "smaller success at smaller q in all settings, most at larger ε"),
        ("fig15", "reconstruction.bounds_alone", 17, (),
         "Upper bound over σ and q at fixed ε",
         "ε = 32, prior 100: 0.4 at q = 0.01, 1 at q = 0.99"),
        ("gap", "reconstruction.learning_rate", 241, ("mnist",),
         "The gap between attack and bound on MNIST, split in two",
         "prior-aware attack and bound are nearly identical"),
        ("sweep", "reconstruction.learning_rate", 111, ("mnist",),
         "The learning rate at (4, 10⁻⁵)-DP: accuracy and attack",
         "C = 1, T = 100, prior of 10: attack ≈ 0.15 at q = 0.01 and ≈ 0.32 at q = 0.99, bounds ≈ 0.20 and ≈ 0.35"),
        ("spread", "reconstruction.bounds_alone", 78, (),
         "Standard deviation of the Monte-Carlo estimate over 1,000 calls",
         "at ε = 10 it is below 0.019 with 10,000 samples and below 0.0017 with 1,000,000"),
    ),
    "labels": (
        ("fig1", "labels.noise_and_clipping", 32, ("cervical", "bank"),
         "Label-ε: lower and upper bound against the noise multiplier",
         ("lower and upper bound fall together as the noise grows, at a constant distance on a logarithmic axis; it "
          "is far riskier to expose the last layer than the second last")),
        ("fig2", "labels.noise_and_clipping", 32, ("cervical", "bank"),
         "Label-ε: lower and upper bound against the clipping norm, σ = 0.5",
         ("the lower bound falls as the clipping norm grows, which does not change the provable ε; it is far "
          "riskier to expose the last layer than the second last")),
        ("fig3", "labels.unstated_settings", 94, ("cervical", "bank"),
         "Distribution of the lower bounds of single samples",
         "lower bounds of single samples are exponentially distributed"),
        ("fig4", "labels.unstated_settings", 89, ("cervical", "bank"),
         "Gradient magnitudes of the last and the second last layer",
         "gradients of the second last layer are much smaller than gradients of the last layer"),
        ("fig5", "labels.unstated_settings", 78, ("cervical", "bank"),
         "Label-ε against the number of batches, with both extrapolations",
         ("with all batches the bound is 11% larger than with one (cancer), and 0.091 instead of 0.033 (bank, with "
          "an upper bound of 282.24): roughly the growth by factors of 1.69 and 2.12 that the extrapolation "
          "predicts")),
    ),
    "leakage": (
        ("fig3", "leakage.information", 52, ("mnist",),
         "Mutual information of each layer's gradient with inputs and labels",
         ("the first layer's gradient always has the highest mutual information with both; after the first epochs, "
          "later layers have less information about the label")),
        ("fig4", "leakage.information", 28, ("cifar100",),
         "Original information by V-information, pairs of layers",
         "the risk generally decreases from the first pair of layers to the last"),
        ("fig5", "leakage.latent", 123, ("cifar100", "imdb", "bank"),
         "Latent information by V-information, layer by layer",
         "the risk grows through the feature extractor, is largest at the first classifier layer, then falls"),
        ("fig6", "leakage.sensitivity", 32, _IMAGE_SETS,
         "Original information by sensitivity, F-norm",
         ("gradients of the first layers are more sensitive than gradients of later layers; sensitivity correlates "
          "with V-information, R = 0.686–0.707")),
        ("fig7", "leakage.latent", 66, (*_IMAGE_SETS, "imdb", "bank"),
         "Latent information by subspace distance",
         ("classifier layers, mostly the first or second, lie farther apart than layers of the feature extractor; R "
          "= 0.686–0.707 with V-information")),
        ("fig8", "leakage.sensitivity", 31, _IMAGE_SETS,
         "Original information by sensitivity, 1-norm and ∞-norm",
         "as with the F-norm, first layers have higher risks"),
        ("fig9", "leakage.aggregation", 23, ("cifar100",),
         "Aggregation with gradients of other samples",
         ("with 30 times as much other information, sensitivity is near zero; 10 times make reconstruction very "
          "difficult, and 30 to 50 times make attributes hard to infer")),
        ("fig10", "leakage.epochs_and_noise", 70, _IMAGE_SETS,
         "Training epochs",
         "the epoch has a negligible effect, except for a fall in the first 10 (original) or 20 (latent) epochs"),
        ("fig11", "leakage.epochs_and_noise", 66, _IMAGE_SETS,
         "Noise on one layer's gradient, clipping norm 1",
         ("noise reduces both risks: original information most on the first layers, latent information most on the "
          "last")),
    ),
    "auditing": (
        ("fig2", "auditing_figures", 1174, ("fashion_mnist", "cifar10", "cifar100", "location30"),
         "Audited ε by ClipBKD, backdoor and membership against the provable ε",
         ("ClipBKD always proves more than backdoors (on FMNIST 3.84 times as much on average; backdoors prove "
          "nothing on CIFAR-10), and at least 2.5 times as much as membership inference; for finite ε_th it is "
          "mostly within a factor of 12.3, at best 6.6")),
        ("table2", "auditing_figures", 182, ("fashion_mnist",),
         "Audited ε against clipping norm, random initialisation and provable ε",
         ("ε_LB rises with ε_th, and random initialisation lowers it; a smaller clipping norm lowers it, too, "
          "except where the initialisation is fixed; there it is 4.2 to 7.7 times smaller than ε_th, and 4.54 for "
          "ε_th = ∞")),
    ),
    "lecture": (
        ("laplace", "lecture.laplace", 5, (),
         "The Laplace mechanism on the gradient of a two-layer network: sensitivity and signal-to-noise ratio",
         ("the ℓ1-sensitivity of the gradient is O(m√d); noise of scale Δ/ε is highly impractical, particularly for "
          "high dimensions d and small ε")),
        ("table1", "lecture.table1", 42, (),
         "Table 1, measured: tensor method and gradient inversion under each defence, compared with the bounds",
         ("B√(d/m) without defence and under clipping, kB√(d/m) under k-local aggregation, (B + σ)√(d/m) under "
          "noise, (B + σ max{1, ‖g‖/s})√(d/m) under DP-SGD, B√(d/(mp)) under dropout; none for pruning")),
        ("defenses", "lecture.defenses", 61, (),
         "Seven defences against four attacks: what each attack still gets, and what each defence costs",
         ("the table's bounds speak of the tensor method: it does not suffer from clipping, and local aggregation, "
          "noise, DP-SGD and dropout raise its error; nothing is said of pruning, nor of any other attack")),
    ),
    "mechanisms": (
        ("trainings", "mechanisms", 50, (),
         "Eight published trainings under each scheme of drawing batches",
         "eight trainings, each with an ε that accounting for its batches as Poisson samples gives"),
        ("shuffling", "mechanisms", 29, (),
         "ε that Poisson accounting claims for shuffled batches, against what is proved of them",
         ("there can be a substantial gap between shuffled batches and the Poisson accounting that is used for them "
          "(Chua et al. 2024)")),
    ),
}  # fmt: skip
"""By paper: short name, module, seconds, data sets, title, what the paper says."""
EXPERIMENTS = {
    f"{paper}-{short}": Experiment(f"{paper}-{short}", title, statement, needs, module, seconds)
    for paper, rows in _ROWS.items()
    for short, module, seconds, needs, title, statement in rows
}


def names() -> list[str]:
    """The names of all experiments, paper by paper.

    Returns:
        A list in the order of the papers' figures and tables.

    Example:
        >>> from leakcore import experiments
        >>> "reconstruction-table2" in experiments.names()
        True
    """
    return list(EXPERIMENTS)


def find(name: str) -> Experiment:
    """The experiment of a name.

    Args:
        name: one of `names()`.

    Returns:
        An `Experiment`.

    Raises:
        ValueError: for another name; the text lists all names.

    Example:
        >>> from leakcore import experiments
        >>> experiments.find("reconstruction-table2").needs
        ()
    """
    if name not in EXPERIMENTS:
        raise ValueError(f"`name` must be an experiment's, one of {', '.join(EXPERIMENTS)}, got {name!r}")
    return EXPERIMENTS[name]
