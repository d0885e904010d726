"""What the reconstruction paper's figures share: data, games, noise and attacks."""
