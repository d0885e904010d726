"""Where the header is for extensions that call a kernel from C or C++."""

from __future__ import annotations

import pathlib


def get_include() -> str:
    """The folder to add to the include path of an extension that calls a kernel from C or C++.

    It holds `leakcore/kernels.h`, which documents a table of C functions (`mixture_log_ratio`, `clip_and_noise`). The
    installed leakcore hands the table over at run time: nothing is linked, and no other header is needed.
    `examples/embed_kernel` is a whole extension.

    Returns:
        The path as text.

    Example:
        >>> import leakcore
        >>> from pathlib import Path
        >>> (Path(leakcore.get_include()) / "leakcore" / "kernels.h").is_file()
        True
    """
    return str(pathlib.Path(__file__).resolve().parents[1] / "include")
