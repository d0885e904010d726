"""Studies around the reconstruction paper's figures."""
