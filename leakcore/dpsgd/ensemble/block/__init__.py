"""One block of runs: its parameters, passes and clipped sums."""
