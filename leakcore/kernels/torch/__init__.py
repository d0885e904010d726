"""The kernels as torch operators. Nothing else in leakcore.kernels imports torch before a torch array comes."""
