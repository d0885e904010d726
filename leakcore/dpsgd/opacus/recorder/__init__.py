"""A training loop, watched: its steps, its losses, and what they say of candidates."""
