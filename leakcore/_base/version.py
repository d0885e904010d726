"""The version of leakcore, where every file can read it without importing the package's root."""

__version__ = "0.1.0"
