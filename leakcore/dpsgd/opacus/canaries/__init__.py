"""Canaries planted in an Opacus run, whose gradients lie on coordinates of their own."""
