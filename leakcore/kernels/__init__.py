"""The native kernels behind a thin API: validate, allocate with the caller's own library, hand over pointers.

NumPy arrays, torch tensors, CuPy arrays and anything else that speaks DLPack or `__cuda_array_interface__` come in
without a copy, any strides; results come back as the same kind on the same device. On a CUDA device everything happens
on the stream that the array's library is using, in memory that it allocates. Nothing here imports torch. No result
depends on the number of threads or on how work is cut up.

Random numbers: Philox4x32-10, a pure function of (seed, purpose, step, sample index). The promise: same seed, same
integers, on every machine and device, for the life of a major version; floating results agree to a few units in the
last place.
The generator is statistical, not cryptographic: noise for a model that will be released must come from a secure
source (`noise=`), never from a seed.
"""

from typing import TYPE_CHECKING

from leakcore._base.lazy import attach as _attach

if TYPE_CHECKING:
    from leakcore._base.array_memory import is_torch as is_torch
    from leakcore.kernels.allocation import Allocation as Allocation
    from leakcore.kernels.allocation import allocation_tail as allocation_tail
    from leakcore.kernels.api import allocation_log_ratio as allocation_log_ratio
    from leakcore.kernels.api import clip_and_noise as clip_and_noise
    from leakcore.kernels.api import clip_scores as clip_scores
    from leakcore.kernels.api import mixture_log_ratio as mixture_log_ratio
    from leakcore.kernels.api import solve_labels as solve_labels
    from leakcore.kernels.arrays import empty_on as empty_on
    from leakcore.kernels.arrays import require_device as require_device
    from leakcore.kernels.arrays import to_numpy as to_numpy
    from leakcore.kernels.arrays import wrap as wrap
    from leakcore.kernels.clip import Clipped as Clipped
    from leakcore.kernels.clip import Scores as Scores
    from leakcore.kernels.ensemble import ACTIVATIONS as ACTIVATIONS
    from leakcore.kernels.ensemble import MAX_LAYERS as MAX_LAYERS
    from leakcore.kernels.ensemble import EnsembleRows as EnsembleRows
    from leakcore.kernels.ensemble import EnsembleSums as EnsembleSums
    from leakcore.kernels.ensemble import Taken as Taken
    from leakcore.kernels.info import arithmetic as arithmetic
    from leakcore.kernels.info import build_info as build_info
    from leakcore.kernels.info import get_include as get_include
    from leakcore.kernels.info import selftest as selftest
    from leakcore.kernels.mixture import MixtureTail as MixtureTail
    from leakcore.kernels.mixture import mixture_tail as mixture_tail
    from leakcore.kernels.random import generator as generator
    from leakcore.kernels.random import philox4x32 as philox4x32
    from leakcore.kernels.random import standard_normal as standard_normal
    from leakcore.kernels.random import subseed as subseed
    from leakcore.kernels.random import torch_generator as torch_generator
    from leakcore.kernels.random import torch_seeded as torch_seeded
    from leakcore.kernels.random import uniform as uniform
    from leakcore.kernels.solve_labels import LabelSolution as LabelSolution
    from leakcore.kernels.streams import Stream as Stream
    from leakcore.kernels.threads import num_threads as num_threads
    from leakcore.kernels.threads import set_num_threads as set_num_threads
    from leakcore.kernels.threads import thread_limit as thread_limit
    from leakcore.kernels.threads import usable_cores as usable_cores

_NAMES = {
    "Allocation": ".allocation",
    "allocation_log_ratio": ".api",
    "allocation_tail": ".allocation",
    "arithmetic": ".info",
    "clip_and_noise": ".api",
    "clip_scores": ".api",
    "Clipped": ".clip",
    "Scores": ".clip",
    "solve_labels": ".api",
    "LabelSolution": ".solve_labels",
    "mixture_log_ratio": ".api",
    "mixture_tail": ".mixture",
    "MixtureTail": ".mixture",
    "philox4x32": ".random",
    "standard_normal": ".random",
    "uniform": ".random",
    "Stream": ".streams",
    "num_threads": ".threads",
    "set_num_threads": ".threads",
    "thread_limit": ".threads",
    "build_info": ".info",
    "generator": ".random",
    "get_include": ".info",
    "subseed": ".random",
    "torch_generator": ".random",
    "torch_seeded": ".random",
    "selftest": ".info",
}
_SHARED = {
    "ACTIVATIONS": ".ensemble",
    "EnsembleRows": ".ensemble",
    "EnsembleSums": ".ensemble",
    "MAX_LAYERS": ".ensemble",
    "Taken": ".ensemble",
    "is_torch": ".arrays",
    "empty_on": ".arrays",
    "require_device": ".arrays",
    "to_numpy": ".arrays",
    "usable_cores": ".threads",
    "wrap": ".arrays",
}
"""For leakcore's other packages: no promise to users."""
if not TYPE_CHECKING:  # a checker would take any name from it
    __getattr__, __dir__, __all__ = _attach(__name__, _NAMES, _SHARED)
