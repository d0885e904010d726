"""ε, δ and σ of a DP-SGD configuration, under either neighbouring relation.

Three routes: "exact", our own privacy profile by tilted Fourier inversion (no discretisation, error reported);
"pld" and "rdp" by Google's dp-accounting (`pip install leakcore[accounting]`). Every result carries its adjacency.
Nothing converts between relations silently: σ = 1, one full-batch step, δ = 1e-5 is ε = 4.38 under add/remove and
9.997 under replacement.
"""

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
