"""The privacy loss of a composition, and its tails by Fourier inversion."""
