"""Success against a discrete prior, and against a label."""
