"""The guard: whether the rows that are clipped are the batch's rows."""
