"""Where the header is for extensions that call a kernel from C or C++."""

from __future__ import annotations

import pathlib


def get_include() -> str:
    """The folder to add to an extension's include path: it holds `leakcore/kernels.h`, which says the rest.

    The header declares a table of C functions (`mixture_log_ratio`, `clip_and_noise`) that the installed leakcore hands
    over at run time: nothing is linked, and no other header is needed. `examples/embed_kernel` is a whole extension.
    """
    return str(pathlib.Path(__file__).resolve().parents[1] / "include")
