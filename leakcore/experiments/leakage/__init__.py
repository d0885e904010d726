"""Quantifying and Localizing Private Information Leakage from Neural Network Gradients (Mo et al., 2021), by figure."""
