"""The native kernels behind a thin API: validate, allocate with the caller's own library, hand over pointers.

NumPy arrays, torch tensors, CuPy arrays and anything else that speaks DLPack or `__cuda_array_interface__` come in
without a copy, any strides; results come back as the same kind on the same device. On a CUDA device everything happens
on the stream that the array's library is using, in memory that it allocates. Nothing here imports torch. No result
depends on the number of threads or on how work is cut up.

Random numbers: Philox4x32-10, a pure function of (seed, purpose, step, sample index). The promise: same seed, same
integers, on every machine and device, for the life of a major version; floating results agree to a few units in the
last place. The generator is statistical, not cryptographic: noise for a model that will be released must come from a
secure source (`noise=`), never from a seed.
"""

from leakcore._base.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
