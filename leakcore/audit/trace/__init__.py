"""An audit of a recorded training run."""
