"""The reconstruction paper's figures, and studies around them: short name, title, data sets, what the paper says."""

FIGURES = (
    ("fig1", "Model-based and gradient-based attacks: error of reconstructions", ("mnist", "cifar10"),
     ("gradient-based attacks beat model-based ones by orders of magnitude at larger ε; the best attack starts "
         "to perform "
     "well at 10² < ε < 10³ on MNIST and 10³ < ε < 10⁴ on CIFAR-10")),
    ("fig2", "Attacks against bounds on CIFAR-10, last layer trained", ("cifar10",),
     ("our bound improves on the RDP bound, which is trivial at ε = 10 and 100; the prior-aware attack is very "
         "close to "
     "the bound in all settings")),
    ("fig3", "How the number of candidates affects reconstruction", ("mnist",),
     ("bound and attack fall as the prior grows; the gap widens for larger ε and priors, and is tight for ε < 10 and "
     "priors up to 2¹⁰")),
    ("fig4", "Plain and improved prior-aware attack with mini-batches, q = 0.02", ("mnist",),
     "the improved attack is fairly tight to the bound, and there is a large difference between the two attacks"),
    ("fig5", "σ against q at (4, 10⁻⁵)-DP, T = 100: bound and attack", ("mnist",),
     "q = 0.01: bound ≈ 0.20, attack ≈ 0.15; q = 0.99: bound ≈ 0.35, attack ≈ 0.32"),
    ("fig6", "Examples of reconstructions by the gradient-based attack", ("mnist", "cifar10"),
     "reconstructions become recognisable as ε grows"),
    ("table2", "Advantage: our bound and Fano's (Guo et al. 2022b), exact values", (),
     "our bound on the advantage is below Guo et al.'s for σ from 0.5 to 3 and priors of 10 and 100"),
    ("fig7", "Model size and the prior-aware attack", ("mnist",),
     "almost no difference in attack success between hidden layers of 10, 100 and 1,000"),
    ("fig8", "Gradient-based and prior-aware attack for priors of 2, 8 and 128", ("mnist",),
     "an order of magnitude between the gradient-based and the prior-aware attack"),
    ("fig9", "The prior's distribution: digits or noise", ("mnist",),
     "little difference between the two; both are close to the upper bound"),
    ("fig10", "Without subtraction of known gradients", ("mnist",),
     "a minor effect at |D₋| = 4; the attack fails completely at |D₋| = 128"),
    ("fig11", "Advantage over σ: our bound and Fano's, prior of 10", (),
     "our bound is tighter than Guo et al.'s and than its Monte-Carlo approximation"),
    ("fig12", "Very small priors: pixels within 32/255", ("mnist", "cifar10"),
     "prior probability of success 9.66e-473 (MNIST) and 2.96e-1850 (CIFAR-10) at ρ = 1"),
    ("fig13", "Clipping norm 0.1 and 1", ("mnist",),
     ("at C = 0.1 all gradients are clipped and the attack is tight; at C = 1 the mean norm falls from 0.9 (ε = "
         "1) to 0.5 "
     "(ε = 40) and the gap grows")),
    ("fig14", "Bound and improved attack over q at fixed ε", ("mnist",),
     "smaller success at smaller q in all settings, most at larger ε"),
    ("fig15", "Upper bound over σ and q at fixed ε", (),
     "ε = 32, prior 100: 0.4 at q = 0.01, 1 at q = 0.99"),
)  # fmt: skip
STUDIES = (
    ("gap", "The gap between attack and bound on MNIST, split in two", ("mnist",),
     "prior-aware attack and bound are nearly identical"),
    ("sweep", "The learning rate at (4, 10⁻⁵)-DP: accuracy and attack", ("mnist",),
     "C = 1, T = 100, prior of 10: attack ≈ 0.15 at q = 0.01 and ≈ 0.32 at q = 0.99, bounds ≈ 0.20 and ≈ 0.35"),
    ("spread", "Standard deviation of the Monte-Carlo estimate over 1,000 calls", (),
     "at ε = 10 it is below 0.019 with 10,000 samples and below 0.0017 with 1,000,000"),
)  # fmt: skip
