"""Record an Opacus run as the adversary sees it, reduced to scores of candidates or canaries during the run."""
