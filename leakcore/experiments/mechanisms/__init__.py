"""Training schemes compared: published trainings, and what Poisson accounting says of shuffled batches."""
