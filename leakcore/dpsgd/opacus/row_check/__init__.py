"""Check that the clipped rows are the rows of the batch."""
