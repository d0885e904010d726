"""The lecture's curve and table: short name, title, data sets, what the lecture says that each shows."""

FIGURES = (
    (
        "laplace",
        "The Laplace mechanism on the gradient of a two-layer network: sensitivity and signal-to-noise ratio",
        (),
        (
            "the ℓ1-sensitivity of the gradient is O(m√d); noise of scale Δ/ε is highly impractical, particularly for "
            "high dimensions d and small ε"
        ),
    ),
)
