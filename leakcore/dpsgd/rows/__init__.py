"""The training loop as it is observed: its hooks, and whether the clipped rows are the rows of the batch."""
