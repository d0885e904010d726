"""Step laws beyond the sampled Gaussian: each is a pair (μ, ν), as masses of its loss log μ/ν, for the lattice."""
