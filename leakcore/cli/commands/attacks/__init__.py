"""One file for each command of `leakcore attack`."""
