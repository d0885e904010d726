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
    (
        "table1",
        "Table 1, measured: tensor method and gradient inversion under each defence, compared with the bounds",
        (),
        (
            "B√(d/m) without defence and under clipping, kB√(d/m) under k-local aggregation, (B + σ)√(d/m) under "
            "noise, (B + σ max{1, ‖g‖/s})√(d/m) under DP-SGD, B√(d/(mp)) under dropout; none for pruning"
        ),
    ),
    (
        "defenses",
        "Seven defences against four attacks: what each attack still gets, and what each defence costs",
        (),
        (
            "the table's bounds speak of the tensor method: it does not suffer from clipping, and local aggregation, "
            "noise, DP-SGD and dropout raise its error; nothing is said of pruning, nor of any other attack"
        ),
    ),
)
