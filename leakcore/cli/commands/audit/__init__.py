"""One file for each command of `leakcore audit`, and what they share."""
