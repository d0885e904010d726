"""The frame of every page that leakcore writes: one file, without a network or a script, verdict and picture first."""
