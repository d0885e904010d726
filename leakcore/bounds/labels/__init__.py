"""How much ε one aggregated gradient spends on a label."""
