"""Pairs of Gaussians, and single steps of the sampled Gaussian mechanism."""
