"""Privacy losses on a lattice, rounded outwards."""
