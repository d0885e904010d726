"""Whole jobs, each beside what a user would pick instead: `python -m bench.jobs`."""
