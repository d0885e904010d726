"""Opacus's optimizer without per-sample gradients."""
