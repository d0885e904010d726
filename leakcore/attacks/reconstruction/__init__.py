"""Reconstruction: prior-aware attacks, gradient descent, shadow models, and the game that counts successes."""
