"""Random numbers as a pure function of seed, purpose, step and index."""
