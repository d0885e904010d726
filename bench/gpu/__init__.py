"""The day with a GPU: `make gpu` builds for the card at hand, tests the kernels on it and times them."""
