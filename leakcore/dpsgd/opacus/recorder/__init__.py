"""Watching a training loop: its steps, its losses, and the scores of candidates."""
