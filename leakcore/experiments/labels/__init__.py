"""Deep Gradient Attacks with Strong DP-SGD Lower Bounds for Label Privacy (Yuan et al., 2022), figure by figure."""
