"""A drop-in DP optimizer that clips rows without storing their gradients."""
