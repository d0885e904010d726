"""Privacy profiles δ(ε), their inverses, and the noise for a wanted one."""
