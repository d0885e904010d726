"""The label paper's figures: short name, title, data sets, what the paper says that each shows."""

NEEDS = ("cervical", "bank")
FIGURES = (
    (
        "fig1",
        "Label-ε: lower and upper bound against the noise multiplier",
        (
            "lower and upper bound fall together as the noise grows, at a constant distance on a logarithmic axis; it "
            "is far riskier to expose the last layer than the second last"
        ),
    ),
    (
        "fig2",
        "Label-ε: lower and upper bound against the clipping norm, σ = 0.5",
        (
            "the lower bound falls as the clipping norm grows, which does not change the provable ε; it is far riskier "
            "to expose the last layer than the second last"
        ),
    ),
    (
        "fig3",
        "Distribution of the lower bounds of single samples",
        "lower bounds of single samples are exponentially distributed",
    ),
    (
        "fig4",
        "Gradient magnitudes of the last and the second last layer",
        "gradients of the second last layer are much smaller than gradients of the last layer",
    ),
    (
        "fig5",
        "Label-ε against the number of batches, with both extrapolations",
        (
            "with all batches the bound is 11% larger than with one (cancer), and 0.091 instead of 0.033 (bank, with "
            "an upper bound of 282.24): roughly the growth by factors of 1.69 and 2.12 that the extrapolation predicts"
        ),
    ),
)
