"""Whole jobs, each compared with what a user would pick instead: `python -m bench.jobs`."""
