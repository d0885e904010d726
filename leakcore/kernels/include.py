"""Where the header is for extensions that call a kernel from C or C++."""

from __future__ import annotations

import pathlib


def get_include() -> str:
    """The folder to add to the include path of an extension that calls a kernel from C or C++.

    It holds `leakcore/kernels.h`, which documents a table of C functions, one for each kernel. The installed leakcore
    hands the table over at run time: nothing is linked, and no other header is needed. CMake finds it by
    `find_package(leakcore CONFIG)` in the folder above. `examples/embed_kernel` and `examples/embed_cmake` are whole
    extensions.

    Returns:
        The path as text.

    Example:
        >>> import leakcore
        >>> from pathlib import Path
        >>> (Path(leakcore.get_include()) / "leakcore" / "kernels.h").is_file()
        True
    """
    return str(pathlib.Path(__file__).resolve().parents[1] / "include")
