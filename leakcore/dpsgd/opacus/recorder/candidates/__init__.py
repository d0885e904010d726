"""The candidates of a recording: their rows, where they are in batches, and their gradients."""
