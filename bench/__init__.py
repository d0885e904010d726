"""Benchmarks: `python -m bench [--quick] [--only NAME]` from the repository's root."""
