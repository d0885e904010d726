"""Training runs of Opacus: recorded, or trained with the fused optimizer."""
